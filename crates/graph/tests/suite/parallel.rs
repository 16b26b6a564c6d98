//! Devices that share every layer: how weights are cut, and how values meet.

use crate::common::*;
use bytes::Bytes;
use graph::ops::{AllGather, MatMul};
use graph::testing::{Control, Event, Fault};
use graph::{
    Backend, BackendError, Cut, Graph, GraphBuilder, GraphError, GraphParams, Op, Participation, Scheduler,
    Shape, StateId, StatePart, TensorParallel, WeightData, WeightInfo,
};
use quant::Format;
use std::collections::HashMap;

fn f32s(data: &WeightData) -> Vec<f32> {
    data.bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn counting(rows: usize, cols: usize) -> WeightData {
    let bytes: Vec<u8> = (1..=rows * cols).flat_map(|i| (i as f32).to_le_bytes()).collect();
    WeightData { format: Format::F32, rows, cols, bytes: Bytes::from(bytes), release: None }
}

#[test]
fn parts_are_of_one_size_and_filled_up_with_zeros() {
    let part = |cut: Cut, device| {
        let part = cut.part("w", &counting(3, 2), device).unwrap();
        assert_eq!(part.bytes.len(), part.rows * part.cols * 4);
        ((part.rows, part.cols), f32s(&part))
    };
    let whole = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    for device in 0..2 {
        assert_eq!(part(Cut::Whole, device), ((3, 2), whole.to_vec()));
    }
    assert_eq!(part(Cut::First, 0), ((3, 2), whole.to_vec()));
    assert_eq!(part(Cut::First, 1), ((3, 2), vec![0.0; 6]));
    assert_eq!(part(Cut::Rows(2), 0), ((2, 2), whole[..4].to_vec()));
    assert_eq!(part(Cut::Rows(2), 1), ((2, 2), vec![5.0, 6.0, 0.0, 0.0]));
    assert_eq!(part(Cut::Rows(2), 2), ((2, 2), vec![0.0; 4]));
    assert_eq!(part(Cut::Cols(1), 0), ((3, 1), vec![1.0, 3.0, 5.0]));
    assert_eq!(part(Cut::Cols(1), 1), ((3, 1), vec![2.0, 4.0, 6.0]));
    assert_eq!(part(Cut::Cols(2), 1), ((3, 2), vec![0.0; 6]));
}

/// What the filling rests on.
#[test]
fn blocks_of_zeros_are_zeros_in_every_format() {
    for format in Format::ALL {
        let cols = format.block_len() * 2;
        let mut values = vec![1.0; cols];
        let zeros = vec![0; format.row_bytes(cols).unwrap()];
        if quant::decode(format, &zeros, &mut values).is_ok() {
            assert!(values.iter().all(|&value| value == 0.0), "{format}: {values:?}");
        }
    }
}

#[test]
fn packed_rows_are_cut_between_blocks() {
    let cols = 96;
    let row = |row: u8| (0..3).flat_map(move |block| [10 * row + block; 34]);
    let bytes: Vec<u8> = (0..2).flat_map(row).collect();
    let data = WeightData { format: Format::Q8_0, rows: 2, cols, bytes: bytes.into(), release: None };
    let blocks = |device| {
        let part = Cut::Cols(64).part("w", &data, device).unwrap();
        assert_eq!((part.rows, part.cols), (2, 64));
        part.bytes.chunks(34).map(|block| block[0]).collect::<Vec<_>>()
    };
    assert_eq!(blocks(0), [0, 1, 10, 11]);
    assert_eq!(blocks(1), [2, 0, 12, 0]);
    let error = Cut::Cols(48).part("w", &data, 0).unwrap_err();
    assert!(
        matches!(&error, BackendError::Invariant { what, expected, .. }
            if what.contains("'w'") && expected.contains("blocks of 32")),
        "{error}"
    );
    let short = WeightData { bytes: Bytes::from_static(&[0; 34]), ..data };
    assert!(Cut::Whole.part("w", &short, 0).is_err());
}

/// `down(up(x))` over two devices, each with half of the features between, and the halves of a head put together.
fn shared(tokens: usize) -> (Graph, Vec<WeightInfo>, HashMap<String, Cut>) {
    let params = GraphParams {
        participation: Participation {
            accelerators: vec!["a+b".into()],
            tensor_parallel: Some(2),
            ..Participation::default()
        },
        ..params(tokens)
    };
    let product = |b: &mut GraphBuilder, label: &str, rows, cols, x| {
        let weight = b.weight(&weight(label, rows, cols));
        b.op(label, Op::MatMul(MatMul { weight, bias: None, logits: false }), &[x]).unwrap()
    };
    let mut b = GraphBuilder::new(&params, vec![]);
    let x = embed(&mut b, 8);
    let up = product(&mut b, "up", 6, 8, x);
    let down = product(&mut b, "down", 8, 6, up);
    let x = b.op("sum", Op::AllReduce, &[down]).unwrap();
    let head = product(&mut b, "head", 5, 8, x);
    let all = b.op("all", Op::AllGather(AllGather { devices: 2 }), &[head]).unwrap();
    assert_eq!(b.shape(all), Shape::new(2 * tokens, 5));
    let graph = b.finish(&[x, all]);
    let whole = vec![
        weight("token_embd", VOCABULARY, 8),
        weight("up", 12, 8),
        weight("down", 8, 12),
        weight("head", 10, 8),
    ];
    let cuts = [("up", Cut::Rows(6)), ("down", Cut::Cols(6)), ("head", Cut::Rows(5))];
    (graph, whole, cuts.map(|(name, cut)| (name.to_owned(), cut)).into())
}

fn group(control: &Control, cuts: HashMap<String, Cut>) -> TensorParallel {
    let devices = ["a", "b"].map(|name| Box::new(control.backend(name)) as Box<dyn Backend>);
    TensorParallel::new(devices.into(), cuts)
}

#[test]
fn devices_that_share_a_layer_give_what_one_gives() {
    for tokens in [1, 3] {
        let control = Control::new();
        let (graph, weights, cuts) = shared(tokens);
        let mut scheduler =
            Scheduler::new(vec![Box::new(group(&control, cuts)), Box::new(control.backend("cpu"))]);
        for weight in &weights {
            scheduler.register_weight(&weight.name, contents(weight)).unwrap();
        }
        assert_eq!(scheduler.participation(&graph), graph.params().participation);
        rebuilt(&mut scheduler, &graph).unwrap();
        let batch = batch(graph.params(), 0);
        let sum = output(&mut scheduler, &batch, 0).unwrap();
        let all = output(&mut scheduler, &batch, 1).unwrap();

        let [table, up, down, head] = [0, 1, 2, 3].map(|i| f32s(&contents(&weights[i])));
        let product = |w: &[f32], x: &[f32]| -> Vec<f32> {
            w.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
        };
        for (t, &token) in batch.tokens.iter().enumerate() {
            let x = product(&down, &product(&up, &table[token as usize * 8..][..8]));
            let logits = product(&head, &x);
            let near = |found: &[f32], expected: &[f32]| {
                assert_eq!(found.len(), expected.len());
                for (a, b) in found.iter().zip(expected) {
                    assert!((a - b).abs() < 1e-5, "{found:?} {expected:?}");
                }
            };
            near(&sum[t * 8..][..8], &x);
            near(&all[t * 5..][..5], &logits[..5]);
            near(&all[(tokens + t) * 5..][..5], &logits[5..]);
        }
        let log = control.take_log();
        assert!(log.iter().all(|(by, event)| by != "cpu" || !matches!(event, Event::Execute { .. })));
    }
}

#[test]
fn nothing_of_a_shared_layer_runs_elsewhere() {
    let control = Control::new();
    let (graph, weights, cuts) = shared(1);
    let refusing = control.backend("a").refusing(|query| matches!(query.op, Op::MatMul(_)));
    let devices: Vec<Box<dyn Backend>> = vec![Box::new(refusing), Box::new(control.backend("b"))];
    let group = TensorParallel::new(devices, cuts);
    let mut scheduler = Scheduler::new(vec![Box::new(group), Box::new(control.backend("cpu"))]);
    for weight in &weights {
        scheduler.register_weight(&weight.name, contents(weight)).unwrap();
    }
    let error = rebuilt(&mut scheduler, &graph).unwrap_err();
    assert!(
        matches!(&error, GraphError::Unsupported { node, backends, .. } if node == "up" && *backends == ["a+b"]),
        "{error}"
    );
}

#[test]
fn a_weight_that_one_device_cannot_take_leaves_all_out() {
    let control = Control::new();
    control.fail("b", Fault::Register("down".into()));
    let (graph, weights, cuts) = shared(1);
    let mut scheduler =
        Scheduler::new(vec![Box::new(group(&control, cuts)), Box::new(control.backend("cpu"))]);
    for weight in &weights {
        scheduler.register_weight(&weight.name, contents(weight)).unwrap();
    }
    assert_eq!(scheduler.participation(&graph), Participation::cpu_only());
    let [GraphError::Backend { backend, node, .. }] = scheduler.refused_weights() else {
        panic!("{:?}", scheduler.refused_weights())
    };
    assert_eq!((backend.as_str(), node.as_str()), ("a+b", "down"));
}

#[test]
fn memory_is_taken_on_all_devices_or_on_none() {
    let control = Control::new();
    let mut group = group(&control, HashMap::new());
    control.fail("b", Fault::Alloc(100));
    assert!(matches!(group.alloc_buffer(100), Err(BackendError::OutOfMemory { .. })));
    let log = control.take_log();
    assert!(log.iter().any(|(by, event)| by == "a" && matches!(event, Event::Free { .. })), "{log:?}");
    control.fail("b", Fault::AllocState);
    assert!(group.alloc_state(&kv(&params(1), 8)).is_err());
    assert!(control.take_log().iter().any(|(by, event)| by == "a" && matches!(event, Event::FreeState(_))));

    control.heal();
    control.fail("a", Fault::Memory(7));
    control.fail("b", Fault::Memory(5));
    assert_eq!(group.usable_memory(), Some(5));
    let buffer = group.alloc_buffer(8).unwrap();
    group.free_buffer(buffer);
    let error = group.read_host(buffer, 0, &mut [0; 4]).unwrap_err();
    assert!(matches!(error, BackendError::UnknownHandle { kind: "buffer", .. }));
}

#[test]
fn rows_of_a_divided_state_are_copied_where_they_are() {
    let control = Control::new();
    let mut group = group(&control, HashMap::new());
    let spec = kv(&params(1), 8);
    let state = group.alloc_state(&spec).unwrap();
    control.take_log();
    group.copy_state_rows(state, &spec, 0, 4, 2).unwrap();
    let writes = control.take_log().into_iter().filter_map(|(by, event)| match event {
        Event::WriteState(_, StatePart::Key, bytes) => Some((by, bytes)),
        _ => None,
    });
    assert_eq!(writes.collect::<Vec<_>>(), [("a".to_owned(), 64), ("b".to_owned(), 64)]);
    for error in [
        group.read_state(state, StatePart::Key, 0, &mut [0; 32]).unwrap_err(),
        group.write_state(state, StatePart::Key, 0, &[0; 32]).unwrap_err(),
    ] {
        assert!(matches!(&error, BackendError::Invariant { found, .. } if found.contains("a+b")), "{error}");
    }
    let unknown = group.copy_state_rows(StateId(99), &spec, 0, 4, 2).unwrap_err();
    assert!(matches!(unknown, BackendError::UnknownHandle { kind: "state", .. }));
}

#[test]
fn a_failure_of_one_device_is_told() {
    let control = Control::new();
    let mut group = group(&control, HashMap::new());
    control.fail("b", Fault::Synchronize);
    let error = group.synchronize().unwrap_err();
    assert!(matches!(&error, BackendError::Device(message) if message.contains("Synchronize")), "{error}");
    assert_eq!(group.abandon(), Err(error));
}
