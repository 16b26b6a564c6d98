//! The backend on the simulator: recording, barriers, submission, memory, weights, failures.

mod common;

use common::{NAME, Node, info, params, start, start_with};
use cpu::{CpuBackend, CpuOptions};
use graph::ops::GetRows;
use graph::{
    Backend, BackendError, Batch, DType, GraphBuilder, GraphParams, GroupId, InputKind, Largest, Op,
    Scheduler, StatePart, StateSpec, WeightData,
};
use metal::device::{Device, Queue};
use metal::{MetalBackend, Switches};
use metal_sim::device::SimDevice;
use quant::Format;
use std::time::{Duration, Instant};

#[test]
fn a_graph_runs_and_gives_what_its_operations_say() {
    let (rows, cols) = (5, 33);
    let cpu = CpuBackend::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
    let mut scheduler = Scheduler::new(vec![Box::new(start()), Box::new(cpu)]);
    let table: Vec<f32> = (0..rows * cols).map(|i| i as f32).collect();
    let bytes: Vec<u8> = table.iter().flat_map(|x| x.to_le_bytes()).collect();
    let data = WeightData { format: Format::F32, rows, cols, bytes: bytes.into(), release: None };
    scheduler.register_weight("table", data).unwrap();
    let build = |params: &GraphParams| {
        let mut b = GraphBuilder::new(params, vec![]);
        let table = Some(b.weight(&info("table", Format::F32, rows, cols)));
        let tokens = b.input(InputKind::Tokens);
        let x = b.op("rows", Op::GetRows(GetRows { table }), &[tokens])?;
        let x = b.op("doubled", Op::Scale(2.0), &[x])?;
        let x = b.op("halved", Op::Scale(0.25), &[x])?;
        Ok(b.finish(&[x]))
    };
    scheduler.prepare(&params(2), build).unwrap();
    for tokens in [[4, 1], [0, 3]] {
        let batch = Batch { tokens: tokens.to_vec(), ..Batch::default() };
        scheduler.run(&batch).unwrap();
        let mut found = vec![0.0; 2 * cols];
        scheduler.read_output(0, 0..2, &mut found).unwrap();
        let row = |row: i32| (0..cols).map(move |c| (row as usize * cols + c) as f32 / 2.0);
        let expected: Vec<f32> = tokens.into_iter().flat_map(row).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn barriers_stand_where_results_are_read_and_nowhere_else() {
    let mut backend = start();
    let node = Node::new(64);
    let buffers: Vec<_> = (0..4).map(|_| backend.alloc_buffer(node.bytes()).unwrap()).collect();
    node.fill(&mut backend, buffers[0]);
    let before = backend.counts();
    // Two readers of one buffer, then a reader of one of their results.
    node.execute(&mut backend, buffers[0], buffers[1]).unwrap();
    node.execute(&mut backend, buffers[0], buffers[2]).unwrap();
    node.execute(&mut backend, buffers[1], buffers[3]).unwrap();
    let counts = backend.counts();
    assert_eq!(counts.dispatches - before.dispatches, 3);
    assert_eq!(counts.barriers - before.barriers, 1);
    assert_eq!(counts.submissions, before.submissions, "nothing has reached the device");
    backend.synchronize().unwrap();
    assert_eq!(backend.counts().submissions - before.submissions, 1);
    assert_eq!(node.floats(&mut backend, buffers[3]), vec![node.factor * node.factor; 64]);

    // After a submission nothing is pending.
    node.execute(&mut backend, buffers[3], buffers[0]).unwrap();
    assert_eq!(backend.counts().barriers, counts.barriers);
    backend.synchronize().unwrap();
}

#[test]
fn a_part_of_what_was_written_is_waited_for() {
    let mut backend = start();
    let (whole, half) = (Node::new(64), Node::new(32));
    let [from, to, upper, lower] = [(); 4].map(|()| backend.alloc_buffer(whole.bytes()).unwrap());
    whole.fill(&mut backend, from);
    whole.execute(&mut backend, from, to).unwrap();
    half.execute_at(&mut backend, to, half.bytes(), upper).unwrap();
    half.execute_at(&mut backend, to, 0, lower).unwrap();
    assert_eq!((backend.counts().dispatches, backend.counts().barriers), (3, 1));
    backend.synchronize().unwrap();
    assert_eq!(half.floats(&mut backend, upper), [9.0; 32]);
}

#[test]
fn the_serial_switch_puts_a_barrier_before_every_dispatch() {
    let mut backend = start_with(Switches { serial: true, ..Switches::default() });
    let node = Node::new(8);
    let buffers: Vec<_> = (0..4).map(|_| backend.alloc_buffer(node.bytes()).unwrap()).collect();
    for &to in &buffers[1..] {
        node.execute(&mut backend, buffers[0], to).unwrap();
    }
    assert_eq!((backend.counts().dispatches, backend.counts().barriers), (3, 2));
}

#[test]
fn the_host_cannot_touch_what_pending_work_uses() {
    let mut backend = start();
    let node = Node::new(8);
    let [from, to, other] = [(); 3].map(|()| backend.alloc_buffer(node.bytes()).unwrap());
    node.fill(&mut backend, from);
    node.execute(&mut backend, from, to).unwrap();
    let mut bytes = [0; 4];
    for buffer in [from, to] {
        let refused = backend.read_host(buffer, 0, &mut bytes);
        assert!(matches!(refused, Err(BackendError::Invariant { .. })), "{refused:?}");
        let refused = backend.write_host(buffer, 0, &bytes);
        assert!(matches!(refused, Err(BackendError::Invariant { .. })), "{refused:?}");
    }
    backend.write_host(other, 0, &bytes).unwrap();
    backend.synchronize().unwrap();
    backend.read_host(to, 0, &mut bytes).unwrap();
}

/// The first time it is a submission of its own; then it ends what writes the rows, until they are other rows.
#[test]
fn the_largest_elements_are_looked_for_where_they_were_asked_for() {
    let mut backend = start();
    let node = Node::new(600);
    let [from, to] = [(); 2].map(|()| backend.alloc_buffer(node.bytes()).unwrap());
    node.fill(&mut backend, from);
    node.execute(&mut backend, from, to).unwrap();
    let pending = backend.largest(to, 0, [1, 600], 1);
    assert!(matches!(pending, Err(BackendError::Invariant { .. })), "{pending:?}");
    backend.synchronize().unwrap();

    let first = |value| Some([0, 1].map(|index| Largest { index, value }).to_vec());
    let mut counts = backend.counts();
    let mut grown = |backend: &mut MetalBackend<SimDevice>| {
        let before = std::mem::replace(&mut counts, backend.counts());
        (counts.submissions - before.submissions, counts.dispatches - before.dispatches)
    };
    assert_eq!(backend.largest(to, 0, [1, 600], 2).unwrap(), first(3.0));
    assert_eq!(grown(&mut backend), (1, 1));
    assert_eq!(backend.largest(to, 0, [1, 600], 2).unwrap(), first(3.0));
    assert_eq!(grown(&mut backend), (0, 0), "it is there already");
    node.execute(&mut backend, from, to).unwrap();
    backend.synchronize().unwrap();
    assert_eq!(backend.largest(to, 0, [1, 600], 2).unwrap(), first(3.0));
    assert_eq!(grown(&mut backend), (1, 2), "the node's submission found it");

    // What the host wrote is not what was found; other rows, and those of another graph, are asked for anew.
    backend.write_host(to, 4 * 599, &5f32.to_le_bytes()).unwrap();
    assert_eq!(backend.largest(to, 0, [1, 600], 1).unwrap().unwrap()[0].index, 599);
    assert_eq!(backend.largest(to, 4, [1, 599], 1).unwrap().unwrap()[0].index, 598);
    assert_eq!(grown(&mut backend), (2, 2));
    backend.prepare_node(&node.graph, node.id).unwrap();
    node.execute(&mut backend, from, to).unwrap();
    backend.synchronize().unwrap();
    assert_eq!(grown(&mut backend), (1, 1), "nobody asked in this graph");
    assert_eq!(backend.largest(to, 0, [0, 600], 1).unwrap(), None);
}

/// Work has the memory mapped by itself. Of several stretches of it, all longer than the time between two requests, the busiest
/// machine has one without a request.
#[test]
fn nobody_asks_for_memory_while_there_is_work() {
    let mut backend = start();
    let node = Node::new(8);
    let [from, to] = [(); 2].map(|()| backend.alloc_buffer(node.bytes()).unwrap());
    node.fill(&mut backend, from);
    let mut works_alone = || {
        let (start, before) = (Instant::now(), backend.device().resident().requests);
        while start.elapsed() < Duration::from_millis(800) {
            node.execute(&mut backend, from, to).unwrap();
            backend.synchronize().unwrap();
        }
        backend.device().resident().requests == before
    };
    assert!((0..10).any(|_| works_alone()));
}

/// What a Mac makes in passing is given up at the end of a scope.
#[test]
fn every_submission_is_in_a_scope() {
    for switches in [Switches::default(), Switches { phase_profile: true, ..Switches::default() }] {
        let mut backend = start_with(switches);
        let node = Node::new(600);
        let [from, to] = [(); 2].map(|()| backend.alloc_buffer(node.bytes()).unwrap());
        node.fill(&mut backend, from);
        node.execute(&mut backend, from, to).unwrap();
        node.execute(&mut backend, to, from).unwrap();
        backend.synchronize().unwrap();
        backend.largest(to, 0, [1, 600], 1).unwrap();
        assert!(backend.counts().submissions >= 2);
        let device = backend.device();
        assert_eq!(device.unscoped(), 0);
        device.new_queue("another").unwrap().new_command_buffer("stray").unwrap();
        assert_eq!(device.unscoped(), 1);
    }
}

#[test]
fn a_recording_with_an_error_never_reaches_the_device() {
    let mut backend = start();
    let node = Node::new(8);
    let [from, to] = [(); 2].map(|()| backend.alloc_buffer(node.bytes()).unwrap());
    node.fill(&mut backend, from);
    node.execute(&mut backend, from, to).unwrap();
    let gone = backend.alloc_buffer(4).unwrap();
    backend.free_buffer(gone);
    let unknown = BackendError::UnknownHandle { kind: "buffer", id: gone.0 };
    assert_eq!(node.execute(&mut backend, gone, to), Err(unknown));
    backend.synchronize().unwrap();
    assert_eq!(backend.counts().submissions, 0);
    // The backend goes on.
    node.execute(&mut backend, from, to).unwrap();
    backend.synchronize().unwrap();
    assert_eq!(backend.counts().submissions, 1);
}

#[test]
fn the_first_failure_of_the_device_is_told_by_every_later_call() {
    let mut backend = common::start_within(Duration::ZERO);
    // Far more than the device does before the deadline.
    let node = Node::new(1 << 22);
    let [from, to] = [(); 2].map(|()| backend.alloc_buffer(node.bytes()).unwrap());
    node.fill(&mut backend, from);
    node.execute(&mut backend, from, to).unwrap();
    let Err(BackendError::Device(first)) = backend.synchronize() else { panic!("no deadline") };
    assert!(first.contains("not done after"), "{first}");
    let later = [
        node.execute(&mut backend, from, to),
        backend.synchronize(),
        backend.read_host(to, 0, &mut [0; 4]),
        backend.write_host(from, 0, &[0; 4]),
        backend.largest(to, 0, [1, 4], 1).map(|_| ()),
    ];
    for error in later {
        let Err(BackendError::Device(message)) = error else { panic!("{error:?}") };
        let expected = format!("'{NAME}' takes no more work since it failed: {first}");
        assert_eq!(message, expected);
    }
}

#[test]
fn buffers_are_recycled_by_size_and_fresh_ones_are_not() {
    let mut backend = start();
    let a = backend.alloc_buffer(1000).unwrap();
    backend.write_host(a, 0, &[7; 1000]).unwrap();
    backend.free_buffer(a);
    backend.free_buffer(a);
    let fresh = backend.alloc_fresh(1000).unwrap();
    let mut byte = [1];
    backend.read_host(fresh, 0, &mut byte).unwrap();
    assert_eq!(byte, [0], "a fresh buffer is not the one that was freed");
    let again = backend.alloc_buffer(990).unwrap();
    backend.read_host(again, 989, &mut byte).unwrap();
    assert_eq!(byte, [7], "a buffer of the class is taken again");
    assert_ne!(a, again, "under an id of its own");
    assert_eq!(
        backend.read_host(a, 0, &mut byte),
        Err(BackendError::UnknownHandle { kind: "buffer", id: a.0 })
    );
    backend.free_buffer(again);
    let larger = backend.alloc_buffer(100_000).unwrap();
    backend.write_host(larger, 99_999, &[5]).unwrap();
    let again = backend.alloc_buffer(990).unwrap();
    let past_the_end = backend.read_host(again, 990, &mut byte);
    let length = BackendError::Length { what: "range of a buffer".into(), expected: 990, found: 991 };
    assert_eq!(past_the_end, Err(length), "even if the class is larger");
}

#[test]
fn states_are_zero_and_read_in_whole_rows() {
    let mut backend = start();
    let (key, value) = (DType::F16, DType::Packed(Format::Q8_0));
    let spec = StateSpec::Kv { group: GroupId(0), rows: 4, key_cols: 3, value_cols: 32, key, value };
    let id = backend.alloc_state(&spec).unwrap();
    backend.write_state(id, StatePart::Key, 3, &[1, 2, 3, 4, 5, 6]).unwrap();
    let mut bytes = [9; 12];
    backend.read_state(id, StatePart::Key, 2, &mut bytes).unwrap();
    assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6]);
    let part = backend.read_state(id, StatePart::Key, 0, &mut bytes[..5]);
    assert!(matches!(part, Err(BackendError::Length { expected: 6, found: 5, .. })), "{part:?}");
    let past_the_end = backend.write_state(id, StatePart::Value, 4, &[0; 34]);
    assert!(matches!(past_the_end, Err(BackendError::Length { .. })), "{past_the_end:?}");
    let other = backend.read_state(id, StatePart::Recurrent, 0, &mut bytes);
    assert!(matches!(other, Err(BackendError::Invariant { .. })), "{other:?}");
    let resident = backend.device().resident();
    assert_eq!((resident.sets, resident.buffers), (1, 2), "kept mapped");
    backend.free_state(id);
    backend.free_state(id);
    assert_eq!(backend.device().resident().buffers, 0);
    let gone = backend.read_state(id, StatePart::Key, 0, &mut bytes);
    assert_eq!(gone, Err(BackendError::UnknownHandle { kind: "state", id: id.0 }));
}

#[test]
fn a_trace_holds_every_value_even_where_it_was_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let trace = Some(folder.path().to_path_buf());
    let mut backend = start_with(Switches { trace, ..Switches::default() });
    let node = Node::new(3);
    let buffer = backend.alloc_buffer(node.bytes()).unwrap();
    node.fill(&mut backend, buffer);
    node.execute(&mut backend, buffer, buffer).unwrap();
    backend.synchronize().unwrap();
    let names: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(names, [format!("{:06}-{:05}-scaled.npy", 1, node.id.0).as_str()]);
    let bytes = std::fs::read(folder.path().join(&names[0])).unwrap();
    assert!(bytes.starts_with(b"\x93NUMPY"));
    assert_eq!(bytes[bytes.len() - 12..], node.factor.to_le_bytes().repeat(3));
}

#[test]
fn profiles_name_operations_and_phases() {
    let switches = Switches { op_profile: true, phase_profile: true, ..Switches::default() };
    let mut backend = start_with(switches);
    let node = Node::new(8);
    let [from, to] = [(); 2].map(|()| backend.alloc_buffer(node.bytes()).unwrap());
    node.fill(&mut backend, from);
    node.execute(&mut backend, from, to).unwrap();
    node.execute(&mut backend, to, from).unwrap();
    backend.synchronize().unwrap();
    assert_eq!(backend.counts().submissions, 2, "a command buffer for each side of the barrier");
    let report = backend.profile();
    for part in ["2 x Scale", "2 x scaled", "waited"] {
        assert!(report.contains(part), "{part} in\n{report}");
    }
}
