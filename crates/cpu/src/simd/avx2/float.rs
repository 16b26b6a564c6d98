//! The float kernels: portable bodies compiled for AVX2, and intrinsics where the compiler needs help.
//!
//! Loops over vectors are written with indices; see `dot.rs`.

#![allow(clippy::needless_range_loop, reason = "see above")]

use super::math;
use crate::quantize::QuantRowMut;
use crate::simd::float as portable;
use crate::simd::math::ROUND;
use graph::ops::Activation;
use std::arch::x86_64::*;

crate::simd::all_float_kernels! { [#[target_feature(enable = "avx2,fma,f16c")]] }

/// # Safety
/// See [`portable::dot`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dot1(w: *const f32, x: [*const f32; 1], n: usize) -> [f32; 1] {
    // SAFETY: the caller's.
    unsafe { dot(w, x, n) }
}

/// # Safety
/// See [`portable::dot`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dot4(w: *const f32, x: [*const f32; 4], n: usize) -> [f32; 4] {
    // SAFETY: the caller's.
    unsafe { dot(w, x, n) }
}

/// See [`portable::dot`]: the 16 partial sums are two vectors.
///
/// # Safety
/// As there.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot<const T: usize>(w: *const f32, x: [*const f32; T], n: usize) -> [f32; T] {
    let mut parts = [[_mm256_setzero_ps(); 2]; T];
    let whole = n / 16 * 16;
    for i in (0..whole).step_by(16) {
        // SAFETY: i + 16 <= n.
        unsafe { multiply(&mut parts, w, &x, i) };
    }
    if whole < n {
        // Zeros leave a partial sum as it is: none is ever -0.
        let (mut w_rest, mut x_rest) = ([0.0f32; 16], [[0.0f32; 16]; T]);
        let mut rests = x;
        // SAFETY: the last n - whole elements, fewer than 16; then 16 elements each.
        unsafe {
            std::ptr::copy_nonoverlapping(w.add(whole), w_rest.as_mut_ptr(), n - whole);
            for t in 0..T {
                std::ptr::copy_nonoverlapping(x[t].add(whole), x_rest[t].as_mut_ptr(), n - whole);
                rests[t] = x_rest[t].as_ptr();
            }
            multiply(&mut parts, w_rest.as_ptr(), &rests, 0);
        }
    }
    let mut results = [0.0; T];
    for t in 0..T {
        // The tree of `math::sum_lanes`.
        let pairs = _mm256_hadd_ps(parts[t][0], parts[t][1]);
        let quads = _mm256_hadd_ps(pairs, pairs);
        let eights = _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps::<1>(quads));
        results[t] = _mm_cvtss_f32(_mm_add_ss(eights, _mm_movehdup_ps(eights)));
    }
    results
}

/// Adds the products of the 16 elements from `i` on to the partial sums.
///
/// # Safety
/// All pointers are valid for `i + 16` floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply<const T: usize>(
    parts: &mut [[__m256; 2]; T],
    w: *const f32,
    x: &[*const f32; T],
    i: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        let (low, high) = (_mm256_loadu_ps(w.add(i)), _mm256_loadu_ps(w.add(i + 8)));
        for t in 0..T {
            parts[t][0] = _mm256_fmadd_ps(low, _mm256_loadu_ps(x[t].add(i)), parts[t][0]);
            parts[t][1] = _mm256_fmadd_ps(high, _mm256_loadu_ps(x[t].add(i + 8)), parts[t][1]);
        }
    }
}

/// See [`portable::f16_to_f32`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn f16_to_f32(dst: &mut [f32], src: &[u8]) {
    let n = dst.len().min(src.len() / 2);
    let whole = n / 8 * 8;
    for i in (0..whole).step_by(8) {
        // SAFETY: i + 8 elements are inside both.
        unsafe {
            let half = _mm_loadu_si128(src.as_ptr().add(2 * i).cast());
            _mm256_storeu_ps(dst.as_mut_ptr().add(i), _mm256_cvtph_ps(half));
        }
    }
    portable::f16_to_f32(&mut dst[whole..n], &src[2 * whole..]);
}

/// See [`portable::f32_to_f16`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn f32_to_f16(dst: &mut [u8], src: &[f32]) {
    let n = src.len().min(dst.len() / 2);
    let whole = n / 8 * 8;
    for i in (0..whole).step_by(8) {
        // SAFETY: i + 8 elements are inside both.
        unsafe {
            let v = _mm256_loadu_ps(src.as_ptr().add(i));
            let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
            _mm_storeu_si128(dst.as_mut_ptr().add(2 * i).cast(), half);
        }
    }
    portable::f32_to_f16(&mut dst[2 * whole..], &src[whole..n]);
}

/// See [`portable::activation`]. The last few elements are done by the portable body, whose steps are the same.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn activation(dst: *mut f32, a: *const f32, kind: Activation, n: usize) {
    let whole = n / 8 * 8;
    for i in (0..whole).step_by(8) {
        // SAFETY: i + 8 <= n.
        unsafe { _mm256_storeu_ps(dst.add(i), math::activate(kind, _mm256_loadu_ps(a.add(i)))) };
    }
    // SAFETY: the caller's, from `whole` on.
    unsafe { portable::activation(dst.add(whole), a.add(whole), kind, n - whole) };
}

/// See [`portable::gated`].
///
/// # Safety
/// As there.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn gated(dst: *mut f32, a: *const f32, b: *const f32, kind: Activation, n: usize) {
    let whole = n / 8 * 8;
    for i in (0..whole).step_by(8) {
        // SAFETY: i + 8 <= n.
        unsafe {
            let y = math::activate(kind, _mm256_loadu_ps(a.add(i)));
            _mm256_storeu_ps(dst.add(i), _mm256_mul_ps(y, _mm256_loadu_ps(b.add(i))));
        }
    }
    // SAFETY: the caller's, from `whole` on.
    unsafe { portable::gated(dst.add(whole), a.add(whole), b.add(whole), kind, n - whole) };
}

/// See [`portable::quantize`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn quantize(x: &[f32], to: QuantRowMut<'_>) {
    let QuantRowMut { q, d, s, sums, half_sums } = to;
    let blocks = x.len() / 32;
    assert!(q.len() >= 32 * blocks && d.len() >= blocks && s.len() >= blocks);
    assert!(sums.len() >= 2 * blocks && half_sums.len() >= 4 * blocks);
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    // Packing interleaves the lanes of its operands; this puts elements back in order.
    let in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for b in 0..blocks {
        let mut v = [_mm256_setzero_ps(); 4];
        let mut top = _mm256_setzero_si256();
        for i in 0..4 {
            // SAFETY: block b is inside `x`.
            v[i] = unsafe { _mm256_loadu_ps(x.as_ptr().add(32 * b + 8 * i)) };
            top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
        }
        let top = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256::<1>(top));
        let top = _mm_max_epi32(top, _mm_shuffle_epi32::<0b01_00_11_10>(top));
        let top = _mm_max_epi32(top, _mm_shuffle_epi32::<0b00_00_00_01>(top));
        let top = f32::from_bits(_mm_cvtsi128_si32(top) as u32);
        let inverse = if top < 1e-30 || !top.is_finite() { 0.0 } else { 127.0 / top };
        let scale = if !top.is_finite() {
            f32::NAN
        } else if inverse == 0.0 {
            0.0
        } else {
            top / 127.0
        };
        let mut n = [_mm256_setzero_si256(); 4];
        if inverse != 0.0 {
            let round = _mm256_set1_ps(ROUND);
            for i in 0..4 {
                let y = _mm256_add_ps(_mm256_mul_ps(v[i], _mm256_set1_ps(inverse)), round);
                n[i] = _mm256_sub_epi32(_mm256_castps_si256(y), _mm256_castps_si256(round));
            }
        }
        // Quants are in -127 to 127, so nothing saturates.
        let words = [_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3])];
        let bytes = _mm256_packs_epi16(words[0], words[1]);
        let bytes = _mm256_permutevar8x32_epi32(bytes, in_order);
        // Sums of neighbours, less: words 0, 2, .. are of elements whose number modulo 4 is 0 or 1, the others of 2
        // or 3; each lane is a half of the block.
        let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
        let quads = _mm256_add_epi16(pairs, _mm256_shuffle_epi32::<0b01_00_11_10>(pairs));
        let halves = _mm256_add_epi16(quads, _mm256_shuffle_epi32::<0b00_00_00_01>(quads));
        let halves = _mm256_sub_epi16(_mm256_setzero_si256(), halves);
        let low = _mm_cvtsi128_si32(_mm256_castsi256_si128(halves));
        let high = _mm_cvtsi128_si32(_mm256_extracti128_si256::<1>(halves));
        let (low, high) = ([low as i16, (low >> 16) as i16], [high as i16, (high >> 16) as i16]);
        half_sums[4 * b..][..4].copy_from_slice(&[low[0], low[1], high[0], high[1]]);
        let all = [low[0] + high[0], low[1] + high[1]];
        sums[2 * b..][..2].copy_from_slice(&all);
        d[b] = scale;
        s[b] = scale * -(i32::from(all[0]) + i32::from(all[1])) as f32;
        // SAFETY: block b is inside `q`.
        unsafe { _mm256_storeu_si256(q.as_mut_ptr().add(32 * b).cast(), bytes) };
    }
}
