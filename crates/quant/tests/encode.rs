//! Encoding: the reference's bytes where the format fixes them, and errors.

mod common;

use common::{Record, records};
use quant::{Error, Format, decode, encode};

fn encoded(format: Format, values: &[f32]) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0xee; format.row_bytes(values.len()).unwrap()];
    encode(format, values, &mut bytes).map(|()| bytes)
}

#[test]
fn formats_with_a_fixed_encoding_give_the_bytes_of_the_reference() {
    use Format::*;
    let records = records(include_bytes!("data/encode.bin"));
    for Record { format, data, floats } in &records {
        let found = encoded(*format, floats).unwrap();
        let size = format.block_bytes();
        for (i, (found, expected)) in found.chunks(size).zip(data.chunks(size)).enumerate() {
            assert_eq!(found, expected, "{format}: block {i}");
        }
    }
    let formats: Vec<Format> = records.iter().map(|record| record.format).collect();
    assert_eq!(formats, [F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, MXFP4]);
}

#[test]
fn zeros_encode_to_zeros() {
    for format in Format::ALL {
        let bytes = encoded(format, &[0.0; 256]).unwrap();
        let mut values = [f32::NAN; 256];
        decode(format, &bytes, &mut values).unwrap();
        assert_eq!(values, [0.0; 256], "{format}");
    }
}

#[test]
fn constants_survive() {
    for format in Format::ALL {
        for constant in [0.37, -0.37] {
            let bytes = encoded(format, &[constant; 256]).unwrap();
            let mut values = [f32::NAN; 256];
            decode(format, &bytes, &mut values).unwrap();
            // MXFP4 has no value between 0.25 and 0.375 for this block; the others only round the scale.
            let tolerance = if format == Format::MXFP4 { 0.02 } else { 0.004 };
            for value in values {
                assert!((value / constant - 1.0).abs() < tolerance, "{format}: {constant} became {value}");
            }
        }
    }
}

#[test]
fn non_finite_value_is_an_error() {
    for format in Format::ALL {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = [1.0; 512];
            values[300] = value;
            let error = encoded(format, &values).unwrap_err();
            let Error::NotFinite { format: named, index: 300, value: named_value } = error else {
                panic!("{format}: {error:?}");
            };
            assert_eq!((named, named_value.to_bits()), (format, value.to_bits()));
        }
    }
    let mut values = [1.0; 32];
    values[7] = f32::INFINITY;
    assert_eq!(
        encoded(Format::Q8_0, &values).unwrap_err().to_string(),
        "cannot encode inf at index 7 as Q8_0: values must be finite"
    );
}

#[test]
fn too_large_value_is_an_error() {
    use Format::*;
    // Half precision ends at 65504 (and rounds to it up to 65519); a scale may multiply that.
    let cases = [
        (F16, 65520.0),
        (BF16, f32::MAX),
        (Q4_0, -65520.0 * 8.0),
        (Q4_1, 65521.0 * 15.0),
        (Q5_0, -65520.0 * 16.0),
        (Q5_1, -65520.0),
        (Q8_0, 65520.0 * 127.0),
        (Q2_K, 1e8),
        (Q3_K, 1e9),
        (Q4_K, -1e9),
        (Q5_K, 1e9),
        (Q6_K, 1e9),
        (IQ4_NL, f32::MAX),
        (IQ4_XS, f32::MIN),
    ];
    for (format, value) in cases {
        let mut values = [1.0; 512];
        values[300] = value;
        assert_eq!(encoded(format, &values), Err(Error::OutOfRange { format, index: 300, value }));
    }
    // Formats whose scale has the range of single precision take any finite value.
    for format in Format::ALL.into_iter().filter(|f| cases.iter().all(|case| case.0 != *f)) {
        let values = [f32::MAX; 256];
        let mut found = [f32::NAN; 256];
        decode(format, &encoded(format, &values).unwrap(), &mut found).unwrap();
        assert!(found.iter().all(|v| v.is_finite()), "{format}");
    }
    let error = Error::OutOfRange { format: F16, index: 3, value: 1e6 };
    assert_eq!(error.to_string(), "cannot encode 1000000 at index 3 as F16: the magnitude is too large");
}

#[test]
fn the_largest_values_of_half_precision_formats_encode() {
    let cases = [(Format::F16, 65504.0), (Format::Q8_0, 65504.0 * 127.0), (Format::Q4_0, -65504.0 * 8.0)];
    for (format, value) in cases {
        let mut values = [0.0; 32];
        values[5] = value;
        let mut found = [0.0; 32];
        decode(format, &encoded(format, &values).unwrap(), &mut found).unwrap();
        assert_eq!(found, values, "{format}");
    }
}

#[test]
fn lengths_are_checked() {
    let error = encode(Format::Q4_K, &[0.0; 255], &mut [0; 144]).unwrap_err();
    assert_eq!(error, Error::PartialBlock { format: Format::Q4_K, elements: 255 });
    let error = encode(Format::Q4_K, &[0.0; 256], &mut [0; 145]).unwrap_err();
    assert_eq!(error, Error::ByteLength { format: Format::Q4_K, elements: 256, expected: 144, found: 145 });
}

#[test]
fn q8_k_sums_its_quants() {
    let values: [f32; 256] = std::array::from_fn(|i| (i as f32 * 0.7).sin());
    let block = quant::encode_block_q8_k(&values);
    for (run, sum) in block.qs.chunks(16).zip(block.bsums) {
        assert_eq!(run.iter().map(|&q| i32::from(q)).sum::<i32>(), i32::from(sum));
    }
    assert_eq!(block.qs.iter().map(|q| q.unsigned_abs()).max(), Some(127));
}
