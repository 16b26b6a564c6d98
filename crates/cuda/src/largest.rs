//! The largest elements of rows: what choosing a token needs of its logits.
//!
//! The first time, launches of their own follow the forward. From then on they are part of the program that writes the rows,
//! and the host finds the result in memory of its own when the program is done.

use crate::buffers::Buffers;
use crate::driver::{Device, Launch, Pinned, Stream, argument};
use crate::kernels::{Kernels, Spec};
use crate::ops::{RowProduct, device_error};
use crate::scratch::{Region, Scratch};
use graph::{BackendError, BufferId, Largest};
use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Rows whose results there is room for.
const MOST_ROWS: usize = 1024;
/// Elements of all rows that there is room for.
const MOST_ELEMENTS: usize = 1 << 16;
/// How many elements of a row can be found: launches for fewer find as many as the next of these, so that few are made.
const COUNTS: [usize; 3] = [1, 64, 256];
/// Blocks for a row, at most, and threads of a block, as in `largest.cu`: a thread reads what one block found.
const MOST_BLOCKS: usize = 128;
const THREADS: usize = 256;
/// Blocks for all rows, of which the largest element is found: as many as the multiprocessors of a large GPU hold.
const BLOCKS_OF_ALL: usize = 1024;
/// Blocks for a row, where a list is found, at least: where they are few, many of the largest elements are those of the same
/// threads.
const FEWEST_BLOCKS: usize = 4;
/// Keys that the last block of a row holds, and elements among which the list is found, as in `largest.cu`.
const MOST_KEYS: usize = 16 * THREADS;
const MOST_FOUND: usize = 2048;

#[repr(C)]
#[derive(Clone, Copy)]
struct LargestArgs {
    x: u64,
    partial: u64,
    done: u64,
    out: u64,
    cols: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct HighestArgs {
    x: u64,
    tops: u64,
    threshold: u64,
    list: u64,
    done: u64,
    length: u64,
    out: u64,
    found: u64,
    cols: u32,
    count: u32,
    together: u32,
}

/// What launches are made with.
pub(crate) type AtHand<'a> = (&'a Arc<Device>, &'a Stream, &'a mut Kernels, &'a Buffers, &'a mut Scratch);

/// Rows of floats in a buffer, and how many of the largest elements of each are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) buffer: BufferId,
    pub(crate) offset: usize,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// One of [`COUNTS`].
    count: usize,
}

impl Rows {
    /// Rows of which at least so many elements are wanted; `None` if they are too many.
    pub(crate) fn new(
        buffer: BufferId,
        offset: usize,
        [rows, cols]: [usize; 2],
        count: usize,
    ) -> Option<Rows> {
        let count = COUNTS.into_iter().find(|&most| most >= count)?;
        let fits = (1..=MOST_ROWS).contains(&rows)
            && rows * count <= MOST_ELEMENTS
            && (1..=u32::MAX as usize).contains(&cols);
        fits.then_some(Rows { buffer, offset, rows, cols, count })
    }
}

/// Where results go, and of which rows they are.
#[derive(Default)]
pub(crate) struct LargestRows {
    /// Numbers and bits of elements, and behind [`MOST_ELEMENTS`] of them, of each row the number of those that came into
    /// question.
    results: Option<Pinned>,
    /// The rows that were asked for last, in the current build.
    pub(crate) asked: Option<Rows>,
    /// The rows whose results are there when the device is done.
    pub(crate) found: Option<Rows>,
    /// Results that were not seen to arrive.
    expected: Range<usize>,
    /// Results of which the largest is that of the one row: one for each block of a product.
    parts: usize,
}

/// In the place of a result that is still to come: a number that no element of a row has.
const TO_COME: u64 = u64::MAX;

impl LargestRows {
    /// Forgets what belongs to a build.
    pub(crate) fn clear(&mut self) {
        (self.asked, self.found) = (None, None);
    }

    /// The launches that find the largest elements of these rows, and whether the first of them takes the place of the `last` one
    /// before, a product, since that finds what is wanted on the way.
    pub(crate) fn launches(
        &mut self,
        rows: Rows,
        last: Option<(RowProduct, &Launch)>,
        (device, stream, kernels, buffers, scratch): AtHand<'_>,
    ) -> Result<(Vec<Launch>, bool), BackendError> {
        let bytes = rows.rows.saturating_mul(rows.cols).saturating_mul(size_of::<f32>());
        let x = buffers.address(rows.buffer, rows.offset, bytes, "rows with a largest element")?;
        let out = match &self.results {
            Some(results) => results.address(),
            None => {
                let results = Pinned::new(device, MOST_ELEMENTS * 8 + MOST_ROWS * 4).map_err(device_error)?;
                self.results.insert(results).address()
            }
        };
        if let Some((product, last)) = last
            && (rows.count, rows.rows) == (1, 1)
            && (product.out, product.cols) == (x, rows.cols)
            && last.grid[0] as usize <= MOST_ELEMENTS
        {
            return Ok((vec![product.with_largest(last, kernels, out)?], true));
        }
        self.parts = 1;
        let mut get = |region, bytes| scratch.get(device, stream, region, bytes);
        let done = get(Region::LargestDone, MOST_ROWS * 8)?;
        let threads_of_row = rows.cols.div_ceil(THREADS);
        let mut launch = |name, blocks: usize, argument: Box<[u64]>| {
            let function = kernels.get(Spec::Plain("largest.cu", name)).map_err(device_error)?;
            Ok(Launch {
                function,
                grid: [blocks as u32, rows.rows as u32, 1],
                threads: THREADS as u32,
                shared: 0,
                argument,
                alone: false,
                orderly: false,
                label: name.into(),
            })
        };
        if rows.count == 1 {
            let blocks = (BLOCKS_OF_ALL / rows.rows).clamp(1, MOST_BLOCKS).min(threads_of_row);
            let partial = get(Region::Largest, rows.rows * blocks * 8)?;
            let args = LargestArgs { x, partial, done, out, cols: rows.cols as u32 };
            return Ok((vec![launch("largest", blocks, argument(args))?], false));
        }
        let blocks = (MOST_BLOCKS / rows.rows).max(FEWEST_BLOCKS).min(threads_of_row);
        let together = (blocks * THREADS).div_ceil(MOST_KEYS).next_power_of_two();
        // Of each row the list, the keys of all groups of threads, and the threshold.
        let [list, tops] = [MOST_FOUND * 8, blocks * THREADS / together * 4].map(|each| rows.rows * each);
        let list_at = get(Region::Largest, list + tops + rows.rows * 4)?;
        let args = HighestArgs {
            x,
            tops: list_at + list as u64,
            threshold: list_at + (list + tops) as u64,
            list: list_at,
            done,
            length: done + (MOST_ROWS * 4) as u64,
            out,
            found: out + (MOST_ELEMENTS * 8) as u64,
            cols: rows.cols as u32,
            count: rows.count as u32,
            together: together as u32,
        };
        let [first, second] =
            ["highest_threshold", "highest_list"].map(|name| launch(name, blocks, argument(args)));
        Ok((vec![first?, second?], false))
    }

    /// Before a run that ends with the launches for these rows, or, of one row, with a product of so many blocks that finds the
    /// largest result of each: makes [`arrived`](LargestRows::arrived) able to tell when their results are there. `false` if it
    /// cannot, where they are lists.
    pub(crate) fn expect(&mut self, rows: Rows, blocks: Option<usize>) -> bool {
        self.parts = blocks.unwrap_or(1);
        self.expected = 0..rows.rows * self.parts;
        let Some(results) = self.results.as_ref().filter(|_| rows.count == 1) else { return false };
        self.expected
            .clone()
            .all(|row| results.word(row).map(|w| w.store(TO_COME, Ordering::Release)).is_some())
    }

    /// Whether all results that were [expected](LargestRows::expect) are there. The device writes each as one word when all
    /// else of its row, or of its part of it, is done.
    pub(crate) fn arrived(&mut self) -> bool {
        let Some(results) = &self.results else { return false };
        let is_here = |row| results.word(row).is_some_and(|word| word.load(Ordering::Acquire) != TO_COME);
        self.expected.start += self.expected.clone().take_while(|&row| is_here(row)).count();
        self.expected.is_empty()
    }

    /// The first `count` results of each row, or `None` if one has too many elements that are alike. The device is done.
    pub(crate) fn read(&mut self, count: usize) -> Option<Vec<Largest>> {
        let rows = self.found?;
        let bytes = self.results.as_mut()?.bytes();
        let word = |bytes: &[u8]| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let (elements, found) = bytes.split_at(MOST_ELEMENTS * 8);
        let is_list = rows.count > 1;
        if is_list && found.chunks_exact(4).take(rows.rows).any(|found| word(found) as usize > MOST_FOUND) {
            return None;
        }
        let pair = |bytes: &[u8]| Largest {
            index: word(&bytes[..4]) as usize,
            value: f32::from_bits(word(&bytes[4..])),
        };
        if self.parts > 1 {
            let best = elements.chunks_exact(8).take(self.parts).map(pair);
            return Some(best.max_by_key(rank).into_iter().collect());
        }
        let of_row = elements.chunks_exact(rows.count * 8).take(rows.rows);
        Some(of_row.flat_map(|row| row.chunks_exact(8).take(count.min(rows.cols)).map(pair)).collect())
    }
}

/// The order of elements: what is no finite number comes before all others, and among equals the first, as in `rank.cuh`.
fn rank(element: &Largest) -> (u32, Reverse<usize>) {
    let bits = if element.value == 0.0 { 0 } else { element.value.to_bits() };
    let key = match (element.value.is_finite(), bits >> 31) {
        (false, _) => u32::MAX,
        (true, 0) => bits | 1 << 31,
        (true, _) => !bits,
    };
    (key, Reverse(element.index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_comes_first_then_the_largest_then_the_first() {
        let order = [
            (7, f32::NAN),
            (8, f32::NEG_INFINITY),
            (9, f32::INFINITY),
            (3, 2.0),
            (4, 2.0),
            (0, f32::MIN_POSITIVE),
            (1, -0.0),
            (2, 0.0),
            (5, -1.0),
            (6, f32::MIN),
        ];
        let order = order.map(|(index, value)| Largest { index, value });
        assert!(order.windows(2).all(|pair| rank(&pair[0]) > rank(&pair[1])), "{order:?}");
    }
}
