//! Rotary position embedding. Cosines and sines are computed once per forward, in double precision, and shared by all
//! layers that turn by the same table.

use crate::exec::{Exec, In, Out, equal, invariant};
use crate::pool::Pool;
use crate::quantize::Columns;
use crate::simd::Kernels;
use graph::ops::{Rope, RopeStyle, RopeTable};
use graph::{BackendError, Operand};
use std::sync::Arc;

/// Cosines and sines of the last few tables and position lists.
pub(crate) struct RopeCache {
    entries: Vec<Entry>,
    clock: u64,
}

struct Entry {
    /// Holding the table keeps its address from being given to another one.
    key: Option<(Arc<RopeTable>, Operand, u64)>,
    used: u64,
    /// For each position, the cosines of all pairs and then their sines.
    angles: Vec<f32>,
}

/// Tables in use at a time: two bases, and one to spare.
const ENTRIES: usize = 4;

impl RopeCache {
    pub(crate) fn new() -> RopeCache {
        RopeCache { entries: Vec::new(), clock: 0 }
    }

    /// Forgets all values.
    pub(crate) fn clear(&mut self) {
        for entry in &mut self.entries {
            entry.key = None;
        }
    }

    /// For each position, `pairs` cosines and `pairs` sines.
    pub(crate) fn get(
        &mut self,
        pool: &mut Pool,
        table: &Arc<RopeTable>,
        operand: Operand,
        epoch: u64,
        positions: &[i32],
    ) -> Result<&[f32], BackendError> {
        self.clock += 1;
        let is = |entry: &Entry| {
            let key = entry.key.as_ref();
            key.is_some_and(|(t, o, e)| Arc::ptr_eq(t, table) && *o == operand && *e == epoch)
        };
        let index = match self.entries.iter().position(is) {
            Some(index) => index,
            None => {
                let index = self.vacant();
                let entry = &mut self.entries[index];
                entry.key = None;
                fill(pool, table, positions, &mut entry.angles)?;
                entry.key = Some((Arc::clone(table), operand, epoch));
                index
            }
        };
        self.entries[index].used = self.clock;
        Ok(&self.entries[index].angles)
    }

    fn vacant(&mut self) -> usize {
        if self.entries.len() < ENTRIES {
            self.entries.push(Entry { key: None, used: 0, angles: Vec::new() });
            return self.entries.len() - 1;
        }
        (0..self.entries.len()).min_by_key(|&i| self.entries[i].used).unwrap_or(0)
    }
}

fn fill(
    pool: &mut Pool,
    table: &RopeTable,
    positions: &[i32],
    angles: &mut Vec<f32>,
) -> Result<(), BackendError> {
    for (row, &position) in positions.iter().enumerate() {
        crate::exec::index("position", row, position, i32::MAX as usize)?;
    }
    let pairs = table.inv_freq.len();
    angles.clear();
    angles.resize(positions.len() * 2 * pairs, 0.0);
    let rows = Columns::new(angles, 2 * pairs);
    let magnitude = f64::from(table.magnitude);
    pool.run(positions.len(), 8, &|_, range| {
        for i in range {
            // SAFETY: each row is filled by one worker.
            let (cos, sin) = unsafe { rows.row(i) }.split_at_mut(pairs);
            for (pair, inv_freq) in table.inv_freq.iter().enumerate() {
                let (s, c) = (f64::from(positions[i]) * inv_freq).sin_cos();
                cos[pair] = (c * magnitude) as f32;
                sin[pair] = (s * magnitude) as f32;
            }
        }
    })?;
    Ok(())
}

/// Turns the heads of the input.
pub(crate) fn rope(exec: &mut Exec<'_>, op: &Rope) -> Result<(), BackendError> {
    let (out, x) = (exec.output()?, exec.input(0)?);
    turn(exec, op, 1, x, out)
}

/// Turns every head of `x` by the positions of input `positions`.
pub(crate) fn turn(
    exec: &mut Exec<'_>,
    op: &Rope,
    positions: usize,
    x: In<'_>,
    out: Out<'_>,
) -> Result<(), BackendError> {
    let (operand, values) = (exec.operand(positions)?, exec.ints(positions)?);
    equal("positions", values.len(), x.rows)?;
    equal("rows of the result", out.rows, x.rows)?;
    equal("columns of the result", out.cols, x.cols)?;
    let (head_dim, rotary) = (op.head_dim, op.rotary_dim());
    if head_dim == 0 || !x.cols.is_multiple_of(head_dim) || rotary > head_dim {
        return Err(invariant(
            "columns",
            format!("whole heads of {head_dim}, {rotary} of them rotated"),
            x.cols,
        ));
    }
    let angles = exec.rope.get(exec.pool, &op.table, operand, exec.call.epoch, values)?;
    turn_rows(exec.kernels, exec.pool, op, angles, x, out)
}

fn turn_rows(
    kernels: &Kernels,
    pool: &mut Pool,
    op: &Rope,
    angles: &[f32],
    x: In<'_>,
    out: Out<'_>,
) -> Result<(), BackendError> {
    let (head_dim, rotary) = (op.head_dim, op.rotary_dim());
    let pairs = rotary / 2;
    let kernel = match op.style {
        RopeStyle::Interleaved => kernels.rope_interleaved,
        RopeStyle::SplitHalf => kernels.rope_split,
    };
    pool.run(x.rows, (8192 / x.cols.max(1)).max(1), &|_, range| {
        for row in range {
            let (cos, sin) = angles[row * rotary..][..rotary].split_at(pairs);
            for head in 0..x.cols / head_dim {
                let src = x.row(row).wrapping_add(head * head_dim);
                let dst = out.row(row).wrapping_add(head * head_dim);
                // SAFETY: `head_dim` elements in both; the result is the input or apart from it.
                unsafe {
                    kernel(dst, src, cos.as_ptr(), sin.as_ptr(), pairs);
                    if src != dst.cast_const() {
                        std::ptr::copy_nonoverlapping(
                            src.wrapping_add(rotary),
                            dst.wrapping_add(rotary),
                            head_dim - rotary,
                        );
                    }
                }
            }
        }
    })?;
    Ok(())
}
