//! The largest elements of rows: what choosing a token needs of its logits.
//!
//! A dispatch finds the largest element of each chunk of a row. The host, which shares the memory, chooses among these, and where
//! more than one is wanted, looks into as many chunks as it wants elements: no other can hold one of them. The first time, the
//! dispatch is a submission of its own; from then on it ends the recording that writes the rows.

use crate::backend::Core;
use crate::device::{Buffer, Device, Size};
use crate::error::backend_error;
use crate::families::SIMD_WIDTH;
use crate::families::topk::{LARGEST_CHUNK, LargestArgs, TOPK_ROWS};
use crate::pass::Launch;
use crate::pipelines::PipelineId;
use crate::tensor::{Memory, Slice};
use graph::{BackendError, BufferId, Largest};
use std::cmp::Reverse;

/// Rows of floats in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    buffer: BufferId,
    offset: usize,
    rows: usize,
    cols: usize,
    chunks: usize,
}

impl Rows {
    /// `None` where there are none, or too many for the kernel.
    pub fn new(buffer: BufferId, offset: usize, [rows, cols]: [usize; 2]) -> Option<Rows> {
        let fits = rows > 0 && cols > 0 && i32::try_from(cols).is_ok() && u32::try_from(rows).is_ok();
        fits.then_some(Rows { buffer, offset, rows, cols, chunks: cols.div_ceil(LARGEST_CHUNK) })
    }

    /// Where they lie.
    pub fn slice<D: Device>(&self, core: &Core<D>) -> Result<Slice<D::Buffer>, BackendError> {
        let bytes = self.rows.saturating_mul(self.cols).saturating_mul(size_of::<f32>());
        core.pool.slice(self.buffer, self.offset, bytes)
    }
}

/// An element's place in the order, with its column, as in `kernels/topk.metal`: the larger comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    place: u32,
    column: Reverse<u32>,
}

impl Rank {
    fn of(value: f32, column: u32) -> Rank {
        let bits = if value == 0.0 { 0 } else { value.to_bits() };
        let place = match bits >> 31 {
            _ if !value.is_finite() => u32::MAX,
            0 => bits | 1 << 31,
            _ => !bits,
        };
        Rank { place, column: Reverse(column) }
    }

    fn index(self) -> usize {
        self.column.0 as usize
    }
}

/// What was asked for, and what was found.
pub(crate) struct LargestRows<B> {
    /// The rows that were asked for last, since the graph was built.
    pub asked: Option<Rows>,
    /// The rows whose chunks' best elements are there.
    pub found: Option<Rows>,
    /// Of each chunk the best element's place and column.
    best: Option<Memory<B>>,
}

impl<B> Default for LargestRows<B> {
    fn default() -> LargestRows<B> {
        LargestRows { asked: None, found: None, best: None }
    }
}

impl<B: Buffer> LargestRows<B> {
    /// Forgets what belongs to a graph.
    pub fn clear(&mut self) {
        (self.asked, self.found) = (None, None);
    }

    /// Records the dispatch.
    pub fn record<D: Device<Buffer = B>>(
        &mut self,
        core: &mut Core<D>,
        kernel: PipelineId,
        rows: Rows,
    ) -> Result<(), BackendError> {
        let x = rows.slice(core)?;
        let bytes = rows.rows.saturating_mul(rows.chunks).saturating_mul(size_of::<[u32; 2]>());
        let best = match self.best.take().filter(|best| best.buffer().length() >= bytes) {
            Some(best) => best,
            None => Memory::new(
                core.device
                    .new_buffer("largest", bytes)
                    .map_err(|error| backend_error(error, "the largest elements", bytes))?,
            ),
        };
        let best = self.best.insert(best);
        let slice = Slice { memory: best.clone(), offset: 0, length: bytes };
        // Both are within the range of `i32`, see `Rows::new`.
        let args = LargestArgs { cols: rows.cols as i32, chunks: rows.chunks as i32 };
        let groups = Size::new(rows.chunks.div_ceil(TOPK_ROWS), rows.rows, 1);
        Launch::new(core, kernel, "largest".to_owned())
            .reads(0, &x)
            .writes(1, &slice)
            .bytes(2, &args)
            .threadgroups(groups, Size::width(TOPK_ROWS * SIMD_WIDTH))
    }

    /// The `count` largest elements of each row that was found; the device is done.
    pub fn read<D: Device<Buffer = B>>(
        &self,
        core: &Core<D>,
        count: usize,
    ) -> Result<Option<Vec<Largest>>, BackendError> {
        let (Some(rows), Some(best)) = (self.found, &self.best) else { return Ok(None) };
        let x = rows.slice(core)?;
        let read = |memory: &Memory<B>, at: usize, to: &mut [u8]| {
            memory.buffer().read(at, to).map_err(|error| BackendError::Device(error.to_string()))
        };
        let mut chunks = vec![[0u32; 2]; rows.chunks];
        let mut all = Vec::with_capacity(rows.rows * count.min(rows.cols));
        let mut ranks = Vec::new();
        for row in 0..rows.rows {
            let at = row * rows.chunks * size_of::<[u32; 2]>();
            read(best, at, bytemuck::cast_slice_mut(&mut chunks))?;
            let first = x.offset + row * rows.cols * size_of::<f32>();
            let elements = |from: usize, to: &mut [f32]| {
                read(&x.memory, first + from * size_of::<f32>(), bytemuck::cast_slice_mut(to))
            };
            ranks.clear();
            ranks.extend(chunks.iter().map(|&[place, column]| Rank { place, column: Reverse(column) }));
            keep_first(&mut ranks, count);
            if count > 1 {
                let holders: Vec<usize> = ranks.drain(..).map(|rank| rank.index() / LARGEST_CHUNK).collect();
                for chunk in holders {
                    let start = chunk * LARGEST_CHUNK;
                    let mut values = [0.0f32; LARGEST_CHUNK];
                    let values = &mut values[..LARGEST_CHUNK.min(rows.cols.saturating_sub(start))];
                    elements(start, values)?;
                    ranks.extend(values.iter().zip(start as u32..).map(|(&v, column)| Rank::of(v, column)));
                }
                keep_first(&mut ranks, count);
            }
            for rank in &ranks {
                let mut value = [0.0f32];
                elements(rank.index(), &mut value)?;
                all.push(Largest { index: rank.index(), value: value[0] });
            }
        }
        Ok(Some(all))
    }
}

/// The `count` first of the order, in the order.
fn keep_first(ranks: &mut Vec<Rank>, count: usize) {
    if count < ranks.len() {
        ranks.select_nth_unstable_by_key(count, |&rank| Reverse(rank));
        ranks.truncate(count);
    }
    ranks.sort_unstable_by_key(|&rank| Reverse(rank));
}
