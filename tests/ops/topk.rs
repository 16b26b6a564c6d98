//! The largest elements of rows, and elements by their columns.

use crate::harness::*;
use graph::ops::TopK;
use graph::{Op, Shape};
use std::cmp::Ordering;

/// By sorting, as the operation's documentation says.
pub fn reference(x: &[f32], cols: usize, k: usize) -> Vec<i32> {
    let rows = x.chunks(cols).flat_map(|row| {
        let mut columns: Vec<usize> = (0..cols).collect();
        columns.sort_by(|&a, &b| match (row[a].is_nan(), row[b].is_nan()) {
            (false, false) => row[b].partial_cmp(&row[a]).unwrap(),
            (true, true) => Ordering::Equal,
            (a, b) => a.cmp(&b),
        });
        columns.into_iter().take(k).map(|column| column as i32).collect::<Vec<_>>()
    });
    rows.collect()
}

/// Columns of the `k` largest elements of each row.
pub fn found(tested: &mut Tested, x: &[f32], cols: usize, k: usize) -> Vec<i32> {
    let mut case = Case::new(tested.backend.as_mut(), &params(1));
    let input = case.floats(Shape::new(x.len() / cols, cols), x);
    // The result's four bytes are integers.
    case.run(Op::TopK(TopK { k }), &[input]).iter().map(|x| x.to_bits() as i32).collect()
}

#[test]
fn columns_of_the_largest_elements() {
    for mut tested in backends_with("TopK") {
        for (cols, k) in [(1, 1), (8, 2), (32, 4), (60, 4), (128, 8), (131, 7), (512, 10), (9, 9), (1031, 33)]
        {
            for rows in [1, 3, 67] {
                let x = Random::new((cols * rows) as u64).floats(rows * cols);
                let what = format!("{} [{rows}, {cols}], k {k}", tested.name);
                assert_eq!(found(&mut tested, &x, cols, k), reference(&x, cols, k), "{what}");
            }
        }
    }
}

#[test]
fn of_equal_elements_the_lower_column_comes_first_and_nan_is_last() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let rows: [[f32; 6]; 6] = [
        [0.0; 6],
        [1.0, 2.0, 2.0, 1.0, 2.0, 1.0],
        [0.0, -0.0, 0.0, -0.0, 1e-45, -1e-45],
        [nan, -inf, nan, inf, -nan, 0.0],
        [nan; 6],
        [-inf, inf, -inf, inf, f32::MAX, f32::MIN],
    ];
    let x = rows.concat();
    assert_eq!(reference(&rows[3], 6, 6), [3, 5, 1, 0, 2, 4]);
    for mut tested in backends_with("TopK") {
        for k in 1..=6 {
            assert_eq!(found(&mut tested, &x, 6, k), reference(&x, 6, k), "{}, k {k}", tested.name);
        }
        // Many equal ones, of a row that no group of threads has an element each of.
        let mut random = Random::new(2);
        let x: Vec<f32> = (0..5 * 300).map(|_| random.below(4) as f32).collect();
        assert_eq!(found(&mut tested, &x, 300, 300), reference(&x, 300, 300), "{}", tested.name);
    }
}

#[test]
fn elements_by_their_columns() {
    for mut tested in backends_with("GatherCols") {
        for (rows, cols, k) in [(1, 1, 1), (1, 8, 2), (5, 128, 8), (33, 31, 70)] {
            let mut random = Random::new(cols as u64);
            let x = random.floats(rows * cols);
            let indices: Vec<i32> = (0..rows * k).map(|_| random.below(cols) as i32).collect();
            let expected: Vec<f32> =
                indices.iter().enumerate().map(|(i, &column)| x[i / k * cols + column as usize]).collect();
            let mut case = Case::new(tested.backend.as_mut(), &params(1));
            let inputs =
                [case.floats(Shape::new(rows, cols), &x), case.indices(Shape::new(rows, k), &indices)];
            assert_eq!(case.run(Op::GatherCols, &inputs), expected, "{} {rows} {cols} {k}", tested.name);
        }
    }
}
