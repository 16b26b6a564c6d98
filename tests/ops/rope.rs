//! Rotary position embedding.

use crate::harness::*;
use graph::ops::{Rope, RopeStyle, RopeTable};
use graph::{InputKind, Op, Shape};
use std::sync::Arc;

/// Turns the heads in double precision.
pub fn reference(x: &[f32], heads: usize, op: &Rope, positions: &[i32]) -> Vec<f64> {
    let mut out = wide(x);
    let pairs = op.table.inv_freq.len();
    for (row, &position) in positions.iter().enumerate() {
        for head in 0..heads {
            let first = (row * heads + head) * op.head_dim;
            for (i, inv_freq) in op.table.inv_freq.iter().enumerate() {
                let (s, c) = (f64::from(position) * inv_freq).sin_cos();
                let (s, c) = (s * f64::from(op.table.magnitude), c * f64::from(op.table.magnitude));
                let (ia, ib) = match op.style {
                    RopeStyle::Interleaved => (first + 2 * i, first + 2 * i + 1),
                    RopeStyle::SplitHalf => (first + i, first + pairs + i),
                };
                let (a, b) = (out[ia], out[ib]);
                (out[ia], out[ib]) = (a * c - b * s, a * s + b * c);
            }
        }
    }
    out
}

/// The usual angles.
pub fn table(rotary: usize, base: f64, magnitude: f32) -> Arc<RopeTable> {
    let inv_freq = (0..rotary / 2).map(|i| base.powf(-2.0 * i as f64 / rotary as f64)).collect();
    Arc::new(RopeTable { inv_freq, magnitude })
}

#[test]
fn rotations() {
    for mut tested in backends() {
        for style in [RopeStyle::Interleaved, RopeStyle::SplitHalf] {
            for (tokens, heads, head_dim, rotary) in
                [(1, 1, 64, 64), (5, 9, 80, 80), (33, 3, 128, 64), (2, 4, 256, 256), (3, 2, 10, 6)]
            {
                let mut random = Random::new(11);
                let x = random.floats(tokens * heads * head_dim);
                let positions: Vec<i32> = (0..tokens).map(|_| random.below(100_000) as i32).collect();
                let op = Rope { head_dim, style, table: table(rotary, 1e4, 1.1) };
                let expected = reference(&x, heads, &op, &positions);
                for alias in [None, Some(0)] {
                    let mut case = Case::new(tested.backend.as_mut(), &params(tokens));
                    case.alias = alias;
                    let x = case.floats(Shape::new(tokens, heads * head_dim), &x);
                    let positions = case.ints(InputKind::Positions, &positions);
                    let found = case.run(Op::Rope(op.clone()), &[x, positions]);
                    let what = format!("{} {style:?} {tokens} {heads} {head_dim}", tested.name);
                    check(&what, &found, &expected, 1e-13);
                }
            }
        }
    }
}
