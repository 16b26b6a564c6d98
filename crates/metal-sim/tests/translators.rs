//! Sources in the manner of the programs that translate other languages' shaders to MSL.

mod common;

use common::{Lab, read};
use metal::device::*;

fn lab() -> Lab {
    Lab::new("translators.metal", include_str!("msl/translators.metal"))
}

fn one() -> Size {
    Size::width(1)
}

#[test]
fn names_through_the_namespace() {
    let lab = lab();
    let words = lab.buffer(&[1u32, 6, 7, 27]);
    lab.launch("collatz")
        .buffer(0, &words)
        .bytes(1, &[16u32])
        .threads(Size::width(4), Size::width(4))
        .unwrap();
    // The lengths of the four sequences are known: 0, 8, 16, 111.
    assert_eq!(read::<u32>(&words), [1, 10, 19, 115]);
    let bytes = lab.buffer(&[0u8; 8]);
    lab.launch("scalars").buffer(0, &bytes).threads(Size::width(2), Size::width(2)).unwrap();
    assert_eq!(read::<u8>(&bytes), [0, 2, 2, 8, 1, 2, 2, 8]);
}

#[test]
fn arrays_in_structures_and_constants_with_attributes() {
    let lab = lab();
    for size in [None, Some(9)] {
        let data = lab.buffer(&[1f32, 2.0, 3.0, 4.0]);
        let launch = lab.launch("main0").buffer(0, &data).bytes(1, &[2f32, 0.0, 10.0, 0.0]);
        let launch = match size {
            Some(size) => launch.constant(0, ConstantValue::U32(size)),
            None => launch,
        };
        launch.threads(Size::width(4), Size::width(4)).unwrap();
        // Twice the element, the other end's lane, one of 1, 2, 3, ten, and -1 modulo 3.
        let expected = [2.0 + 3.0 + 1.0, 4.0 + 2.0 + 2.0, 6.0 + 1.0 + 3.0, 8.0 + 0.0 + 1.0];
        assert_eq!(read::<f32>(&data), expected.map(|sum| sum + 12.0 + size.unwrap_or(4) as f32));
    }
}

#[test]
fn components_of_constants_that_are_computed() {
    let lab = lab();
    let out = lab.buffer(&[0u32; 5]);
    lab.launch("computed").buffer(0, &out).threads(one(), one()).unwrap();
    assert_eq!(read::<u32>(&out), [6, 8, 12, 4, 2]);
}

#[test]
fn components_of_components() {
    let lab = lab();
    let out = lab.buffer(&[0f32; 6]);
    lab.launch("chained").buffer(0, &out).threads(one(), one()).unwrap();
    assert_eq!(read::<f32>(&out), [4.0, 2.0, 3.0, 3.0, 6.0, 43.0]);
}
