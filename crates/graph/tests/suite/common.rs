//! Parameters, batches, weights and schedulers for tests.

use bytes::Bytes;
use graph::ops::Attention;
use graph::testing::{Control, Event, TestBackend};
use graph::{
    Backend, Batch, CacheParams, DType, Graph, GraphError, GraphParams, GroupId, InputKind, NodeId, Op,
    Participation, Prepared, Scheduler, StateSpec, WeightData, WeightInfo,
};
use quant::Format;
use std::collections::BTreeMap;

/// `tokens` tokens of one sequence, all of whose rows are wanted; one cache group with 8 pages of 4 rows.
pub fn params(tokens: usize) -> GraphParams {
    GraphParams {
        tokens,
        outputs: tokens,
        sequences: 1,
        max_pages: 4,
        cache: CacheParams { key: DType::F32, value: DType::F32, page_len: 4, pages: vec![8] },
        participation: Participation::cpu_only(),
        head: true,
        fuse_qkv: false,
        fuse_ffn: false,
    }
}

/// The same with accelerators.
pub fn with(accelerators: &[&str], params: GraphParams) -> GraphParams {
    let accelerators = accelerators.iter().map(|name| name.to_string()).collect();
    GraphParams { participation: Participation { accelerators, ..Participation::default() }, ..params }
}

/// The batch for [`params`]: the tokens of one sequence from position `start` on, in pages 0, 1, 2, 3.
pub fn batch(params: &GraphParams, start: usize) -> Batch {
    let ints = |range: std::ops::Range<usize>| range.map(|i| i as i32).collect::<Vec<_>>();
    let end = start + params.tokens;
    let groups = params.cache.pages.len();
    Batch {
        tokens: ints(0..params.tokens)
            .iter()
            .map(|token| (token * 5 + start as i32) % VOCABULARY as i32)
            .collect(),
        positions: ints(start..end),
        cache_rows: vec![ints(start..end); groups],
        query_ranges: vec![0, params.tokens as i32],
        kv_lens: vec![end as i32],
        page_tables: vec![ints(0..params.max_pages); groups],
        out_rows: ints(0..params.outputs),
    }
}

/// Rows of the embedding.
pub const VOCABULARY: usize = 16;

/// An f32 weight as the graph knows it.
pub fn weight(name: &str, rows: usize, cols: usize) -> WeightInfo {
    WeightInfo { name: name.into(), format: Format::F32, rows, cols }
}

/// Numbers between -1 and 1 that depend on `seed` alone.
pub fn numbers(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let numbers = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    });
    numbers.take(len).collect()
}

/// Contents for a weight, by its name.
pub fn contents(info: &WeightInfo) -> WeightData {
    let seed = info.name.bytes().fold(7, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    let values = numbers(seed, info.elements());
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    WeightData {
        format: info.format,
        rows: info.rows,
        cols: info.cols,
        bytes: Bytes::from(bytes),
        release: None,
    }
}

/// A scheduler over these backends that knows the weights of the graph.
pub fn scheduler(backends: Vec<TestBackend>, weights: &[WeightInfo]) -> Scheduler {
    let backends = backends.into_iter().map(|backend| Box::new(backend) as Box<dyn Backend>);
    let mut scheduler = Scheduler::new(backends.collect());
    for weight in weights {
        scheduler.register_weight(&weight.name, contents(weight)).unwrap();
    }
    scheduler
}

/// Builds a graph again for other parameters.
pub fn rebuilt(scheduler: &mut Scheduler, graph: &Graph) -> Result<Prepared, GraphError> {
    scheduler.prepare(graph.params(), |_| Ok(graph.clone()))
}

/// Runs a batch and reads the whole of an output.
pub fn output(scheduler: &mut Scheduler, batch: &Batch, index: usize) -> Result<Vec<f32>, GraphError> {
    scheduler.run(batch)?;
    let graph = scheduler.graph().unwrap();
    let shape = graph.node(graph.outputs()[index]).shape;
    let mut values = vec![0.0; shape.elements()];
    scheduler.read_output(index, 0..shape.rows, &mut values)?;
    Ok(values)
}

/// What an output must be.
pub fn expected(graph: &Graph, batch: &Batch, index: usize) -> Vec<f32> {
    let weights: BTreeMap<_, _> = graph.weights().iter().map(|w| (w.name.clone(), contents(w))).collect();
    let values = graph::testing::evaluate(graph, batch, &weights).unwrap();
    values[graph.outputs()[index].0].f32().unwrap().to_vec()
}

/// A layer's cache for [`params`].
pub fn kv(params: &GraphParams, cols: usize) -> StateSpec {
    StateSpec::Kv {
        group: GroupId(0),
        rows: params.cache.pages[0] * params.cache.page_len,
        key_cols: cols,
        value_cols: cols,
        key: params.cache.key,
        value: params.cache.value,
    }
}

/// The log as short lines, `backend: what`: executions by label and synchronisations, copies by what is done.
pub fn calls(control: &Control) -> Vec<String> {
    let log = control.take_log().into_iter();
    let line = |event: Event| match event {
        Event::Execute { label, .. } => Some(label),
        Event::Synchronize(_) => Some("synchronize".into()),
        Event::ReadHost { pending, .. } => Some(if pending { "read pending" } else { "read" }.into()),
        Event::WriteHost { .. } => Some("write".into()),
        Event::CopyFrom(from, _) => Some(format!("copy from {from}")),
        _ => None,
    };
    log.filter_map(|(backend, event)| Some(format!("{backend}: {}", line(event)?))).collect()
}

/// Where each label was executed.
pub fn placement(control: &Control) -> BTreeMap<String, String> {
    let log = control.take_log().into_iter();
    let executed = log.filter_map(|(backend, event)| match event {
        Event::Execute { label, .. } => Some((label, backend)),
        _ => None,
    });
    executed.collect()
}

/// The embedding of the tokens, `[tokens, cols]`.
pub fn embed(b: &mut graph::GraphBuilder, cols: usize) -> NodeId {
    let table = b.weight(&weight("token_embd", VOCABULARY, cols));
    let tokens = b.input(InputKind::Tokens);
    b.op("token_embd", Op::GetRows(graph::ops::GetRows { table: Some(table) }), &[tokens]).unwrap()
}

/// Attention of four query heads over two heads of 4 columns, in layer 0.
pub fn attention() -> Attention {
    Attention {
        layer: 0,
        group: GroupId(0),
        heads: 4,
        kv_heads: 2,
        head_dim: 4,
        value_dim: 4,
        scale: 0.5,
        window: None,
        soft_cap: None,
        sinks: None,
    }
}

/// A transformer of `layers` layers with one head of 8 columns: projections, attention over the cache, and the
/// embedding as output head.
pub fn transformer(params: &GraphParams, layers: usize) -> Graph {
    use graph::ops::{KvStore, MatMul};
    const COLS: usize = 8;
    let group = GroupId(0);
    let mut b = graph::GraphBuilder::new(params, vec![kv(params, COLS); layers]);
    let mut x = embed(&mut b, COLS);
    for layer in 0..layers {
        b.set_layer(Some(layer));
        let project = |b: &mut graph::GraphBuilder, label: &str, x| {
            let weight = b.weight(&weight(&format!("blk.{layer}.{label}.weight"), COLS, COLS));
            b.op(label, Op::MatMul(MatMul { weight, bias: None, logits: false }), &[x]).unwrap()
        };
        let [q, k, v] = ["attn_q", "attn_k", "attn_v"].map(|label| project(&mut b, label, x));
        let rows = b.input(InputKind::CacheRows(group));
        let store = b.op("kv_store", Op::KvStore(KvStore { layer, group }), &[k, v, rows]).unwrap();
        let attention = Attention { layer, heads: 2, ..attention() };
        let inputs = [
            q,
            store,
            b.input(InputKind::Positions),
            b.input(InputKind::QueryRanges),
            b.input(InputKind::KvLens),
            b.input(InputKind::PageTable(group)),
        ];
        let attended = b.op("attention", Op::Attention(attention), &inputs).unwrap();
        let attended = project(&mut b, "attn_output", attended);
        x = b.op("residual", Op::Add, &[x, attended]).unwrap();
    }
    b.set_layer(None);
    let head = b.weight(&weight("token_embd", VOCABULARY, COLS));
    let logits =
        b.op("output", Op::MatMul(MatMul { weight: head, bias: None, logits: false }), &[x]).unwrap();
    b.finish(&[logits])
}

/// Prepares and runs a graph, and says where each node was executed.
pub fn run_placed(
    control: &Control,
    scheduler: &mut Scheduler,
    graph: &Graph,
    batch: &Batch,
) -> BTreeMap<String, String> {
    rebuilt(scheduler, graph).unwrap();
    control.take_log();
    scheduler.run(batch).unwrap();
    placement(control)
}
