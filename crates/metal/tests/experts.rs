//! Mixtures of experts as graphs: what is one dispatch there, what is not, and that both give what the CPU gives.

mod common;

use common::{NAME, info, params, start_with};
use cpu::{Activations, CpuBackend, CpuOptions};
use graph::ops::{Activation, ClampedSwiGlu, ExpertMatMul, GetRows, MatMul, Softmax, TopK};
use graph::{
    Backend, Batch, GraphBuilder, GraphParams, InputKind, NodeCall, NodeId, Op, Operand, Participation,
    Scheduler, WeightData, WeightInfo,
};
use metal::{MetalBackend, Switches};
use metal_sim::device::SimDevice;
use quant::Format;

const DIM: usize = 64;
const EXPERTS: usize = 6;
const USED: usize = 2;
/// Of an expert; no multiple of what a SIMD-group computes.
const HIDDEN: usize = 37;

/// How a layer is built.
#[derive(Clone, Copy)]
struct Layer {
    softmax_of_all: bool,
    clamped: bool,
    biased: bool,
    tokens: usize,
}

/// The backend, with changed kernels where the environment has some (see docs/metal.md).
fn metal(switches: Switches) -> MetalBackend<SimDevice> {
    let sources = Switches::from_environment().unwrap().sources;
    start_with(Switches { sources, ..switches })
}

/// Numbers that repeat after 89.
fn numbers(n: usize, seed: usize) -> Vec<u8> {
    (0..n).flat_map(|i| (((i * 53 + seed * 17) % 89) as f32 / 90.0 - 0.5).to_le_bytes()).collect()
}

fn weights() -> Vec<WeightInfo> {
    [
        ("table", 9, DIM),
        ("router", EXPERTS, DIM),
        ("gate", EXPERTS * HIDDEN, DIM),
        ("up", EXPERTS * HIDDEN, DIM),
        ("down", EXPERTS * DIM, HIDDEN),
        ("gate bias", EXPERTS, HIDDEN),
        ("up bias", EXPERTS, HIDDEN),
    ]
    .map(|(name, rows, cols)| info(name, Format::F32, rows, cols))
    .to_vec()
}

fn register(mut add: impl FnMut(&str, WeightData)) {
    for (seed, WeightInfo { name, rows, cols, .. }) in weights().into_iter().enumerate() {
        let bytes = numbers(rows * cols, seed + 3).into();
        add(&name, WeightData { format: Format::F32, rows, cols, bytes, release: None });
    }
}

fn build(b: &mut GraphBuilder, layer: Layer) -> NodeId {
    let [table, router, gate, up, down, gate_bias, up_bias] =
        weights().iter().map(|weight| b.weight(weight)).collect::<Vec<_>>().try_into().unwrap();
    let tokens = b.input(InputKind::Tokens);
    let x = b.op("rows", Op::GetRows(GetRows { table: Some(table) }), &[tokens]).unwrap();
    let logits = Op::MatMul(MatMul { weight: router, bias: None, logits: true });
    let logits = b.op("logits", logits, &[x]).unwrap();
    let top = b.op("top", Op::TopK(TopK { k: USED }), &[logits]).unwrap();
    let softmax = Op::Softmax(Softmax { scale: 0.7 });
    let shares = if layer.softmax_of_all {
        let all = b.op("all", softmax, &[logits]).unwrap();
        b.op("shares", Op::GatherCols, &[all, top]).unwrap()
    } else {
        let chosen = b.op("chosen", Op::GatherCols, &[logits, top]).unwrap();
        b.op("shares", softmax, &[chosen]).unwrap()
    };
    let mut product = |name, x, weight, bias| {
        let op = ExpertMatMul { weight, bias, experts: EXPERTS, used: USED };
        b.op(name, Op::ExpertMatMul(op), &[x, top]).unwrap()
    };
    let gate = product("gate", x, gate, layer.biased.then_some(gate_bias));
    let up = product("up", x, up, layer.biased.then_some(up_bias));
    let gated = match layer.clamped {
        true => Op::ClampedSwiGlu(ClampedSwiGlu { alpha: 1.702, limit: 0.5 }),
        false => Op::Gated(Activation::Silu),
    };
    let gated = b.op("gated", gated, &[gate, up]).unwrap();
    let op = ExpertMatMul { weight: down, bias: None, experts: EXPERTS, used: USED };
    let down = b.op("down", Op::ExpertMatMul(op), &[gated, top]).unwrap();
    b.op("sum", Op::CombineExperts, &[down, shares]).unwrap()
}

/// The layer's result, and how many dispatches it took.
fn forward(accelerator: Option<Box<dyn Backend>>, layer: Layer) -> (Vec<f32>, u64) {
    let options =
        CpuOptions { threads: Some(1), activations: Some(Activations::F32), ..CpuOptions::default() };
    let mut backends: Vec<Box<dyn Backend>> = accelerator.into_iter().collect();
    let accelerators = backends.iter().map(|backend| backend.name().to_owned()).collect();
    backends.push(Box::new(CpuBackend::new(options).unwrap()));
    let mut scheduler = Scheduler::new(backends);
    register(|name, data| scheduler.register_weight(name, data).unwrap());
    let params = GraphParams {
        participation: Participation { accelerators, ..Participation::default() },
        ..params(layer.tokens)
    };
    scheduler
        .prepare(&params, |params| {
            let mut b = GraphBuilder::new(params, vec![]);
            let result = build(&mut b, layer);
            Ok(b.finish(&[result]))
        })
        .unwrap();
    let tokens = (0..layer.tokens as i32).map(|i| i % 9).collect();
    scheduler.run(&Batch { tokens, ..Batch::default() }).unwrap();
    let mut found = vec![0.0; layer.tokens * DIM];
    scheduler.read_output(0, 0..layer.tokens, &mut found).unwrap();
    let counters = scheduler.counters().into_iter().flat_map(|(_, counters)| counters);
    let dispatches = counters.filter(|(name, _)| *name == "dispatches").map(|(_, count)| count).sum();
    (found, dispatches)
}

#[track_caller]
fn check(found: &[f32], expected: &[f32]) {
    let error: f64 = found.iter().zip(expected).map(|(f, e)| f64::from(f - e).powi(2)).sum();
    let size: f64 = expected.iter().map(|e| f64::from(*e).powi(2)).sum();
    assert!(size > 0.0 && error <= 1e-10 * size, "normalised mean squared error {:.1e}", error / size);
}

#[test]
fn a_layer_is_five_dispatches_and_the_rows_before_it() {
    for softmax_of_all in [false, true] {
        for clamped in [false, true] {
            let layer = Layer { softmax_of_all, clamped, biased: clamped, tokens: 3 };
            let (expected, _) = forward(None, layer);
            // Router, choice, gate and up, down, sum; and the rows.
            let (found, dispatches) = forward(Some(Box::new(metal(Switches::default()))), layer);
            check(&found, &expected);
            assert_eq!(dispatches, 6);
        }
    }
}

#[test]
fn many_tokens_are_grouped_once_for_both_products() {
    let layer = Layer { softmax_of_all: false, clamped: true, biased: true, tokens: 50 };
    let (expected, _) = forward(None, layer);
    let (found, dispatches) = forward(Some(Box::new(metal(Switches::default()))), layer);
    check(&found, &expected);
    // Rows, router, choice; groups, gate, up, gated; groups, down; sum.
    assert_eq!(dispatches, 10);
    let without = Switches { gemm: false, ..Switches::default() };
    let (found, dispatches) = forward(Some(Box::new(metal(without))), layer);
    check(&found, &expected);
    assert_eq!(dispatches, 6);
}

/// The plan may give a chain's result the memory of a value that dies in it: then nothing is computed on the way.
#[test]
fn a_result_where_an_input_of_the_chain_was_is_computed_step_by_step() {
    let layer = Layer { softmax_of_all: false, clamped: false, biased: false, tokens: 4 };
    let mut results = Vec::new();
    for overlap in [false, true] {
        let mut backend = metal(Switches::default());
        register(|name, data| backend.register_weight(name, data).unwrap());
        let mut b = GraphBuilder::new(&params(layer.tokens), vec![]);
        let result = build(&mut b, layer);
        let graph = b.finish(&[result]);
        let bytes = |id: NodeId| graph.node(id).shape.bytes(graph.node(id).dtype).unwrap();
        let nodes: Vec<NodeId> = (0..graph.nodes().len()).map(NodeId).collect();
        let named = |label: &str| nodes.iter().copied().find(|&id| graph.node(id).label == label).unwrap();
        let most = nodes.iter().map(|&id| bytes(id)).max().unwrap();
        let mut buffers: Vec<_> = nodes.iter().map(|_| backend.alloc_buffer(most).unwrap()).collect();
        if overlap {
            buffers[named("gated").0] = buffers[named("rows").0];
            buffers[named("shares").0] = buffers[named("logits").0];
        }
        let operand = |id: NodeId| {
            let node = graph.node(id);
            Operand { buffer: buffers[id.0], offset: 0, dtype: node.dtype, shape: node.shape, producer: id }
        };
        let before = backend.counts().dispatches;
        for &id in &nodes {
            let node = graph.node(id);
            if matches!(node.op, Op::Input(_)) {
                backend.write_host(buffers[id.0], 0, bytemuck::cast_slice(&[3i32, 1, 8, 0])).unwrap();
                continue;
            }
            backend.prepare_node(&graph, id).unwrap();
        }
        for &id in nodes.iter().filter(|&&id| !matches!(graph.node(id).op, Op::Input(_))) {
            let inputs: Vec<Operand> = graph.node(id).inputs.iter().map(|&id| operand(id)).collect();
            let call = NodeCall {
                id,
                node: graph.node(id),
                graph: &graph,
                inputs: &inputs,
                output: operand(id),
                state: None,
                epoch: 1,
            };
            backend.execute_node(&call).unwrap();
        }
        backend.synchronize().unwrap();
        assert_eq!(backend.counts().dispatches - before, if overlap { 10 } else { 6 }, "{NAME}");
        let mut found = vec![0.0f32; layer.tokens * DIM];
        backend.read_host(buffers[result.0], 0, bytemuck::cast_slice_mut(&mut found)).unwrap();
        results.push(found);
    }
    check(&results[1], &results[0]);
}
