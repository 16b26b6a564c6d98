//! The float kernels: portable bodies, and intrinsics where the compiler needs help.

#![allow(clippy::needless_range_loop, reason = "vectors are named by their number in all arrays alike")]

use crate::simd::float as portable;
use std::arch::aarch64::*;
use std::arch::asm;

crate::simd::all_float_kernels! { [#[target_feature(enable = "neon")]] }

crate::simd::float_kernels! {
    [#[target_feature(enable = "neon")]]
    activation(dst: *mut f32, a: *const f32, kind: graph::ops::Activation, n: usize);
    gated(dst: *mut f32, a: *const f32, b: *const f32, kind: graph::ops::Activation, n: usize);
    quantize(x: &[f32], to: crate::quantize::QuantRowMut<'_>);
}

/// # Safety
/// See [`portable::dot`].
#[target_feature(enable = "neon")]
pub(super) unsafe fn dot1(w: *const f32, x: [*const f32; 1], n: usize) -> [f32; 1] {
    // SAFETY: the caller's.
    unsafe { dot(w, x, n) }
}

/// # Safety
/// See [`portable::dot`].
#[target_feature(enable = "neon")]
pub(super) unsafe fn dot4(w: *const f32, x: [*const f32; 4], n: usize) -> [f32; 4] {
    // SAFETY: the caller's.
    unsafe { dot(w, x, n) }
}

/// See [`portable::dot`]: the 16 partial sums are four vectors.
///
/// # Safety
/// As there.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn dot<const T: usize>(w: *const f32, x: [*const f32; T], n: usize) -> [f32; T] {
    let mut parts = [[vdupq_n_f32(0.0); 4]; T];
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
        let [a, b, c, d] = parts[t];
        let quads = vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d));
        results[t] = vpadds_f32(vget_low_f32(vpaddq_f32(quads, quads)));
    }
    results
}

/// Adds the products of the 16 elements from `i` on to the partial sums.
///
/// # Safety
/// All pointers are valid for `i + 16` floats.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn multiply<const T: usize>(
    parts: &mut [[float32x4_t; 4]; T],
    w: *const f32,
    x: &[*const f32; T],
    i: usize,
) {
    // SAFETY: the caller's.
    unsafe {
        for part in 0..4 {
            let w = vld1q_f32(w.add(i + 4 * part));
            for t in 0..T {
                parts[t][part] = vfmaq_f32(parts[t][part], w, vld1q_f32(x[t].add(i + 4 * part)));
            }
        }
    }
}

/// The lower four of eight half floats.
#[inline(always)]
pub(super) fn f16_low(half: uint16x8_t) -> float32x4_t {
    let result;
    // SAFETY: registers only; every aarch64 processor has the instruction.
    unsafe {
        asm!(
            "fcvtl {result:v}.4s, {half:v}.4h",
            result = lateout(vreg) result,
            half = in(vreg) half,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// The upper four of eight half floats.
#[inline(always)]
pub(super) fn f16_high(half: uint16x8_t) -> float32x4_t {
    let result;
    // SAFETY: registers only; every aarch64 processor has the instruction.
    unsafe {
        asm!(
            "fcvtl2 {result:v}.4s, {half:v}.8h",
            result = lateout(vreg) result,
            half = in(vreg) half,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// Four half floats, to the nearest.
#[inline(always)]
fn to_f16(v: float32x4_t) -> uint16x4_t {
    let result;
    // SAFETY: registers only; every aarch64 processor has the instruction.
    unsafe {
        asm!(
            "fcvtn {result:v}.4h, {v:v}.4s",
            result = lateout(vreg) result,
            v = in(vreg) v,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    result
}

/// See [`portable::f16_to_f32`].
#[target_feature(enable = "neon")]
pub(super) unsafe fn f16_to_f32(dst: &mut [f32], src: &[u8]) {
    let n = dst.len().min(src.len() / 2);
    let whole = n / 8 * 8;
    for i in (0..whole).step_by(8) {
        // SAFETY: i + 8 elements are inside both.
        unsafe {
            let half = vreinterpretq_u16_u8(vld1q_u8(src.as_ptr().add(2 * i)));
            vst1q_f32(dst.as_mut_ptr().add(i), f16_low(half));
            vst1q_f32(dst.as_mut_ptr().add(i + 4), f16_high(half));
        }
    }
    portable::f16_to_f32(&mut dst[whole..n], &src[2 * whole..]);
}

/// See [`portable::f32_to_f16`].
#[target_feature(enable = "neon")]
pub(super) unsafe fn f32_to_f16(dst: &mut [u8], src: &[f32]) {
    let n = src.len().min(dst.len() / 2);
    let whole = n / 4 * 4;
    for i in (0..whole).step_by(4) {
        // SAFETY: i + 4 elements are inside both.
        unsafe {
            let half = to_f16(vld1q_f32(src.as_ptr().add(i)));
            vst1_u8(dst.as_mut_ptr().add(2 * i), vreinterpret_u8_u16(half));
        }
    }
    portable::f32_to_f16(&mut dst[2 * whole..], &src[whole..n]);
}
