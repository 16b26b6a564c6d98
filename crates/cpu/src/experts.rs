//! Products with the matrices of chosen experts, and the weighted sum of their results.
//!
//! Choices are brought into the order of their experts, so that an expert's weights are read once for all rows that chose
//! it, by the same kernels as in [`crate::matmul`]. As there, a row's result does not depend on the rows beside it.

use crate::backend::Activations;
use crate::exec::{Exec, Out, equal, index, invariant};
use crate::matmul::{ROW_GROUP, chunk_of, float_rows};
use crate::pack::ROWS;
use crate::quantize::QuantMatrix;
use crate::rows::decode_row;
use crate::simd::blocks::is_dot_format;
use crate::simd::{DotTile, Kernels};
use crate::weights::Weight;
use graph::BackendError;
use graph::ops::ExpertMatMul;
use quant::Format;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Elements of a chunk of work.
const CHUNK: usize = 8192;

/// Whether the packed form of a weight can be used: no group of its rows is shared by two experts.
pub(crate) fn packs(rows: usize, experts: usize) -> bool {
    rows.checked_div(experts).is_some_and(|out| out.is_multiple_of(ROWS))
}

/// Reused memory of [`expert_matmul`].
#[derive(Default)]
pub(crate) struct ExpertScratch {
    /// The choices, those of the first expert before those of the second, each expert's in their own order.
    order: Vec<usize>,
    active: Vec<Active>,
    /// Results in that order.
    sorted: Vec<f32>,
}

/// An expert that was chosen.
#[derive(Clone, Debug, PartialEq)]
struct Active {
    expert: usize,
    /// Its choices, as places in the order.
    choices: Range<usize>,
}

/// Product of each choice's row with the matrix of the expert that it chose.
pub(crate) fn expert_matmul(exec: &mut Exec<'_>, op: &ExpertMatMul) -> Result<(), BackendError> {
    let mut memory = std::mem::take(&mut exec.temporaries.experts);
    let result = run(exec, op, &mut memory);
    exec.temporaries.experts = memory;
    result
}

fn run(exec: &mut Exec<'_>, op: &ExpertMatMul, memory: &mut ExpertScratch) -> Result<(), BackendError> {
    let (out, x, indices, chosen) = (exec.output()?, exec.input(0)?, exec.ints(1)?, exec.operand(1)?);
    let experts = Experts::new(exec, op)?;
    equal("columns of the indices", chosen.shape.cols, op.used)?;
    equal("columns of input 0", x.cols, experts.weight.cols)?;
    equal("rows of the result", out.rows, indices.len())?;
    equal("columns of the result", out.cols, experts.rows)?;
    // Choices that share a row of the input.
    let sharing = if x.rows == indices.len() { 1 } else { op.used };
    equal("rows of input 0", x.rows * sharing, indices.len())?;
    let ExpertScratch { order, active, sorted } = memory;
    sort(indices, op.experts, order, active)?;
    if order.is_empty() || experts.rows == 0 {
        return Ok(());
    }

    let (order, active) = (&*order, &*active);
    let row_of = |place: usize| x.row(order[place] / sharing);
    let quantised = if exec.activations == Activations::Quantized && is_dot_format(experts.weight.format) {
        // SAFETY: `cols` elements, which nothing writes to during the operation.
        let row = |place: usize| unsafe { std::slice::from_raw_parts(row_of(place), x.cols) };
        let (kernels, epoch, from) = (exec.kernels, exec.call.epoch, exec.operand(0)?);
        let found = exec.quant.gathered(kernels, exec.pool, [from, chosen], epoch, order.len(), &row)?;
        if sorted.len() < order.len() * experts.rows {
            sorted.resize(order.len() * experts.rows, 0.0);
        }
        Some((found, Out::new(sorted, order.len(), experts.rows)))
    } else {
        None
    };

    let groups = experts.rows.div_ceil(ROW_GROUP);
    let items = active.len() * groups;
    let group_bytes = experts.bytes_of(0).len() / groups * (order.len() / active.len());
    let chunk = chunk_of(items, exec.pool.threads(), group_bytes);
    let (kernels, workers) = (exec.kernels, exec.workers);
    let failed = Mutex::new(None);
    exec.pool.run(items, chunk, &|worker, range| {
        // SAFETY: the pool's index, and the one reference in this body.
        let scratch = unsafe { workers.of(worker) };
        let mut item = range.start;
        while item < range.end {
            // Groups that follow each other, of one expert.
            let (Active { expert, choices }, group) = (&active[item / groups], item % groups);
            let last = (group + range.end - item).min(groups);
            item += last - group;
            let rows = group * ROW_GROUP..(last * ROW_GROUP).min(experts.rows);
            let to = |place: usize| out.row(order[place]).wrapping_add(rows.start);
            let done = match quantised {
                Some((activations, sorted)) => {
                    let tile = experts.tile(*expert, activations, sorted);
                    // SAFETY: the table is for this processor; the pool hands each row of each expert, and with it these
                    // results, to one worker at a time. The sorted ones are apart from the others.
                    unsafe {
                        (kernels.dot_tile)(&tile, rows.clone(), choices.clone(), &mut scratch.panel);
                        for place in choices.clone() {
                            let from = sorted.row(place).wrapping_add(rows.start);
                            std::ptr::copy_nonoverlapping(from, to(place), rows.len());
                        }
                    }
                    Ok(())
                }
                None => {
                    let first = expert * experts.rows;
                    let rows = first + rows.start..first + rows.end;
                    let put = |place: usize, row: usize, y: f32| {
                        // SAFETY: as above.
                        unsafe { *out.row(order[place]).wrapping_add(row - first) = y }
                    };
                    // SAFETY: rows of the weight's width, which nothing writes to.
                    unsafe {
                        float_rows(kernels, experts.weight, rows, choices.clone(), &row_of, put, scratch)
                    }
                }
            };
            let done = done.and_then(|()| {
                let Some(bias) = experts.bias(kernels, *expert, rows.clone(), &mut scratch.floats)? else {
                    return Ok(());
                };
                for y in choices.clone().map(to) {
                    // SAFETY: as above; `add` allows the result to be an input.
                    unsafe { (kernels.add)(y, y, bias.as_ptr(), rows.len()) }
                }
                Ok(())
            });
            if let Err(error) = done {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        }
    })?;
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Brings choices into the order of their experts, and lists these.
fn sort(
    indices: &[i32],
    experts: usize,
    order: &mut Vec<usize>,
    active: &mut Vec<Active>,
) -> Result<(), BackendError> {
    for (choice, &found) in indices.iter().enumerate() {
        index("expert", choice, found, experts)?;
    }
    order.clear();
    order.extend(0..indices.len());
    // Stable.
    order.sort_by_key(|&choice| indices[choice]);
    active.clear();
    let mut place = 0;
    for choices in order.chunk_by(|&a, &b| indices[a] == indices[b]) {
        active.push(Active { expert: indices[choices[0]] as usize, choices: place..place + choices.len() });
        place += choices.len();
    }
    Ok(())
}

/// The experts' matrices and biases, checked.
struct Experts<'a> {
    weight: &'a Weight,
    biases: Option<&'a Weight>,
    /// Rows of an expert's matrix.
    rows: usize,
    packs: bool,
}

impl<'a> Experts<'a> {
    fn new(exec: &Exec<'a>, op: &ExpertMatMul) -> Result<Experts<'a>, BackendError> {
        let weight = exec.weight(op.weight)?;
        if op.experts == 0 || !weight.rows.is_multiple_of(op.experts) {
            return Err(invariant(
                "rows of the experts",
                format!("a multiple of {}", op.experts),
                weight.rows,
            ));
        }
        let rows = weight.rows / op.experts;
        let biases = op.bias.map(|id| exec.weight(id)).transpose()?;
        if let Some(biases) = biases {
            equal("rows of the biases", biases.rows, op.experts)?;
            equal("columns of the biases", biases.cols, rows)?;
        }
        Ok(Experts { weight, biases, rows, packs: packs(weight.rows, op.experts) })
    }

    /// An expert's matrix, as it lies in the file.
    fn bytes_of(&self, expert: usize) -> &'a [u8] {
        let bytes = self.rows * self.weight.row_bytes;
        &self.weight.bytes[expert * bytes..][..bytes]
    }

    /// An expert's matrix for [`Kernels::dot_tile`].
    fn tile<'t>(&'t self, expert: usize, activations: &'t QuantMatrix, out: Out<'t>) -> DotTile<'t> {
        let groups = self.rows / ROWS;
        let packed = self.weight.packed().filter(|_| self.packs);
        DotTile {
            format: self.weight.format,
            weights: self.bytes_of(expert),
            packed: packed.map(|packed| packed.groups(expert * groups..(expert + 1) * groups)),
            cols: self.weight.cols,
            activations,
            out,
        }
    }

    /// Some biases of an expert, decoded into `memory` if need be.
    fn bias<'m>(
        &self,
        kernels: &Kernels,
        expert: usize,
        rows: Range<usize>,
        memory: &'m mut Vec<f32>,
    ) -> Result<Option<&'m [f32]>, BackendError>
    where
        'a: 'm,
    {
        let Some(biases) = self.biases else { return Ok(None) };
        let row = biases.row(expert);
        if biases.format == Format::F32 {
            // In place: registration has aligned the bytes.
            return Ok(Some(&bytemuck::cast_slice(row)[rows]));
        }
        let start = biases
            .format
            .row_bytes(rows.start)
            .ok_or_else(|| invariant("biases", "elements that stand alone", biases.format))?;
        if memory.len() < rows.len() {
            memory.resize(rows.len(), 0.0);
        }
        let bias = &mut memory[..rows.len()];
        decode_row(kernels, biases.format, &row[start..], bias)?;
        Ok(Some(bias))
    }
}

/// Weighted sums of the choices' rows.
pub(crate) fn combine(exec: &mut Exec<'_>) -> Result<(), BackendError> {
    let (out, y, weights) = (exec.output()?, exec.input(0)?, exec.input(1)?);
    equal("rows of input 0", y.rows, weights.rows * weights.cols)?;
    equal("rows of the result", out.rows, weights.rows)?;
    equal("columns of the result", out.cols, y.cols)?;
    let (used, kernels) = (weights.cols, exec.kernels);
    exec.pool.run(out.rows, (CHUNK / (used * y.cols).max(1)).max(1), &|_, range| {
        for token in range {
            // SAFETY: rows inside the inputs, which nothing writes to; each row of the result has one worker.
            unsafe {
                let sum = out.row_mut(token);
                let weights = std::slice::from_raw_parts(weights.row(token), used);
                sum.fill(0.0);
                for (choice, &weight) in weights.iter().enumerate() {
                    let row = std::slice::from_raw_parts(y.row(token * used + choice), y.cols);
                    (kernels.axpby)(sum, 1.0, row, weight);
                }
            }
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_sorted_by_expert_and_keep_their_order() {
        let (mut order, mut active) = (vec![9], Vec::new());
        sort(&[3, 0, 3, 1, 0, 3], 4, &mut order, &mut active).unwrap();
        assert_eq!(order, [1, 4, 3, 0, 2, 5]);
        let expected = [(0, 0..2), (1, 2..3), (3, 3..6)];
        assert_eq!(active, expected.map(|(expert, choices)| Active { expert, choices }));
        sort(&[], 4, &mut order, &mut active).unwrap();
        assert!(order.is_empty() && active.is_empty());
    }

    #[test]
    fn indices_that_are_no_experts_are_errors() {
        for (found, limit) in [(-1, 4), (4, 4), (i32::MIN, 4), (0, 0)] {
            let error = sort(&[0, found][usize::from(limit == 0)..], limit, &mut Vec::new(), &mut Vec::new());
            let row = usize::from(limit != 0);
            let (found, limit) = (i64::from(found), limit as i64);
            assert_eq!(error, Err(BackendError::BadInput { what: "expert".into(), row, found, limit }));
        }
    }
}
