//! Gathering rows.

use crate::harness::*;
use graph::ops::GetRows;
use graph::{InputKind, Op, Shape};
use quant::Format;

#[test]
fn rows_of_weights_of_every_format() {
    for mut tested in backends() {
        for format in Format::ALL {
            let (rows, cols) = (50, 256);
            let bytes = if format == Format::Q8_K {
                let mut bytes = vec![0; rows * format.row_bytes(cols).unwrap()];
                quant::encode(format, &Random::new(1).floats(rows * cols), &mut bytes).unwrap();
                bytes
            } else {
                random_weights(format, rows, cols, &mut Random::new(1))
            };
            let table = decoded(format, &bytes, rows * cols);
            for ids in [vec![49], vec![0, 7, 7, 3], (0..33).collect()] {
                let ids: Vec<i32> = ids;
                let expected: Vec<f32> =
                    ids.iter().flat_map(|id| table[*id as usize * cols..][..cols].to_vec()).collect();
                let mut case = Case::new(tested.backend.as_mut(), &params(ids.len()));
                let tokens = case.ints(InputKind::Tokens, &ids);
                let table = case.weight("embd", format, rows, cols, bytes.clone());
                let found = case.run(Op::GetRows(GetRows { table: Some(table) }), &[tokens]);
                assert_eq!(found, expected, "{} {format}", tested.name);
            }
        }
    }
}

#[test]
fn rows_of_activations() {
    for mut tested in backends() {
        let (rows, cols) = (33, 80);
        let x = Random::new(2).floats(rows * cols);
        for ids in [vec![32], vec![0, 31, 5]] {
            let expected: Vec<f32> =
                ids.iter().flat_map(|id| x[*id as usize * cols..][..cols].to_vec()).collect();
            let mut batch = params(rows);
            batch.outputs = ids.len();
            let mut case = Case::new(tested.backend.as_mut(), &batch);
            let x = case.floats(Shape::new(rows, cols), &x);
            let indices = case.ints(InputKind::OutRows, &ids);
            let found = case.run(Op::GetRows(GetRows { table: None }), &[x, indices]);
            assert_eq!(found, expected, "{}", tested.name);
        }
    }
}
