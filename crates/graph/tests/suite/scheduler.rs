//! Splits, synchronisation, copies, reuse and the paths of errors, on the recording backend.

use crate::common::*;
use graph::ops::Activation;
use graph::testing::{Control, Event, Fault};
use graph::{BackendError, Batch, BufferId, Graph, GraphBuilder, GraphError, GraphParams, Op, Prepared};
use std::collections::{HashMap, HashSet};

/// `embd -> scale a -> soft cap -> scale b -> sum of all three`; the soft cap is what tests refuse.
fn chain(params: &GraphParams) -> Graph {
    let mut b = GraphBuilder::new(params, vec![]);
    let x = embed(&mut b, 8);
    let a = b.op("a", Op::Scale(2.0), &[x]).unwrap();
    let capped = b.op("capped", Op::SoftCap(1.5), &[a]).unwrap();
    let c = b.op("c", Op::Scale(0.5), &[capped]).unwrap();
    let sum = b.op("sum", Op::Add, &[a, c]).unwrap();
    let out = b.op("out", Op::Add, &[sum, capped]).unwrap();
    b.finish(&[out])
}

fn gpu_without_soft_cap(control: &Control) -> Vec<graph::testing::TestBackend> {
    let gpu = control.backend("gpu").refusing(|query| matches!(query.op, Op::SoftCap(_)));
    vec![gpu, control.backend("cpu")]
}

#[test]
fn a_refused_node_makes_a_split_and_every_change_of_backend_synchronises_and_copies() {
    let control = Control::new();
    let params = with(&["gpu"], params(3));
    let graph = chain(&params);
    let mut scheduler = scheduler(gpu_without_soft_cap(&control), graph.weights());
    assert_eq!(rebuilt(&mut scheduler, &graph), Ok(Prepared::Rebuilt));
    assert_eq!(scheduler.stats().splits, 3);
    control.take_log();
    scheduler.run(&batch(&params, 0)).unwrap();
    let expected = [
        "gpu: write",
        "gpu: token_embd",
        "gpu: a",
        "gpu: synchronize",
        "gpu: read",
        "cpu: write",
        "cpu: capped",
        "cpu: synchronize",
        "cpu: read",
        "gpu: write",
        "gpu: c",
        "gpu: sum",
        "gpu: out",
        "gpu: synchronize",
    ];
    assert_eq!(calls(&control), expected);
}

#[test]
fn results_over_splits_are_those_of_one_backend() {
    for accelerators in [&[][..], &["gpu"]] {
        let control = Control::new();
        let params = with(accelerators, params(3));
        let graph = chain(&params);
        let mut scheduler = scheduler(gpu_without_soft_cap(&control), graph.weights());
        rebuilt(&mut scheduler, &graph).unwrap();
        let batch = batch(&params, 0);
        assert_eq!(output(&mut scheduler, &batch, 0).unwrap(), expected(&graph, &batch, 0));
    }
}

/// `embd -> a -> soft cap -> c -> out`: every copy dies where it is read.
fn straight(params: &GraphParams) -> Graph {
    let mut b = GraphBuilder::new(params, vec![]);
    let x = embed(&mut b, 8);
    let a = b.op("a", Op::Scale(2.0), &[x]).unwrap();
    let capped = b.op("capped", Op::SoftCap(1.5), &[a]).unwrap();
    let c = b.op("c", Op::Scale(0.5), &[capped]).unwrap();
    let out = b.op("out", Op::Scale(3.0), &[c]).unwrap();
    b.finish(&[out])
}

#[test]
fn a_change_of_backend_synchronises_even_if_nothing_is_copied() {
    let control = Control::new();
    let params = with(&["gpu"], params(2));
    let mut b = GraphBuilder::new(&params, vec![]);
    let x = embed(&mut b, 8);
    // Reads an input alone.
    let table = b.weight(&weight("other_table", VOCABULARY, 4));
    let tokens = b.input(graph::InputKind::Tokens);
    let table = graph::ops::GetRows { table: Some(table) };
    let other = b.op("other", Op::GetRows(table), &[tokens]).unwrap();
    let graph = b.finish(&[x, other]);
    let gpu = control.backend("gpu").refusing(|query| query.shape.cols == 4);
    let mut scheduler = scheduler(vec![gpu, control.backend("cpu")], graph.weights());
    rebuilt(&mut scheduler, &graph).unwrap();
    control.take_log();
    scheduler.run(&batch(&params, 0)).unwrap();
    let expected =
        ["gpu: write", "cpu: write", "gpu: token_embd", "gpu: synchronize", "cpu: other", "cpu: synchronize"];
    assert_eq!(calls(&control), expected);
}

#[test]
fn staging_is_fresh_and_the_producers_buffer_is_left_alone() {
    for build in [chain, straight] {
        let control = Control::new();
        let params = with(&["gpu"], params(3));
        let graph = build(&params);
        let mut scheduler = scheduler(gpu_without_soft_cap(&control), graph.weights());
        rebuilt(&mut scheduler, &graph).unwrap();
        let mut fresh = HashSet::new();
        for (backend, event) in control.take_log() {
            if let Event::Alloc { buffer, fresh: true, recycled, .. } = event {
                assert!(!recycled);
                fresh.insert((backend, buffer));
            }
        }
        scheduler.run(&batch(&params, 0)).unwrap();
        // Whatever the host writes into (inputs and copies) is fresh, and no node's result ever lies there.
        let mut written = HashSet::new();
        for (backend, event) in control.take_log() {
            match event {
                Event::WriteHost { buffer, .. } => {
                    assert!(fresh.contains(&(backend.clone(), buffer)));
                    written.insert((backend, buffer));
                }
                Event::Execute { output, .. } => assert!(!written.contains(&(backend, output.buffer))),
                _ => {}
            }
        }
        assert_eq!(written.len(), 3, "the tokens and two copies");
    }
}

#[test]
fn nothing_is_read_before_its_writer_is_synchronised() {
    let control = Control::new();
    let params = with(&["gpu"], params(2));
    let graph = chain(&params);
    let mut scheduler = scheduler(gpu_without_soft_cap(&control), graph.weights());
    rebuilt(&mut scheduler, &graph).unwrap();
    control.take_log();
    let values = output(&mut scheduler, &batch(&params, 0), 0).unwrap();
    assert!(values.iter().all(|value| value.is_finite()), "a pending read gives NaNs");
    let reads: Vec<_> =
        control.take_log().into_iter().filter(|(_, e)| matches!(e, Event::ReadHost { .. })).collect();
    assert_eq!(reads.len(), 3, "two copies and the output");
    assert!(reads.iter().all(|(_, event)| matches!(event, Event::ReadHost { pending: false, .. })));
}

#[test]
fn a_value_is_copied_to_a_backend_once() {
    let control = Control::new();
    let params = with(&["gpu"], params(2));
    let mut b = GraphBuilder::new(&params, vec![]);
    let x = embed(&mut b, 8);
    let first = b.op("first", Op::SoftCap(1.0), &[x]).unwrap();
    let between = b.op("between", Op::Scale(2.0), &[first]).unwrap();
    let second = b.op("second", Op::SoftCap(2.0), &[between]).unwrap();
    // The CPU reads `x` again, in its second split.
    let third = b.op("third", Op::SoftCap(3.0), &[x]).unwrap();
    let sum = b.op("sum", Op::Add, &[second, third]).unwrap();
    let graph = b.finish(&[sum]);
    let mut scheduler = scheduler(gpu_without_soft_cap(&control), graph.weights());
    rebuilt(&mut scheduler, &graph).unwrap();
    let batch = batch(&params, 0);
    control.take_log();
    assert_eq!(output(&mut scheduler, &batch, 0).unwrap(), expected(&graph, &batch, 0));
    let lines = calls(&control);
    // x and between go to the CPU; first, second and third come back.
    assert_eq!(lines.iter().filter(|line| *line == "cpu: write").count(), 2, "{lines:#?}");
    assert_eq!(lines.iter().filter(|line| *line == "gpu: write").count(), 1 + 3, "{lines:#?}");
}

#[test]
fn equal_parameters_reuse_the_build_whatever_the_inputs() {
    let control = Control::new();
    let params = params(2);
    let graph = chain(&params);
    let mut scheduler = scheduler(vec![control.backend("cpu")], graph.weights());
    rebuilt(&mut scheduler, &graph).unwrap();
    control.take_log();
    for start in [0, 2, 7] {
        let reused = scheduler.prepare(&params, |_| panic!("built again"));
        assert_eq!(reused, Ok(Prepared::Reused));
        let batch = batch(&params, start);
        assert_eq!(output(&mut scheduler, &batch, 0).unwrap(), expected(&graph, &batch, 0));
    }
    let log = control.take_log();
    assert!(!log.iter().any(|(_, event)| matches!(event, Event::Alloc { .. } | Event::Free { .. })));
    assert_eq!((scheduler.stats().builds, scheduler.stats().forwards), (1, 3));
}

#[test]
fn a_split_that_its_backend_remembers_is_not_given_again() {
    let control = Control::new();
    let params = with(&["gpu"], params(3));
    let mut backends = gpu_without_soft_cap(&control);
    let gpu = backends.remove(0).remembering();
    backends.insert(0, gpu);
    let mut scheduler = scheduler(backends, chain(&params).weights());
    for (round, tokens, given) in [(0, 3, 2), (1, 3, 0), (2, 3, 0), (3, 2, 2), (4, 3, 2)] {
        // What was remembered of one build is not taken for the next one's.
        let params = GraphParams { tokens, outputs: tokens, ..params.clone() };
        let graph = chain(&params);
        rebuilt(&mut scheduler, &graph).unwrap();
        control.take_log();
        let batch = batch(&params, round);
        assert_eq!(output(&mut scheduler, &batch, 0).unwrap(), expected(&graph, &batch, 0), "round {round}");
        let calls = calls(&control);
        let found = calls.iter().filter(|call| ["gpu: a", "gpu: c"].contains(&call.as_str())).count();
        assert_eq!(found, given, "round {round}");
    }
}

#[test]
fn a_change_of_participation_rebuilds() {
    let control = Control::new();
    let cpu = params(2);
    let gpu = with(&["gpu"], cpu.clone());
    let backends = vec![control.backend("gpu"), control.backend("cpu")];
    let mut scheduler = scheduler(backends, chain(&cpu).weights());
    for (params, backend) in [(&cpu, "cpu"), (&gpu, "gpu"), (&cpu, "cpu")] {
        assert_eq!(scheduler.prepare(params, |params| Ok(chain(params))), Ok(Prepared::Rebuilt));
        assert_eq!(scheduler.prepare(params, |params| Ok(chain(params))), Ok(Prepared::Reused));
        control.take_log();
        scheduler.run(&batch(params, 0)).unwrap();
        assert!(placement(&control).values().all(|name| name == backend));
    }
    assert_eq!(scheduler.stats().builds, 3);
}

#[test]
fn every_run_has_an_epoch_of_its_own() {
    let control = Control::new();
    let params = params(1);
    let mut scheduler = scheduler(vec![control.backend("cpu")], chain(&params).weights());
    let mut epochs = Vec::new();
    for _ in 0..3 {
        scheduler.prepare(&params, |params| Ok(chain(params))).unwrap();
        scheduler.run(&batch(&params, 0)).unwrap();
        let log = control.take_log().into_iter();
        let mut of_run: Vec<u64> = log
            .filter_map(|(_, event)| match event {
                Event::Execute { epoch, .. } => Some(epoch),
                _ => None,
            })
            .collect();
        of_run.dedup();
        assert_eq!(of_run.len(), 1);
        epochs.extend(of_run);
    }
    assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]), "{epochs:?}");
}

#[test]
fn a_rebuild_frees_the_old_buffers_and_recycles_them() {
    let control = Control::new();
    let mut scheduler = scheduler(vec![control.backend("cpu")], chain(&params(2)).weights());
    let mut live: HashMap<BufferId, bool> = HashMap::new();
    let mut recycled_fresh = false;
    for tokens in [2, 40, 2, 40] {
        let params = params(tokens);
        scheduler.prepare(&params, |params| Ok(chain(params))).unwrap();
        for (_, event) in control.take_log() {
            match event {
                Event::Alloc { buffer, fresh, recycled, .. } => {
                    assert!(!(fresh && recycled));
                    recycled_fresh |= recycled && live.get(&buffer) == Some(&true);
                    live.insert(buffer, fresh);
                }
                Event::Free { pending, .. } => assert!(!pending),
                _ => {}
            }
        }
    }
    assert!(recycled_fresh, "staging enters the free list at a rebuild");
    drop(scheduler);
    let freed = control.take_log().into_iter().filter(|(_, e)| matches!(e, Event::Free { .. })).count();
    assert!(freed > 0, "dropping the scheduler frees the last build");
}

#[test]
fn what_was_computed_is_read_by_rows() {
    let control = Control::new();
    let params = params(4);
    let graph = chain(&params);
    let mut scheduler = scheduler(vec![control.backend("cpu")], graph.weights());
    rebuilt(&mut scheduler, &graph).unwrap();
    let batch = batch(&params, 0);
    let all = output(&mut scheduler, &batch, 0).unwrap();
    let mut rows = vec![0.0; 2 * 8];
    scheduler.read_output(0, 1..3, &mut rows).unwrap();
    assert_eq!(rows, all[8..24]);
    scheduler.read_output(0, 4..4, &mut []).unwrap();
    let error = |index, what, expected, found| Err(GraphError::Output { index, what, expected, found });
    assert_eq!(
        scheduler.read_output(1, 0..1, &mut rows),
        error(1, "index below the number of outputs", 1, 1)
    );
    assert_eq!(scheduler.read_output(0, 3..5, &mut rows), error(0, "end of the rows", 4, 5));
    #[expect(clippy::reversed_empty_ranges)]
    let reversed = scheduler.read_output(0, 3..2, &mut rows);
    assert_eq!(reversed, error(0, "start of the rows", 2, 3));
    assert_eq!(scheduler.read_output(0, 0..1, &mut rows), error(0, "elements", 8, 16));
    // A backend that does not look for the largest elements says so; what is asked for is checked all the same.
    assert_eq!(scheduler.largest_of_output(0, 0..2, 1), Ok(None));
    let wrong = scheduler.largest_of_output(0, 3..5, 1).map(|_| ());
    assert_eq!(wrong, error(0, "end of the rows", 4, 5));
}

#[test]
fn nothing_can_be_read_before_a_run_or_after_a_failed_one() {
    let control = Control::new();
    let params = params(2);
    let graph = chain(&params);
    let mut scheduler = scheduler(vec![control.backend("cpu")], graph.weights());
    assert_eq!(scheduler.run(&batch(&params, 0)), Err(GraphError::NotPrepared));
    let mut row = vec![0.0; 8];
    assert_eq!(scheduler.read_output(0, 0..1, &mut row), Err(GraphError::NotRun));
    rebuilt(&mut scheduler, &graph).unwrap();
    assert_eq!(scheduler.read_output(0, 0..1, &mut row), Err(GraphError::NotRun));
    assert_eq!(scheduler.largest_of_output(0, 0..1, 1), Err(GraphError::NotRun));
    scheduler.run(&batch(&params, 0)).unwrap();
    scheduler.read_output(0, 0..1, &mut row).unwrap();
    control.fail("cpu", Fault::Execute("capped".into()));
    scheduler.run(&batch(&params, 0)).unwrap_err();
    assert_eq!(scheduler.read_output(0, 0..1, &mut row), Err(GraphError::NotRun));
    control.heal();
    scheduler.run(&batch(&params, 0)).unwrap();
    scheduler.read_output(0, 0..1, &mut row).unwrap();
    assert_eq!(scheduler.stats().forwards, 2);
    // Nor is there anything after a rebuild.
    scheduler.prepare(&with(&["cpu"], params.clone()), |params| Ok(chain(params))).unwrap();
    assert_eq!(scheduler.read_output(0, 0..1, &mut row), Err(GraphError::NotRun));
}

#[test]
fn errors_of_a_backend_name_it_and_the_node_and_end_all_work() {
    let faults = [
        (Fault::Execute("capped".into()), "cpu", "capped"),
        (Fault::Execute("c".into()), "gpu", "c"),
        (Fault::Synchronize, "cpu", "synchronize"),
        (Fault::ReadHost, "gpu", "a"),
        (Fault::WriteHost, "cpu", "a"),
        (Fault::WriteHost, "gpu", "tokens"),
    ];
    for (fault, backend, node) in faults {
        let control = Control::new();
        let params = with(&["gpu"], params(2));
        let graph = chain(&params);
        let mut scheduler = scheduler(gpu_without_soft_cap(&control), graph.weights());
        rebuilt(&mut scheduler, &graph).unwrap();
        control.take_log();
        control.fail(backend, fault.clone());
        match scheduler.run(&batch(&params, 0)) {
            Err(GraphError::Backend { backend: named, node: label, source: BackendError::Device(_) }) => {
                assert_eq!((named.as_str(), label.as_str()), (backend, node), "{fault:?}");
            }
            other => panic!("{fault:?}: {other:?}"),
        }
        // Both backends have been synchronised after whatever they began.
        let lines = calls(&control);
        for name in ["gpu", "cpu"] {
            let prefix = format!("{name}: ");
            let last = lines.iter().rfind(|line| line.starts_with(&prefix));
            assert_eq!(last, Some(&format!("{name}: synchronize")), "{fault:?}: {lines:#?}");
        }
        control.heal();
        let batch = batch(&params, 0);
        assert_eq!(output(&mut scheduler, &batch, 0).unwrap(), expected(&graph, &batch, 0), "{fault:?}");
    }
}

#[test]
fn an_input_of_another_length_is_an_error() {
    let control = Control::new();
    let params = params(2);
    let graph = chain(&params);
    let mut scheduler = scheduler(vec![control.backend("cpu")], graph.weights());
    rebuilt(&mut scheduler, &graph).unwrap();
    let short = Batch { tokens: vec![1], ..batch(&params, 0) };
    let error = GraphError::Input { what: "tokens".into(), expected: 2, found: 1 };
    assert_eq!(scheduler.run(&short), Err(error));
}

#[test]
fn a_build_that_fails_leaves_no_graph_and_no_buffers_behind() {
    let control = Control::new();
    let params = params(2);
    let graph = chain(&params);
    let mut scheduler = scheduler(vec![control.backend("cpu")], graph.weights());
    control.fail("cpu", Fault::Alloc(0));
    let error = rebuilt(&mut scheduler, &graph).unwrap_err();
    assert!(
        matches!(&error, GraphError::Backend { source: BackendError::OutOfMemory { .. }, .. }),
        "{error:?}"
    );
    assert!(scheduler.graph().is_none());
    assert_eq!(scheduler.run(&batch(&params, 0)), Err(GraphError::NotPrepared));
    control.heal();

    // The outputs are fresh and come last: everything before them is given back.
    let big = GraphParams { tokens: 64, outputs: 64, ..params.clone() };
    control.fail("cpu", Fault::Alloc(64 * 8 * 4));
    control.take_log();
    scheduler.prepare(&big, |params| Ok(chain(params))).unwrap_err();
    let log = control.take_log();
    let count = |is: fn(&Event) -> bool| log.iter().filter(|(_, event)| is(event)).count();
    let allocated = count(|event| matches!(event, Event::Alloc { .. }));
    assert_eq!(allocated, count(|event| matches!(event, Event::Free { .. })));
    assert!(allocated > 0);

    // What the builder says is passed on, and the graph before it stays.
    control.heal();
    rebuilt(&mut scheduler, &graph).unwrap();
    let refusal = GraphError::Build { node: "x".into(), message: "no".into() };
    assert_eq!(scheduler.prepare(&big, |_| Err(refusal.clone())), Err(refusal));
    assert_eq!(scheduler.graph().map(|graph| graph.params().tokens), Some(2));
}

#[test]
fn empty_batches_and_empty_outputs_run() {
    let control = Control::new();
    for (tokens, outputs) in [(0, 0), (3, 0)] {
        let params = GraphParams { tokens, outputs, ..with(&["gpu"], params(0)) };
        let graph = {
            let mut b = GraphBuilder::new(&params, vec![]);
            let x = embed(&mut b, 8);
            let x = b.op("capped", Op::SoftCap(1.0), &[x]).unwrap();
            let rows = b.input(graph::InputKind::OutRows);
            let x = b.op("rows", Op::GetRows(graph::ops::GetRows { table: None }), &[x, rows]).unwrap();
            let x = b.op("silu", Op::Activation(Activation::Silu), &[x]).unwrap();
            b.finish(&[x])
        };
        let mut scheduler = scheduler(gpu_without_soft_cap(&control), graph.weights());
        rebuilt(&mut scheduler, &graph).unwrap();
        assert_eq!(output(&mut scheduler, &batch(&params, 0), 0), Ok(vec![]));
        // Without any output at all, too.
        let none = GraphBuilder::new(&GraphParams { max_pages: 1, ..params.clone() }, vec![]).finish(&[]);
        rebuilt(&mut scheduler, &none).unwrap();
        scheduler.run(&batch(none.params(), 0)).unwrap();
    }
}

#[test]
fn an_output_must_be_a_computed_f32_value() {
    let control = Control::new();
    let params = params(2);
    let mut scheduler = scheduler(vec![control.backend("cpu")], &[]);
    let mut b = GraphBuilder::new(&params, vec![]);
    let tokens = b.input(graph::InputKind::Tokens);
    let graph = b.finish(&[tokens]);
    let error = rebuilt(&mut scheduler, &graph).unwrap_err();
    let text = "graph node 'tokens': output 0: expected a computed f32 value, found Input i32";
    assert_eq!(error.to_string(), text);
    let missing = GraphBuilder::new(&params, vec![]).finish(&[graph::NodeId(3)]);
    assert!(rebuilt(&mut scheduler, &missing).unwrap_err().to_string().contains("found 3 of 0 nodes"));
}

#[test]
fn backends_are_told_once_per_build_of_every_node_that_they_execute() {
    let control = Control::new();
    let params = with(&["gpu"], params(2));
    let graph = chain(&params);
    let mut scheduler = scheduler(gpu_without_soft_cap(&control), graph.weights());
    let prepared = |control: &Control| -> Vec<_> {
        let log = control.take_log().into_iter();
        log.filter_map(|(name, event)| match event {
            Event::Prepare(node) => Some((name, node)),
            _ => None,
        })
        .collect()
    };
    for build in 0..2 {
        let mut told = Vec::new();
        let done = scheduler.prepare_with(&params, |params| Ok(chain(params)), &mut |done, total| {
            told.push((done, total));
        });
        assert_eq!(done, Ok(Prepared::Rebuilt));
        let before = prepared(&control);
        scheduler.run(&batch(&params, 0)).unwrap();
        let executed: Vec<_> = (control.take_log().into_iter())
            .filter_map(|(name, event)| match event {
                Event::Execute { id, .. } => Some((name, id)),
                _ => None,
            })
            .collect();
        assert_eq!(before, executed, "build {build}");
        assert_eq!(told, (0..=before.len()).map(|done| (done, before.len())).collect::<Vec<_>>());
        let reused = scheduler.prepare(&params, |_| panic!("built again"));
        assert_eq!(reused, Ok(Prepared::Reused));
        assert_eq!(prepared(&control), [], "build {build}");
        let other = with(&["gpu"], crate::common::params(3 + build));
        scheduler.prepare(&other, |params| Ok(chain(params))).unwrap();
        control.take_log();
    }
}

#[test]
fn a_node_that_cannot_be_prepared_fails_the_build() {
    let control = Control::new();
    let params = params(2);
    let graph = chain(&params);
    let mut scheduler = scheduler(vec![control.backend("cpu")], graph.weights());
    control.fail("cpu", Fault::Prepare("capped".into()));
    let error = scheduler.prepare(&params, |params| Ok(chain(params))).unwrap_err();
    assert!(
        matches!(&error, GraphError::Backend { backend, node, .. } if backend == "cpu" && node == "capped"),
        "{error}"
    );
    assert!(scheduler.graph().is_none());
    let log = control.take_log();
    let count = |is: fn(&Event) -> bool| log.iter().filter(|(_, event)| is(event)).count();
    assert_eq!(
        count(|event| matches!(event, Event::Alloc { .. })),
        count(|event| matches!(event, Event::Free { .. })),
        "buffers are given back"
    );
    control.heal();
    assert_eq!(scheduler.prepare(&params, |params| Ok(chain(params))), Ok(Prepared::Rebuilt));
}
