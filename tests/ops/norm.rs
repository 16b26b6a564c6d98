//! Normalisations and softmax.

use crate::harness::*;
use graph::ops::{QkNorm, RmsNorm, Softmax};
use graph::{Op, Shape};
use quant::Format;

/// Runs of `width` elements by the root of their mean square.
pub fn rms_norm(x: &[f32], weight: Option<&[f32]>, width: usize, epsilon: f32) -> Vec<f64> {
    let mut out = Vec::new();
    for row in x.chunks(width) {
        let mean = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / width as f64;
        let factor = 1.0 / (mean + f64::from(epsilon)).sqrt();
        out.extend((0..width).map(|i| f64::from(row[i]) * factor * weight.map_or(1.0, |w| f64::from(w[i]))));
    }
    out
}

#[test]
fn rms_norms() {
    for mut tested in backends() {
        for (rows, cols) in [(1, 1), (1, 576), (33, 896), (3, 31), (7, 33), (2, 2048)] {
            for (epsilon, size) in [(1e-5, 1.0), (1e-6, 100.0), (1e-8, 1e-3)] {
                let mut random = Random::new(rows as u64);
                let x: Vec<f32> = random.floats(rows * cols).iter().map(|v| v * size).collect();
                let weight = random.floats(cols);
                for weighted in [true, false] {
                    let expected = rms_norm(&x, weighted.then_some(&weight), cols, epsilon);
                    for alias in [None, Some(0)] {
                        let mut case = Case::new(tested.backend.as_mut(), &params(1));
                        case.alias = alias;
                        let input = case.floats(Shape::new(rows, cols), &x);
                        let id = weighted.then(|| case.vector("norm", &weight));
                        let found = case.run(Op::RmsNorm(RmsNorm { weight: id, epsilon }), &[input]);
                        check(&format!("{} {rows} x {cols}", tested.name), &found, &expected, 1e-12);
                    }
                }
            }
        }
    }
}

/// On a CPU: GPUs may give zeros beyond the square root of the largest float, as float32 references do.
#[test]
fn norms_of_numbers_whose_squares_are_no_floats() {
    for mut tested in backends().into_iter().filter(Tested::is_cpu) {
        for (cols, size) in [(1, 3e38), (31, 2e19), (64, 1e19), (576, 1e37), (2048, 5e17)] {
            let mut random = Random::new(cols as u64);
            let mut x: Vec<f32> = random.floats(2 * cols).iter().map(|v| v.clamp(-1.0, 1.0) * size).collect();
            // The second row is an ordinary one.
            x[cols..].iter_mut().for_each(|v| *v /= size);
            x[0] = -size;
            let weight = random.floats(cols);
            for alias in [None, Some(0)] {
                let mut case = Case::new(tested.backend.as_mut(), &params(1));
                case.alias = alias;
                let input = case.floats(Shape::new(2, cols), &x);
                let id = Some(case.vector("norm", &weight));
                let found = case.run(Op::RmsNorm(RmsNorm { weight: id, epsilon: 1e-5 }), &[input]);
                for (found, x) in found.chunks(cols).zip(x.chunks(cols)) {
                    let expected = rms_norm(x, Some(&weight), cols, 1e-5);
                    check(&format!("{} {cols} of {size}", tested.name), found, &expected, 1e-12);
                }
            }
        }
        // What is no number stays visible.
        for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let mut case = Case::new(tested.backend.as_mut(), &params(1));
            let input = case.floats(Shape::new(2, 3), &[1.0, bad, 3.0, 1.0, 2.0, 3.0]);
            let found = case.run(Op::RmsNorm(RmsNorm { weight: None, epsilon: 1e-5 }), &[input]);
            assert!(found[1].is_nan() && found[3..].iter().all(|y| y.is_finite()), "{bad}: {found:?}");
        }
    }
}

#[test]
fn norms_of_heads() {
    for mut tested in backends() {
        for (rows, heads, head_dim) in [(1, 1, 64), (5, 9, 80), (33, 4, 128), (2, 3, 256)] {
            let mut random = Random::new(7);
            let (x, weight) = (random.floats(rows * heads * head_dim), random.floats(head_dim));
            // Weights of half precision are vectors too, on the CPU.
            let format = if tested.is_cpu() { Format::F16 } else { Format::F32 };
            let half: Vec<u8> = weight.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
            let weight = decoded(Format::F16, &half, head_dim);
            let expected = rms_norm(&x, Some(&weight), head_dim, 1e-6);
            let mut case = Case::new(tested.backend.as_mut(), &params(1));
            let input = case.floats(Shape::new(rows, heads * head_dim), &x);
            let bytes = if format == Format::F16 { half } else { bytemuck::cast_slice(&weight).to_vec() };
            let weight = case.weight("norm", format, 1, head_dim, bytes);
            let found = case.run(Op::QkNorm(QkNorm { weight, epsilon: 1e-6, head_dim }), &[input]);
            check(&format!("{} {rows} {heads} {head_dim}", tested.name), &found, &expected, 1e-12);
        }
    }
}

#[test]
fn softmaxes() {
    for mut tested in backends() {
        for (rows, cols) in [(1, 1), (3, 31), (33, 256), (2, 5000)] {
            let x: Vec<f32> = Random::new(9).floats(rows * cols).iter().map(|v| v * 10.0).collect();
            let mut expected = Vec::new();
            for row in x.chunks(cols) {
                let scaled: Vec<f64> = row.iter().map(|v| f64::from(*v) * 0.3).collect();
                let top = scaled.iter().copied().fold(f64::MIN, f64::max);
                let sum: f64 = scaled.iter().map(|v| (v - top).exp()).sum();
                expected.extend(scaled.iter().map(|v| (v - top).exp() / sum));
            }
            let mut case = Case::new(tested.backend.as_mut(), &params(1));
            let input = case.floats(Shape::new(rows, cols), &x);
            let found = case.run(Op::Softmax(Softmax { scale: 0.3 }), &[input]);
            check(&format!("{} {rows} x {cols}", tested.name), &found, &expected, 1e-11);
        }
    }
}
