//! Elementary functions over vectors: the steps of `simd::math`, one by one, with the same bits.

use crate::simd::math::ROUND;
use std::arch::aarch64::*;

/// See [`crate::simd::math::exp`].
#[inline]
#[target_feature(enable = "neon")]
#[allow(clippy::excessive_precision, reason = "coefficients as they are published")]
pub(super) fn exp(x: float32x4_t) -> float32x4_t {
    let set = vdupq_n_f32;
    // `vfmaq_f32(a, b, c)` is `a + b * c`.
    let shifted = vfmaq_f32(set(ROUND), x, set(std::f32::consts::LOG2_E));
    let n = vsubq_f32(shifted, set(ROUND));
    let r = vfmaq_f32(x, n, set(-0.693_359_375));
    let r = vfmaq_f32(r, n, set(2.121_944_40e-4));
    let p = vfmaq_f32(set(1.398_199_95e-3), set(1.987_569_15e-4), r);
    let p = vfmaq_f32(set(8.333_451_91e-3), p, r);
    let p = vfmaq_f32(set(4.166_579_59e-2), p, r);
    let p = vfmaq_f32(set(1.666_666_55e-1), p, r);
    let p = vfmaq_f32(set(5.000_000_12e-1), p, r);
    let y = vaddq_f32(vfmaq_f32(r, p, vmulq_f32(r, r)), set(1.0));
    let exponent = vshlq_n_u32::<23>(vreinterpretq_u32_f32(shifted));
    let y = vaddq_u32(vreinterpretq_u32_f32(y), exponent);
    let y = vreinterpretq_f32_u32(vbicq_u32(y, vcltq_f32(x, set(-87.3))));
    let y = vbslq_f32(vcgtq_f32(x, set(88.722)), set(f32::INFINITY), y);
    vbslq_f32(vceqq_f32(x, x), y, x)
}
