//! The float kernels: portable bodies compiled for AVX2, and intrinsics where the compiler needs help.
//!
//! Loops over vectors are written with indices; see `dot.rs`.

#![allow(clippy::needless_range_loop, reason = "see above")]

use crate::simd::float as portable;
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
