//! Small graphs whose dispatches share one encoder: what one leaves behind must not reach the next.

mod common;

use common::{NAME, info, params, start};
use cpu::{Activations, CpuBackend, CpuOptions};
use graph::ops::{Attention, GetRows, KvStore, MatMul};
use graph::{
    Backend, Batch, CacheParams, DType, GraphBuilder, GraphParams, GroupId, InputKind, Op, Participation,
    Scheduler, StateSpec, WeightData,
};
use quant::Format;

const TOKENS: usize = 16;
const DIM: usize = 256;
const ROWS: usize = 24;

/// Numbers that repeat after 89.
fn numbers(n: usize, seed: usize) -> Vec<u8> {
    (0..n).flat_map(|i| (((i * 53 + seed) % 89) as f32 / 500.0 - 0.08).to_le_bytes()).collect()
}

fn forward(accelerator: Option<Box<dyn Backend>>) -> Vec<f32> {
    let options =
        CpuOptions { threads: Some(1), activations: Some(Activations::F32), ..CpuOptions::default() };
    let mut backends: Vec<Box<dyn Backend>> = accelerator.into_iter().collect();
    let accelerators = backends.iter().map(|backend| backend.name().to_owned()).collect();
    backends.push(Box::new(CpuBackend::new(options).unwrap()));
    let mut scheduler = Scheduler::new(backends);
    let weights = [("table", ROWS, DIM), ("q", DIM, DIM), ("k", DIM, DIM), ("v", DIM, DIM)].map(
        |(name, rows, cols)| {
            let bytes = numbers(rows * cols, name.len() + rows + usize::from(name.as_bytes()[0]));
            let data = WeightData { format: Format::F32, rows, cols, bytes: bytes.into(), release: None };
            scheduler.register_weight(name, data).unwrap();
            info(name, Format::F32, rows, cols)
        },
    );
    let state = StateSpec::Kv {
        group: GroupId(0),
        rows: 32,
        key_cols: DIM,
        value_cols: DIM,
        key: DType::F16,
        value: DType::F16,
    };
    let params = GraphParams {
        max_pages: 2,
        cache: CacheParams { key: DType::F16, value: DType::F16, page_len: 16, pages: vec![2] },
        participation: Participation { accelerators, ..Participation::default() },
        ..params(TOKENS)
    };
    let build = |params: &GraphParams| {
        let mut b = GraphBuilder::new(params, vec![state]);
        let [table, q, k, v] = weights.each_ref().map(|weight| b.weight(weight));
        let tokens = b.input(InputKind::Tokens);
        let x = b.op("rows", Op::GetRows(GetRows { table: Some(table) }), &[tokens])?;
        b.set_layer(Some(0));
        let product = |weight| Op::MatMul(MatMul { weight, bias: None, logits: false });
        let (k, v) = (b.op("k", product(k), &[x])?, b.op("v", product(v), &[x])?);
        let rows = b.input(InputKind::CacheRows(GroupId(0)));
        let store = b.op("store", Op::KvStore(KvStore { layer: 0, group: GroupId(0) }), &[k, v, rows])?;
        // Behind the store, so that it is no part of it: the last dispatch before attention.
        let q = b.op("q", product(q), &[x])?;
        let attention = Attention {
            layer: 0,
            group: GroupId(0),
            heads: 1,
            kv_heads: 1,
            head_dim: DIM,
            value_dim: DIM,
            scale: 0.5,
            window: None,
            soft_cap: None,
            sinks: None,
        };
        let inputs = [
            q,
            store,
            b.input(InputKind::Positions),
            b.input(InputKind::QueryRanges),
            b.input(InputKind::KvLens),
            b.input(InputKind::PageTable(GroupId(0))),
        ];
        let y = b.op("attention", Op::Attention(attention), &inputs)?;
        Ok(b.finish(&[y]))
    };
    scheduler.prepare(&params, build).unwrap();
    let positions: Vec<i32> = (0..TOKENS as i32).collect();
    let batch = Batch {
        tokens: positions.iter().map(|i| i * 7 % ROWS as i32).collect(),
        cache_rows: vec![positions.iter().map(|i| i + 16).collect()],
        positions,
        query_ranges: vec![0, TOKENS as i32],
        kv_lens: vec![TOKENS as i32],
        page_tables: vec![vec![1, -1]],
        out_rows: (0..TOKENS as i32).collect(),
    };
    scheduler.run(&batch).unwrap();
    let mut found = vec![0.0; TOKENS * DIM];
    scheduler.read_output(0, 0..TOKENS, &mut found).unwrap();
    found
}

/// The tiles of the products take 12 KB of threadgroup memory and those of attention 26 KB: together more than there is.
#[test]
fn threadgroup_memory_of_one_kernel_is_not_charged_to_the_next() {
    let (found, expected) = (forward(Some(Box::new(start()))), forward(None));
    let error: f32 = found.iter().zip(&expected).map(|(f, e)| (f - e) * (f - e)).sum();
    let size: f32 = expected.iter().map(|e| e * e).sum();
    assert!(error <= 1e-9 * size, "{NAME}: normalised mean squared error {:e}", error / size);
}
