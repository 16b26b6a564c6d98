//! What a backend says when the graph or its inputs are broken: one test for each kind of error.

use crate::harness::*;
use bytes::Bytes;
use graph::ops::{GetRows, KvStore, MatMul, Rope, RopeStyle};
use graph::{BackendError, BufferId, DType, GroupId, InputKind, Op, Shape, StateId, StatePart, WeightData};
use quant::Format;

#[test]
fn out_of_memory() {
    for mut tested in backends() {
        let error = tested.backend.alloc_buffer(usize::MAX).unwrap_err();
        assert!(matches!(error, BackendError::OutOfMemory { bytes: usize::MAX, .. }), "{error}");
        assert!(matches!(
            tested.backend.alloc_fresh(isize::MAX as usize),
            Err(BackendError::OutOfMemory { .. })
        ));
    }
}

#[test]
fn unknown_handles() {
    for mut tested in backends() {
        let backend = tested.backend.as_mut();
        let buffer = backend.alloc_buffer(8).unwrap();
        backend.free_buffer(buffer);
        backend.free_buffer(buffer);
        let unknown = |kind, id| Err(BackendError::UnknownHandle { kind, id });
        assert_eq!(backend.read_host(buffer, 0, &mut [0; 4]), unknown("buffer", buffer.0));
        assert_eq!(backend.write_host(BufferId(999), 0, &[0; 4]), unknown("buffer", 999));
        let state = backend.alloc_state(&kv_state(4, 8, 8, DType::F16)).unwrap();
        backend.free_state(state);
        backend.free_state(state);
        assert_eq!(backend.read_state(state, StatePart::Key, 0, &mut [0; 16]), unknown("state", state.0));
        assert_eq!(backend.write_state(StateId(7), StatePart::Key, 0, &[0; 16]), unknown("state", 7));
    }
}

#[test]
fn wrong_lengths() {
    for mut tested in backends() {
        let backend = tested.backend.as_mut();
        let buffer = backend.alloc_fresh(64).unwrap();
        assert!(matches!(backend.read_host(buffer, 61, &mut [0; 4]), Err(BackendError::Length { .. })));
        assert!(matches!(backend.write_host(buffer, usize::MAX, &[0; 4]), Err(BackendError::Length { .. })));
        let state = backend.alloc_state(&kv_state(4, 8, 8, DType::F16)).unwrap();
        assert!(matches!(
            backend.read_state(state, StatePart::Key, 0, &mut [0; 15]),
            Err(BackendError::Length { .. })
        ));
        assert!(matches!(
            backend.write_state(state, StatePart::Key, 4, &[0; 16]),
            Err(BackendError::Length { .. })
        ));
        let data = WeightData {
            format: Format::Q4_0,
            rows: 2,
            cols: 32,
            bytes: Bytes::from(vec![0; 35]),
            release: None,
        };
        let error = backend.register_weight("w", data).unwrap_err();
        let named = matches!(&error, BackendError::Length { what, expected: 36, found: 35 } if what.starts_with("weight 'w'"));
        assert!(named, "{error}");
        assert!(!backend.has_weight("w"));
    }
}

#[test]
fn missing_weights() {
    for mut tested in backends() {
        let mut case = Case::new(tested.backend.as_mut(), &params(1));
        let x = case.floats(Shape::new(1, 32), &[1.0; 32]);
        let weight = case.info("blk.0.attn_q.weight", Format::Q4_0, 8, 32);
        let error = case.try_run(Op::MatMul(MatMul { weight, bias: None, logits: false }), &[x]).unwrap_err();
        assert_eq!(error, BackendError::MissingWeight { name: "blk.0.attn_q.weight".into() });
    }
}

#[test]
fn broken_invariants() {
    for mut tested in backends() {
        // A weight of another shape than the graph was built with.
        let mut case = Case::new(tested.backend.as_mut(), &params(1));
        let x = case.floats(Shape::new(1, 32), &[1.0; 32]);
        case.weight("w", Format::F32, 4, 32, vec![0; 512]);
        drop(case);
        let mut case = Case::new(tested.backend.as_mut(), &params(1));
        let y = case.floats(Shape::new(1, 32), &[1.0; 32]);
        assert_eq!(x, y);
        let weight = case.info("w", Format::F32, 8, 32);
        let error = case.try_run(Op::MatMul(MatMul { weight, bias: None, logits: false }), &[y]).unwrap_err();
        assert!(matches!(&error, BackendError::Invariant { what, .. } if what == "weight 'w'"), "{error}");

        // A result over an input that is still needed.
        let mut case = Case::new(tested.backend.as_mut(), &params(1));
        case.alias = Some(0);
        let x = case.floats(Shape::new(1, 32), &[1.0; 32]);
        let weight = case.weight("w", Format::F32, 32, 32, vec![0; 4096]);
        let error = case.try_run(Op::MatMul(MatMul { weight, bias: None, logits: false }), &[x]).unwrap_err();
        assert!(matches!(&error, BackendError::Invariant { what, .. } if what == "output"), "{error}");

        // A cap that divides by zero.
        let mut case = Case::new(tested.backend.as_mut(), &params(1));
        let x = case.floats(Shape::new(1, 1), &[1.0]);
        assert!(matches!(case.try_run(Op::SoftCap(0.0), &[x]), Err(BackendError::Invariant { .. })));
    }
}

#[test]
fn bad_inputs() {
    for mut tested in backends() {
        for found in [-1, 50, i32::MIN, i32::MAX] {
            let bad = |what: &str, limit| BackendError::BadInput {
                what: what.into(),
                row: 1,
                found: i64::from(found),
                limit,
            };
            let mut case = Case::new(tested.backend.as_mut(), &params(2));
            let tokens = case.ints(InputKind::Tokens, &[3, found]);
            let table = case.weight("embd", Format::F32, 50, 4, vec![0; 800]);
            let error = case.try_run(Op::GetRows(GetRows { table: Some(table) }), &[tokens]).unwrap_err();
            assert_eq!(error, bad("token", 50), "{}", tested.name);

            let spec = kv_state(50, 4, 4, DType::F32);
            let mut case = Case::with_state(tested.backend.as_mut(), &params(2), spec);
            let x = case.floats(Shape::new(2, 4), &[0.0; 8]);
            let rows = case.ints(InputKind::CacheRows(GroupId(0)), &[3, found]);
            let store = Op::KvStore(KvStore { layer: 0, group: GroupId(0) });
            assert_eq!(
                case.try_run(store, &[x, x, rows]).unwrap_err(),
                bad("cache row", 50),
                "{}",
                tested.name
            );

            if found < 0 {
                let mut case = Case::new(tested.backend.as_mut(), &params(2));
                let x = case.floats(Shape::new(2, 4), &[0.0; 8]);
                let positions = case.ints(InputKind::Positions, &[3, found]);
                let table = crate::rope::table(4, 1e4, 1.0);
                let rope = Op::Rope(Rope { head_dim: 4, style: RopeStyle::SplitHalf, table });
                let error = case.try_run(rope, &[x, positions]).unwrap_err();
                assert_eq!(error, bad("position", i64::from(i32::MAX)), "{}", tested.name);
            }
        }
    }
}
