//! Mixtures of experts as graphs: what is one dispatch there, what is not, and that both give what the CPU gives.

mod common;

use common::{NAME, info, params, start_with};
use cpu::{Activations, CpuBackend, CpuOptions};
use graph::ops::{Activation, ClampedSwiGlu, ExpertMatMul, GetRows, MatMul, Softmax, TopK, View};
use graph::{
    Backend, BackendError, Batch, BufferId, DType, Graph, GraphBuilder, GraphParams, InputKind, NodeCall,
    NodeId, Op, Operand, Participation, Scheduler, Shape, WeightData, WeightInfo,
};
use metal::{MetalBackend, Switches};
use metal_sim::device::SimDevice;
use quant::Format;

const DIM: usize = 64;
const EXPERTS: usize = 6;
const USED: usize = 2;
/// Columns of a table whose rows are too wide for the router's kernel.
const WIDE: usize = 600;

/// How a layer is built.
#[derive(Clone, Copy)]
struct Layer {
    softmax_of_all: bool,
    clamped: bool,
    biased: bool,
    tokens: usize,
    /// Of an expert.
    hidden: usize,
}

/// An expert has no multiple of the columns that a SIMD-group computes.
const PLAIN: Layer = Layer { softmax_of_all: false, clamped: false, biased: false, tokens: 4, hidden: 37 };

/// The backend, with changed kernels where the environment has some (see docs/metal.md).
fn metal(switches: Switches) -> MetalBackend<SimDevice> {
    let sources = Switches::from_environment().unwrap().sources;
    start_with(Switches { sources, ..switches })
}

/// Numbers that repeat after 89.
fn numbers(n: usize, seed: usize) -> Vec<u8> {
    (0..n).flat_map(|i| (((i * 53 + seed * 17) % 89) as f32 / 90.0 - 0.5).to_le_bytes()).collect()
}

fn weights(hidden: usize) -> [WeightInfo; 8] {
    [
        ("table", 9, DIM),
        ("router", EXPERTS, DIM),
        ("gate", EXPERTS * hidden, DIM),
        ("up", EXPERTS * hidden, DIM),
        ("down", EXPERTS * DIM, hidden),
        ("gate bias", EXPERTS, hidden),
        ("up bias", EXPERTS, hidden),
        ("wide", 9, WIDE),
    ]
    .map(|(name, rows, cols)| info(name, Format::F32, rows, cols))
}

fn register(hidden: usize, mut add: impl FnMut(&str, WeightData)) {
    for (seed, WeightInfo { name, rows, cols, .. }) in weights(hidden).into_iter().enumerate() {
        let bytes = numbers(rows * cols, seed + 3).into();
        add(&name, WeightData { format: Format::F32, rows, cols, bytes, release: None });
    }
}

/// A router's choice and its weights.
fn choose(b: &mut GraphBuilder, logits: NodeId, k: usize, softmax_of_all: bool) -> (NodeId, NodeId) {
    let top = b.op("top", Op::TopK(TopK { k }), &[logits]).unwrap();
    let softmax = Op::Softmax(Softmax { scale: 0.7 });
    let shares = if softmax_of_all {
        let all = b.op("all", softmax, &[logits]).unwrap();
        b.op("shares", Op::GatherCols, &[all, top]).unwrap()
    } else {
        let chosen = b.op("chosen", Op::GatherCols, &[logits, top]).unwrap();
        b.op("shares", softmax, &[chosen]).unwrap()
    };
    (top, shares)
}

fn build(b: &mut GraphBuilder, layer: Layer) -> NodeId {
    let [table, router, gate, up, down, gate_bias, up_bias, _] =
        weights(layer.hidden).map(|weight| b.weight(&weight));
    let tokens = b.input(InputKind::Tokens);
    let x = b.op("rows", Op::GetRows(GetRows { table: Some(table) }), &[tokens]).unwrap();
    let logits = Op::MatMul(MatMul { weight: router, bias: None, logits: true });
    let logits = b.op("logits", logits, &[x]).unwrap();
    let (top, shares) = choose(b, logits, USED, layer.softmax_of_all);
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
fn forward(accelerator: Option<MetalBackend<SimDevice>>, layer: Layer) -> (Vec<f32>, u64) {
    forward_of(accelerator, layer, |b| build(b, layer))
}

/// The same of any graph with the layer's weights.
fn forward_of(
    accelerator: Option<MetalBackend<SimDevice>>,
    layer: Layer,
    build: impl Fn(&mut GraphBuilder) -> NodeId,
) -> (Vec<f32>, u64) {
    let options =
        CpuOptions { threads: Some(1), activations: Some(Activations::F32), ..CpuOptions::default() };
    let mut backends: Vec<Box<dyn Backend>> =
        accelerator.into_iter().map(|backend| Box::new(backend) as Box<dyn Backend>).collect();
    let accelerators = backends.iter().map(|backend| backend.name().to_owned()).collect();
    backends.push(Box::new(CpuBackend::new(options).unwrap()));
    let mut scheduler = Scheduler::new(backends);
    register(layer.hidden, |name, data| scheduler.register_weight(name, data).unwrap());
    let cols = std::cell::Cell::new(0);
    let params = GraphParams {
        participation: Participation { accelerators, ..Participation::default() },
        ..params(layer.tokens)
    };
    scheduler
        .prepare(&params, |params| {
            let mut b = GraphBuilder::new(params, vec![]);
            let result = build(&mut b);
            cols.set(b.shape(result).cols);
            Ok(b.finish(&[result]))
        })
        .unwrap();
    let tokens = (0..layer.tokens as i32).map(|i| i % 9).collect();
    scheduler.run(&Batch { tokens, ..Batch::default() }).unwrap();
    let mut found = vec![0.0; layer.tokens * cols.get()];
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
            let layer = Layer { softmax_of_all, clamped, biased: clamped, tokens: 3, ..PLAIN };
            let (expected, _) = forward(None, layer);
            // Router, choice, gate and up, down, sum; and the rows.
            let (found, dispatches) = forward(Some(metal(Switches::default())), layer);
            check(&found, &expected);
            assert_eq!(dispatches, 6);
        }
    }
}

#[test]
fn many_tokens_are_grouped_once_for_both_products() {
    let layer = Layer { clamped: true, biased: true, tokens: 50, ..PLAIN };
    let (expected, _) = forward(None, layer);
    let (found, dispatches) = forward(Some(metal(Switches::default())), layer);
    check(&found, &expected);
    // Rows, router, choice; groups, gate, up, gated; groups, down; sum.
    assert_eq!(dispatches, 10);
    let without = Switches { gemm: false, ..Switches::default() };
    let (found, dispatches) = forward(Some(metal(without)), layer);
    check(&found, &expected);
    assert_eq!(dispatches, 6);
}

/// The router's kernel has a SIMD-group for a row: no more columns than its registers take, no more choices than lanes.
#[test]
fn a_choice_that_the_kernel_does_not_take_is_made_step_by_step() {
    for (cols, k, dispatches) in [(512, 32, 3), (512, 33, 5), (513, 4, 5)] {
        for softmax_of_all in [false, true] {
            let layer = Layer { tokens: 3, ..PLAIN };
            let build = |b: &mut GraphBuilder| {
                let [.., wide] = weights(layer.hidden).map(|weight| b.weight(&weight));
                let tokens = b.input(InputKind::Tokens);
                let rows = b.op("rows", Op::GetRows(GetRows { table: Some(wide) }), &[tokens]).unwrap();
                let view = View { first_row: 0, rows: layer.tokens, first_col: 7, cols };
                let logits = b.op("logits", Op::View(view), &[rows]).unwrap();
                choose(b, logits, k, softmax_of_all).1
            };
            let (expected, _) = forward_of(None, layer, build);
            let (found, count) = forward_of(Some(metal(Switches::default())), layer, build);
            check(&found, &expected);
            assert_eq!(count, dispatches, "{k} of {cols}");
        }
    }
}

/// A graph whose nodes are executed one after the other, each with a buffer for its result.
struct Nodes {
    backend: MetalBackend<SimDevice>,
    graph: Graph,
    buffers: Vec<BufferId>,
}

impl Nodes {
    fn new(layer: Layer, build: impl Fn(&mut GraphBuilder) -> NodeId) -> Nodes {
        let mut backend = metal(Switches::default());
        register(layer.hidden, |name, data| backend.register_weight(name, data).unwrap());
        let mut b = GraphBuilder::new(&params(layer.tokens), vec![]);
        let result = build(&mut b);
        let graph = b.finish(&[result]);
        let bytes = graph.nodes().iter().map(|node| node.shape.bytes(node.dtype).unwrap());
        let most = bytes.max().unwrap();
        let buffers = graph.nodes().iter().map(|_| backend.alloc_buffer(most).unwrap()).collect();
        Nodes { backend, graph, buffers }
    }

    fn named(&self, label: &str) -> NodeId {
        let position = self.graph.nodes().iter().position(|node| node.label == label);
        NodeId(position.unwrap_or_else(|| panic!("a node '{label}'")))
    }

    /// Executes all nodes, with operands that were changed.
    fn run(
        &mut self,
        tokens: [i32; 4],
        bend: impl Fn(&str, &mut [Operand], &mut Operand),
    ) -> Result<(), BackendError> {
        let Nodes { backend, graph, buffers } = self;
        let operand = |id: NodeId| {
            let node = graph.node(id);
            Operand { buffer: buffers[id.0], offset: 0, dtype: node.dtype, shape: node.shape, producer: id }
        };
        let is_input = |id: &NodeId| matches!(graph.node(*id).op, Op::Input(_));
        let (inputs, nodes): (Vec<_>, Vec<_>) = (0..graph.nodes().len()).map(NodeId).partition(is_input);
        for id in inputs {
            backend.write_host(buffers[id.0], 0, bytemuck::cast_slice(&tokens))?;
        }
        for &id in &nodes {
            backend.prepare_node(graph, id)?;
        }
        for id in nodes {
            let node = graph.node(id);
            let mut inputs: Vec<Operand> = node.inputs.iter().map(|&id| operand(id)).collect();
            let mut output = operand(id);
            bend(&node.label, &mut inputs, &mut output);
            backend.execute_node(&NodeCall {
                id,
                node,
                graph,
                inputs: &inputs,
                output,
                state: None,
                epoch: 1,
            })?;
        }
        backend.synchronize()
    }
}

/// The plan may give a chain's result the memory of a value that dies in it: then nothing is computed on the way.
#[test]
fn a_result_where_an_input_of_the_chain_was_is_computed_step_by_step() {
    // Of the second width, what the gate lets through takes as much memory as the rows.
    for layer in [PLAIN, Layer { hidden: DIM / USED, ..PLAIN }] {
        let mut results = Vec::new();
        for overlap in [false, true] {
            let mut nodes = Nodes::new(layer, |b| build(b, layer));
            if overlap {
                for (result, input) in [("gated", "rows"), ("shares", "logits")] {
                    let (result, input) = (nodes.named(result), nodes.named(input));
                    nodes.buffers[result.0] = nodes.buffers[input.0];
                }
            }
            let before = nodes.backend.counts().dispatches;
            nodes.run([3, 1, 8, 0], |_, _, _| ()).unwrap();
            let dispatches = nodes.backend.counts().dispatches - before;
            assert_eq!(dispatches, if overlap { 10 } else { 6 }, "{NAME}");
            let mut found = vec![0.0f32; layer.tokens * DIM];
            let result = nodes.buffers[nodes.named("sum").0];
            nodes.backend.read_host(result, 0, bytemuck::cast_slice_mut(&mut found)).unwrap();
            results.push(found);
        }
        check(&results[1], &results[0]);
    }
}

#[test]
fn held_operands_fit_the_last_node() {
    type Bend = fn(&str, &mut [Operand], &mut Operand);
    let cases: [(&str, Bend); 6] = [
        ("choices", |label, _, y| {
            if label == "top" {
                y.shape = Shape::new(4, EXPERTS + 1);
            }
        }),
        ("type of the columns", |label, _, y| {
            if label == "top" {
                y.dtype = DType::F32;
            }
        }),
        ("rows of the columns", |label, _, y| {
            if label == "top" {
                y.shape = Shape::new(3, USED);
            }
        }),
        ("shape of the result", |label, _, y| {
            if label == "shares" {
                y.shape = Shape::new(4, 1);
            }
        }),
        ("shape of the result", |label, _, y| {
            if label == "gated" {
                y.shape = Shape::new(4 * USED, 36);
            }
        }),
        // Of three tokens.
        ("shape of input 1", |label, inputs, y| {
            if label == "up" {
                (inputs[0].shape.rows, inputs[1].shape.rows, y.shape.rows) = (3, 3, 3 * USED);
            }
        }),
    ];
    for (expected, bend) in cases {
        let result = Nodes::new(PLAIN, |b| build(b, PLAIN)).run([3, 1, 8, 0], bend);
        let found = match result {
            Err(BackendError::Invariant { what, .. }) => what,
            other => panic!("expected to be refused for '{expected}', found {other:?}"),
        };
        assert_eq!(found, expected);
    }
}

/// Where the host fills in the experts, they are looked at before the kernel is launched, also for held products.
#[test]
fn experts_that_are_not_there() {
    let build = |b: &mut GraphBuilder| {
        let [table, _, gate, up, ..] = weights(PLAIN.hidden).map(|weight| b.weight(&weight));
        let tokens = b.input(InputKind::Tokens);
        let x = b.op("rows", Op::GetRows(GetRows { table: Some(table) }), &[tokens]).unwrap();
        let [gate, up] = [("gate", gate), ("up", up)].map(|(name, weight)| {
            let op = ExpertMatMul { weight, bias: None, experts: EXPERTS, used: 1 };
            b.op(name, Op::ExpertMatMul(op), &[x, tokens]).unwrap()
        });
        b.op("gated", Op::Gated(Activation::Silu), &[gate, up]).unwrap()
    };
    Nodes::new(PLAIN, build).run([3, 1, 5, 0], |_, _, _| ()).unwrap();
    let found = Nodes::new(PLAIN, build).run([3, 1, 6, 0], |_, _, _| ());
    let expected = BackendError::BadInput { what: "expert".into(), row: 2, found: 6, limit: EXPERTS as i64 };
    assert_eq!(found, Err(expected));
}
