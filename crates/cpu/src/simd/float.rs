//! The float kernels, written once as portable code over fixed lanes.
//!
//! A SIMD level compiles these bodies with its own instructions (see [`float_kernels`]), so every level gives the
//! same bits: which lane an element is added to, and the order of the lanes in the final sum, are part of the code.
//! Pointers instead of slices where the result may be written over an input.

use super::attention::LANES;
use super::math::{ROUND, activate, exp, sum_lanes, tanh};
use crate::quantize::QuantRowMut;
use graph::ops::{Activation, ClampedSwiGlu};
use half::{bf16, f16};

/// Partial sums of a float dot product or a sum of squares.
const PARTS: usize = 32;

/// # Safety
/// The same for all elementwise kernels: the pointers are valid for `n` floats; `dst` may be equal to a source.
#[inline(always)]
pub(super) unsafe fn add(dst: *mut f32, a: *const f32, b: *const f32, n: usize) {
    for i in 0..n {
        // SAFETY: the caller's; index below n.
        unsafe { *dst.add(i) = *a.add(i) + *b.add(i) }
    }
}

/// # Safety
/// See [`add`].
#[inline(always)]
pub(super) unsafe fn mul(dst: *mut f32, a: *const f32, b: *const f32, n: usize) {
    for i in 0..n {
        // SAFETY: the caller's; index below n.
        unsafe { *dst.add(i) = *a.add(i) * *b.add(i) }
    }
}

/// # Safety
/// See [`add`].
#[inline(always)]
pub(super) unsafe fn scale(dst: *mut f32, a: *const f32, factor: f32, n: usize) {
    for i in 0..n {
        // SAFETY: the caller's; index below n.
        unsafe { *dst.add(i) = *a.add(i) * factor }
    }
}

/// `cap * tanh(a / cap)`.
///
/// # Safety
/// See [`add`].
#[inline(always)]
pub(super) unsafe fn soft_cap(dst: *mut f32, a: *const f32, cap: f32, n: usize) {
    for i in 0..n {
        // SAFETY: the caller's; index below n.
        unsafe { *dst.add(i) = cap * tanh(*a.add(i) / cap) }
    }
}

/// # Safety
/// See [`add`].
#[inline(always)]
pub(super) unsafe fn activation(dst: *mut f32, a: *const f32, kind: Activation, n: usize) {
    #[inline(always)]
    unsafe fn each(dst: *mut f32, a: *const f32, n: usize, f: impl Fn(f32) -> f32) {
        for i in 0..n {
            // SAFETY: the caller's; index below n.
            unsafe { *dst.add(i) = f(*a.add(i)) }
        }
    }
    // One loop per function, so that each is free of branches.
    // SAFETY: the caller's.
    unsafe {
        match kind {
            Activation::Silu => each(dst, a, n, |x| activate(Activation::Silu, x)),
            Activation::Gelu => each(dst, a, n, |x| activate(Activation::Gelu, x)),
            Activation::Sigmoid => each(dst, a, n, |x| activate(Activation::Sigmoid, x)),
        }
    }
}

/// `activation(a) * b`.
///
/// # Safety
/// See [`add`].
#[inline(always)]
pub(super) unsafe fn gated(dst: *mut f32, a: *const f32, b: *const f32, kind: Activation, n: usize) {
    #[inline(always)]
    unsafe fn each(dst: *mut f32, a: *const f32, b: *const f32, n: usize, f: impl Fn(f32) -> f32) {
        for i in 0..n {
            // SAFETY: the caller's; index below n.
            unsafe { *dst.add(i) = f(*a.add(i)) * *b.add(i) }
        }
    }
    // SAFETY: the caller's.
    unsafe {
        match kind {
            Activation::Silu => each(dst, a, b, n, |x| activate(Activation::Silu, x)),
            Activation::Gelu => each(dst, a, b, n, |x| activate(Activation::Gelu, x)),
            Activation::Sigmoid => each(dst, a, b, n, |x| activate(Activation::Sigmoid, x)),
        }
    }
}

/// See [`ClampedSwiGlu`], with `a` as the gate. What is no number stays so.
///
/// # Safety
/// See [`add`].
#[inline(always)]
pub(super) unsafe fn clamped_swiglu(
    dst: *mut f32,
    a: *const f32,
    b: *const f32,
    n: usize,
    op: ClampedSwiGlu,
) {
    let ClampedSwiGlu { alpha, limit } = op;
    for i in 0..n {
        // SAFETY: the caller's; index below n.
        unsafe {
            let (gate, up) = (*a.add(i), *b.add(i));
            let gate = if gate > limit { limit } else { gate };
            let up = if up > limit { limit } else { up };
            let up = if up < -limit { -limit } else { up };
            *dst.add(i) = (up + 1.0) * (gate / (1.0 + exp(-alpha * gate)));
        }
    }
}

/// One row of `y = x / sqrt(mean(x^2) + epsilon) * weight`; a null `weight` leaves it out.
///
/// The squares of numbers beyond 1.8e19 are no floats any more. Where their sum is not finite, the row is first scaled
/// down by a power of two, so that finite numbers give finite results; a row with an infinity or a NaN gives a NaN.
///
/// # Safety
/// `dst` and `x` are valid for `n` floats and may be equal; `weight` is null or valid for `n` floats.
#[inline(always)]
pub(super) unsafe fn rms_norm(dst: *mut f32, x: *const f32, weight: *const f32, n: usize, epsilon: f32) {
    /// The largest float becomes 2^32, and the largest of a row that gets here is not below `2^64 / sqrt(n)`: neither its
    /// square nor their sum leaves the range of floats.
    const DOWN: f32 = 1.0 / (1u128 << 96) as f32;
    // SAFETY: the caller's.
    unsafe {
        let mean = sum_of_squares(x, n, 1.0) / n as f32;
        if mean.is_finite() {
            return scale_row(dst, x, weight, n, 1.0, 1.0 / (mean + epsilon).sqrt());
        }
        // Beside such numbers, epsilon is nothing.
        scale_row(dst, x, weight, n, DOWN, 1.0 / (sum_of_squares(x, n, DOWN) / n as f32).sqrt());
    }
}

/// The sum of the squares of `scale * x`. Element `i` goes to partial sum `i % 32`; these are added as a tree.
///
/// # Safety
/// `x` is valid for `n` floats.
#[inline(always)]
unsafe fn sum_of_squares(x: *const f32, n: usize, scale: f32) -> f32 {
    let mut parts = [0.0f32; PARTS];
    let whole = n / PARTS * PARTS;
    let mut i = 0;
    while i < whole {
        for (lane, part) in parts.iter_mut().enumerate() {
            // SAFETY: i + lane < whole <= n.
            let v = unsafe { *x.add(i + lane) } * scale;
            *part = v.mul_add(v, *part);
        }
        i += PARTS;
    }
    for (lane, part) in parts.iter_mut().enumerate().take(n - whole) {
        // SAFETY: whole + lane < n.
        let v = unsafe { *x.add(whole + lane) } * scale;
        *part = v.mul_add(v, *part);
    }
    sum_lanes(parts)
}

/// `scale * x * factor * weight`, without what is null.
///
/// # Safety
/// As for [`rms_norm`].
#[inline(always)]
unsafe fn scale_row(dst: *mut f32, x: *const f32, weight: *const f32, n: usize, scale: f32, factor: f32) {
    for i in 0..n {
        // SAFETY: i < n.
        unsafe {
            let y = *x.add(i) * scale * factor;
            *dst.add(i) = if weight.is_null() { y } else { y * *weight.add(i) };
        }
    }
}

/// The maximum of `x`; -inf of nothing. The result does not depend on an order, save that a NaN may be passed over.
#[inline(always)]
fn max(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = x.chunks_exact(LANES);
    for (lane, &v) in chunks.remainder().iter().enumerate() {
        lanes[lane] = if v > lanes[lane] { v } else { lanes[lane] };
    }
    for chunk in chunks {
        for (lane, &v) in lanes.iter_mut().zip(chunk) {
            *lane = if v > *lane { v } else { *lane };
        }
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
}

/// Replaces each score by `exp(score - maximum)` and returns the maximum and the sum: `(max, sum)`.
/// A row of -inf alone gives zeros and `(-inf, 0)`. A NaN ends up in the sum.
#[inline(always)]
pub(super) fn exp_scores(scores: &mut [f32]) -> (f32, f32) {
    let top = max(scores);
    // With nothing above -inf, any finite reference makes the differences -inf (or keeps a NaN).
    let reference = if top == f32::NEG_INFINITY { 0.0 } else { top };
    let mut parts = [0.0f32; LANES];
    let whole = scores.len() / LANES * LANES;
    let (body, tail) = scores.split_at_mut(whole);
    for chunk in body.chunks_exact_mut(LANES) {
        for (part, score) in parts.iter_mut().zip(chunk) {
            *score = exp(*score - reference);
            *part += *score;
        }
    }
    for (part, score) in parts.iter_mut().zip(tail) {
        *score = exp(*score - reference);
        *part += *score;
    }
    (top, sum_lanes(parts))
}

/// One row of `exp(scale * x - max) / sum`.
///
/// # Safety
/// `dst` and `x` are valid for `n` floats and may be equal.
#[inline(always)]
pub(super) unsafe fn softmax(dst: *mut f32, x: *const f32, factor: f32, n: usize) {
    // SAFETY: the caller's; from here on only `dst` is used.
    let row = unsafe {
        scale(dst, x, factor, n);
        std::slice::from_raw_parts_mut(dst, n)
    };
    let (_, sum) = exp_scores(row);
    let inverse = 1.0 / sum;
    for v in row {
        *v *= inverse;
    }
}

/// Adds `factor * source` to `dst`.
#[inline(always)]
pub(super) fn axpby(dst: &mut [f32], dst_factor: f32, src: &[f32], src_factor: f32) {
    for (d, s) in dst.iter_mut().zip(src) {
        *d = s.mul_add(src_factor, *d * dst_factor);
    }
}

/// Turns the pairs of one head. `cos_sin` holds a cosine and then a sine for each pair, in two halves.
///
/// # Safety
/// `dst` and `x` are valid for `2 * pairs` floats and may be equal; `cos` and `sin` for `pairs`.
#[inline(always)]
pub(super) unsafe fn rope_split(
    dst: *mut f32,
    x: *const f32,
    cos: *const f32,
    sin: *const f32,
    pairs: usize,
) {
    for i in 0..pairs {
        // SAFETY: both elements of a pair are read before they are written.
        unsafe {
            let (a, b) = (*x.add(i), *x.add(pairs + i));
            let (c, s) = (*cos.add(i), *sin.add(i));
            *dst.add(i) = a * c - b * s;
            *dst.add(pairs + i) = a * s + b * c;
        }
    }
}

/// As [`rope_split`], for pairs of neighbours.
///
/// # Safety
/// See [`rope_split`].
#[inline(always)]
pub(super) unsafe fn rope_interleaved(
    dst: *mut f32,
    x: *const f32,
    cos: *const f32,
    sin: *const f32,
    pairs: usize,
) {
    for i in 0..pairs {
        // SAFETY: both elements of a pair are read before they are written.
        unsafe {
            let (a, b) = (*x.add(2 * i), *x.add(2 * i + 1));
            let (c, s) = (*cos.add(i), *sin.add(i));
            *dst.add(2 * i) = a * c - b * s;
            *dst.add(2 * i + 1) = a * s + b * c;
        }
    }
}

/// Quantises a row in blocks of 32: `q = round(x / d)` with `d = max |x| / 127`, ties to even, and the sums of the
/// quants that [`QuantRowMut`] describes. A block with a NaN or an infinity gets the scale NaN, which every product
/// with it inherits; a block below 1e-30 is zero.
#[inline(always)]
pub(super) fn quantize(x: &[f32], to: QuantRowMut<'_>) {
    let QuantRowMut { q, d, s, sums, half_sums } = to;
    let scales = d.iter_mut().zip(s);
    let integers = sums.chunks_exact_mut(2).zip(half_sums.chunks_exact_mut(4));
    let blocks = x.chunks_exact(32).zip(q.chunks_exact_mut(32)).zip(scales.zip(integers));
    for ((x, q), ((d, s), (sums, half_sums))) in blocks {
        // The order of the bits of |x| is the order of the numbers, with infinity and NaN on top.
        let mut top = 0u32;
        for v in x {
            top = top.max(v.to_bits() & 0x7fff_ffff);
        }
        let top = f32::from_bits(top);
        let inverse = if top < 1e-30 || !top.is_finite() { 0.0 } else { 127.0 / top };
        *d = if !top.is_finite() {
            f32::NAN
        } else if inverse == 0.0 {
            0.0
        } else {
            top / 127.0
        };
        let mut n = [0i32; 32];
        for (n, v) in n.iter_mut().zip(x) {
            let v = if inverse == 0.0 { 0.0 } else { v * inverse };
            *n = ((v + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
        }
        for (q, n) in q.iter_mut().zip(n) {
            *q = n as i8;
        }
        // Sums of elements of equal number modulo 4, by halves.
        let mut quarters = [[0i32; 4]; 2];
        for (half, n) in quarters.iter_mut().zip(n.chunks_exact(16)) {
            for four in n.chunks_exact(4) {
                for (sum, n) in half.iter_mut().zip(four) {
                    *sum += n;
                }
            }
        }
        let [a, b] = quarters.map(|[a, b, c, d]| [a + b, c + d]);
        half_sums.copy_from_slice(&[-a[0] as i16, -a[1] as i16, -b[0] as i16, -b[1] as i16]);
        sums.copy_from_slice(&[-(a[0] + b[0]) as i16, -(a[1] + b[1]) as i16]);
        *s = *d * (a[0] + b[0] + a[1] + b[1]) as f32;
    }
}

/// Dot products of one weight row with several activation rows, all of `n` floats. Element `i` goes to partial sum
/// `i % 16`; the partial sums are added as a tree.
///
/// # Safety
/// `w` and each of `x` are valid for `n` floats.
#[inline(always)]
pub(super) unsafe fn dot<const T: usize>(w: *const f32, x: [*const f32; T], n: usize) -> [f32; T] {
    const N: usize = 16;
    let mut parts = [[0.0f32; N]; T];
    let whole = n / N * N;
    let mut i = 0;
    while i < whole {
        for (part, x) in parts.iter_mut().zip(x) {
            for (lane, p) in part.iter_mut().enumerate() {
                // SAFETY: i + lane < whole <= n.
                *p = unsafe { (*w.add(i + lane)).mul_add(*x.add(i + lane), *p) };
            }
        }
        i += N;
    }
    for (part, x) in parts.iter_mut().zip(x) {
        for (lane, p) in part.iter_mut().enumerate().take(n - whole) {
            // SAFETY: whole + lane < n.
            *p = unsafe { (*w.add(whole + lane)).mul_add(*x.add(whole + lane), *p) };
        }
    }
    parts.map(sum_lanes)
}

/// Decodes half floats.
#[inline(always)]
pub(super) fn f16_to_f32(dst: &mut [f32], src: &[u8]) {
    for (d, s) in dst.iter_mut().zip(src.chunks_exact(2)) {
        *d = f16::from_le_bytes([s[0], s[1]]).to_f32();
    }
}

/// Decodes bfloat16.
#[inline(always)]
pub(super) fn bf16_to_f32(dst: &mut [f32], src: &[u8]) {
    for (d, s) in dst.iter_mut().zip(src.chunks_exact(2)) {
        *d = bf16::from_le_bytes([s[0], s[1]]).to_f32();
    }
}

/// Encodes half floats, to the nearest.
#[inline(always)]
pub(super) fn f32_to_f16(dst: &mut [u8], src: &[f32]) {
    for (d, s) in dst.chunks_exact_mut(2).zip(src) {
        d.copy_from_slice(&f16::from_f32(*s).to_le_bytes());
    }
}

/// Encodes bfloat16, to the nearest.
#[inline(always)]
pub(super) fn f32_to_bf16(dst: &mut [u8], src: &[f32]) {
    for (d, s) in dst.chunks_exact_mut(2).zip(src) {
        d.copy_from_slice(&bf16::from_f32(*s).to_le_bytes());
    }
}
