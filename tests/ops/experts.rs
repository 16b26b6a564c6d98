//! Mixtures of experts: products with chosen matrices, their weighted sum, and the gate of gpt-oss.

use crate::harness::*;
use graph::ops::{ClampedSwiGlu, ExpertMatMul};
use graph::{BackendError, Op, Shape};
use quant::Format;

/// Error of products with quantised activations, and in f32: as for plain products.
const QUANTISED: f64 = 4e-5;
const FLOAT: f64 = 1e-11;
/// Bound where decoded weights or activations are rounded to half precision.
const HALF: f64 = 1e-6;

/// A product and its inputs.
pub struct Scene {
    pub format: Format,
    pub experts: usize,
    pub used: usize,
    pub tokens: usize,
    pub out: usize,
    pub cols: usize,
    /// A row of activations for each choice, not for each token.
    pub own_rows: bool,
    pub biased: bool,
    pub indices: Vec<i32>,
    pub x: Vec<f32>,
    pub bytes: Vec<u8>,
    pub bias: Vec<f32>,
}

impl Scene {
    pub fn new(format: Format, [experts, used, tokens]: [usize; 3], [out, cols]: [usize; 2]) -> Scene {
        let mut random = Random::new((experts * 7 + used * 5 + tokens * 3 + out + cols) as u64);
        let own_rows = random.below(2) == 1;
        // A token's experts differ, as those of a router do.
        let indices = (0..tokens).flat_map(|_| {
            let mut all: Vec<i32> = (0..experts as i32).collect();
            for i in 0..used {
                all.swap(i, i + random.below(experts - i));
            }
            all.truncate(used);
            all
        });
        Scene {
            format,
            experts,
            used,
            tokens,
            out,
            cols,
            own_rows,
            biased: false,
            indices: indices.collect(),
            x: random.floats(tokens * cols * if own_rows { used } else { 1 }),
            bytes: random_weights(format, experts * out, cols, &mut random),
            bias: random.floats(experts * out),
        }
    }

    pub fn run(&self, tested: &mut Tested) -> Result<Vec<f32>, BackendError> {
        let mut case = Case::new(tested.backend.as_mut(), &params(1));
        // A number, for there are rows that must have none.
        case.before = 0x3f;
        let rows = self.x.len() / self.cols;
        let inputs = [
            case.floats(Shape::new(rows, self.cols), &self.x),
            case.indices(Shape::new(self.tokens, self.used), &self.indices),
        ];
        let weight = case.weight("w", self.format, self.experts * self.out, self.cols, self.bytes.clone());
        let bias = bytemuck::cast_slice(&self.bias).to_vec();
        let bias = self.biased.then(|| case.weight("b", Format::F32, self.experts, self.out, bias));
        let op = ExpertMatMul { weight, bias, experts: self.experts, used: self.used };
        case.try_run(Op::ExpertMatMul(op), &inputs)
    }

    pub fn reference(&self) -> Vec<f64> {
        let weights = decoded(self.format, &self.bytes, self.experts * self.out * self.cols);
        let mut y = Vec::new();
        for (choice, &expert) in self.indices.iter().enumerate() {
            let row = if self.own_rows { choice } else { choice / self.used };
            let x = &self.x[row * self.cols..][..self.cols];
            for row in expert as usize * self.out..(expert as usize + 1) * self.out {
                let w = &weights[row * self.cols..][..self.cols];
                let dot: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                y.push(dot + if self.biased { f64::from(self.bias[row]) } else { 0.0 });
            }
        }
        y
    }

    fn bound(&self, tested: &Tested) -> f64 {
        let quantised = tested.quantised && !matches!(self.format, Format::F32 | Format::F16 | Format::BF16);
        // A few products may all happen to be small, and the error is relative to them.
        let few = if self.indices.len() * self.out < 64 { 100.0 } else { 1.5 };
        match quantised {
            true => QUANTISED * few,
            false if tested.is_cpu() => FLOAT,
            false => HALF,
        }
    }
}

#[test]
fn products_with_every_format() {
    let mut backends = backends_with("ExpertMatMul");
    for format in Format::ALL.into_iter().filter(|format| *format != Format::Q8_K) {
        let widths: &[usize] = match format.block_len() {
            1 => &[33, 64],
            32 => &[32, 96],
            _ => &[256, 512],
        };
        for &cols in widths {
            // One token; few; more than a tile, of some experts none; one expert; all of them; rows that are no
            // multiple of eight, so that an expert begins within a group; many of each in tiles of 16 rows.
            for (counts, out) in [
                ([4, 2, 1], 16),
                ([8, 3, 5], 40),
                ([16, 2, 37], 24),
                ([1, 1, 9], 8),
                ([3, 3, 4], 16),
                ([5, 2, 7], 13),
                ([4, 1, 3], 1),
                ([5, 2, 70], 48),
            ] {
                // Weights take longer to make than to multiply: the same for all backends.
                let mut scene = Scene::new(format, counts, [out, cols]);
                for biased in [false, true] {
                    scene.biased = biased;
                    let expected = scene.reference();
                    for tested in &mut backends {
                        let what = format!("{} {format} {counts:?} {out} x {cols}, {biased}", tested.name);
                        let found = scene.run(tested).unwrap();
                        check(&what, &found, &expected, scene.bound(tested));
                    }
                }
            }
        }
    }
}

/// Contract: on the CPU a row's bits do not depend on the rows beside it, nor on who chose what.
#[test]
fn a_choice_does_not_depend_on_the_others() {
    for mut tested in backends_with("ExpertMatMul").into_iter().filter(Tested::is_cpu) {
        for format in [Format::F32, Format::BF16, Format::Q4_K, Format::MXFP4, Format::Q8_0] {
            let scene = Scene { biased: true, ..Scene::new(format, [8, 2, 50], [24, 256]) };
            let all = scene.run(&mut tested).unwrap();
            for token in [0, 17, 49] {
                let rows = if scene.own_rows { scene.used } else { 1 } * scene.cols;
                let alone = Scene {
                    tokens: 1,
                    indices: scene.indices[token * scene.used..][..scene.used].to_vec(),
                    x: scene.x[token * rows..][..rows].to_vec(),
                    bytes: scene.bytes.clone(),
                    bias: scene.bias.clone(),
                    ..scene
                };
                let len = scene.used * scene.out;
                let found = alone.run(&mut tested).unwrap();
                assert!(found == all[token * len..][..len], "{} {format} {token}", tested.name);
            }
        }
    }
}

#[test]
fn a_value_that_is_no_number_is_not_lost() {
    for mut tested in backends_with("ExpertMatMul") {
        for format in [Format::F32, Format::Q4_0, Format::Q4_K, Format::MXFP4] {
            for bad in [f32::NAN, f32::INFINITY] {
                let mut scene = Scene::new(format, [4, 2, 5], [16, 256]);
                let rows = scene.x.len() / scene.cols / scene.tokens;
                scene.x[2 * rows * 256 + 77] = bad;
                let found = scene.run(&mut tested).unwrap();
                for (choice, y) in found.chunks(16).enumerate() {
                    let hit = choice == 4 || (rows == 1 && choice == 5);
                    let what = format!("{} {format} {bad}, choice {choice}", tested.name);
                    assert_eq!(y.iter().all(|y| y.is_finite()), !hit, "{what}");
                }
            }
        }
    }
}

/// Indices that no [`TopK`](graph::ops::TopK) gives: an error, or no number in the rows of such a choice; the others are
/// what they should be.
#[test]
fn an_index_that_is_no_experts_reads_nothing() {
    for mut tested in backends_with("ExpertMatMul") {
        // Choices one by one, and so many that they are brought into an order.
        for (tokens, bad) in
            [3, 40].into_iter().flat_map(|tokens| [-1, 4, i32::MIN, i32::MAX].map(|bad| (tokens, bad)))
        {
            let mut scene = Scene::new(Format::Q4_0, [4, 2, tokens], [16, 64]);
            let expected = scene.reference();
            scene.indices[3] = bad;
            match scene.run(&mut tested) {
                Err(error) => {
                    let expected =
                        BackendError::BadInput { what: "expert".into(), row: 3, found: bad.into(), limit: 4 };
                    assert_eq!(error, expected, "{}", tested.name);
                }
                Ok(found) => {
                    assert!(!tested.is_cpu());
                    assert!(found[3 * 16..4 * 16].iter().all(|y| y.is_nan()), "{} {bad}", tested.name);
                    check(&tested.name, &found[..48], &expected[..48], scene.bound(&tested));
                    check(&tested.name, &found[64..], &expected[64..], scene.bound(&tested));
                }
            }
        }
    }
}

#[test]
fn weighted_sums_of_the_choices() {
    for mut tested in backends_with("CombineExperts") {
        for (tokens, used, cols) in [(1, 1, 1), (1, 8, 576), (5, 2, 33), (40, 4, 130), (3, 1, 64)] {
            let mut random = Random::new(cols as u64);
            let (y, weights) = (random.floats(tokens * used * cols), random.floats(tokens * used));
            let term = |choice: usize, c: usize| f64::from(weights[choice]) * f64::from(y[choice * cols + c]);
            let sum = |t: usize, c: usize| -> f64 { (0..used).map(|j| term(t * used + j, c)).sum() };
            let expected: Vec<f64> =
                (0..tokens).flat_map(|t| (0..cols).map(move |c| (t, c))).map(|(t, c)| sum(t, c)).collect();
            let mut case = Case::new(tested.backend.as_mut(), &params(1));
            let inputs = [
                case.floats(Shape::new(tokens * used, cols), &y),
                case.floats(Shape::new(tokens, used), &weights),
            ];
            let found = case.run(Op::CombineExperts, &inputs);
            check(&format!("{} {tokens} {used} {cols}", tested.name), &found, &expected, 1e-12);
        }
    }
}

#[test]
fn the_gate_of_gpt_oss() {
    let op = ClampedSwiGlu { alpha: 1.702, limit: 7.0 };
    for mut tested in backends_with("ClampedSwiGlu") {
        for (rows, cols) in [(1, 1), (3, 33), (33, 80), (5, 8200)] {
            let shape = Shape::new(rows, cols);
            let mut random = Random::new(8);
            let mut floats = || random.floats(rows * cols).iter().map(|v| v * 8.0).collect::<Vec<_>>();
            let (gate, up) = (floats(), floats());
            let pairs = gate.iter().zip(&up).map(|(gate, up)| (f64::from(*gate), f64::from(*up)));
            let expected: Vec<f64> = pairs
                .map(|(gate, up)| {
                    let (gate, up) = (gate.min(7.0), up.clamp(-7.0, 7.0));
                    (up + 1.0) * gate / (1.0 + (-f64::from(op.alpha) * gate).exp())
                })
                .collect();
            for alias in [None, Some(0), Some(1)] {
                let mut case = Case::new(tested.backend.as_mut(), &params(1));
                case.alias = alias;
                let inputs = [case.floats(shape, &gate), case.floats(shape, &up)];
                let found = case.run(Op::ClampedSwiGlu(op), &inputs);
                check(&format!("{} {shape} over {alias:?}", tested.name), &found, &expected, 1e-12);
            }
        }
        // At and past the limits, and what is no number.
        let gate = [7.0, 8.0, f32::INFINITY, -20.0, f32::NAN, 1.0, 0.0];
        let up = [-7.0, -8.0, f32::NEG_INFINITY, 9.0, 1.0, f32::NAN, f32::INFINITY];
        let mut case = Case::new(tested.backend.as_mut(), &params(1));
        let inputs = [case.floats(Shape::new(1, 7), &gate), case.floats(Shape::new(1, 7), &up)];
        let found = case.run(Op::ClampedSwiGlu(op), &inputs);
        let bits: Vec<u32> = found[..3].iter().map(|y| y.to_bits()).collect();
        assert!(bits[0] == bits[1] && bits[1] == bits[2] && (found[0] + 42.0).abs() < 1e-3, "{found:?}");
        assert!(
            found[3].abs() < 1e-10 && found[4].is_nan() && found[5].is_nan() && found[6] == 0.0,
            "{found:?}"
        );
    }
}
