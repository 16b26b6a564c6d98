//! The largest elements of rows: what a greedy step needs of its logits.
//!
//! The first time, a launch of its own follows the forward. From then on it is part of the program that writes the rows,
//! and the host finds the result in memory of its own when the program is done.

use crate::buffers::Buffers;
use crate::driver::{Device, Launch, Pinned, Stream, argument};
use crate::kernels::{Kernels, Spec};
use crate::ops::device_error;
use crate::scratch::{Region, Scratch};
use graph::{BackendError, BufferId, Largest};
use std::sync::Arc;

/// Rows whose results there is room for.
const MOST_ROWS: usize = 1024;
/// Blocks for a row, at most, and threads of a block, as in `largest.cu`: a thread reads what one block found.
const MOST_BLOCKS: usize = 128;
const THREADS: usize = 256;

#[repr(C)]
#[derive(Clone, Copy)]
struct LargestArgs {
    x: u64,
    partial: u64,
    done: u64,
    out: u64,
    cols: u32,
}

/// Rows of floats in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) buffer: BufferId,
    pub(crate) offset: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

/// Where results go, and of which rows they are.
#[derive(Default)]
pub(crate) struct LargestRows {
    results: Option<Pinned>,
    /// The rows that were asked for last, in the current build.
    pub(crate) asked: Option<Rows>,
    /// The rows whose results are there when the device is done.
    pub(crate) found: Option<Rows>,
}

impl LargestRows {
    /// Forgets what belongs to a build.
    pub(crate) fn clear(&mut self) {
        (self.asked, self.found) = (None, None);
    }

    /// The launch that finds the largest elements of these rows; `None` if they are too many.
    pub(crate) fn launch(
        &mut self,
        rows: Rows,
        device: &Arc<Device>,
        stream: &Stream,
        kernels: &mut Kernels,
        buffers: &Buffers,
        scratch: &mut Scratch,
    ) -> Result<Option<Launch>, BackendError> {
        let count = rows.rows;
        let Ok(cols) = u32::try_from(rows.cols) else { return Ok(None) };
        if !(1..=MOST_ROWS).contains(&count) || cols == 0 {
            return Ok(None);
        }
        let bytes = count.saturating_mul(rows.cols).saturating_mul(size_of::<f32>());
        let x = buffers.address(rows.buffer, rows.offset, bytes, "rows with a largest element")?;
        let out = match &self.results {
            Some(results) => results.address(),
            None => {
                let results = Pinned::new(device, MOST_ROWS * 8).map_err(device_error)?;
                self.results.insert(results).address()
            }
        };
        let blocks = (MOST_BLOCKS / count).clamp(1, rows.cols.div_ceil(THREADS));
        let args = LargestArgs {
            x,
            partial: scratch.get(device, stream, Region::Largest, count * blocks * 8)?,
            done: scratch.get(device, stream, Region::LargestDone, MOST_ROWS * 4)?,
            out,
            cols,
        };
        let function = kernels.get(Spec::Plain("largest.cu", "largest")).map_err(device_error)?;
        Ok(Some(Launch {
            function,
            grid: [blocks as u32, count as u32, 1],
            threads: THREADS as u32,
            shared: 0,
            argument: argument(args),
            alone: false,
            label: "largest".into(),
        }))
    }

    /// The results. The device is done.
    pub(crate) fn read(&mut self, rows: usize) -> Vec<Largest> {
        let Some(results) = &mut self.results else { return Vec::new() };
        let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let pair = |bytes: &[u8]| Largest {
            index: word(&bytes[..4]) as usize,
            value: f32::from_bits(word(&bytes[4..])),
        };
        results.bytes()[..rows * 8].chunks_exact(8).map(pair).collect()
    }
}
