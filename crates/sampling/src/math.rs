//! The exponential and its sum, the same bits on every platform.
//!
//! The C library's `exp` differs in the last bit between systems, which would change a draw. This one
//! uses only additions and multiplications, and no branch. It works on several numbers step by step,
//! which the compiler turns into vector instructions; a lane's result does not depend on its neighbours.

/// Below this, `exp` is taken as 0 (the last normal `f64` is about `exp(-708.4)`).
const UNDERFLOW: f64 = -708.0;

/// `exp(x)` for `x <= 0`, within 2 units in the last place; 0 below -708.
pub(crate) fn exp_nonpositive(x: f64) -> f64 {
    let [y] = exp_lanes([x]);
    y
}

/// [`exp_nonpositive`] of each number.
#[inline(always)]
fn exp_lanes<const N: usize>(x: [f64; N]) -> [f64; N] {
    /// 1.5 * 2^52: adding it leaves the nearest integer in the low mantissa bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    /// ln 2, its upper 33 bits and the rest, so that `k * LN2_HI` is exact for every `k` in use.
    const LN2_HI: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
    const LN2_LO: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
    /// 1/n! for n = 13 down to 0; the first term left out is below 2^-57 for |r| <= ln(2)/2.
    const TAYLOR: [f64; 14] = [
        1.0 / 6_227_020_800.0,
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        1.0 / 2.0,
        1.0,
        1.0,
    ];
    let clamped = x.map(|x| if x < UNDERFLOW { UNDERFLOW } else { x });
    let shifted = clamped.map(|x| x * std::f64::consts::LOG2_E + ROUND);
    let mut r = clamped;
    for (r, shifted) in r.iter_mut().zip(shifted) {
        let k = shifted - ROUND;
        *r = (*r - k * LN2_HI) - k * LN2_LO;
    }
    let mut sum = [TAYLOR[0]; N];
    for c in &TAYLOR[1..] {
        for (sum, r) in sum.iter_mut().zip(r) {
            *sum = *sum * r + c;
        }
    }
    for ((sum, shifted), x) in sum.iter_mut().zip(shifted).zip(x) {
        // 2^k: the low bits of `shifted` are k in two's complement; the shift drops everything above.
        let scale = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
        *sum = if x < UNDERFLOW { 0.0 } else { *sum * scale };
    }
    sum
}

/// The largest logit, or the index of the first NaN; `-inf` for an empty slice.
pub(crate) fn max_or_nan(logits: &[f32]) -> Result<f32, usize> {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let mut nan = [false; 16];
    let mut fold = |chunk: &[f32]| {
        for ((&v, max), nan) in chunk.iter().zip(&mut lanes).zip(&mut nan) {
            *max = if v > *max { v } else { *max };
            *nan |= v.is_nan();
        }
    };
    let (chunks, rest) = logits.as_chunks::<16>();
    for chunk in chunks {
        fold(chunk);
    }
    fold(rest);
    if nan.contains(&true) {
        return Err(logits.iter().position(|v| v.is_nan()).unwrap_or(0));
    }
    Ok(lanes.into_iter().fold(f32::NEG_INFINITY, f32::max))
}

/// Sum over all logits of `exp(logit - max)`, in eight lanes, so the order is fixed. `max` is finite.
pub(crate) fn sum_exp(logits: &[f32], max: f32) -> f64 {
    let max = f64::from(max);
    let mut lanes = [0f64; 8];
    let (chunks, rest) = logits.as_chunks::<8>();
    for chunk in chunks {
        let terms = exp_lanes(chunk.map(|v| f64::from(v) - max));
        for (lane, term) in lanes.iter_mut().zip(terms) {
            *lane += term;
        }
    }
    for (lane, &v) in lanes.iter_mut().zip(rest) {
        *lane += exp_nonpositive(f64::from(v) - max);
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let mut x = 0.0;
        while x > -708.0 {
            let (got, want) = (exp_nonpositive(x), x.exp());
            let ulp = f64::from_bits(want.to_bits() + 1) - want;
            assert!((got - want).abs() <= 2.0 * ulp, "exp({x}): got {got:e}, want {want:e}");
            x -= 0.037;
        }
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(-0.0), 1.0);
        assert_eq!(exp_nonpositive(-709.0), 0.0);
        assert_eq!(exp_nonpositive(f64::NEG_INFINITY), 0.0);
        assert_eq!(exp_nonpositive(-f64::MAX), 0.0);
    }

    #[test]
    fn exp_bits_are_pinned() {
        // The same bits on every platform; a change here changes what seeds generate.
        assert_eq!(exp_nonpositive(-1.0).to_bits(), 0x3fd7_8b56_362c_ef38);
        assert_eq!(exp_nonpositive(-123.456).to_bits(), (-123.456f64).exp().to_bits());
    }

    #[test]
    fn max_finds_the_largest_and_the_first_nan() {
        let mut v: Vec<f32> = (0..100).map(|i| (i as f32 * 7.0) % 31.0).collect();
        assert_eq!(max_or_nan(&v), Ok(30.0));
        v[97] = f32::NAN;
        v[41] = f32::NAN;
        assert_eq!(max_or_nan(&v), Err(41));
        assert_eq!(max_or_nan(&[]), Ok(f32::NEG_INFINITY));
        assert_eq!(max_or_nan(&[f32::INFINITY, 1.0]), Ok(f32::INFINITY));
    }

    #[test]
    fn sum_matches_a_plain_loop() {
        let v: Vec<f32> = (0..1003).map(|i| ((i * 37) % 101) as f32 * 0.1 - 5.0).collect();
        let want: f64 = v.iter().map(|&x| (f64::from(x) - 5.0).exp()).sum();
        assert!((sum_exp(&v, 5.0) - want).abs() < 1e-12 * want);
    }
}
