//! Fused operations give the bits of their steps.

use crate::harness::*;
use crate::rope::table;
use graph::ops::{
    Activation, FusedFfn, FusedQkv, KvStore, MatMul, QkNorm, QkvBiasRopeStore, Rope, RopeStyle,
};
use graph::{Backend, DType, FusedOp, GroupId, InputKind, Op, Shape, StatePart};
use quant::Format;

const TOKENS: usize = 5;
const COLS: usize = 256;
const HEAD: usize = 64;
/// Ten heads: kernels take four at a time.
const ROWS: [usize; 3] = [6 * HEAD, 2 * HEAD, 2 * HEAD];
const CACHE_ROWS: [i32; TOKENS] = [3, 4, 5, 9, 40];
const ONE_FORMAT: [Format; 3] = [Format::Q4_K; 3];
const POSITIONS: [i32; TOKENS] = [3, 4, 5, 6, 7];

struct Layer {
    x: Vec<f32>,
    formats: [Format; 3],
    weights: [Vec<u8>; 3],
    biases: Option<[Vec<f32>; 3]>,
    norms: Option<[Vec<f32>; 2]>,
    rope: Option<Rope>,
}

impl Layer {
    fn new(formats: [Format; 3], biased: bool, normed: bool, turned: bool) -> Layer {
        let mut random = Random::new(12);
        Layer {
            x: random.floats(TOKENS * COLS),
            formats,
            weights: [0, 1, 2].map(|i| random_weights(formats[i], ROWS[i], COLS, &mut random)),
            biases: biased.then(|| ROWS.map(|rows| random.floats(rows))),
            norms: normed.then(|| [0, 1].map(|_| random.floats(HEAD))),
            rope: turned.then(|| Rope {
                head_dim: HEAD,
                style: RopeStyle::SplitHalf,
                table: table(HEAD, 1e4, 1.0),
            }),
        }
    }

    /// Query, key and value, step by step.
    fn steps(&self, backend: &mut dyn Backend) -> [Vec<f32>; 3] {
        [0, 1, 2].map(|i| {
            let mut case = Case::new(backend, &params(TOKENS));
            let x = case.floats(Shape::new(TOKENS, COLS), &self.x);
            let weight = case.weight("w", self.formats[i], ROWS[i], COLS, self.weights[i].clone());
            let bias = self.biases.as_ref().map(|biases| case.vector("b", &biases[i]));
            let mut y = case.run(Op::MatMul(MatMul { weight, bias, logits: false }), &[x]);
            let shape = Shape::new(TOKENS, ROWS[i]);
            if let (Some(norms), true) = (&self.norms, i < 2) {
                let mut case = Case::new(backend, &params(TOKENS));
                let x = case.floats(shape, &y);
                let weight = case.vector("n", &norms[i]);
                y = case.run(Op::QkNorm(QkNorm { weight, epsilon: 1e-6, head_dim: HEAD }), &[x]);
            }
            if let (Some(rope), true) = (&self.rope, i < 2) {
                let mut case = Case::new(backend, &params(TOKENS));
                let x = case.floats(shape, &y);
                let positions = case.ints(InputKind::Positions, &POSITIONS);
                y = case.run(Op::Rope(rope.clone()), &[x, positions]);
            }
            y
        })
    }

    /// The rows that were stored.
    fn stored(case: &mut Case<'_>, part: StatePart) -> Vec<f32> {
        let all = case.state_bytes(part);
        let all: Vec<f32> = all.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let cols = ROWS[1];
        CACHE_ROWS.iter().flat_map(|row| all[*row as usize * cols..][..cols].to_vec()).collect()
    }
}

const STORE: KvStore = KvStore { layer: 0, group: GroupId(0) };

#[test]
fn projections_norms_rotation_and_store() {
    for mut tested in backends() {
        for (formats, biased, normed, turned) in [
            (ONE_FORMAT, false, false, true),
            (ONE_FORMAT, true, false, true),
            (ONE_FORMAT, false, true, true),
            (ONE_FORMAT, true, true, false),
            // As in models whose values are of a finer format.
            ([Format::Q4_K, Format::Q4_K, Format::Q6_K], true, false, true),
            ([Format::Q5_0, Format::Q8_0, Format::Q8_0], false, true, true),
            ([Format::Q4_K, Format::F16, Format::Q4_K], true, false, true),
        ] {
            // What a GPU does not claim, models do not ask of it.
            if formats != ONE_FORMAT && !tested.is_cpu() && !tested.is_metal() {
                continue;
            }
            let layer = Layer::new(formats, biased, normed, turned);
            let [q, k, v] = layer.steps(tested.backend.as_mut());
            let state = kv_state(64, ROWS[1], ROWS[2], DType::F32);
            let mut case = Case::with_state(tested.backend.as_mut(), &params(TOKENS), state);
            let inputs = [
                case.floats(Shape::new(TOKENS, COLS), &layer.x),
                case.ints(InputKind::Positions, &POSITIONS),
                case.ints(InputKind::CacheRows(GroupId(0)), &CACHE_ROWS),
            ];
            let weights = [0, 1, 2].map(|i| {
                case.weight(&format!("w{i}"), layer.formats[i], ROWS[i], COLS, layer.weights[i].clone())
            });
            let biases = layer
                .biases
                .as_ref()
                .map(|biases| [0, 1, 2].map(|i| case.vector(&format!("b{i}"), &biases[i])));
            let norms = layer
                .norms
                .as_ref()
                .map(|norms| ([0, 1].map(|i| case.vector(&format!("n{i}"), &norms[i])), 1e-6));
            let op = FusedQkv { weights, biases, norms, rope: layer.rope.clone(), store: STORE };
            let found = case.run_in_place(Op::FusedQkv(op), &inputs).unwrap();
            let stored = [StatePart::Key, StatePart::Value].map(|part| Layer::stored(&mut case, part));
            drop(case);
            tested.agree("queries", &found, &q);
            tested.agree("keys", &stored[0], &k);
            tested.agree("values", &stored[1], &v);
        }
    }
}

#[test]
fn bias_rotation_and_store_after_one_product() {
    for mut tested in backends() {
        for (biased, turned) in [(false, true), (true, true), (true, false)] {
            let mut layer = Layer::new(ONE_FORMAT, biased, false, turned);
            let [q, k, v] = layer.steps(tested.backend.as_mut());
            // The products alone, side by side.
            let (biases, rope) = (layer.biases.take(), layer.rope.take());
            let products = layer.steps(tested.backend.as_mut());
            let row = |token: usize| {
                let parts = products.iter().zip(ROWS);
                parts.flat_map(move |(y, cols)| y[token * cols..(token + 1) * cols].to_vec())
            };
            let x: Vec<f32> = (0..TOKENS).flat_map(row).collect();
            let state = kv_state(64, ROWS[1], ROWS[2], DType::F32);
            let mut case = Case::with_state(tested.backend.as_mut(), &params(TOKENS), state);
            let inputs = [
                case.floats(Shape::new(TOKENS, ROWS.iter().sum()), &x),
                case.ints(InputKind::Positions, &POSITIONS),
                case.ints(InputKind::CacheRows(GroupId(0)), &CACHE_ROWS),
            ];
            let biases = biases.map(|biases| [0, 1, 2].map(|i| case.vector(&format!("b{i}"), &biases[i])));
            let op = QkvBiasRopeStore { query_cols: ROWS[0], biases, rope, store: STORE };
            let found = case.run_in_place(Op::QkvBiasRopeStore(op), &inputs).unwrap();
            let stored = [StatePart::Key, StatePart::Value].map(|part| Layer::stored(&mut case, part));
            drop(case);
            tested.agree("queries", &found, &q);
            tested.agree("keys", &stored[0], &k);
            tested.agree("values", &stored[1], &v);
        }
    }
}

#[test]
fn gate_up_and_activation() {
    for mut tested in backends() {
        for activation in [Activation::Silu, Activation::Gelu, Activation::Sigmoid] {
            assert!(tested.backend.supports_fused(FusedOp::Gated(activation)));
            let mut random = Random::new(13);
            let (rows, x) = (72, random.floats(TOKENS * COLS));
            let weights = [0, 1].map(|_| random_weights(Format::Q5_0, rows, COLS, &mut random));
            let [gate, up] = [0, 1].map(|i: usize| {
                let mut case = Case::new(tested.backend.as_mut(), &params(TOKENS));
                let x = case.floats(Shape::new(TOKENS, COLS), &x);
                let weight = case.weight("w", Format::Q5_0, rows, COLS, weights[i].clone());
                case.run(Op::MatMul(MatMul { weight, bias: None, logits: false }), &[x])
            });
            let mut case = Case::new(tested.backend.as_mut(), &params(TOKENS));
            let shape = Shape::new(TOKENS, rows);
            let inputs = [case.floats(shape, &gate), case.floats(shape, &up)];
            let expected = case.run(Op::Gated(activation), &inputs);

            let mut case = Case::new(tested.backend.as_mut(), &params(TOKENS));
            let x = case.floats(Shape::new(TOKENS, COLS), &x);
            let ids = [0, 1]
                .map(|i: usize| case.weight(&format!("w{i}"), Format::Q5_0, rows, COLS, weights[i].clone()));
            let found = case.run(Op::FusedFfn(FusedFfn { weights: ids, activation }), &[x]);
            tested.agree(&format!("{activation:?}"), &found, &expected);
        }
    }
}
