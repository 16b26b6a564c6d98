//! Activations as 8-bit integers: quantised once for each matrix product input, and shared by all products with it.
//!
//! The format is our own and the same for every weight format: blocks of 32 elements with an f32 scale, and the sums
//! of the quants that products with formats that have minimums or offsets need.

use crate::pool::{Pool, PoolError};
use crate::simd::Kernels;
use graph::Operand;

/// Elements of a block.
pub(crate) const BLOCK: usize = 32;
/// A matrix of quantised activations.
#[derive(Default)]
pub(crate) struct QuantMatrix {
    rows: usize,
    /// Blocks of a row.
    blocks: usize,
    q: Vec<i8>,
    d: Vec<f32>,
    s: Vec<f32>,
    sums: Vec<i16>,
    half_sums: Vec<i16>,
}

/// One row of a [`QuantMatrix`]. Integer sums have the opposite sign, so that products can start from them.
#[derive(Clone, Copy)]
pub(crate) struct QuantRow<'a> {
    /// The quants.
    pub(crate) q: &'a [i8],
    /// A scale for each block.
    pub(crate) d: &'a [f32],
    /// The scale times the sum of the quants, for each block.
    pub(crate) s: &'a [f32],
    /// Two for each block: less the sum of the quants whose number modulo 4 is 0 or 1, and of those with 2 or 3.
    pub(crate) sums: &'a [i16],
    /// The same for both halves of each block.
    pub(crate) half_sums: &'a [i16],
}

/// A [`QuantRow`] to be written.
pub(crate) struct QuantRowMut<'a> {
    pub(crate) q: &'a mut [i8],
    pub(crate) d: &'a mut [f32],
    pub(crate) s: &'a mut [f32],
    pub(crate) sums: &'a mut [i16],
    pub(crate) half_sums: &'a mut [i16],
}

impl QuantMatrix {
    /// Activation rows.
    #[cfg(any(test, target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Blocks of a row.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// A row.
    #[inline]
    pub(crate) fn row(&self, row: usize) -> QuantRow<'_> {
        let blocks = self.blocks;
        QuantRow {
            q: &self.q[row * blocks * BLOCK..][..blocks * BLOCK],
            d: &self.d[row * blocks..][..blocks],
            s: &self.s[row * blocks..][..blocks],
            sums: &self.sums[row * blocks * 2..][..blocks * 2],
            half_sums: &self.half_sums[row * blocks * 4..][..blocks * 4],
        }
    }

    /// This row and all after it, as one: block `b` of row `row + t` is block `t * blocks + b` of the result.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn rows_from(&self, row: usize) -> QuantRow<'_> {
        let first = row * self.blocks;
        QuantRow {
            q: &self.q[first * BLOCK..],
            d: &self.d[first..],
            s: &self.s[first..],
            sums: &self.sums[first * 2..],
            half_sums: &self.half_sums[first * 4..],
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
        self.gather(kernels, pool, [rows, cols], &|row| &x[row * cols..][..cols])
    }

    /// Replaces the contents by rows that lie anywhere, each of `cols` (a multiple of 32) elements.
    fn gather<'x>(
        &mut self,
        kernels: &Kernels,
        pool: &mut Pool,
        [rows, cols]: [usize; 2],
        x: &(impl Fn(usize) -> &'x [f32] + Sync),
    ) -> Result<(), PoolError> {
        let blocks = cols / BLOCK;
        (self.rows, self.blocks) = (rows, blocks);
        self.q.resize(rows * blocks * BLOCK, 0);
        self.d.resize(rows * blocks, 0.0);
        self.s.resize(rows * blocks, 0.0);
        self.sums.resize(rows * blocks * 2, 0);
        self.half_sums.resize(rows * blocks * 4, 0);
        let (q, d, s, sums, half_sums) = (
            Columns::new(&mut self.q, blocks * BLOCK),
            Columns::new(&mut self.d, blocks),
            Columns::new(&mut self.s, blocks),
            Columns::new(&mut self.sums, blocks * 2),
            Columns::new(&mut self.half_sums, blocks * 4),
        );
        let chunk = (16_384 / cols.max(1)).max(1);
        pool.run(rows, chunk, &|_, range| {
            for row in range {
                // SAFETY: each row is handed to exactly one worker, and the table is for this processor.
                unsafe {
                    let to = QuantRowMut {
                        q: q.row(row),
                        d: d.row(row),
                        s: s.row(row),
                        sums: sums.row(row),
                        half_sums: half_sums.row(row),
                    };
                    (kernels.quantize)(&x(row)[..cols], to);
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
    /// The value that the order of the rows was derived from, where it is another than theirs.
    order: Option<Operand>,
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
        let cols = operand.shape.cols;
        let rows = x.len().checked_div(cols).unwrap_or(0);
        let key = Key { operand, order: None, epoch };
        self.find(kernels, pool, key, rows, &|row| &x[row * cols..][..cols])
    }

    /// The quantised form of `rows` rows of the first value, in an order that the second one alone tells, in this epoch:
    /// row `i` is `x(i)`.
    pub(crate) fn gathered<'x>(
        &mut self,
        kernels: &Kernels,
        pool: &mut Pool,
        [operand, order]: [Operand; 2],
        epoch: u64,
        rows: usize,
        x: &(impl Fn(usize) -> &'x [f32] + Sync),
    ) -> Result<&QuantMatrix, PoolError> {
        self.find(kernels, pool, Key { operand, order: Some(order), epoch }, rows, x)
    }

    fn find<'x>(
        &mut self,
        kernels: &Kernels,
        pool: &mut Pool,
        key: Key,
        rows: usize,
        x: &(impl Fn(usize) -> &'x [f32] + Sync),
    ) -> Result<&QuantMatrix, PoolError> {
        let cols = key.operand.shape.cols;
        let key = Some(key);
        self.clock += 1;
        let index = match self.entries.iter().position(|entry| entry.key == key) {
            Some(index) => index,
            None => {
                let index = self.vacant();
                let entry = &mut self.entries[index];
                entry.key = None;
                entry.matrix.gather(kernels, pool, [rows, cols], x)?;
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
