//! Library functions against the values that the Metal Shading Language specification defines.

mod common;

use std::f64::consts::PI;

use common::{Lab, Plain, read};
use metal::device::Size;

const SOURCE: &str = include_str!("msl/functions.metal");

fn run<T: Plain>(kernel: &str, count: usize, input: &[f32]) -> Vec<T> {
    let lab = Lab::new("functions.metal", SOURCE);
    let out = lab.buffer(&vec![T::default(); count]);
    let mut launch = lab.launch(kernel).buffer(0, &out);
    let input_buffer = (!input.is_empty()).then(|| lab.buffer(input));
    if let Some(buffer) = &input_buffer {
        launch = launch.buffer(1, buffer);
    }
    launch.threads(Size::width(1), Size::width(1)).unwrap();
    read(&out)
}

fn floats(kernel: &str, expected: &[f64]) {
    let found = run::<f32>(kernel, expected.len(), &[]);
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let tolerance = 4e-6 * expected.abs().max(0.1);
        assert!(
            (f64::from(found) - expected).abs() <= tolerance,
            "{kernel}, value {index}: {found}, expected {expected}"
        );
    }
}

#[test]
fn common_functions() {
    floats(
        "common_functions",
        &[1.0, 2.5, 0.0, -1.0, 0.15625, 0.0, 2.0, 2.5, 1.0, 7.0, 4.0, 3.0, 9.0, 4.0, 4.5],
    );
}

#[test]
fn math_functions() {
    floats(
        "math_functions",
        &[
            2f64.sqrt(),
            0.5,
            1.5f64.exp(),
            8.0,
            100.0,
            10f64.ln(),
            3.0,
            3.0,
            2f64.sqrt(),
            9.0,
            1f64.sin(),
            1f64.cos(),
            0.5f64.tan(),
            PI / 6.0,
            PI / 3.0,
            2f64.atan(),
            3.0 * PI / 4.0,
            1f64.sinh(),
            1f64.cosh(),
            0.5f64.tanh(),
            1f64.asinh(),
            2f64.acosh(),
            0.5f64.atanh(),
            (PI / 4.0).sin(),
            -1.5,
            0.75,
            -2.0,
            -1.0,
            -1.0,
            3.0,
            2.0,
            10.0,
            24.0,
            0.75,
            6.0,
            -0.75,
            -3.0,
            0.3f64.sin(),
            0.3f64.cos(),
            -3.0,
            2.0,
            1f64.exp(),
            0.5f64.tanh(),
        ],
    );
}

#[test]
fn integer_functions() {
    let expected = [8, 31, 7, 3, 32, 1, 3, 256, -2, 127, 0, 12, 7, 8, -1, 0xbc, 0xf0, 17, i32::MAX, 3];
    assert_eq!(run::<i32>("integer_functions", expected.len(), &[]), expected);
}

#[test]
fn relational_functions() {
    let input = [f32::NAN, f32::INFINITY, 1.0, -0.0, 1e-40];
    assert_eq!(run::<i32>("relational_functions", 11, &input), [1, 0, 1, 1, 0, 1, 0, 1, 2, 4, 1]);
}

#[test]
fn geometric_and_packing_functions() {
    floats("geometric_functions", &[32.0, 1.0, 5.0, 25.0, 5.0, 0.8, 1.0, 1.0, 255.0]);
}

#[test]
fn limits_and_traits() {
    floats("limits", &[2_147_483_647.0, -32768.0, 255.0, 1.0, -65504.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
}
