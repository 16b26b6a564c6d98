//! Elementary functions by polynomials, the same bits at every SIMD level.
//!
//! Everything here is `#[inline(always)]` portable code: each level compiles it with its own instructions, and since
//! every step is one correctly rounded operation (`mul_add` is a fused one everywhere), the results are equal.

use graph::ops::Activation;

/// Adding it rounds to the nearest integer, which is then in the low bits: `1.5 * 2^23`.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// `e^x`, within 2 units in the last place. Below -87.3 the result is 0 (a float would be denormal), above 88.722 it
/// is infinite. NaN stays NaN.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2` (`ln 2` in two parts, after Cody and Waite), `e^r` by a polynomial of
/// degree 6 (the coefficients of Cephes' `expf`), and `2^n` added to the exponent.
#[inline(always)]
#[allow(clippy::excessive_precision, reason = "coefficients as they are published")]
pub(crate) fn exp(x: f32) -> f32 {
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-0.693_359_375, x);
    let r = n.mul_add(2.121_944_40e-4, r);
    let p = 1.987_569_15e-4_f32
        .mul_add(r, 1.398_199_95e-3)
        .mul_add(r, 8.333_451_91e-3)
        .mul_add(r, 4.166_579_59e-2)
        .mul_add(r, 1.666_666_55e-1)
        .mul_add(r, 5.000_000_12e-1);
    let y = p.mul_add(r * r, r) + 1.0;
    let y = f32::from_bits(y.to_bits().wrapping_add(shifted.to_bits() << 23));
    let y = if x < -87.3 { 0.0 } else { y };
    let y = if x > 88.722 { f32::INFINITY } else { y };
    if x.is_nan() { x } else { y }
}

/// `tanh x`, within 4 units in the last place: an odd polynomial (Cephes' `tanhf`) near zero, where the quotient of
/// exponentials would cancel.
#[inline(always)]
#[allow(clippy::excessive_precision, reason = "coefficients as they are published")]
pub(crate) fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let e = exp(-2.0 * a);
    let far = (1.0 - e) / (1.0 + e);
    let far = f32::from_bits(far.to_bits() | (x.to_bits() & 0x8000_0000));
    let s = x * x;
    let p = (-5.704_988_73e-3_f32)
        .mul_add(s, 2.063_908_88e-2)
        .mul_add(s, -5.373_971_55e-2)
        .mul_add(s, 1.333_144_22e-1)
        .mul_add(s, -3.333_328_19e-1);
    let near = (p * s).mul_add(x, x);
    if a < 0.625 { near } else { far }
}

/// `sqrt(2 / pi)`.
pub(crate) const SQRT_2_OVER_PI: f32 = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2;

/// An activation function.
#[inline(always)]
pub(crate) fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + exp(-x)),
        // (1 + tanh u) / 2 = 1 / (1 + exp(-2u)), which does not cancel for negative u.
        Activation::Gelu => {
            let u = SQRT_2_OVER_PI * (0.044_715 * x * x).mul_add(x, x);
            x / (1.0 + exp(-2.0 * u))
        }
        Activation::Sigmoid => 1.0 / (1.0 + exp(-x)),
    }
}

/// The sum of `N` (a power of two) lanes: neighbours first, then pairs of neighbours, and so on.
#[inline(always)]
pub(crate) fn sum_lanes<const N: usize>(mut lanes: [f32; N]) -> f32 {
    let mut n = N;
    while n > 1 {
        n /= 2;
        for i in 0..n {
            lanes[i] = lanes[2 * i] + lanes[2 * i + 1];
        }
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance from the rounded true value in units in the last place.
    fn ulps(found: f32, expected: f64) -> f64 {
        let rounded = expected as f32;
        let ulp = f64::from(f32::from_bits((rounded.abs().to_bits()) + 1)) - f64::from(rounded.abs());
        ((f64::from(found) - expected) / ulp).abs()
    }

    #[test]
    fn exp_is_within_two_ulps() {
        let mut worst = 0.0f64;
        for i in 0..2_000_000 {
            let x = -87.29 + f64::from(i) * (176.0 / 2_000_000.0);
            let x = x as f32;
            worst = worst.max(ulps(exp(x), f64::from(x).exp()));
        }
        assert!(worst <= 2.0, "{worst}");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!((exp(-88.0), exp(f32::NEG_INFINITY)), (0.0, 0.0));
        assert_eq!((exp(89.0), exp(f32::INFINITY)), (f32::INFINITY, f32::INFINITY));
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_is_within_four_ulps() {
        let mut worst = 0.0f64;
        for i in 1..1_000_000 {
            let x = (f64::from(i) * 1e-5) as f32;
            worst = worst.max(ulps(tanh(x), f64::from(x).tanh()));
            assert_eq!(tanh(-x), -tanh(x));
        }
        assert!(worst <= 4.0, "{worst}");
        assert_eq!((tanh(0.0), tanh(100.0), tanh(f32::INFINITY)), (0.0, 1.0, 1.0));
        assert!(tanh(f32::NAN).is_nan());
    }

    #[test]
    fn activations_match_their_formulas() {
        for i in -4000..4000 {
            let x = i as f32 * 0.01;
            let d = f64::from(x);
            let gelu =
                d / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (d + 0.044715 * d.powi(3))).tanh());
            for (activation, expected) in [
                (Activation::Silu, d / (1.0 + (-d).exp())),
                (Activation::Gelu, gelu),
                (Activation::Sigmoid, 1.0 / (1.0 + (-d).exp())),
            ] {
                let found = f64::from(activate(activation, x));
                assert!(
                    (found - expected).abs() <= 1e-6 * expected.abs() + 1e-9,
                    "{activation:?} {x}: {found}"
                );
            }
        }
    }

    #[test]
    fn lanes_are_summed_as_a_tree() {
        assert_eq!(sum_lanes([1.0, 2.0, 3.0, 4.0]), 10.0);
        // ((big + -big) + (1 + 1)): any other order loses the ones.
        assert_eq!(sum_lanes([1e10, -1e10, 1.0, 1.0]), 2.0);
    }
}
