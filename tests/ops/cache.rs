//! Storing to and loading from the cache.

use crate::attention::{decode, encode};
use crate::harness::*;
use graph::ops::{KvLoad, KvStore};
use graph::{DType, GroupId, InputKind, Op, Shape, StatePart};
use quant::Format;

const TYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::Packed(Format::Q8_0)];

#[test]
fn what_is_stored_is_what_the_type_can_hold() {
    for mut tested in backends() {
        for dtype in TYPES {
            for (rows, key_cols, value_cols) in
                [(vec![5], 64, 32), (vec![63, 0, 7], 192, 96), ((0..33).collect(), 32, 32)]
            {
                let rows: Vec<i32> = rows;
                let mut random = Random::new(3);
                let (keys, values) =
                    (random.floats(rows.len() * key_cols), random.floats(rows.len() * value_cols));
                let mut case = Case::with_state(
                    tested.backend.as_mut(),
                    &params(rows.len()),
                    kv_state(64, key_cols, value_cols, dtype),
                );
                let inputs = [
                    case.floats(Shape::new(rows.len(), key_cols), &keys),
                    case.floats(Shape::new(rows.len(), value_cols), &values),
                    case.ints(InputKind::CacheRows(GroupId(0)), &rows),
                ];
                case.run_in_place(Op::KvStore(KvStore { layer: 0, group: GroupId(0) }), &inputs).unwrap();
                for (part, x, cols) in
                    [(StatePart::Key, &keys, key_cols), (StatePart::Value, &values, value_cols)]
                {
                    let row_bytes = dtype.row_bytes(cols).unwrap();
                    let stored = case.state_bytes(part);
                    for row in 0..64 {
                        let bytes = &stored[row * row_bytes..][..row_bytes];
                        match rows.iter().position(|r| *r as usize == row) {
                            Some(i) => {
                                let x = &x[i * cols..][..cols];
                                let what = format!("{} {dtype} row {row}", tested.name);
                                if let DType::Packed(_) = dtype {
                                    check(&what, &decode(dtype, bytes, cols), &wide(x), 2e-4);
                                } else {
                                    assert_eq!(bytes, encode(dtype, x), "{what}");
                                }
                            }
                            None => assert!(bytes.iter().all(|b| *b == 0), "row {row} was not asked for"),
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn rows_are_loaded_as_they_are() {
    for mut tested in backends() {
        for dtype in TYPES {
            let cols = 96;
            let x = Random::new(8).floats(64 * cols);
            let bytes = encode(dtype, &x);
            for part in [StatePart::Key, StatePart::Value] {
                let rows = [63, 0, 17];
                let mut case =
                    Case::with_state(tested.backend.as_mut(), &params(3), kv_state(64, cols, cols, dtype));
                case.set_state(part, &bytes);
                let inputs = [
                    case.floats(Shape::new(1, 1), &[0.0]),
                    case.ints(InputKind::CacheRows(GroupId(0)), &rows),
                ];
                let found = case.run(Op::KvLoad(KvLoad { layer: 0, part }), &inputs);
                let all = decode(dtype, &bytes, 64 * cols);
                let expected: Vec<f32> =
                    rows.iter().flat_map(|r| all[*r as usize * cols..][..cols].to_vec()).collect();
                assert_eq!(found, expected, "{} {dtype}", tested.name);
            }
        }
    }
}
