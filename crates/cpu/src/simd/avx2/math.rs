//! Elementary functions over vectors: the steps of `simd::math`, one by one, with the same bits.

use crate::simd::math::{ROUND, SQRT_2_OVER_PI};
use graph::ops::Activation;
use std::arch::x86_64::*;

/// See [`crate::simd::math::exp`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
#[allow(clippy::excessive_precision, reason = "coefficients as they are published")]
pub(super) fn exp(x: __m256) -> __m256 {
    let set = _mm256_set1_ps;
    let shifted = _mm256_fmadd_ps(x, set(std::f32::consts::LOG2_E), set(ROUND));
    let n = _mm256_sub_ps(shifted, set(ROUND));
    let r = _mm256_fmadd_ps(n, set(-0.693_359_375), x);
    let r = _mm256_fmadd_ps(n, set(2.121_944_40e-4), r);
    let p = _mm256_fmadd_ps(set(1.987_569_15e-4), r, set(1.398_199_95e-3));
    let p = _mm256_fmadd_ps(p, r, set(8.333_451_91e-3));
    let p = _mm256_fmadd_ps(p, r, set(4.166_579_59e-2));
    let p = _mm256_fmadd_ps(p, r, set(1.666_666_55e-1));
    let p = _mm256_fmadd_ps(p, r, set(5.000_000_12e-1));
    let y = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), set(1.0));
    let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
    let y = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), exponent));
    let y = _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x, set(-87.3)), y);
    let y = _mm256_blendv_ps(y, set(f32::INFINITY), _mm256_cmp_ps::<_CMP_GT_OQ>(x, set(88.722)));
    _mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x))
}

/// See [`crate::simd::math::activate`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn activate(activation: Activation, x: __m256) -> __m256 {
    let set = _mm256_set1_ps;
    let one = set(1.0);
    match activation {
        Activation::Silu => _mm256_div_ps(x, _mm256_add_ps(one, exp(negated(x)))),
        Activation::Gelu => {
            let cube = _mm256_mul_ps(_mm256_mul_ps(set(0.044_715), x), x);
            let u = _mm256_mul_ps(set(SQRT_2_OVER_PI), _mm256_fmadd_ps(cube, x, x));
            _mm256_div_ps(x, _mm256_add_ps(one, exp(_mm256_mul_ps(set(-2.0), u))))
        }
        Activation::Sigmoid => _mm256_div_ps(one, _mm256_add_ps(one, exp(negated(x)))),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn negated(x: __m256) -> __m256 {
    _mm256_xor_ps(x, _mm256_set1_ps(-0.0))
}
