//! How fast each kernel of the Metal backend is on a GPU: time, bytes moved, and how much of the memory's speed that is.
//! Nothing is asserted, so this runs only when asked for; on an NVIDIA GPU (`docs/metal-sim.md`):
//!
//!     SMELT_TEST_BACKEND=metal-ptx cargo test --release -p smelt-tests --test ops speed_of_every_kernel -- \
//!         --ignored --nocapture
//!
//! `SMELT_OP_PERF` set to a part of the lines wanted leaves out the others. `SMELT_CEILING` names the GB/s of a plain read
//! of memory; without it, those of a copy are measured. The shapes are those of a model with 7 billion weights.

use crate::attention::attention;
use crate::harness::*;
use crate::rope::table;
use graph::ops::{
    Activation, Attention, ExpertMatMul, FusedFfn, GetRows, KvLoad, KvStore, MatMul, Permute, QkNorm,
    RmsNorm, Rope, RopeStyle, Softmax, TopK,
};
use graph::{Backend, DType, GraphParams, GroupId, InputKind, NodeId, Op, Shape, StatePart, WeightId};
use metal::device::{CommandBuffer, Device, Queue, Submission};
use metal::{MetalBackend, Switches};
use quant::Format;
use std::time::Duration;

/// Bytes between two uses of the same memory: many times what a GPU's cache holds.
const TRAFFIC: u64 = 1 << 30;
/// Copies of small operands. All of them may be in the cache, as they are between two kernels of a token.
const MOST_COPIES: u64 = 64;
/// A measurement is of at least so long a time, and of no more launches than that.
const MEASURED: Duration = Duration::from_millis(2);
const MOST_LAUNCHES: usize = 512;
const ROUNDS: usize = 5;

const HIDDEN: usize = 3584;
const FFN: usize = 18944;
const HEADS: usize = 28;
const KV_HEADS: usize = 4;
const HEAD: usize = 128;
const VOCABULARY: usize = 152_064;

#[test]
#[ignore = "measures, and asserts nothing: see the top of kernels.rs"]
fn speed_of_every_kernel() {
    let switches = || Switches { serial: true, weight_copy: true, ..Switches::default() };
    let backend = metal_on_ptx(switches());
    let ceiling = match std::env::var("SMELT_CEILING") {
        Ok(value) => value.parse().unwrap_or_else(|error| panic!("SMELT_CEILING: {value}: {error}")),
        Err(_) => copy_speed(backend.device()),
    };
    println!("{}, {ceiling:.0} GB/s\n", backend.device().name());
    drop(backend);
    println!("| operation | kernels | us | MB | GB/s | of {ceiling:.0} | TFLOP/s |");
    println!("|---|---|---:|---:|---:|---:|---:|");
    let filter = std::env::var("SMELT_OP_PERF").unwrap_or_default();
    // A backend each, so that weights go with it.
    for family in [products, experts, attentions, rows] {
        family(&mut Bench { backend: metal_on_ptx(switches()), ceiling, filter: filter.clone() });
    }
}

/// GB/s of a copy, read and written bytes together.
fn copy_speed<D: Device>(device: &D) -> f64 {
    let bytes = TRAFFIC as usize;
    let (from, to) = (device.new_buffer("from", bytes).unwrap(), device.new_buffer("to", bytes).unwrap());
    let queue = device.new_queue("copy").unwrap();
    let seconds = (0..ROUNDS).map(|_| {
        let mut command_buffer = queue.new_command_buffer("copy").unwrap();
        command_buffer.copy(&from, 0, &to, 0, bytes).unwrap();
        command_buffer.commit().unwrap().wait(Duration::from_secs(60)).unwrap().duration().as_secs_f64()
    });
    2.0 * bytes as f64 / seconds.fold(f64::MAX, f64::min) / 1e9
}

/// Measures, and prints a line for each operation.
struct Bench<D: Device> {
    backend: MetalBackend<D>,
    ceiling: f64,
    filter: String,
}

impl<D: Device> Bench<D> {
    /// Measures nodes; `make` adds those of a copy with operands of its own, and returns them.
    fn line(
        &mut self,
        what: &str,
        flops: f64,
        params: &GraphParams,
        state: Option<graph::StateSpec>,
        make: impl Fn(&mut Case<'_>, u64) -> Vec<NodeId>,
    ) {
        if !what.contains(&self.filter) {
            return;
        }
        let ready = |backend: &mut MetalBackend<D>, copy| {
            let mut case = match state {
                Some(spec) => Case::with_state(backend, params, spec),
                None => Case::new(backend, params),
            };
            let nodes = make(&mut case, copy);
            case.ready(&nodes)
        };
        let mut copies = vec![ready(&mut self.backend, 0)];
        let before = self.backend.counts();
        copies[0].execute(&mut self.backend).unwrap();
        let mut kernels: Vec<String> = self.backend.recorded_kernels().map(str::to_owned).collect();
        kernels.dedup();
        self.backend.synchronize().unwrap();
        let after = self.backend.counts();
        let bytes = after.weight_bytes + after.read_bytes + after.written_bytes
            - before.weight_bytes
            - before.read_bytes
            - before.written_bytes;
        let wanted = TRAFFIC.div_ceil(bytes.max(1)).clamp(2, MOST_COPIES);
        copies.extend((1..wanted).map(|copy| ready(&mut self.backend, copy)));
        // The first round makes everything warm, and tells how many launches a measurement needs.
        let mut launches = copies.len();
        let mut seconds = Vec::new();
        for round in 0..=ROUNDS {
            let before = self.backend.counts().device_ns;
            for copy in copies.iter().cycle().take(launches) {
                copy.execute(&mut self.backend).unwrap();
            }
            self.backend.synchronize().unwrap();
            let round_ns = self.backend.counts().device_ns - before;
            let each = round_ns as f64 / launches as f64 / 1e9;
            if round == 0 {
                let enough = (MEASURED.as_secs_f64() / each).ceil() as usize;
                launches = enough.clamp(copies.len(), MOST_LAUNCHES).next_multiple_of(copies.len());
            } else {
                seconds.push(each);
            }
        }
        copies.into_iter().for_each(|copy| copy.free(&mut self.backend));
        seconds.sort_by(f64::total_cmp);
        let median = seconds[ROUNDS / 2];
        let speed = bytes as f64 / median / 1e9;
        let work = if flops > 0.0 { format!("{:.2}", flops / median / 1e12) } else { String::new() };
        println!(
            "| {what} | `{}` | {:.1} | {:.2} | {speed:.0} | {:.1} % | {work} |",
            kernels.join("`, `"),
            median * 1e6,
            bytes as f64 / 1e6,
            100.0 * speed / self.ceiling,
        );
    }
}

/// The same values again and again: making as many different ones would take longer than measuring.
fn values(elements: usize) -> Vec<f32> {
    let tile = Random::new(1).floats(elements.min(1 << 16));
    tile.iter().copied().cycle().take(elements).collect()
}

/// A weight of random blocks. `name` tells the copies apart.
fn weight(case: &mut Case<'_>, name: &str, format: Format, rows: usize, cols: usize) -> WeightId {
    if !case.has_weight(name) {
        // Encoding is slow; the time of a kernel is the same for rows that repeat.
        let tile = random_weights(format, rows.min(32), cols, &mut Random::new(2));
        let length = rows * format.row_bytes(cols).unwrap();
        let bytes: Vec<u8> = tile.iter().copied().cycle().take(length).collect();
        return case.weight(name, format, rows, cols, bytes);
    }
    case.info(name, format, rows, cols)
}

/// Products with weights: single tokens, small batches, prompts.
fn products<D: Device>(bench: &mut Bench<D>) {
    let (rows, cols) = (2 * FFN, HIDDEN);
    for format in Format::ALL.into_iter().filter(|format| *format != Format::Q8_K) {
        for tokens in [1, 2, 4, 8, 32, 512] {
            let what = format!("{format}, {rows} x {cols}, {tokens} tokens");
            let flops = 2.0 * (rows * cols * tokens) as f64;
            bench.line(&what, flops, &params(1), None, |case, copy| {
                let x = case.floats(Shape::new(tokens, cols), &values(tokens * cols));
                let weight = weight(case, &format!("{format}.{copy}"), format, rows, cols);
                vec![case.node(Op::MatMul(MatMul { weight, bias: None, logits: false }), &[x])]
            });
        }
    }
    for format in [Format::Q4_0, Format::Q4_K] {
        let what = format!("{format}, gate, up and activation, 2 x {FFN} x {HIDDEN}, 1 token");
        bench.line(&what, 4.0 * (FFN * HIDDEN) as f64, &params(1), None, |case, copy| {
            let x = case.floats(Shape::new(1, HIDDEN), &values(HIDDEN));
            let weights = ["gate", "up"]
                .map(|part| weight(case, &format!("{format}.{part}.{copy}"), format, FFN, HIDDEN));
            vec![case.node(Op::FusedFfn(FusedFfn { weights, activation: Activation::Silu }), &[x])]
        });
    }
}

/// Mixtures of experts: choosing, products, the weighted sum.
fn experts<D: Device>(bench: &mut Bench<D>) {
    for (format, [experts, used], [out, cols]) in
        [(Format::Q4_K, [128, 8], [768, 2048]), (Format::MXFP4, [32, 4], [2880, 2880])]
    {
        for tokens in [1, 8, 512] {
            let what = format!("{format}, {used} of {experts} experts of {out} x {cols}, {tokens} tokens");
            let flops = 2.0 * (out * cols * tokens * used) as f64;
            bench.line(&what, flops, &params(1), None, |case, copy| {
                let x = case.floats(Shape::new(tokens, cols), &values(tokens * cols));
                // Another choice for each copy and token, and no expert twice.
                let choice = |i: usize| ((i / used * 5 + i % used + copy as usize * 11) * 7 % experts) as i32;
                let chosen: Vec<i32> = (0..tokens * used).map(choice).collect();
                let chosen = case.indices(Shape::new(tokens, used), &chosen);
                let name = format!("{format}.{}", copy % 8);
                let weight = weight(case, &name, format, experts * out, cols);
                let op = ExpertMatMul { weight, bias: None, experts, used };
                vec![case.node(Op::ExpertMatMul(op), &[x, chosen])]
            });
        }
    }
    bench.line("sum of 8 experts, 512 x 2048", 0.0, &params(1), None, |case, _| {
        let y = case.floats(Shape::new(512 * 8, 2048), &values(512 * 8 * 2048));
        let weights = case.floats(Shape::new(512, 8), &values(512 * 8));
        vec![case.node(Op::CombineExperts, &[y, weights])]
    });
    for (rows, cols, k) in
        [(1, 128, 8), (4096, 128, 8), (1, VOCABULARY, 1), (1, VOCABULARY, 40), (64, VOCABULARY, 1)]
    {
        let what = format!("the {k} largest of {rows} x {cols}");
        bench.line(&what, 0.0, &params(1), None, |case, _| {
            let x = case.floats(Shape::new(rows, cols), &values(rows * cols));
            vec![case.node(Op::TopK(TopK { k }), &[x])]
        });
    }
}

/// Attention, and what is done to the cache.
fn attentions<D: Device>(bench: &mut Bench<D>) {
    const PAGE: usize = 64;
    let with_cache = |tokens: usize, sequences: usize, pages: usize, dtype: DType| {
        let mut params = params(tokens);
        params.sequences = sequences;
        params.max_pages = pages;
        params.cache.page_len = PAGE;
        params.cache.pages = vec![pages * sequences];
        let cols = KV_HEADS * HEAD;
        (params, kv_state(pages * sequences * PAGE, cols, cols, dtype))
    };
    let types = [DType::F16, DType::F32, DType::Packed(Format::Q8_0)];
    for dtype in types {
        // Sequences, keys of each, and how many of these are new.
        for (sequences, keys, new) in
            [(1, 4096, 1), (1, 32_768, 1), (16, 4096, 1), (1, 512, 512), (1, 4096, 4096), (1, 32_768, 512)]
        {
            let (params, state) = with_cache(sequences * new, sequences, keys / PAGE, dtype);
            let seen: usize = (keys - new + 1..=keys).sum();
            let flops = 4.0 * (sequences * HEADS * HEAD * seen) as f64;
            let what = format!(
                "attention, {HEADS} heads of {HEAD}, {dtype}, {sequences} x {new} queries, {keys} keys"
            );
            bench.line(&what, flops, &params, Some(state), |case, _| {
                // All keys are zero: every one counts the same, as costly as any.
                let tokens = sequences * new;
                let queries = case.floats(Shape::new(tokens, HEADS * HEAD), &values(tokens * HEADS * HEAD));
                let positions: Vec<i32> =
                    (0..sequences).flat_map(|_| (keys - new..keys).map(|position| position as i32)).collect();
                let ranges: Vec<i32> = (0..=sequences).map(|sequence| (sequence * new) as i32).collect();
                let pages: Vec<i32> = (0..(sequences * keys / PAGE) as i32).collect();
                let inputs = [
                    queries,
                    queries,
                    case.ints(InputKind::Positions, &positions),
                    case.ints(InputKind::QueryRanges, &ranges),
                    case.ints(InputKind::KvLens, &vec![keys as i32; sequences]),
                    case.ints(InputKind::PageTable(GroupId(0)), &pages),
                ];
                let op = Attention { sinks: None, ..attention(HEADS, KV_HEADS, HEAD, None) };
                vec![case.node(Op::Attention(op), &inputs)]
            });
        }
    }
    for dtype in types {
        let (tokens, cols) = (4096, KV_HEADS * HEAD);
        let (params, state) = with_cache(tokens, 1, tokens / PAGE, dtype);
        let rows: Vec<i32> = (0..tokens as i32).collect();
        bench.line(
            &format!("cache store, {dtype}, {tokens} x 2 x {cols}"),
            0.0,
            &params,
            Some(state),
            |case, _| {
                let inputs = [
                    case.floats(Shape::new(tokens, cols), &values(tokens * cols)),
                    case.floats(Shape::new(tokens, cols), &values(tokens * cols)),
                    case.ints(InputKind::CacheRows(GroupId(0)), &rows),
                ];
                vec![case.node(Op::KvStore(KvStore { layer: 0, group: GroupId(0) }), &inputs)]
            },
        );
        bench.line(
            &format!("cache load, {dtype}, {tokens} x {cols}"),
            0.0,
            &params,
            Some(state),
            |case, _| {
                let inputs = [
                    case.floats(Shape::new(1, 1), &[0.0]),
                    case.ints(InputKind::CacheRows(GroupId(0)), &rows),
                ];
                vec![case.node(Op::KvLoad(KvLoad { layer: 0, part: StatePart::Key }), &inputs)]
            },
        );
    }
}

/// Operations on rows and elements.
fn rows<D: Device>(bench: &mut Bench<D>) {
    for format in [Format::F16, Format::Q4_0, Format::Q4_K, Format::Q6_K] {
        let tokens = 4096;
        bench.line(
            &format!("rows of a table, {format}, {tokens} x {HIDDEN}"),
            0.0,
            &params(tokens),
            None,
            |case, copy| {
                let mut random = Random::new(copy + 3);
                let chosen: Vec<i32> = (0..tokens).map(|_| random.below(VOCABULARY) as i32).collect();
                let chosen = case.ints(InputKind::Tokens, &chosen);
                let table = Some(weight(case, &format!("table.{format}"), format, VOCABULARY, HIDDEN));
                vec![case.node(Op::GetRows(GetRows { table }), &[chosen])]
            },
        );
    }
    for tokens in [1, 4096] {
        let at = |cols: usize| (Shape::new(tokens, cols), values(tokens * cols));
        let (hidden, heads, wide) = (at(HIDDEN), at(HEADS * HEAD), at(FFN));
        let positions: Vec<i32> = (0..tokens as i32).collect();
        let mut line = |what: &str, make: &dyn Fn(&mut Case<'_>) -> Vec<NodeId>| {
            bench.line(&format!("{what}, {tokens} tokens"), 0.0, &params(tokens), None, |case, _| make(case));
        };
        line(&format!("norm of {HIDDEN}"), &|case| {
            let x = case.floats(hidden.0, &hidden.1);
            let weight = Some(case.vector("norm", &hidden.1[..HIDDEN]));
            vec![case.node(Op::RmsNorm(RmsNorm { weight, epsilon: 1e-6 }), &[x])]
        });
        line(&format!("sum and norm of {HIDDEN}"), &|case| {
            let (a, b) = (case.floats(hidden.0, &hidden.1), case.floats(hidden.0, &hidden.1));
            let sum = case.node(Op::Add, &[a, b]);
            let weight = Some(case.vector("norm", &hidden.1[..HIDDEN]));
            vec![sum, case.node(Op::RmsNorm(RmsNorm { weight, epsilon: 1e-6 }), &[sum])]
        });
        line(&format!("norm of {HEADS} heads of {HEAD}"), &|case| {
            let x = case.floats(heads.0, &heads.1);
            let weight = case.vector("head norm", &heads.1[..HEAD]);
            vec![case.node(Op::QkNorm(QkNorm { weight, epsilon: 1e-6, head_dim: HEAD }), &[x])]
        });
        for style in [RopeStyle::SplitHalf, RopeStyle::Interleaved] {
            line(&format!("rope, {style:?}, {HEADS} heads of {HEAD}"), &|case| {
                let inputs = [case.floats(heads.0, &heads.1), case.ints(InputKind::Positions, &positions)];
                vec![
                    case.node(
                        Op::Rope(Rope { head_dim: HEAD, style, table: table(HEAD, 1e6, 1.0) }),
                        &inputs,
                    ),
                ]
            });
        }
        line(&format!("softmax of {FFN}"), &|case| {
            let x = case.floats(wide.0, &wide.1);
            vec![case.node(Op::Softmax(Softmax { scale: 1.0 }), &[x])]
        });
        line(&format!("sum, {HIDDEN}"), &|case| {
            let inputs = [case.floats(hidden.0, &hidden.1), case.floats(hidden.0, &hidden.1)];
            vec![case.node(Op::Add, &inputs)]
        });
        line(&format!("gate, {FFN}"), &|case| {
            let inputs = [case.floats(wide.0, &wide.1), case.floats(wide.0, &wide.1)];
            vec![case.node(Op::Gated(Activation::Silu), &inputs)]
        });
        line(&format!("activation, {FFN}"), &|case| {
            let x = case.floats(wide.0, &wide.1);
            vec![case.node(Op::Activation(Activation::Gelu), &[x])]
        });
        line(&format!("tokens by heads to heads by tokens, {HEADS} heads of {HEAD}"), &|case| {
            let x = case.floats(heads.0, &heads.1);
            vec![case.node(Op::Permute(Permute { heads: HEADS }), &[x])]
        });
    }
}
