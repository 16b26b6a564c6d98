//! Element-by-element operations.

use crate::harness::*;
use graph::ops::Activation;
use graph::{Op, Shape};

const SHAPES: [(usize, usize); 5] = [(1, 1), (1, 576), (3, 33), (33, 80), (5, 8200)];

fn activation(kind: Activation, x: f64) -> f64 {
    match kind {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            x / 2.0 * (1.0 + u.tanh())
        }
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
    }
}

/// What the operation gives of two numbers.
pub fn binary_reference(op: &Op, a: f64, b: f64) -> f64 {
    match op {
        Op::Add => a + b,
        Op::Mul => a * b,
        Op::Gated(kind) => activation(*kind, a) * b,
        _ => unreachable!(),
    }
}

#[test]
fn binary_operations() {
    let gated = [Activation::Silu, Activation::Gelu, Activation::Sigmoid].map(Op::Gated);
    for mut tested in backends() {
        for op in [Op::Add, Op::Mul].iter().chain(&gated) {
            for (rows, cols) in SHAPES {
                let shape = Shape::new(rows, cols);
                let mut random = Random::new(1);
                let (a, b) = (random.floats(rows * cols), random.floats(rows * cols));
                let pairs = a.iter().zip(&b);
                let expected: Vec<f64> =
                    pairs.map(|(a, b)| binary_reference(op, f64::from(*a), f64::from(*b))).collect();
                for alias in [None, Some(0), Some(1)] {
                    let mut case = Case::new(tested.backend.as_mut(), &params(1));
                    case.alias = alias;
                    let inputs = [case.floats(shape, &a), case.floats(shape, &b)];
                    let found = case.run(op.clone(), &inputs);
                    let what = format!("{} {op:?} {shape} over {alias:?}", tested.name);
                    check(&what, &found, &expected, 1e-12);
                }
            }
        }
    }
}

#[test]
fn one_row_is_added_to_every_row() {
    for mut tested in backends() {
        for op in [Op::Add, Op::Mul] {
            for (rows, cols) in SHAPES {
                let mut random = Random::new(2);
                let (a, b) = (random.floats(rows * cols), random.floats(cols));
                let expected: Vec<f64> = (0..rows * cols)
                    .map(|i| binary_reference(&op, f64::from(a[i]), f64::from(b[i % cols])))
                    .collect();
                for alias in [None, Some(0)] {
                    let mut case = Case::new(tested.backend.as_mut(), &params(1));
                    case.alias = alias;
                    let inputs =
                        [case.floats(Shape::new(rows, cols), &a), case.floats(Shape::new(1, cols), &b)];
                    let found = case.run(op.clone(), &inputs);
                    check(&format!("{} {op:?} {rows} x {cols}", tested.name), &found, &expected, 1e-13);
                }
            }
        }
    }
}

#[test]
fn unary_operations() {
    let kinds = [Activation::Silu, Activation::Gelu, Activation::Sigmoid];
    let operations: Vec<Op> = kinds
        .map(Op::Activation)
        .into_iter()
        .chain([Op::Scale(0.37), Op::SoftCap(3.0), Op::SoftCap(50.0)])
        .collect();
    for mut tested in backends() {
        for op in &operations {
            for (rows, cols) in SHAPES {
                let shape = Shape::new(rows, cols);
                let a: Vec<f32> = Random::new(3).floats(rows * cols).iter().map(|v| v * 8.0).collect();
                let expected: Vec<f64> = a
                    .iter()
                    .map(|a| f64::from(*a))
                    .map(|a| match op {
                        Op::Scale(factor) => a * f64::from(*factor),
                        Op::SoftCap(cap) => f64::from(*cap) * (a / f64::from(*cap)).tanh(),
                        Op::Activation(kind) => activation(*kind, a),
                        _ => unreachable!(),
                    })
                    .collect();
                for alias in [None, Some(0)] {
                    let mut case = Case::new(tested.backend.as_mut(), &params(1));
                    case.alias = alias;
                    let input = case.floats(shape, &a);
                    let found = case.run(op.clone(), &[input]);
                    check(&format!("{} {op:?} {shape}", tested.name), &found, &expected, 1e-12);
                }
            }
        }
    }
}
