//! How much of a signal each encoding loses: the mean squared error on Gaussian values, and bounds on any values.

use proptest::prelude::*;
use quant::{Format, decode, encode};

/// Encodes and decodes.
fn round_trip(format: Format, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let mut bytes = vec![0; format.row_bytes(values.len()).unwrap()];
    encode(format, values, &mut bytes).unwrap();
    let mut decoded = vec![f32::NAN; values.len()];
    decode(format, &bytes, &mut decoded).unwrap();
    (bytes, decoded)
}

/// The same standard normal values on every machine (Box-Muller on a linear congruential generator).
fn gaussian(count: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    (0..count)
        .map(|_| ((-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()) as f32)
        .collect()
}

/// Squared error relative to the squared values.
fn nmse(values: &[f32], decoded: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let error: f64 = values.iter().zip(decoded).map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
    error / values.iter().map(|&a| square(f64::from(a))).sum::<f64>()
}

#[test]
fn error_on_gaussian_values_is_the_known_one() {
    // Measured on 2^18 standard normal values in rows of 1024: this crate, and the encoders of llama.cpp
    // (ggml_quantize_chunk without an importance matrix; it has none for Q8_K as a file format).
    let cases = [
        (Format::F16, 4.32e-8, None),
        (Format::BF16, 2.76e-6, None),
        (Format::Q4_0, 7.34e-3, Some(7.34e-3)),
        (Format::Q4_1, 6.09e-3, Some(6.09e-3)),
        (Format::Q5_0, 1.81e-3, Some(1.81e-3)),
        (Format::Q5_1, 1.42e-3, Some(1.42e-3)),
        (Format::Q8_0, 2.84e-5, Some(2.84e-5)),
        (Format::Q2_K, 6.76e-2, Some(8.74e-2)),
        (Format::Q3_K, 2.05e-2, Some(2.26e-2)),
        (Format::Q4_K, 4.89e-3, Some(5.06e-3)),
        (Format::Q5_K, 1.19e-3, Some(1.30e-3)),
        (Format::Q6_K, 2.71e-4, Some(3.13e-4)),
        (Format::Q8_K, 4.80e-5, None),
        (Format::IQ4_NL, 5.33e-3, Some(5.76e-3)),
        (Format::IQ4_XS, 5.42e-3, Some(5.85e-3)),
        (Format::MXFP4, 1.32e-2, Some(1.32e-2)),
    ];
    let values = gaussian(1 << 16);
    for (format, known, other) in cases {
        let found = nmse(&values, &round_trip(format, &values).1);
        assert!((found / known - 1.0).abs() < 0.03, "{format}: {found:e}, known is {known:e}");
        if let Some(other) = other {
            assert!(found < other * 1.03, "{format}: {found:e}, another encoder has {other:e}");
        }
    }
}

/// A block's worth of values of one magnitude: symmetric, shifted or with few large ones.
fn values() -> impl Strategy<Value = Vec<f32>> {
    let unit = prop::collection::vec(-1.0f32..1.0, 256);
    (unit, -2i32..3, prop_oneof![Just(0.0f32), Just(0.8), Just(-1.5)], 1i32..6).prop_map(
        |(unit, magnitude, shift, tail)| {
            let scale = 10f32.powi(magnitude);
            unit.into_iter().map(|v| (v.powi(tail).copysign(v) + shift) * scale).collect()
        },
    )
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, v| largest.max(v.abs()))
}

fn range(values: &[f32]) -> f32 {
    let max = values.iter().fold(f32::MIN, |max, &v| max.max(v));
    max - values.iter().fold(f32::MAX, |min, &v| min.min(v))
}

/// What rounding a scale to half precision adds, relative to the value that it scales.
const HALF: f32 = 1.0 / 2048.0;

/// The largest error of an element of a block of 32: half a step, the rounding of the stored scale and minimum, and for
/// grids with one level less above zero than below, a whole step at that end.
fn bound(format: Format, value: f32, block: &[f32]) -> f32 {
    let largest = largest(block);
    let scale_error = 1.01 * largest * HALF;
    match format {
        Format::F16 => value.abs() * HALF,
        Format::BF16 => value.abs() / 256.0,
        Format::Q4_0 | Format::Q5_0 => {
            let levels = if format == Format::Q4_0 { 8.0 } else { 16.0 };
            let step = largest / levels;
            // How far the value is beyond the last level, on the side that has one level less.
            let beyond = value.abs() - (levels - 1.0) * step;
            (0.5 * step).max(beyond) + scale_error
        }
        Format::Q4_1 => 0.5 * range(block) / 15.0 + range(block) * HALF + scale_error,
        Format::Q5_1 => 0.5 * range(block) / 31.0 + range(block) * HALF + scale_error,
        Format::Q8_0 => 0.5 * largest / 127.0 + scale_error,
        Format::MXFP4 => {
            // The last three levels are 3, 4 and 6 units, and the largest value is below 8.
            let unit = (largest.log2().floor() - 2.0).exp2();
            unit.max(value.abs() - 6.0 * unit)
        }
        _ => unreachable!("{format} has no bound for each element"),
    }
}

/// The root mean square error of a block of 256 whose scales are searched: less than that of plain rounding to steps
/// that span the largest sub-block, with the sub-blocks' scales rounded too.
fn rms_bound(format: Format, block: &[f32]) -> f32 {
    let widest = |sub: usize| {
        block.chunks(sub).map(|v| range(v).max(largest(v))).fold(0.0, |widest: f32, range| widest.max(range))
    };
    match format {
        Format::Q2_K => 0.75 * widest(16) / 3.0,
        Format::Q3_K => 0.75 * largest(block) / 4.0,
        Format::Q4_K => 0.75 * widest(32) / 15.0,
        Format::Q5_K => 1.0 * widest(32) / 31.0,
        Format::Q6_K => 0.75 * largest(block) / 32.0,
        Format::Q8_K => 0.5 * largest(block) / 127.0,
        // Half the widest gap of the table is 11.5 of 127.
        Format::IQ4_NL | Format::IQ4_XS => 13.0 * largest(block) / 127.0,
        _ => unreachable!("{format} has a bound for each element"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn elements_are_off_by_half_a_step_at_most(values in values()) {
        use Format::*;
        for format in [F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, MXFP4] {
            let (_, decoded) = round_trip(format, &values);
            for (block, decoded) in values.chunks(32).zip(decoded.chunks(32)) {
                for (&value, &decoded) in block.iter().zip(decoded) {
                    // And one part in 10^5 for the rounding of the formula itself, and for a scale or value that is
                    // subnormal in half precision, its spacing of 6e-8: half of that times a quant.
                    let bound = bound(format, value, block) + 1e-5 * largest(block) + 127.0 * 3e-8;
                    prop_assert!((value - decoded).abs() <= bound, "{format}: {value} became {decoded}, bound {bound}");
                }
            }
        }
    }

    #[test]
    fn searched_scales_are_no_worse_than_plain_rounding(values in values()) {
        use Format::*;
        for format in [Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K, IQ4_NL, IQ4_XS] {
            let (_, decoded) = round_trip(format, &values);
            let squares: f32 = values.iter().zip(&decoded).map(|(a, b)| (a - b) * (a - b)).sum();
            let (rms, bound) = ((squares / 256.0).sqrt(), rms_bound(format, &values));
            prop_assert!(rms <= bound, "{format}: root mean square error {rms}, bound {bound}");
        }
    }

    /// Decoded values are on the grid, and encode to the bytes that they came from.
    #[test]
    fn encoding_again_changes_nothing(values in values()) {
        use Format::*;
        for format in [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, MXFP4] {
            let (bytes, decoded) = round_trip(format, &values);
            let (again, _) = round_trip(format, &decoded);
            prop_assert!(bytes == again, "{format}");
        }
    }

    /// Any finite values encode or are refused, and decode to finite values.
    #[test]
    fn any_finite_values_encode_or_are_refused(
        bits in prop::collection::vec(any::<u32>(), 256),
        magnitude in -45i32..39,
    ) {
        let scale = 10f32.powi(magnitude).min(f32::MAX);
        let wild: Vec<f32> = bits.iter().map(|&b| f32::from_bits(b)).filter(|v| v.is_finite()).collect();
        let tame: Vec<f32> = bits.iter().map(|&b| (b as i32 as f32 / 2f32.powi(31)) * scale).collect();
        for values in [&wild[..wild.len() / 256 * 256], &tame] {
            for format in Format::ALL {
                let mut bytes = vec![0; format.row_bytes(values.len()).unwrap()];
                if encode(format, values, &mut bytes).is_ok() {
                    let mut decoded = vec![f32::NAN; values.len()];
                    decode(format, &bytes, &mut decoded).unwrap();
                    prop_assert!(decoded.iter().all(|v| v.is_finite()), "{format}");
                }
            }
        }
    }
}
