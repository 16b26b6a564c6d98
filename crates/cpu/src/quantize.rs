//! Activations as 8-bit integers: quantised once for each matrix product input, and shared by all products with it.
//!
//! The format is our own and the same for every weight format: blocks of 32 elements with an f32 scale, and the sums
//! of the quants by 16, which the products with formats that have minimums or offsets need. Rows are padded with zero
//! blocks to a multiple of 256 elements, so that kernels may always load eight blocks.

use crate::pool::{Pool, PoolError};
use crate::simd::Kernels;
use graph::{NodeId, Operand};

/// Elements of a block.
pub(crate) const BLOCK: usize = 32;
/// Blocks of a super-block, the unit that rows are padded to.
pub(crate) const SUPER: usize = 8;

/// A matrix of quantised activations.
#[derive(Default)]
pub(crate) struct QuantMatrix {
    rows: usize,
    /// Blocks of a row, padding included.
    blocks: usize,
    /// `blocks * 32` quants a row.
    q: Vec<i8>,
    /// `blocks` scales a row.
    d: Vec<f32>,
    /// Sums of the quants by 16: `blocks * 2` a row.
    sums: Vec<i16>,
}

/// One row of a [`QuantMatrix`].
#[derive(Clone, Copy)]
pub(crate) struct QuantRow<'a> {
    pub(crate) q: &'a [i8],
    pub(crate) d: &'a [f32],
    pub(crate) sums: &'a [i16],
}

impl QuantMatrix {
    /// Activation rows.
    #[cfg(any(test, target_arch = "x86_64"))]
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row, padding included.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn padded_cols(&self) -> usize {
        self.blocks * BLOCK
    }

    /// A row.
    pub(crate) fn row(&self, row: usize) -> QuantRow<'_> {
        let blocks = self.blocks;
        QuantRow {
            q: &self.q[row * blocks * BLOCK..][..blocks * BLOCK],
            d: &self.d[row * blocks..][..blocks],
            sums: &self.sums[row * blocks * 2..][..blocks * 2],
        }
    }

    /// Replaces the contents by the rows of `x`, each of `cols` (a multiple of 32) elements.
    pub(crate) fn fill(
        &mut self,
        kernels: &Kernels,
        pool: &mut Pool,
        x: &[f32],
        cols: usize,
    ) -> Result<(), PoolError> {
        let rows = x.len().checked_div(cols).unwrap_or(0);
        let blocks = (cols / BLOCK).next_multiple_of(SUPER);
        if (self.rows, self.blocks) != (rows, blocks) {
            // Clearing makes the padding zero; it is never written afterwards.
            self.q.clear();
            self.d.clear();
            self.sums.clear();
            self.q.resize(rows * blocks * BLOCK, 0);
            self.d.resize(rows * blocks, 0.0);
            self.sums.resize(rows * blocks * 2, 0);
            (self.rows, self.blocks) = (rows, blocks);
        } else {
            // The same padded shape may have held wider rows.
            let real = cols / BLOCK;
            for row in 0..rows {
                self.d[row * blocks + real..(row + 1) * blocks].fill(0.0);
                self.q[(row * blocks + real) * BLOCK..(row + 1) * blocks * BLOCK].fill(0);
                self.sums[(row * blocks + real) * 2..(row + 1) * blocks * 2].fill(0);
            }
        }
        let (q, d, sums) = (
            Columns::new(&mut self.q, blocks * BLOCK),
            Columns::new(&mut self.d, blocks),
            Columns::new(&mut self.sums, blocks * 2),
        );
        let chunk = (16_384 / cols.max(1)).max(1);
        pool.run(rows, chunk, &|_, range| {
            for row in range {
                // SAFETY: each row is handed to exactly one worker, and the table is for this processor.
                unsafe {
                    let (q, d, sums) = (q.row(row), d.row(row), sums.row(row));
                    (kernels.quantize)(&x[row * cols..][..cols], &mut q[..cols], d, sums);
                }
            }
        })
    }
}

/// A matrix whose rows are handed to different workers.
pub(crate) struct Columns<T> {
    data: *mut T,
    len: usize,
    stride: usize,
}

// SAFETY: rows are disjoint, and `row` demands that no two users of one row exist at a time.
unsafe impl<T: Send> Sync for Columns<T> {}

impl<T> Columns<T> {
    pub(crate) fn new(data: &mut [T], stride: usize) -> Columns<T> {
        Columns { data: data.as_mut_ptr(), len: data.len(), stride }
    }

    /// # Safety
    /// Nobody else uses this row while the result lives, and the matrix outlives it.
    #[allow(clippy::mut_from_ref, reason = "that is the purpose; the caller promises disjoint rows")]
    pub(crate) unsafe fn row(&self, row: usize) -> &mut [T] {
        assert!((row + 1) * self.stride <= self.len, "row {row} is outside the matrix");
        // SAFETY: inside the matrix, and not shared by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(row * self.stride), self.stride) }
    }
}

/// The quantised forms of the last few matrix product inputs.
///
/// Query, key and value projections read the same input, and so do gate and up: it is quantised for the first.
pub(crate) struct QuantCache {
    entries: Vec<Entry>,
    clock: u64,
}

struct Entry {
    key: Option<Key>,
    used: u64,
    matrix: QuantMatrix,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    operand: Operand,
    producer: NodeId,
    epoch: u64,
}

/// Inputs that are kept: one is being shared while at most one other is in use.
const ENTRIES: usize = 2;

impl QuantCache {
    pub(crate) fn new() -> QuantCache {
        QuantCache { entries: Vec::new(), clock: 0 }
    }

    /// Forgets all values: a buffer was written by the host, freed, or belongs to something that failed.
    pub(crate) fn clear(&mut self) {
        for entry in &mut self.entries {
            entry.key = None;
        }
    }

    /// The quantised form of `x`, which lies at `operand` in this epoch.
    pub(crate) fn get(
        &mut self,
        kernels: &Kernels,
        pool: &mut Pool,
        operand: Operand,
        epoch: u64,
        x: &[f32],
    ) -> Result<&QuantMatrix, PoolError> {
        let key = Some(Key { operand, producer: operand.producer, epoch });
        self.clock += 1;
        let index = match self.entries.iter().position(|entry| entry.key == key) {
            Some(index) => index,
            None => {
                let index = self.vacant();
                let entry = &mut self.entries[index];
                entry.key = None;
                entry.matrix.fill(kernels, pool, x, operand.shape.cols)?;
                entry.key = key;
                index
            }
        };
        let entry = &mut self.entries[index];
        entry.used = self.clock;
        Ok(&entry.matrix)
    }

    fn vacant(&mut self) -> usize {
        if self.entries.len() < ENTRIES {
            self.entries.push(Entry { key: None, used: 0, matrix: QuantMatrix::default() });
            return self.entries.len() - 1;
        }
        let oldest = (0..self.entries.len()).min_by_key(|&i| self.entries[i].used);
        oldest.unwrap_or(0)
    }
}
