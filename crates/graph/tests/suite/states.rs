//! The layers' states over rebuilds.

use crate::common::*;
use graph::testing::{Control, Event, Fault};
use graph::{CacheParams, Graph, GraphError, GraphParams, Scheduler};

/// What the last token of a sequence of `len` tokens gets, all of it in one forward.
fn at_once(params: &GraphParams, len: usize) -> Vec<f32> {
    let params = GraphParams { tokens: len, outputs: len, ..params.clone() };
    let graph = transformer(&params, 2);
    let logits = expected(&graph, &whole(&params, len), 0);
    logits[logits.len() - VOCABULARY..].to_vec()
}

/// The tokens 0, 1, 2, ... of one sequence, from `start` on.
fn part(params: &GraphParams, start: usize) -> graph::Batch {
    let tokens = (start..start + params.tokens).map(|token| token as i32).collect();
    graph::Batch { tokens, ..batch(params, start) }
}

fn whole(params: &GraphParams, len: usize) -> graph::Batch {
    assert_eq!(params.tokens, len);
    part(params, 0)
}

fn two_backends(control: &Control) -> Scheduler {
    let weights = transformer(&params(1), 2).weights().to_vec();
    scheduler(vec![control.backend("gpu"), control.backend("cpu")], &weights)
}

/// Runs the next tokens of the sequence and gives the logits of the last.
fn forward(scheduler: &mut Scheduler, params: &GraphParams, start: usize) -> Vec<f32> {
    scheduler.prepare(params, |params| Ok(transformer(params, 2))).unwrap();
    let logits = output(scheduler, &part(params, start), 0).unwrap();
    logits[logits.len() - VOCABULARY..].to_vec()
}

fn count(control: &Control, is: impl Fn(&Event) -> bool) -> usize {
    control.take_log().iter().filter(|(_, event)| is(event)).count()
}

#[test]
fn they_are_kept_when_the_number_of_tokens_changes() {
    let control = Control::new();
    let mut scheduler = two_backends(&control);
    forward(&mut scheduler, &params(5), 0);
    assert_eq!(count(&control, |event| matches!(event, Event::AllocState(_))), 2, "one per layer");
    assert_eq!(forward(&mut scheduler, &params(1), 5), at_once(&params(1), 6));
    assert_eq!(forward(&mut scheduler, &params(3), 6), at_once(&params(3), 9));
    let touched =
        |event: &Event| matches!(event, Event::AllocState(_) | Event::FreeState(_) | Event::ReadState(..));
    assert_eq!(count(&control, touched), 0);
}

#[test]
fn they_move_with_their_layer() {
    let control = Control::new();
    let mut scheduler = two_backends(&control);
    let (cpu, gpu) = (params(5), with(&["gpu"], params(1)));
    forward(&mut scheduler, &cpu, 0);
    control.take_log();
    assert_eq!(forward(&mut scheduler, &gpu, 5), at_once(&gpu, 6));
    assert!(scheduler.dropped_states().is_empty());
    let log = control.take_log();
    let on = |name: &str, is: fn(&Event) -> bool| log.iter().filter(|(b, e)| b == name && is(e)).count();
    assert_eq!(on("gpu", |event| matches!(event, Event::AllocState(_))), 2);
    assert_eq!(on("cpu", |event| matches!(event, Event::FreeState(_))), 2);
    // One layer back to the CPU, and one stays.
    let mut half = gpu.clone();
    half.participation.layers = Some(1);
    assert_eq!(forward(&mut scheduler, &half, 6), at_once(&half, 7));
    assert_eq!(count(&control, |event| matches!(event, Event::FreeState(_))), 1);
}

#[test]
fn rows_are_carried_over_when_the_cache_grows_or_shrinks() {
    for pages in [3, 40] {
        let control = Control::new();
        let mut scheduler = two_backends(&control);
        forward(&mut scheduler, &params(5), 0);
        let cache = CacheParams { pages: vec![pages], ..params(1).cache };
        let resized = GraphParams { cache, max_pages: 3, ..params(1) };
        assert_eq!(forward(&mut scheduler, &resized, 5), at_once(&resized, 6));
        assert!(scheduler.dropped_states().is_empty());
    }
}

#[test]
fn large_states_move_in_chunks() {
    let control = Control::new();
    let mut scheduler = two_backends(&control);
    let cache = CacheParams { pages: vec![20_000], ..params(1).cache };
    let cpu = GraphParams { cache, ..params(1) };
    forward(&mut scheduler, &cpu, 0);
    control.take_log();
    let gpu = with(&["gpu"], cpu);
    assert_eq!(forward(&mut scheduler, &gpu, 1), at_once(&gpu, 2));
    let log = control.take_log();
    let reads = log.iter().filter_map(|(_, event)| match event {
        Event::ReadState(_, _, bytes) => Some(*bytes),
        _ => None,
    });
    let reads: Vec<usize> = reads.collect();
    assert_eq!(reads.iter().sum::<usize>(), 2 * 2 * 80_000 * 8 * 4, "layers, parts, rows, columns");
    assert!(reads.iter().all(|&bytes| bytes <= 1 << 20));
    // Rows that hold nothing are not written.
    let writes = log.iter().filter(|(_, event)| matches!(event, Event::WriteState(..))).count();
    assert_eq!(writes, 2 * 2);
}

/// A graph that stores rows of `cols` columns in its one layer, and reads them back.
fn store(cols: usize) -> Graph {
    let params = GraphParams { max_pages: 4 + cols, ..params(2) };
    let group = graph::GroupId(0);
    let mut b = graph::GraphBuilder::new(&params, vec![kv(&params, cols)]);
    let x = embed(&mut b, cols);
    let rows = b.input(graph::InputKind::CacheRows(group));
    let store = graph::ops::KvStore { layer: 0, group };
    let store = b.op("kv_store", graph::Op::KvStore(store), &[x, x, rows]).unwrap();
    let load = graph::ops::KvLoad { layer: 0, part: graph::StatePart::Value };
    let loaded = b.op("kv_load", graph::Op::KvLoad(load), &[store, rows]).unwrap();
    b.finish(&[loaded])
}

#[test]
fn a_state_of_another_width_is_dropped_and_said_to_be() {
    let control = Control::new();
    let (narrow, wide) = (store(4), store(8));
    let mut scheduler = scheduler(vec![control.backend("cpu")], narrow.weights());
    rebuilt(&mut scheduler, &narrow).unwrap();
    scheduler.run(&batch(narrow.params(), 0)).unwrap();
    assert!(scheduler.dropped_states().is_empty());
    let info = &wide.weights()[0];
    scheduler.register_weight(&info.name, contents(info)).unwrap();
    rebuilt(&mut scheduler, &wide).unwrap();
    assert_eq!(scheduler.dropped_states(), [0]);
    let batch = batch(wide.params(), 0);
    assert_eq!(output(&mut scheduler, &batch, 0).unwrap(), expected(&wide, &batch, 0));
}

#[test]
fn a_state_that_cannot_be_moved_stays_where_it_was() {
    let faults = [("gpu", Fault::AllocState), ("cpu", Fault::ReadState), ("gpu", Fault::WriteState)];
    for (backend, fault) in faults {
        let control = Control::new();
        let mut scheduler = two_backends(&control);
        let (cpu, gpu) = (params(5), with(&["gpu"], params(1)));
        forward(&mut scheduler, &cpu, 0);
        control.take_log();
        control.fail(backend, fault.clone());
        let moved = scheduler.prepare(&gpu, |params| Ok(transformer(params, 2)));
        assert!(
            matches!(&moved, Err(GraphError::Backend { backend: b, node, .. })
                if b == backend && node == "state of layer 0"),
            "{fault:?}: {moved:?}"
        );
        control.heal();
        let log = control.take_log();
        let on = |name: &str, is: fn(&Event) -> bool| log.iter().filter(|(b, e)| b == name && is(e)).count();
        let allocated = on("gpu", |event| matches!(event, Event::AllocState(_)));
        assert_eq!(on("gpu", |event| matches!(event, Event::FreeState(_))), allocated, "{fault:?}");
        // The sequence goes on, on either.
        assert_eq!(forward(&mut scheduler, &params(1), 5), at_once(&params(1), 6), "{fault:?}");
        assert_eq!(forward(&mut scheduler, &gpu, 6), at_once(&gpu, 7), "{fault:?}");
    }
}

#[test]
fn they_are_freed_with_the_scheduler() {
    let control = Control::new();
    let mut scheduler = two_backends(&control);
    forward(&mut scheduler, &params(1), 0);
    control.take_log();
    drop(scheduler);
    assert_eq!(count(&control, |event| matches!(event, Event::FreeState(_))), 2);
}
