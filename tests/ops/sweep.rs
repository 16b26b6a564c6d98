//! Random operations of random shapes on the Metal backend, against float64: what nobody thought of.
//!
//! `SMELT_SWEEP=N` runs N of them instead of a few, `SMELT_SWEEP_SEED=S` begins with another one. Each is told by its seed, so that one
//! that fails can be run alone: `SMELT_SWEEP=1 SMELT_SWEEP_SEED=...`.

use crate::attention::{self, decode, encode};
use crate::harness::*;
use crate::{elementwise, experts, largest, matmul, norm, rope, topk};
use graph::ops::{
    Activation, Attention, FusedFfn, FusedQkv, GetRows, KvLoad, KvStore, MatMul, Permute, QkNorm, RmsNorm,
    Rope, RopeStyle, Softmax, View,
};
use graph::{Backend, DType, GroupId, InputKind, Op, Shape, StatePart};
use metal::Switches;
use quant::Format;

/// Operations of a run that nobody has asked to be longer.
const CASES: u64 = 150;
/// Bounds of products: sums in f32; weights that tiles round to half precision.
const FLOAT: f64 = 1e-11;
const TILED: f64 = 1e-7;

/// A backend for each way that attention takes.
struct Sweep {
    backends: Vec<Tested>,
    random: Random,
    what: String,
}

impl Sweep {
    fn backend(&mut self) -> &mut dyn Backend {
        self.backends[0].backend.as_mut()
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.random.below(all.len())]
    }

    fn maybe(&mut self) -> bool {
        self.random.below(2) == 0
    }

    /// Small numbers mostly, up to `most`.
    fn count(&mut self, most: usize) -> usize {
        let range = self.one_of(&[4, 9, 40, most]).min(most);
        1 + self.random.below(range)
    }

    /// A format, and columns that it can have.
    fn format(&mut self, most_cols: usize) -> (Format, usize) {
        let all: Vec<Format> = Format::ALL.into_iter().filter(|format| *format != Format::Q8_K).collect();
        let format = self.one_of(&all);
        let block = format.block_len();
        (format, block * self.count(most_cols / block))
    }

    fn cache_type(&mut self, cols: [usize; 2]) -> DType {
        let types = [DType::F32, DType::F16, DType::BF16, DType::Packed(Format::Q8_0)];
        let dtype = self.one_of(&types);
        if cols.iter().all(|&cols| dtype.row_bytes(cols).is_some()) { dtype } else { DType::F16 }
    }

    fn check(&self, found: &[f32], expected: &[f64], bound: f64) {
        // Of few results the rounding may happen to be large beside them.
        let bound = if expected.len() < 64 { bound * 100.0 } else { bound };
        check(&self.what, found, expected, bound);
    }

    /// Cache rows that differ.
    fn places(&mut self, count: usize, rows: usize) -> Vec<i32> {
        let mut all: Vec<i32> = (0..rows as i32).collect();
        for i in 0..count {
            let other = i + self.random.below(rows - i);
            all.swap(i, other);
        }
        all.truncate(count);
        all
    }
}

/// Draws an operation, runs it and judges the result.
type Run = fn(&mut Sweep);

fn is_float(format: Format) -> bool {
    matches!(format, Format::F32 | Format::F16 | Format::BF16)
}

fn product_bound(format: Format, tokens: usize) -> f64 {
    if tokens > 8 && !is_float(format) { TILED } else { FLOAT }
}

fn narrow(x: &[f64]) -> Vec<f32> {
    x.iter().map(|x| *x as f32).collect()
}

fn product(sweep: &mut Sweep) {
    let ((format, cols), rows, tokens) = (sweep.format(1100), sweep.count(200), sweep.count(130));
    let (biased, logits) = (sweep.maybe(), sweep.maybe());
    sweep.what += &format!("{format} {rows} x {cols}, {tokens} tokens, bias {biased}");
    let bytes = random_weights(format, rows, cols, &mut sweep.random);
    let (x, bias) = (sweep.random.floats(tokens * cols), sweep.random.floats(rows));
    let expected =
        matmul::product(&decoded(format, &bytes, rows * cols), &x, cols, biased.then_some(&bias[..]));
    let mut case = Case::new(sweep.backend(), &params(1));
    let input = case.floats(Shape::new(tokens, cols), &x);
    let weight = case.weight("w", format, rows, cols, bytes);
    let bias = biased.then(|| case.vector("b", &bias));
    let found = case.run(Op::MatMul(MatMul { weight, bias, logits }), &[input]);
    sweep.check(&found, &expected, product_bound(format, tokens));
}

fn gate(sweep: &mut Sweep) {
    let ((format, cols), rows, tokens) = (sweep.format(600), sweep.count(140), sweep.count(40));
    let activation = sweep.one_of(&[Activation::Silu, Activation::Gelu, Activation::Sigmoid]);
    sweep.what += &format!("{activation:?} {format} {rows} x {cols}, {tokens} tokens");
    let bytes = [0, 1].map(|_| random_weights(format, rows, cols, &mut sweep.random));
    // Gates as large as those of models: far below zero there is nothing left of an activation to be compared.
    let size = 1.0 / (cols as f32).sqrt();
    let x: Vec<f32> = sweep.random.floats(tokens * cols).iter().map(|v| v * size).collect();
    let [gate, up] =
        bytes.each_ref().map(|bytes| matmul::product(&decoded(format, bytes, rows * cols), &x, cols, None));
    let gated = Op::Gated(activation);
    let expected: Vec<f64> =
        gate.iter().zip(&up).map(|(g, u)| elementwise::binary_reference(&gated, *g, *u)).collect();
    let mut case = Case::new(sweep.backend(), &params(tokens));
    let input = case.floats(Shape::new(tokens, cols), &x);
    let [gate, up] = bytes;
    let weights =
        [("gate", gate), ("up", up)].map(|(name, bytes)| case.weight(name, format, rows, cols, bytes));
    let found = case.run(Op::FusedFfn(FusedFfn { weights, activation }), &[input]);
    sweep.check(&found, &expected, product_bound(format, tokens) * 4.0);
}

fn choices(sweep: &mut Sweep) {
    let ((format, cols), out) = (sweep.format(300), sweep.count(70));
    let (experts, tokens) = (sweep.count(40), sweep.count(60));
    let used = 1 + sweep.random.below(experts.min(8));
    let scene = experts::Scene::new(format, [experts, used, tokens], [out, cols]);
    let scene = experts::Scene { biased: sweep.maybe(), ..scene };
    sweep.what += &format!("{format} {experts} experts, {used} of them, {tokens} tokens, {out} x {cols}");
    let found = scene.run(&mut sweep.backends[0]).unwrap();
    sweep.check(&found, &scene.reference(), product_bound(format, tokens));
}

/// Queries, keys and values of one activation, normed, turned and stored.
fn projections(sweep: &mut Sweep) {
    let tokens = sweep.count(40);
    let head_dim = 4 * sweep.count(64);
    let value_dim = if sweep.maybe() { head_dim } else { 4 * sweep.count(40) };
    let kv_heads = sweep.count(3);
    let rows = [kv_heads * sweep.count(4) * head_dim, kv_heads * head_dim, kv_heads * value_dim];
    let (format, cols) = sweep.format(300);
    let formats = match sweep.maybe() {
        true => [format; 3],
        false => [format, format, sweep.one_of(&[Format::F16, Format::F32, Format::BF16])],
    };
    // With blocks of 32, every head has to be whole ones for the store at once.
    let dtype = sweep.cache_type([head_dim, value_dim]);
    let (biased, normed, turned) = (sweep.maybe(), sweep.maybe(), sweep.maybe());
    let rope = turned.then(|| Rope {
        head_dim,
        style: if sweep.maybe() { RopeStyle::Interleaved } else { RopeStyle::SplitHalf },
        table: rope::table(2 * (1 + sweep.random.below(head_dim / 2)), 1e4, 1.1),
    });
    sweep.what += &format!(
        "{formats:?} {rows:?} x {cols}, heads of {head_dim} and {value_dim}, {tokens} tokens, {dtype}, bias {biased}, \
         norm {normed}, turned {:?}",
        rope.as_ref().map(|rope| (rope.style, rope.rotary_dim()))
    );
    let random = &mut sweep.random;
    let x = random.floats(tokens * cols);
    let bytes = [0, 1, 2].map(|i| random_weights(formats[i], rows[i], cols, random));
    let biases = rows.map(|rows| random.floats(rows));
    let norms = [0, 1].map(|_| random.floats(head_dim));
    let positions: Vec<i32> = (0..tokens).map(|_| random.below(10_000) as i32).collect();
    let cache_rows = tokens + 5;
    let places = sweep.places(tokens, cache_rows);
    let expected = [0, 1, 2].map(|i| {
        let weights = decoded(formats[i], &bytes[i], rows[i] * cols);
        let mut y = matmul::product(&weights, &x, cols, biased.then_some(&biases[i][..]));
        if normed && i < 2 {
            y = norm::rms_norm(&narrow(&y), Some(&norms[i]), head_dim, 1e-6);
        }
        match &rope {
            Some(op) if i < 2 => rope::reference(&narrow(&y), rows[i] / head_dim, op, &positions),
            _ => y,
        }
    });
    let state = kv_state(cache_rows, rows[1], rows[2], dtype);
    let mut case = Case::with_state(sweep.backends[0].backend.as_mut(), &params(tokens), state);
    let inputs = [
        case.floats(Shape::new(tokens, cols), &x),
        case.ints(InputKind::Positions, &positions),
        case.ints(InputKind::CacheRows(GroupId(0)), &places),
    ];
    let weights =
        [0, 1, 2].map(|i| case.weight(&format!("w{i}"), formats[i], rows[i], cols, bytes[i].clone()));
    let biases = biased.then(|| [0, 1, 2].map(|i| case.vector(&format!("b{i}"), &biases[i])));
    let norms = normed.then(|| ([0, 1].map(|i| case.vector(&format!("n{i}"), &norms[i])), 1e-6));
    let store = KvStore { layer: 0, group: GroupId(0) };
    let op = FusedQkv { weights, biases, norms, rope, store };
    let queries = case.run_in_place(Op::FusedQkv(op), &inputs).unwrap();
    let stored = [(StatePart::Key, rows[1]), (StatePart::Value, rows[2])].map(|(part, cols)| {
        let all = decode(dtype, &case.state_bytes(part), cache_rows * cols);
        places.iter().flat_map(|place| all[*place as usize * cols..][..cols].to_vec()).collect::<Vec<f32>>()
    });
    drop(case);
    let rounding = match dtype {
        DType::F32 => 0.0,
        DType::F16 => 1e-6,
        DType::BF16 => 1e-5,
        _ => 2e-4,
    };
    let [q, k, v] = expected;
    for (found, expected, format, rounding) in [
        (&queries, q, formats[0], 0.0),
        (&stored[0], k, formats[1], rounding),
        (&stored[1], v, formats[2], rounding),
    ] {
        sweep.check(found, &expected, product_bound(format, tokens) + rounding);
    }
}

fn attention_of_sequences(sweep: &mut Sweep) {
    let kv_heads = sweep.count(4);
    let heads = kv_heads * sweep.one_of(&[1, 2, 3, 4, 5, 7, 8]);
    let head_dim = sweep.one_of(&[64, 80, 96, 112, 128, 192, 256, 4, 12, 20, 36, 100, 33, 512]);
    let value_dim = if sweep.random.below(4) == 0 { sweep.one_of(&[64, 4, 48, 96]) } else { head_dim };
    let decode_only = sweep.maybe();
    let sequences: Vec<(usize, usize)> = (0..sweep.count(5))
        .map(|_| {
            let len = sweep.count(700);
            (len, if decode_only { 1 } else { 1 + sweep.random.below(len.min(40)) })
        })
        .collect();
    let longest = sequences.iter().map(|(len, _)| *len).max().unwrap_or(1);
    let window = if sweep.maybe() { Some(sweep.count(longest + 3)) } else { None };
    let dtype = sweep.cache_type([kv_heads * head_dim, kv_heads * value_dim]);
    let page_len = sweep.one_of(&[1, 2, 3, 7, 16, 32, 64, 100]);
    let soft_cap = if sweep.random.below(3) == 0 { Some(2.5) } else { None };
    let op = Attention { value_dim, soft_cap, ..attention::attention(heads, kv_heads, head_dim, window) };
    let mut scene = attention::Scene::new(op, dtype, page_len, &sequences, sweep.random.bits());
    scene.sinks = (sweep.random.below(3) == 0).then(|| sweep.random.floats(heads));
    let way = sweep.random.below(sweep.backends.len());
    let sinks = scene.sinks.is_some();
    sweep.what += &format!(
        "{} {op:?} {dtype}, pages of {page_len}, {sequences:?}, sinks {sinks}",
        sweep.backends[way].name
    );
    let found = scene.run(sweep.backends[way].backend.as_mut()).unwrap();
    let bound = if matches!(dtype, DType::Packed(_)) { 2e-7 } else { FLOAT };
    sweep.check(&found, &scene.reference(), bound);
}

fn norm_or_softmax(sweep: &mut Sweep) {
    let (rows, cols) = (sweep.count(20), sweep.count(3000));
    let (kind, alias) = (sweep.random.below(3), if sweep.maybe() { Some(0) } else { None });
    sweep.what += &format!("{kind}: {rows} x {cols}, over {alias:?}");
    let (x, weight) = (sweep.random.floats(rows * cols), sweep.random.floats(cols));
    let mut case = Case::new(sweep.backends[0].backend.as_mut(), &params(1));
    case.alias = alias;
    let input = case.floats(Shape::new(rows, cols), &x);
    let (found, expected, bound) = match kind {
        0 => {
            let op = Op::Softmax(Softmax { scale: 1.3 });
            let mut expected = Vec::new();
            for row in x.chunks(cols) {
                let all = row.iter().map(|v| f64::from(*v) * f64::from(1.3f32));
                let top = all.clone().fold(f64::MIN, f64::max);
                let sum: f64 = all.clone().map(|v| (v - top).exp()).sum();
                expected.extend(all.map(|v| (v - top).exp() / sum));
            }
            (case.run(op, &[input]), expected, 1e-11)
        }
        1 => {
            let weight_id = Some(case.vector("norm", &weight));
            let found = case.run(Op::RmsNorm(RmsNorm { weight: weight_id, epsilon: 1e-5 }), &[input]);
            (found, norm::rms_norm(&x, Some(&weight), cols, 1e-5), 1e-12)
        }
        _ => {
            let heads = (1..=8).rev().find(|heads| cols % heads == 0).unwrap_or(1);
            let head_dim = cols / heads;
            let weight = &weight[..head_dim];
            let id = case.vector("norm", weight);
            let found = case.run(Op::QkNorm(QkNorm { weight: id, epsilon: 1e-5, head_dim }), &[input]);
            (found, norm::rms_norm(&x, Some(weight), head_dim, 1e-5), 1e-12)
        }
    };
    sweep.check(&found, &expected, bound);
}

fn rotation(sweep: &mut Sweep) {
    let (tokens, heads, head_dim) = (sweep.count(20), sweep.count(12), 1 + sweep.count(256));
    let style = if sweep.maybe() { RopeStyle::Interleaved } else { RopeStyle::SplitHalf };
    let rotary = 2 * (1 + sweep.random.below(head_dim / 2));
    sweep.what += &format!("{style:?} {tokens} tokens, {heads} heads of {head_dim}, {rotary} turned");
    let x = sweep.random.floats(tokens * heads * head_dim);
    let positions: Vec<i32> = (0..tokens).map(|_| sweep.random.below(200_000) as i32).collect();
    let op = Rope { head_dim, style, table: rope::table(rotary, 1e4, 0.9) };
    let expected = rope::reference(&x, heads, &op, &positions);
    let alias = if sweep.maybe() { Some(0) } else { None };
    let mut case = Case::new(sweep.backend(), &params(tokens));
    case.alias = alias;
    let inputs =
        [case.floats(Shape::new(tokens, heads * head_dim), &x), case.ints(InputKind::Positions, &positions)];
    let found = case.run(Op::Rope(op), &inputs);
    sweep.check(&found, &expected, 1e-12);
}

/// Rows to the cache and from it, and rows of weights.
fn rows(sweep: &mut Sweep) {
    let (format, cols) = sweep.format(1500);
    let (table_rows, count) = (sweep.count(60), sweep.count(40));
    let bytes = random_weights(format, table_rows, cols, &mut sweep.random);
    let table = decoded(format, &bytes, table_rows * cols);
    let ids: Vec<i32> = (0..count).map(|_| sweep.random.below(table_rows) as i32).collect();
    sweep.what += &format!("{format} {table_rows} x {cols}, {count} rows; ");
    let pick = |from: &[f32], cols: usize, ids: &[i32]| -> Vec<f32> {
        ids.iter().flat_map(|id| from[*id as usize * cols..][..cols].to_vec()).collect()
    };
    let mut case = Case::new(sweep.backend(), &params(count));
    let tokens = case.ints(InputKind::Tokens, &ids);
    let weight = case.weight("table", format, table_rows, cols, bytes);
    let found = case.run(Op::GetRows(GetRows { table: Some(weight) }), &[tokens]);
    assert_eq!(found, pick(&table, cols, &ids), "{}", sweep.what);

    let cols = [sweep.count(300), sweep.count(300)];
    let dtype = sweep.cache_type(cols);
    sweep.what += &format!("{dtype} cache of {cols:?}");
    let cache_rows = count + 3;
    let places = sweep.places(count, cache_rows);
    let x = cols.map(|cols| sweep.random.floats(count * cols));
    let state = kv_state(cache_rows, cols[0], cols[1], dtype);
    let mut case = Case::with_state(sweep.backends[0].backend.as_mut(), &params(count), state);
    let inputs = [
        case.floats(Shape::new(count, cols[0]), &x[0]),
        case.floats(Shape::new(count, cols[1]), &x[1]),
        case.ints(InputKind::CacheRows(GroupId(0)), &places),
    ];
    case.run_in_place(Op::KvStore(KvStore { layer: 0, group: GroupId(0) }), &inputs).unwrap();
    let stored = [StatePart::Key, StatePart::Value].map(|part| case.state_bytes(part));
    drop(case);
    for ((part, bytes), (x, cols)) in
        [StatePart::Key, StatePart::Value].into_iter().zip(stored).zip(x.iter().zip(cols))
    {
        let all = decode(dtype, &bytes, cache_rows * cols);
        let found = pick(&all, cols, &places);
        match dtype {
            DType::Packed(_) => sweep.check(&found, &wide(x), 2e-4),
            _ => assert_eq!(found, decode(dtype, &encode(dtype, x), x.len()), "{}", sweep.what),
        }
        let mut case = Case::with_state(sweep.backends[0].backend.as_mut(), &params(count), state);
        case.set_state(part, &bytes);
        let inputs =
            [case.floats(Shape::new(1, 1), &[0.0]), case.ints(InputKind::CacheRows(GroupId(0)), &places)];
        assert_eq!(case.run(Op::KvLoad(KvLoad { layer: 0, part }), &inputs), found, "{}", sweep.what);
    }
}

/// The largest elements of rows, by both ways; every second element is one of few values.
fn largest_elements(sweep: &mut Sweep) {
    let (rows, cols) = (sweep.count(30), sweep.count(2500));
    let k = 1 + sweep.random.below(cols.min(70));
    sweep.what += &format!("{rows} x {cols}, {k} largest");
    let random = &mut sweep.random;
    let x: Vec<f32> = (0..rows * cols)
        .map(|i| if i % 2 == 0 { random.below(9) as f32 - 4.0 } else { random.float() })
        .collect();
    let found = largest::largest(sweep.backend(), rows, &x, k).unwrap();
    assert!(found == largest::expected(rows, &x, k), "{}", sweep.what);
    let found = topk::found(&mut sweep.backends[0], &x, cols, k);
    assert_eq!(found, topk::reference(&x, cols, k), "{}", sweep.what);
}

fn element_by_element(sweep: &mut Sweep) {
    let (rows, cols) = (sweep.count(30), sweep.count(700));
    let op = match sweep.random.below(4) {
        0 => Op::Add,
        1 => Op::Mul,
        _ => Op::Gated(sweep.one_of(&[Activation::Silu, Activation::Gelu, Activation::Sigmoid])),
    };
    let other = if matches!(op, Op::Add | Op::Mul) && sweep.maybe() { 1 } else { rows };
    sweep.what += &format!("{op:?} {rows} x {cols} with {other} rows");
    let (a, b) = (sweep.random.floats(rows * cols), sweep.random.floats(other * cols));
    let expected: Vec<f64> = (0..a.len())
        .map(|i| elementwise::binary_reference(&op, f64::from(a[i]), f64::from(b[i % b.len()])))
        .collect();
    let mut case = Case::new(sweep.backend(), &params(1));
    let inputs = [case.floats(Shape::new(rows, cols), &a), case.floats(Shape::new(other, cols), &b)];
    let found = case.run(op, &inputs);
    sweep.check(&found, &expected, 1e-12);

    let [first_row, first_col] = [rows, cols].map(|most| sweep.random.below(most));
    let view = View {
        first_row,
        rows: 1 + sweep.random.below(rows - first_row),
        first_col,
        cols: 1 + sweep.random.below(cols - first_col),
    };
    let heads = (1..=8).rev().find(|heads| cols % heads == 0).unwrap_or(1);
    let width = cols / heads;
    let windowed: Vec<f32> = (0..view.rows * view.cols)
        .map(|i| a[(first_row + i / view.cols) * cols + first_col + i % view.cols])
        .collect();
    let moved: Vec<f32> = (0..a.len())
        .map(|i| {
            let (head, row) = (i / width / rows, i / width % rows);
            a[(row * heads + head) * width + i % width]
        })
        .collect();
    for (op, expected) in [(Op::View(view), windowed), (Op::Permute(Permute { heads }), moved)] {
        let mut case = Case::new(sweep.backend(), &params(1));
        let input = case.floats(Shape::new(rows, cols), &a);
        assert_eq!(case.run(op.clone(), &[input]), expected, "{} then {op:?}", sweep.what);
    }
}

#[test]
fn random_operations() {
    let ways = [
        ("as it comes", Switches::default()),
        ("classic", Switches { flash: false, prefill_flash: false, ..Switches::default() }),
        ("split", Switches { prefill_flash: false, attention_chunks: Some(5), ..Switches::default() }),
    ];
    let backends = ways.map(|(name, switches)| Tested {
        name: format!("{METAL} {name}"),
        quantised: false,
        half: false,
        backend: Box::new(metal(switches)),
    });
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let first = number("SMELT_SWEEP_SEED").unwrap_or(1);
    let cases = number("SMELT_SWEEP").unwrap_or(CASES);
    let kinds: [(&str, Run); 11] = [
        ("product", product),
        ("gate", gate),
        ("choices", choices),
        ("projections", projections),
        ("attention", attention_of_sequences),
        ("attention", attention_of_sequences),
        ("norm", norm_or_softmax),
        ("rotation", rotation),
        ("rows", rows),
        ("largest", largest_elements),
        ("elements", element_by_element),
    ];
    let mut sweep = Sweep { backends: backends.into(), random: Random::new(0), what: String::new() };
    for seed in first..first + cases {
        sweep.random = Random::new(seed);
        let (kind, run) = kinds[sweep.random.below(kinds.len())];
        sweep.what = format!("seed {seed}, {kind}: ");
        run(&mut sweep);
    }
}
