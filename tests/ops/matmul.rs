//! Matrix products, with weights of every format.

use crate::harness::*;
use graph::ops::{BatchMatMul, MatMul};
use graph::{Op, Shape};
use metal::Switches;
use quant::Format;

/// Error of products with quantised activations: 8 bits with a scale for 32 elements of a normal distribution, whose
/// largest is about 2.2. The step is 2.2 / 127, its mean squared error a twelfth of its square: 2.5e-5 of the variance.
const QUANTISED: f64 = 4e-5;
/// The same for logits, whose activations have a second 8 bits: the step is 254 times finer.
const REFINED: f64 = QUANTISED / (254.0 * 254.0) + FLOAT;
/// Error of products in f32.
const FLOAT: f64 = 1e-11;
/// Bound where decoded weights are rounded to half precision, in the tiles of the Metal backend.
const TILED: f64 = 1e-7;
/// Error on the CUDA backend: several rows are multiplied in half precision, rounded to 11 bits, one with 16 bits.
const HALF: f64 = 1e-6;

/// `x w^T + bias`, row by row.
pub fn product(w: &[f32], x: &[f32], cols: usize, bias: Option<&[f32]>) -> Vec<f64> {
    let mut out = Vec::new();
    for x in x.chunks(cols) {
        for (row, w) in w.chunks(cols).enumerate() {
            let sum: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            out.push(sum + bias.map_or(0.0, |bias| f64::from(bias[row])));
        }
    }
    out
}

fn is_float(format: Format) -> bool {
    matches!(format, Format::F32 | Format::F16 | Format::BF16)
}

#[test]
fn products_with_every_format() {
    for mut tested in backends() {
        let activations = (!tested.is_metal()).then_some(Format::Q8_K);
        for format in Format::ALL.into_iter().filter(|format| Some(*format) != activations) {
            let widths: &[usize] = match format.block_len() {
                1 => &[1, 33, 64, 260],
                32 => &[32, 96, 256, 288],
                _ => &[256, 768],
            };
            for &cols in widths {
                for (rows, tokens) in [(1, 1), (9, 1), (24, 33), (17, 2), (130, 5)] {
                    let mut random = Random::new((rows * cols + tokens) as u64);
                    let bytes = random_weights(format, rows, cols, &mut random);
                    let (x, bias) = (random.floats(tokens * cols), random.floats(rows));
                    let weights = decoded(format, &bytes, rows * cols);
                    for (biased, logits) in [(false, false), (true, false), (false, true), (true, true)] {
                        let expected = product(&weights, &x, cols, biased.then_some(&bias));
                        let mut case = Case::new(tested.backend.as_mut(), &params(1));
                        let input = case.floats(Shape::new(tokens, cols), &x);
                        let weight = case.weight("w", format, rows, cols, bytes.clone());
                        let id = biased.then(|| case.vector("b", &bias));
                        let found = case.run(Op::MatMul(MatMul { weight, bias: id, logits }), &[input]);
                        let quantised = tested.quantised && !is_float(format);
                        // A few products may all happen to be small, and the error is relative to them.
                        let few = if rows * tokens < 64 { 100.0 } else { 1.5 };
                        let tiled = tested.is_metal() && tokens > 8 && !is_float(format);
                        let bound = match (quantised, logits) {
                            _ if tested.half => HALF,
                            (true, false) => QUANTISED * few,
                            (true, true) => REFINED * few,
                            (false, _) if tiled => TILED,
                            (false, _) => FLOAT,
                        };
                        let what = format!(
                            "{} {format} {rows} x {cols}, {tokens} tokens, logits: {logits}",
                            tested.name
                        );
                        check(&what, &found, &expected, bound);
                    }
                }
            }
        }
    }
}

/// Few rows that are long: fewer tiles of them than a GPU has multiprocessors.
#[test]
fn products_of_long_rows() {
    for mut tested in backends() {
        for format in [Format::Q4_K, Format::Q6_K, Format::Q5_1, Format::Q8_0, Format::F16] {
            let (rows, cols) = (40, 256 * 37);
            let mut random = Random::new(9);
            let bytes = random_weights(format, rows, cols, &mut random);
            let (x, bias) = (random.floats(cols), random.floats(rows));
            let expected = product(&decoded(format, &bytes, rows * cols), &x, cols, Some(&bias));
            let mut case = Case::new(tested.backend.as_mut(), &params(1));
            let input = case.floats(Shape::new(1, cols), &x);
            let weight = case.weight("w", format, rows, cols, bytes);
            let bias = Some(case.vector("b", &bias));
            let found = case.run(Op::MatMul(MatMul { weight, bias, logits: false }), &[input]);
            let quantised = tested.quantised && !is_float(format);
            let bound = if tested.half {
                HALF
            } else if quantised {
                QUANTISED * 2.0
            } else {
                FLOAT
            };
            check(&format!("{} {format}", tested.name), &found, &expected, bound);
        }
    }
}

#[test]
fn metal_of_many_tokens_without_tiles() {
    let mut backend = metal_on_any(Switches { gemm: false, ..Switches::default() });
    for format in Format::ALL {
        let (rows, cols, tokens) = (11, if format.block_len() == 1 { 45 } else { 256 }, 19);
        let mut random = Random::new(8);
        let bytes = random_weights(format, rows, cols, &mut random);
        let x = random.floats(tokens * cols);
        let expected = product(&decoded(format, &bytes, rows * cols), &x, cols, None);
        let mut case = Case::new(backend.as_mut(), &params(1));
        let input = case.floats(Shape::new(tokens, cols), &x);
        let weight = case.weight("w", format, rows, cols, bytes);
        let found = case.run(Op::MatMul(MatMul { weight, bias: None, logits: false }), &[input]);
        check(&format!("{format}"), &found, &expected, FLOAT);
    }
}

/// The shapes of real models, from 135 M to 7 B parameters, on the Metal backend:
///
/// ```text
/// cargo test --release -p smelt-tests --test ops -- --ignored --nocapture products_of_real_models
/// ```
#[test]
#[ignore = "takes the simulator minutes"]
fn products_of_real_models() {
    let mut backend = metal_on_any(Switches::default());
    for (rows, cols) in
        [(576, 1536), (192, 576), (2048, 640), (896, 4864), (4864, 896), (512, 3584), (3584, 18944)]
    {
        for format in Format::ALL.into_iter().filter(|format| format.row_bytes(cols).is_some()) {
            // Encoding the largest takes longer than multiplying with it.
            let rows = if cols > 8192 { 64 } else { rows };
            let mut random = Random::new(cols as u64);
            let bytes = random_weights(format, rows, cols, &mut random);
            let weights = decoded(format, &bytes, rows * cols);
            for tokens in [1, 4, 40] {
                let x = random.floats(tokens * cols);
                let expected = product(&weights, &x, cols, None);
                let mut case = Case::new(backend.as_mut(), &params(1));
                let input = case.floats(Shape::new(tokens, cols), &x);
                let weight = case.weight("w", format, rows, cols, bytes.clone());
                let found = case.run(Op::MatMul(MatMul { weight, bias: None, logits: false }), &[input]);
                let bound = if tokens > 8 && !is_float(format) { TILED } else { FLOAT };
                println!("{format} {rows} x {cols}, {tokens} tokens: {:.1e}", nmse(&found, &expected));
                check(&format!("{format} {rows} x {cols}, {tokens} tokens"), &found, &expected, bound);
            }
        }
    }
}

/// Shapes whose results are dealt out in rounds and shared out over columns, and every number of rows that the kernels of
/// an NVIDIA GPU know.
#[test]
#[ignore = "needs an NVIDIA GPU: scripts/test-cuda.sh"]
fn products_of_many_tokens_on_cuda() {
    let mut backend = cuda::CudaBackend::new().unwrap();
    for format in [Format::Q4_K, Format::Q6_K, Format::Q8_0, Format::F16] {
        let (rows, cols) = (1100, 1024);
        let mut random = Random::new(7);
        let bytes = random_weights(format, rows, cols, &mut random);
        let weights = decoded(format, &bytes, rows * cols);
        for tokens in [2, 9, 30, 64, 70, 150, 256, 300] {
            let x = random.floats(tokens * cols);
            let mut case = Case::new(&mut backend, &params(1));
            let input = case.floats(Shape::new(tokens, cols), &x);
            let weight = case.weight("w", format, rows, cols, bytes.clone());
            let found = case.run(Op::MatMul(MatMul { weight, bias: None, logits: false }), &[input]);
            check(&format!("{format}, {tokens} tokens"), &found, &product(&weights, &x, cols, None), HALF);
        }
    }
}

#[test]
fn a_value_that_is_no_number_is_not_lost() {
    for mut tested in backends() {
        for format in [Format::F32, Format::Q4_0, Format::Q4_K, Format::Q8_0] {
            for (bad, logits) in [(f32::NAN, false), (f32::INFINITY, false), (f32::NAN, true)] {
                let mut random = Random::new(4);
                let bytes = random_weights(format, 8, 256, &mut random);
                let mut x = random.floats(5 * 256);
                x[2 * 256 + 77] = bad;
                let mut case = Case::new(tested.backend.as_mut(), &params(1));
                let input = case.floats(Shape::new(5, 256), &x);
                let weight = case.weight("w", format, 8, 256, bytes);
                let found = case.run(Op::MatMul(MatMul { weight, bias: None, logits }), &[input]);
                for (token, y) in found.chunks(8).enumerate() {
                    assert_eq!(y.iter().all(|y| y.is_finite()), token != 2, "{} {format} {bad}", tested.name);
                }
            }
        }
    }
}

#[test]
fn batched_products() {
    for mut tested in backends() {
        for (batch, m, n, k) in [(1, 1, 1, 1), (3, 5, 7, 33), (2, 33, 4, 64)] {
            let mut random = Random::new(6);
            let (a, b) = (random.floats(batch * m * k), random.floats(batch * n * k));
            let pairs = a.chunks(m * k).zip(b.chunks(n * k));
            let expected: Vec<f64> = pairs.flat_map(|(a, b)| product(b, a, k, None)).collect();
            let mut case = Case::new(tested.backend.as_mut(), &params(1));
            let inputs =
                [case.floats(Shape::new(batch * m, k), &a), case.floats(Shape::new(batch * n, k), &b)];
            let found = case.run(Op::BatchMatMul(BatchMatMul { batch }), &inputs);
            check(&format!("{} {batch} {m} {n} {k}", tested.name), &found, &expected, FLOAT);
        }
    }
}
