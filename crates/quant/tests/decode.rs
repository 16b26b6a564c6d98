//! Decoding against the Python `gguf` package, bit for bit, and on arbitrary bytes.

mod common;

use common::{Record, records};
use proptest::prelude::*;
use quant::{Error, Format, decode};

/// Every NaN is equal to every other; all other values only to themselves, zeros by sign.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn assert_same(format: Format, found: &[f32], expected: &[f32]) {
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        assert!(
            same(found, expected),
            "{format}: element {i} is {found:e} ({:#010x}), the reference has {expected:e} ({:#010x})",
            found.to_bits(),
            expected.to_bits()
        );
    }
}

#[test]
fn every_format_decodes_to_the_bits_of_the_reference() {
    let records = records(include_bytes!("data/decode.bin"));
    for Record { format, data, floats } in &records {
        let mut found = vec![0.0; floats.len()];
        decode(*format, data, &mut found).unwrap();
        assert_same(*format, &found, floats);
    }
    // F32 is a copy and has no reference data.
    let mut formats: Vec<Format> = records.iter().map(|record| record.format).collect();
    formats.push(Format::F32);
    formats.sort();
    assert_eq!(formats, Format::ALL);
}

#[test]
fn the_start_address_does_not_matter() {
    for Record { format, data, floats } in records(include_bytes!("data/decode.bin")) {
        for shift in 1..4 {
            let mut shifted = vec![0; shift];
            shifted.extend(&data);
            let mut found = vec![0.0; floats.len()];
            decode(format, &shifted[shift..], &mut found).unwrap();
            assert_same(format, &found, &floats);
        }
    }
}

#[test]
fn f32_is_copied_bit_for_bit() {
    let values = [1.5f32, -0.0, f32::from_bits(1), f32::INFINITY, f32::from_bits(0x7fc1_2345)];
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut found = [0.0; 5];
    decode(Format::F32, &bytes, &mut found).unwrap();
    assert_eq!(found.map(f32::to_bits), values.map(f32::to_bits));
}

#[test]
fn non_finite_scales_decode_to_non_finite_values() {
    let mut block = [0x98; 18];
    let mut row = [0.0; 32];
    // Infinity: 0 times infinity is NaN, 1 times infinity is infinity.
    block[..2].copy_from_slice(&[0x00, 0x7c]);
    decode(Format::Q4_0, &block, &mut row).unwrap();
    assert!(row[0].is_nan());
    assert_eq!(row[16], f32::INFINITY);
    block[..2].copy_from_slice(&[0x00, 0x7e]);
    decode(Format::Q4_0, &block, &mut row).unwrap();
    assert!(row.iter().all(|v| v.is_nan()));
}

#[test]
fn no_elements_need_no_bytes() {
    for format in Format::ALL {
        assert_eq!(decode(format, &[], &mut []), Ok(()));
    }
}

#[test]
fn partial_block_is_an_error() {
    let error = decode(Format::Q4_K, &[0; 144], &mut [0.0; 255]).unwrap_err();
    assert_eq!(error, Error::PartialBlock { format: Format::Q4_K, elements: 255 });
    assert_eq!(error.to_string(), "255 elements are not a whole number of Q4_K blocks of 256 elements");
}

#[test]
fn wrong_byte_length_is_an_error() {
    for found in [0, 33, 35, 68] {
        let error = decode(Format::Q8_0, &vec![0; found], &mut [0.0; 32]).unwrap_err();
        assert_eq!(error, Error::ByteLength { format: Format::Q8_0, elements: 32, expected: 34, found });
        assert_eq!(error.to_string(), format!("32 elements of Q8_0 take 34 bytes, found {found}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Two blocks of every format, cut out of arbitrary bytes: no panic, and every element is written.
    #[test]
    fn arbitrary_bytes_decode(bytes in prop::collection::vec(any::<u8>(), 2 * 292)) {
        const UNWRITTEN: u32 = 0x7fc5_5aa5;
        for format in Format::ALL {
            let mut row = vec![f32::from_bits(UNWRITTEN); 2 * format.block_len()];
            decode(format, &bytes[..2 * format.block_bytes()], &mut row).unwrap();
            prop_assert!(row.iter().all(|v| v.to_bits() != UNWRITTEN), "{format}");
        }
    }
}
