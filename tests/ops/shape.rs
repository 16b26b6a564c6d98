//! Shape operations.

use crate::harness::*;
use graph::ops::{Permute, View};
use graph::{Op, Shape};

#[test]
fn windows() {
    for mut tested in backends() {
        let (rows, cols) = (9, 33);
        let x = Random::new(1).floats(rows * cols);
        for (first_row, view_rows, first_col, view_cols) in
            [(0, 9, 0, 33), (8, 1, 0, 33), (2, 5, 1, 32), (0, 9, 32, 1), (3, 0, 0, 33)]
        {
            let view = View { first_row, rows: view_rows, first_col, cols: view_cols };
            let expected: Vec<f32> = (0..view_rows * view_cols)
                .map(|i| x[(first_row + i / view_cols) * cols + first_col + i % view_cols])
                .collect();
            let mut case = Case::new(tested.backend.as_mut(), &params(1));
            let input = case.floats(Shape::new(rows, cols), &x);
            assert_eq!(case.run(Op::View(view), &[input]), expected, "{} {view:?}", tested.name);
        }
    }
}

#[test]
fn tokens_and_heads_change_places() {
    for mut tested in backends() {
        for (tokens, heads, width) in [(1, 1, 1), (5, 3, 64), (33, 4, 7)] {
            let x = Random::new(1).floats(tokens * heads * width);
            let mut expected = vec![0.0; x.len()];
            for token in 0..tokens {
                for head in 0..heads {
                    for i in 0..width {
                        expected[(head * tokens + token) * width + i] = x[(token * heads + head) * width + i];
                    }
                }
            }
            let mut case = Case::new(tested.backend.as_mut(), &params(1));
            let input = case.floats(Shape::new(tokens, heads * width), &x);
            assert_eq!(case.run(Op::Permute(Permute { heads }), &[input]), expected, "{}", tested.name);
        }
    }
}
