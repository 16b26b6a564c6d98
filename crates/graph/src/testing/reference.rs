//! Every operation in plain loops, as its documentation states it.

use super::backend::TestState;
use crate::ops::{Activation, Attention, ClampedSwiGlu, ExpertMatMul, KvStore, Rope, RopeStyle, View};
use crate::{BackendError, Batch, DType, Graph, Op, Shape, StatePart, WeightData};
use std::collections::{BTreeMap, HashMap};

/// A matrix with its elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Rows and columns.
    pub shape: Shape,
    /// The elements.
    pub data: Data,
}

/// Elements of a [`Value`].
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Activations.
    F32(Vec<f32>),
    /// Inputs.
    I32(Vec<i32>),
}

impl Value {
    pub(super) fn from_bytes(shape: Shape, dtype: DType, bytes: &[u8]) -> Result<Value, BackendError> {
        let data = match dtype {
            DType::F32 => Data::F32(elements(bytes)),
            DType::I32 => Data::I32(elements(bytes)),
            other => {
                return Err(BackendError::Invariant {
                    what: "element type".into(),
                    expected: "f32 or i32".into(),
                    found: other.to_string(),
                });
            }
        };
        Ok(Value { shape, data })
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match &self.data {
            Data::F32(values) => bytemuck::cast_slice(values).to_vec(),
            Data::I32(values) => bytemuck::cast_slice(values).to_vec(),
        }
    }

    /// The elements, if they are f32.
    pub fn f32(&self) -> Result<&[f32], String> {
        match &self.data {
            Data::F32(values) => Ok(values),
            Data::I32(_) => Err("expected f32, found i32".into()),
        }
    }

    /// The elements, if they are i32.
    pub fn i32(&self) -> Result<&[i32], String> {
        match &self.data {
            Data::I32(values) => Ok(values),
            Data::F32(_) => Err("expected i32, found f32".into()),
        }
    }
}

/// The value of every node, each in memory of its own: what any plan and any assignment must compute. States begin as
/// zeros.
pub fn evaluate(
    graph: &Graph,
    batch: &Batch,
    weights: &BTreeMap<String, WeightData>,
) -> Result<Vec<Value>, String> {
    let mut states: HashMap<usize, TestState> =
        graph.states().iter().enumerate().map(|(layer, spec)| (layer, TestState::new(spec))).collect();
    let mut values: Vec<Value> = Vec::new();
    for node in graph.nodes() {
        let value = match node.op {
            Op::Input(kind) => {
                let values = batch.input(kind).ok_or_else(|| format!("no input {}", kind.name()))?;
                Value { shape: node.shape, data: Data::I32(values.to_vec()) }
            }
            _ => {
                let inputs: Vec<Value> = node.inputs.iter().map(|input| values[input.0].clone()).collect();
                let weights = node.op.weights().into_iter().map(|weight| {
                    let name = &graph.weight(weight).name;
                    weights.get(name).cloned().ok_or_else(|| format!("no weight {name}"))
                });
                let weights = weights.collect::<Result<Vec<_>, _>>()?;
                let state = node.op.state_layer().and_then(|layer| states.get_mut(&layer));
                apply(&node.op, &inputs, &weights, state, node.shape, graph.params().cache.page_len)?
            }
        };
        values.push(value);
    }
    Ok(values)
}

/// One operation. Rows of the cache are in pages of `page_len`.
pub(super) fn apply(
    op: &Op,
    inputs: &[Value],
    weights: &[WeightData],
    state: Option<&mut TestState>,
    shape: Shape,
    page_len: usize,
) -> Result<Value, String> {
    // Shape operations are of any type.
    match (op, &inputs[0].data) {
        (Op::Reshape, data) => return Ok(Value { shape, data: data.clone() }),
        (Op::View(view), Data::F32(x)) => {
            return Ok(Value { shape, data: Data::F32(window(view, x, inputs[0].shape.cols)) });
        }
        (Op::View(view), Data::I32(x)) => {
            return Ok(Value { shape, data: Data::I32(window(view, x, inputs[0].shape.cols)) });
        }
        (Op::TopK(op), Data::F32(x)) => {
            return Ok(Value { shape, data: Data::I32(top_k(x, inputs[0].shape.cols, op.k)) });
        }
        _ => {}
    }
    let weights: Vec<Vec<f32>> = weights.iter().map(|w| elements(&w.bytes)).collect();
    let f32s = |index: usize| inputs[index].f32();
    let cols = |index: usize| inputs[index].shape.cols;
    let broadcast = |f: &dyn Fn(f32, f32) -> f32| -> Result<Vec<f32>, String> {
        let (a, b) = (f32s(0)?, f32s(1)?);
        Ok(a.iter().zip(b.iter().cycle()).map(|(&a, &b)| f(a, b)).collect())
    };
    let each =
        |f: &dyn Fn(f32) -> f32| -> Result<Vec<f32>, String> { Ok(f32s(0)?.iter().map(|&x| f(x)).collect()) };
    let data = match op {
        Op::Add => broadcast(&|a, b| a + b)?,
        Op::Mul => broadcast(&|a, b| a * b)?,
        Op::Gated(activation) => broadcast(&|a, b| activate(*activation, a) * b)?,
        Op::ClampedSwiGlu(op) => broadcast(&|a, b| clamped_swiglu(op, a, b))?,
        Op::Scale(factor) => each(&|x| factor * x)?,
        Op::Activation(activation) => each(&|x| activate(*activation, x))?,
        Op::SoftCap(cap) => each(&|x| cap * (x / cap).tanh())?,
        Op::RmsNorm(norm) => rms_norm(f32s(0)?, cols(0), weights.first().map(Vec::as_slice), norm.epsilon),
        Op::QkNorm(norm) => rms_norm(f32s(0)?, norm.head_dim, Some(&weights[0]), norm.epsilon),
        Op::Softmax(op) => {
            let mut y = f32s(0)?.to_vec();
            y.chunks_mut(cols(0).max(1)).for_each(|row| softmax(row, op.scale));
            y
        }
        Op::MatMul(_) => {
            let bias = weights.get(1);
            let product = |x: &[f32], o: usize| {
                dot(x, &weights[0][o * x.len()..][..x.len()]) + bias.map_or(0.0, |bias| bias[o])
            };
            let rows = f32s(0)?.chunks(cols(0).max(1));
            rows.flat_map(|x| (0..shape.cols).map(move |o| product(x, o))).collect()
        }
        Op::BatchMatMul(op) => {
            let (m, n, k) = (inputs[0].shape.rows / op.batch, inputs[1].shape.rows / op.batch, cols(0));
            let (a, b) = (f32s(0)?, f32s(1)?);
            let row = |i: usize, j: usize| {
                let batch = i / m;
                dot(&a[i * k..][..k], &b[(batch * n + j) * k..][..k])
            };
            (0..shape.rows).flat_map(|i| (0..n).map(move |j| row(i, j))).collect()
        }
        Op::GetRows(op) => {
            let (table, indices) = match op.table {
                Some(_) => (weights[0].as_slice(), inputs[0].i32()?),
                None => (f32s(0)?, inputs[1].i32()?),
            };
            gather(table, shape.cols, indices)?
        }
        Op::GatherCols => {
            let (x, indices) = (f32s(0)?.chunks(cols(0).max(1)), inputs[1].i32()?.chunks(shape.cols.max(1)));
            let rows = x.zip(indices).map(|(x, indices)| gather(x, 1, indices));
            rows.collect::<Result<Vec<_>, _>>()?.concat()
        }
        Op::ExpertMatMul(op) => expert_matmul(op, f32s(0)?, cols(0), inputs[1].i32()?, &weights)?,
        Op::CombineExperts => {
            let (y, weights) = (f32s(0)?, f32s(1)?);
            let used = cols(1);
            let element = |t: usize, c: usize| -> f32 {
                (0..used).map(|j| weights[t * used + j] * y[(t * used + j) * shape.cols + c]).sum()
            };
            (0..shape.rows).flat_map(|t| (0..shape.cols).map(move |c| element(t, c))).collect()
        }
        Op::Rope(op) => rope(op, f32s(0)?, inputs[1].i32()?, cols(0)),
        Op::KvStore(op) => {
            store(op, f32s(0)?, f32s(1)?, inputs[2].i32()?, state)?;
            Vec::new()
        }
        Op::KvLoad(op) => {
            let state = state.ok_or("no state")?;
            let part: Vec<f32> = elements(&state.parts[&op.part]);
            gather(&part, shape.cols, inputs[1].i32()?)?
        }
        Op::Attention(op) => attention(op, inputs, state, page_len, weights.first().map(Vec::as_slice))?,
        Op::Permute(op) => {
            let (x, n, dim) = (f32s(0)?, inputs[0].shape.rows, shape.cols);
            let row = |i: usize| &x[(i % n) * cols(0) + (i / n) * dim..][..dim];
            (0..op.heads * n).flat_map(|i| row(i).to_vec()).collect()
        }
        Op::Input(_)
        | Op::TopK(_)
        | Op::View(_)
        | Op::Reshape
        | Op::AllReduce
        | Op::AllGather(_)
        | Op::FusedQkv(_)
        | Op::QkvBiasRopeStore(_)
        | Op::FusedFfn(_) => {
            return Err(format!("{} is not known here", op.name()));
        }
    };
    Ok(Value { shape, data: Data::F32(data) })
}

/// Elements of bytes of any alignment.
fn elements<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

fn window<T: Copy>(view: &View, x: &[T], cols: usize) -> Vec<T> {
    let rows = view.first_row..view.first_row + view.rows;
    rows.flat_map(|row| x[row * cols + view.first_col..][..view.cols].to_vec()).collect()
}

fn gather(table: &[f32], cols: usize, indices: &[i32]) -> Result<Vec<f32>, String> {
    let row = |index: i32| {
        let start = usize::try_from(index).ok()?.checked_mul(cols)?;
        table.get(start..start.checked_add(cols)?)
    };
    let rows = indices.iter().map(|&index| row(index).ok_or_else(|| format!("no row {index}")));
    Ok(rows.collect::<Result<Vec<_>, _>>()?.concat())
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
    }
}

fn clamped_swiglu(op: &ClampedSwiGlu, gate: f32, up: f32) -> f32 {
    let (gate, up) = (gate.min(op.limit), up.clamp(-op.limit, op.limit));
    (up + 1.0) * gate / (1.0 + (-op.alpha * gate).exp())
}

fn top_k(x: &[f32], cols: usize, k: usize) -> Vec<i32> {
    let rows = x.chunks(cols.max(1)).flat_map(|row| {
        let mut columns: Vec<usize> = (0..cols).collect();
        let descending = |a: f32, b: f32| b.partial_cmp(&a).unwrap_or(a.is_nan().cmp(&b.is_nan()));
        columns.sort_by(|&a, &b| descending(row[a], row[b]));
        columns.into_iter().take(k).map(|column| column as i32)
    });
    rows.collect()
}

fn expert_matmul(
    op: &ExpertMatMul,
    x: &[f32],
    cols: usize,
    indices: &[i32],
    weights: &[Vec<f32>],
) -> Result<Vec<f32>, String> {
    let out = weights[0].len() / op.experts / cols.max(1);
    let rows = x.len() / cols.max(1);
    let mut y = Vec::new();
    for (choice, &expert) in indices.iter().enumerate() {
        let expert = usize::try_from(expert).ok().filter(|&expert| expert < op.experts);
        let expert = expert.ok_or_else(|| format!("no expert {}", indices[choice]))?;
        let row = if rows == indices.len() { choice } else { choice / op.used };
        let x = &x[row * cols..][..cols];
        y.extend((expert * out..(expert + 1) * out).map(|row| {
            dot(x, &weights[0][row * cols..][..cols]) + weights.get(1).map_or(0.0, |bias| bias[row])
        }));
    }
    Ok(y)
}

fn rms_norm(x: &[f32], width: usize, weight: Option<&[f32]>, epsilon: f32) -> Vec<f32> {
    let rows = x.chunks(width.max(1));
    let rows = rows.flat_map(|row| {
        let scale = 1.0 / (dot(row, row) / width as f32 + epsilon).sqrt();
        let scaled = move |(i, x): (usize, &f32)| x * scale * weight.map_or(1.0, |weight| weight[i]);
        row.iter().enumerate().map(scaled)
    });
    rows.collect()
}

fn softmax(row: &mut [f32], scale: f32) {
    let max = row.iter().map(|x| scale * x).fold(f32::NEG_INFINITY, f32::max);
    row.iter_mut().for_each(|x| *x = (scale * *x - max).exp());
    let sum: f32 = row.iter().sum();
    row.iter_mut().for_each(|x| *x /= sum);
}

fn rope(op: &Rope, x: &[f32], positions: &[i32], cols: usize) -> Vec<f32> {
    let mut y = x.to_vec();
    for (row, &position) in y.chunks_mut(cols.max(1)).zip(positions) {
        for head in row.chunks_mut(op.head_dim) {
            for (i, inv_freq) in op.table.inv_freq.iter().enumerate() {
                let (sin, cos) = (f64::from(position) * inv_freq).sin_cos();
                let magnitude = op.table.magnitude;
                let (sin, cos) = (sin as f32 * magnitude, cos as f32 * magnitude);
                let (first, second) = match op.style {
                    RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                    RopeStyle::SplitHalf => (i, i + op.rotary_dim() / 2),
                };
                let (a, b) = (head[first], head[second]);
                (head[first], head[second]) = (a * cos - b * sin, a * sin + b * cos);
            }
        }
    }
    y
}

fn store(
    op: &KvStore,
    keys: &[f32],
    values: &[f32],
    rows: &[i32],
    state: Option<&mut TestState>,
) -> Result<(), String> {
    let state = state.ok_or_else(|| format!("no state for layer {}", op.layer))?;
    for (part, values) in [(StatePart::Key, keys), (StatePart::Value, values)] {
        let (_, cols, _) = state.spec.part(part).ok_or("no such part")?;
        let bytes = state.parts.get_mut(&part).ok_or("no such part")?;
        for (value, &row) in values.chunks(cols.max(1)).zip(rows) {
            let start = usize::try_from(row).map_err(|_| format!("no cache row {row}"))? * cols * 4;
            let place =
                bytes.get_mut(start..start + cols * 4).ok_or_else(|| format!("no cache row {row}"))?;
            place.copy_from_slice(bytemuck::cast_slice(value));
        }
    }
    Ok(())
}

fn attention(
    op: &Attention,
    inputs: &[Value],
    state: Option<&mut TestState>,
    page_len: usize,
    sinks: Option<&[f32]>,
) -> Result<Vec<f32>, String> {
    let state = state.ok_or_else(|| format!("no state for layer {}", op.layer))?;
    let keys: Vec<f32> = elements(&state.parts[&StatePart::Key]);
    let values: Vec<f32> = elements(&state.parts[&StatePart::Value]);
    let queries = inputs[0].f32()?;
    let (positions, ranges) = (inputs[2].i32()?, inputs[3].i32()?);
    let (pages, max_pages) = (inputs[5].i32()?, inputs[5].shape.cols);
    let mut out = Vec::new();
    for (sequence, range) in ranges.windows(2).enumerate() {
        for token in range[0] as usize..range[1] as usize {
            let last = positions[token] as usize;
            let first = op.window.map_or(0, |window| (last + 1).saturating_sub(window));
            let row =
                |j: usize| pages[sequence * max_pages + j / page_len] as usize * page_len + j % page_len;
            for head in 0..op.heads {
                let kv = head / (op.heads / op.kv_heads);
                let query = &queries[(token * op.heads + head) * op.head_dim..][..op.head_dim];
                let mut scores: Vec<f32> = (first..=last)
                    .map(|j| {
                        let key = &keys[(row(j) * op.kv_heads + kv) * op.head_dim..][..op.head_dim];
                        let score = op.scale * dot(query, key);
                        op.soft_cap.map_or(score, |cap| cap * (score / cap).tanh())
                    })
                    .collect();
                // A sink is one more score, of no key.
                scores.extend(sinks.map(|sinks| sinks[head]));
                softmax(&mut scores, 1.0);
                let mut sum = vec![0.0; op.value_dim];
                for (j, score) in (first..=last).zip(scores) {
                    let value = &values[(row(j) * op.kv_heads + kv) * op.value_dim..][..op.value_dim];
                    sum.iter_mut().zip(value).for_each(|(sum, value)| *sum += score * value);
                }
                out.extend(sum);
            }
        }
    }
    Ok(out)
}
