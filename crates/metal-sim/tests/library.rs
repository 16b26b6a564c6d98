//! The rest of the library against the values that the Metal Shading Language specification defines.

mod common;

use common::{Lab, Plain, read};
use metal::device::Size;

const SOURCE: &str = include_str!("msl/library.metal");

fn lab() -> Lab {
    Lab::new("library.metal", SOURCE)
}

/// Runs a kernel of one thread that writes `count` values.
fn run<T: Plain>(kernel: &str, count: usize) -> Vec<T> {
    let lab = lab();
    let out = lab.buffer(&vec![T::default(); count]);
    lab.launch(kernel).buffer(0, &out).threads(Size::width(1), Size::width(1)).unwrap();
    read(&out)
}

#[track_caller]
fn agree(found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let allowed = tolerance * expected.abs().max(0.1);
        assert!(
            (f64::from(found) - expected).abs() <= allowed,
            "value {index}: {found}, expected {expected}"
        );
    }
}

#[test]
fn functions_of_vectors() {
    // A ray that leaves glass at this angle is reflected whole: nothing is refracted.
    let expected = [
        -0.25,
        -2.0,
        0.75,
        6.0,
        -2.0,
        1.5,
        0.5f64.sin(),
        0.5f64.cos(),
        1.0,
        1.0,
        207.0,
        -1.0,
        12.0,
        8.0,
        5.0,
        2.5,
        -1.0,
        0.0,
        -1.0,
        25.0,
        0.6,
        5.0,
    ];
    agree(&run("vector_forms", expected.len()), &expected, 2e-6);
}

#[test]
fn multiples_of_a_half_turn_are_exact() {
    let found = run::<f32>("half_turns", 6);
    assert_eq!(found[..4], [0.0, -1.0, 0.0, -1.0]);
    agree(&found[4..], &[1.0, 0.5f64.sqrt()], 1e-6);
}

#[test]
fn functions_of_narrow_types() {
    let expected = [1.0 / 1024.0, -1.0 / 2048.0, 1.0, 1.0, 1.0 / 128.0, 1.0, 3.0, 7.0, 2.0, 8.0, -1.0];
    agree(&run("narrow_forms", expected.len()), &expected, 0.0);
}

#[test]
fn integers_of_64_bits() {
    let expected = [1 << 16, -2, -1, i64::MIN, i64::MAX, 0, 64, 63, 40, -2, -1, 1, 1, 0xbc, 1];
    assert_eq!(run::<i64>("long_integers", expected.len()), expected);
}

#[test]
fn normalised_integers() {
    let srgb = ((128.0 / 255.0 + 0.055) / 1.055f64).powf(2.4);
    #[rustfmt::skip]
    let expected = [
        0.2, 0.0, 128.0 / 255.0, 1.0,
        0.0, -64.0 / 127.0, -1.0, 1.0,
        0.2, 1.0, 1.0, -1.0,
        0.0, 1.0 / 3.0, 1.0, 2.0 / 3.0,
        srgb, 0.0, 1.0, 128.0 / 255.0,
        1.0, 0.0, 0.0, 1.0,
    ];
    agree(&run("unpacking", expected.len()), &expected, 2e-6);
    let expected: [u32; 8] = [
        0x80ff_ff00,
        0xc000_7f81,
        0x3333_ffff,
        0x4000_8001,
        (2 << 30) + (1023 << 20) + (341 << 10),
        0xff80_00ff,
        0xff00_00ff,
        0x8001_7fff,
    ];
    assert_eq!(run::<u32>("packing", 8), expected);
}

#[test]
fn atomics_of_64_bits() {
    let lab = lab();
    let out = lab.buffer(&[0u64, u64::MAX]);
    lab.launch("long_atomics").buffer(0, &out).threads(Size::width(100), Size::width(50)).unwrap();
    assert_eq!(read::<u64>(&out), [(99 << 33) + 1, 2 << 33]);
}

#[test]
fn functions_of_quads() {
    let lab = lab();
    let input = [1, 2, 3, 4, 5, 6, 7, 8];
    let (given, out) = (lab.buffer(&input), lab.buffer(&[0i32; 96]));
    lab.launch("quad_forms")
        .buffer(0, &given)
        .buffer(1, &out)
        .threads(Size::width(8), Size::width(8))
        .unwrap();
    for (lane, found) in read::<i32>(&out).chunks(12).enumerate() {
        let (quad, place) = (&input[lane / 4 * 4..][..4], lane % 4);
        let fold = |combine: fn(i32, i32) -> i32| quad.iter().copied().reduce(combine).unwrap();
        let expected = [
            if place == 0 { 100 + quad[3] } else { quad[place - 1] },
            if place == 3 { 100 + quad[0] } else { quad[place + 1] },
            i32::from(place == 0),
            15,
            quad[0],
            fold(|a, b| a * b),
            quad[0] * 100 + fold(|a, b| a | b),
            quad[..place].iter().sum(),
            quad[..place].iter().product(),
            quad[3 - place],
            quad[(place + 3) % 4],
            i32::from(lane < 4) * 10 + fold(|a, b| a ^ b) * 100 + fold(|a, b| a & b),
        ];
        assert_eq!(found, expected, "lane {lane}");
    }
}

#[test]
fn traits_and_constants() {
    let expected = [23, 1, 1, 1, 1, 609, 16009, 211_128, 437, 1309, 2];
    assert_eq!(run::<i32>("traits", expected.len()), expected);
}

#[test]
fn containers_matrices_and_deleted_functions() {
    let lab = lab();
    let (out, given) = (lab.buffer(&[0f32; 7]), lab.buffer(&[10f32, 20.0, 30.0]));
    lab.launch("containers")
        .buffer(0, &out)
        .buffer(1, &given)
        .threads(Size::width(1), Size::width(1))
        .unwrap();
    // The matrix: (1 2; 3 4) plus the identity, doubled, minus its own negative, halved.
    agree(&read(&out), &[14.0, 29.0, 11.0, 7.0, 11.0, 64.0, 18.0], 1e-6);
}
