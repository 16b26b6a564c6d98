//! How many barriers the Metal backend puts between the dispatches of one node: none where they touch different parts of the
//! same memory.

use crate::harness::*;
use graph::ops::{BatchMatMul, FusedFfn, FusedQkv, KvStore};
use graph::{DType, GroupId, InputKind, Op, Shape};
use metal::Switches;
use quant::Format;

#[test]
fn products_of_pairs_do_not_wait_for_each_other() {
    let mut backend = metal(Switches::default());
    let before = backend.counts();
    let mut case = Case::new(&mut backend, &params(1));
    let inputs = [(); 2].map(|()| case.floats(Shape::new(6, 32), &[0.5; 192]));
    case.run(Op::BatchMatMul(BatchMatMul { batch: 3 }), &inputs);
    let counts = backend.counts();
    assert_eq!((counts.dispatches - before.dispatches, counts.barriers - before.barriers), (3, 0));
}

/// Query and key in one dispatch, values of another format beside them, and then what reads all three.
#[test]
fn products_side_by_side_share_an_interval() {
    let mut backend = metal(Switches::default());
    let before = backend.counts();
    let spec = kv_state(4, 32, 32, DType::F32);
    let mut case = Case::with_state(&mut backend, &params(2), spec);
    let inputs = [
        case.floats(Shape::new(2, 32), &[0.5; 64]),
        case.ints(InputKind::Positions, &[0, 1]),
        case.ints(InputKind::CacheRows(GroupId(0)), &[2, 3]),
    ];
    let formats = [Format::Q8_0, Format::Q8_0, Format::F32];
    let weights = [0, 1, 2].map(|i| {
        let bytes = vec![0; 32 * formats[i].row_bytes(32).unwrap()];
        case.weight(&format!("w{i}"), formats[i], 32, 32, bytes)
    });
    let store = KvStore { layer: 0, group: GroupId(0) };
    let op = FusedQkv { weights, biases: None, norms: None, rope: None, store };
    case.run_in_place(Op::FusedQkv(op), &inputs).unwrap();
    drop(case);
    let counts = backend.counts();
    assert_eq!((counts.dispatches - before.dispatches, counts.barriers - before.barriers), (3, 1));
}

/// Of many tokens: tiles of the gate and of the up projection, and then the activation.
#[test]
fn tiles_of_gate_and_up_share_an_interval() {
    let mut backend = metal(Switches::default());
    let before = backend.counts();
    let mut case = Case::new(&mut backend, &params(1));
    let x = case.floats(Shape::new(9, 32), &[0.5; 288]);
    let weights = [0, 1].map(|i| case.weight(&format!("w{i}"), Format::F32, 8, 32, vec![0; 1024]));
    case.run(Op::FusedFfn(FusedFfn { weights, activation: graph::ops::Activation::Silu }), &[x]);
    let counts = backend.counts();
    assert_eq!((counts.dispatches - before.dispatches, counts.barriers - before.barriers), (3, 1));
}
