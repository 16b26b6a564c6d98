//! Kernels compiled without fast arithmetic (`SMELT_METAL_STRICT`) keep the bounds of the others.

use crate::attention::{Scene, attention};
use crate::harness::*;
use graph::ops::{MatMul, RmsNorm, Softmax};
use graph::{DType, Op, Shape};
use metal::device::CompileOptions;
use metal::library::Compiled;
use metal::{MetalBackend, MetalOptions, Switches};
use metal_sim::compile::{self, Clang, Source};
use metal_sim::device::SimDevice;
use quant::Format;
use std::time::Duration;

#[test]
fn strict_arithmetic_keeps_the_bounds() {
    let mut backend = metal(Switches { strict: true, ..Switches::default() });
    let mut random = Random::new(31);
    let (rows, cols) = (70, 256);
    for (format, tokens, bound) in [
        (Format::Q4_K, 1, 1e-11),
        (Format::Q4_K, 40, 1e-7),
        (Format::F32, 3, 1e-11),
        (Format::BF16, 40, 1e-11),
    ] {
        let bytes = random_weights(format, rows, cols, &mut random);
        let weights = wide(&decoded(format, &bytes, rows * cols));
        let x = random.floats(tokens * cols);
        let dot = |x: &[f32], w: &[f64]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * w).sum::<f64>();
        let expected: Vec<f64> =
            x.chunks(cols).flat_map(|x| weights.chunks(cols).map(move |w| dot(x, w))).collect();
        let mut case = Case::new(&mut backend, &params(1));
        let input = case.floats(Shape::new(tokens, cols), &x);
        let weight = case.weight("w", format, rows, cols, bytes);
        let found = case.run(Op::MatMul(MatMul { weight, bias: None, logits: false }), &[input]);
        check(&format!("{format}, {tokens} tokens"), &found, &expected, bound);
    }
    for sequences in [&[(300, 1)][..], &[(40, 40), (33, 17)]] {
        let scene = Scene::new(attention(4, 2, 64, Some(50)), DType::F16, 16, sequences, 7);
        check("attention", &scene.run(&mut backend).unwrap(), &scene.reference(), 1e-11);
    }

    // What fast arithmetic may assume never to happen.
    let mut x = random.floats(3 * 100);
    x[120] = f32::NAN;
    for op in [Op::RmsNorm(RmsNorm { weight: None, epsilon: 1e-6 }), Op::Softmax(Softmax { scale: 0.5 })] {
        let mut case = Case::new(&mut backend, &params(1));
        let input = case.floats(Shape::new(3, 100), &x);
        for (row, y) in case.run(op, &[input]).chunks(100).enumerate() {
            assert_eq!(y.iter().all(|y| y.is_finite()), row != 1, "row {row}");
        }
    }
}

/// Libraries that were compiled ahead of time have fast arithmetic.
#[test]
fn a_strict_start_compiles_its_libraries() {
    let device = SimDevice::from_environment().unwrap();
    let source =
        Source { name: "copy", text: "kernel void other() {}", include_directories: &[], only: None };
    let library = compile::build(&Clang::find().unwrap(), source, &CompileOptions::default()).unwrap();
    let embedded: Compiled = Vec::leak(vec![("copy", &*Vec::leak(std::fs::read(library).unwrap()))]);
    let switches = Switches { strict: true, ..Switches::default() };
    let options = MetalOptions { name: METAL, timeout: Duration::from_secs(1), switches };
    let backend = MetalBackend::with_embedded(device, options, embedded).unwrap();
    assert!(backend.pipelines().names().any(|name| name == "copy"));
}
