//! Weights in the order that the kernels stream: eight rows side by side.
//!
//! A *group* is eight rows. It holds first the quants of all its blocks of 32 columns, then the scales of all its
//! units (a unit is what shares a float factor: one block, or eight blocks of the K formats). Quant `g` of a block,
//! `g` in 0 to 8, is 32 bytes: four columns `4g .. 4g + 4` of row 0, the same of row 1, and so on; a vector register
//! holds it whole, multiplies it with four activations, and each 32-bit lane then belongs to one row, so that no sum
//! ever crosses lanes. Quants of less than 8 bits share bytes in planes:
//!
//! | bits | planes of a block |
//! |---|---|
//! | 8 | 8 x 32 bytes: `g` |
//! | 4 | 4 x 32 bytes: low nibble `g`, high nibble `g + 4` |
//! | 5 | the 4-bit planes, then 32 bytes whose bit `g` is the fifth bit |
//! | 6 | the 4-bit planes, then 2 x 32 bytes with bit pairs `g % 4` for `g / 4` |
//! | 2 | 2 x 32 bytes with bit pairs `g % 4` for `g / 4` |
//! | 3 | the 2-bit planes, then 32 bytes whose bit `g` is the third bit |
//!
//! Nothing is rounded: the same numbers in another order, with sub-block scales as bytes.
//!
//! What brings the numbers there is in [`crate::pack_group`].

use crate::buffers::{ALIGN, AlignedMemory};
use crate::pool::Pool;
use crate::quantize::Columns;
use crate::simd::Kernels;
use bytes::Bytes;
use graph::BackendError;
use quant::Format;
use std::ops::Range;
use std::sync::Arc;

/// Rows of a group.
pub(crate) const ROWS: usize = 8;

/// Sizes of the parts of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bits of a quant.
    pub(crate) bits: usize,
    /// Blocks of a unit: 1 or 8.
    pub(crate) unit: usize,
    /// Bytes of a unit's scales.
    pub(crate) scale_bytes: usize,
}

impl Layout {
    /// The layout of a format; `None` if products with it are not made from integers.
    pub(crate) const fn of(format: Format) -> Option<Layout> {
        use Format::*;
        let (bits, unit, scale_bytes) = match format {
            Q4_0 | IQ4_NL => (4, 1, 16),
            Q4_1 | MXFP4 => (4, 1, 32),
            Q5_0 => (5, 1, 16),
            Q5_1 => (5, 1, 32),
            Q8_0 => (8, 1, 16),
            Q2_K => (2, 8, 32 + 8 * 16),
            Q3_K => (3, 8, 16 + 8 * 16),
            Q4_K => (4, 8, 32 + 8 * 16),
            Q5_K => (5, 8, 32 + 8 * 16),
            Q6_K => (6, 8, 16 + 8 * 16),
            IQ4_XS => (4, 8, 16 + 8 * 8),
            F32 | F16 | BF16 | Q8_K => return None,
        };
        Some(Layout { bits, unit, scale_bytes })
    }

    /// Bytes of the quants of a block.
    pub(crate) const fn quant_bytes(&self) -> usize {
        32 * self.bits
    }

    /// Bytes of a group that come to each of its blocks, scales included, rounded up.
    #[cfg(target_arch = "x86_64")]
    pub(crate) const fn block_bytes(&self) -> usize {
        (self.unit * self.quant_bytes() + self.scale_bytes).div_ceil(self.unit)
    }

    /// Bytes of a group of this many blocks: whole cache lines.
    pub(crate) const fn group_bytes(&self, blocks: usize) -> usize {
        (blocks * self.quant_bytes() + blocks / self.unit * self.scale_bytes).next_multiple_of(ALIGN)
    }
}

/// A packed matrix.
pub(crate) struct Packed {
    storage: Storage,
    group_bytes: usize,
    groups: usize,
}

enum Storage {
    Made(Part),
    /// A part of a mapped file.
    Mapped(Bytes),
}

/// Some groups of a packed matrix, counted from the first of them.
#[derive(Clone, Copy)]
pub(crate) struct Groups<'a> {
    bytes: &'a [u8],
    group_bytes: usize,
}

impl<'a> Groups<'a> {
    /// The bytes of a group, which starts at a cache line.
    #[cfg(any(test, target_arch = "x86_64", target_arch = "aarch64"))]
    pub(crate) fn group(&self, group: usize) -> &'a [u8] {
        &self.bytes[group * self.group_bytes..][..self.group_bytes]
    }
}

/// Memory for packed matrices, taken from the system in large pieces: only those can consist of large pages, and a
/// page that comes at the first write is most of what packing a small matrix costs.
#[derive(Default)]
pub(crate) struct Arena {
    /// The piece in use, and the bytes of it that were given out.
    current: Option<(Arc<AlignedMemory>, usize)>,
}

/// Bytes of an [`Arena`], from a cache line on. Nobody else has them.
struct Part {
    memory: Arc<AlignedMemory>,
    offset: usize,
    len: usize,
}

impl Arena {
    /// Bytes that are taken together. What is not used takes no memory.
    const PIECE: usize = 64 << 20;

    /// Zeros.
    fn take(&mut self, len: usize) -> Result<Part, BackendError> {
        if let Some((memory, used)) = &mut self.current
            && len <= memory.len() - *used
        {
            let part = Part { memory: Arc::clone(memory), offset: *used, len };
            *used = (*used + len).next_multiple_of(ALIGN).min(memory.len());
            return Ok(part);
        }
        let memory = Arc::new(AlignedMemory::zeroed(len.max(Self::PIECE), "packed weights")?);
        memory.prefer_huge_pages();
        self.current = Some((Arc::clone(&memory), len.next_multiple_of(ALIGN).min(memory.len())));
        Ok(Part { memory, offset: 0, len })
    }
}

impl Part {
    fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `Arena::take` gives out ranges of the memory.
        unsafe { self.memory.as_ptr().add(self.offset) }
    }
}

impl Packed {
    /// Packs a matrix of whole blocks, whose rows follow each other in `weights` without gaps.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`] if there is no memory for the copy.
    pub(crate) fn new(
        kernels: &Kernels,
        pool: &mut Pool,
        arena: &mut Arena,
        format: Format,
        layout: Layout,
        [rows, cols]: [usize; 2],
        weights: &[u8],
    ) -> Result<Packed, BackendError> {
        let (groups, group_bytes) = (rows.div_ceil(ROWS), layout.group_bytes(cols / 32));
        let bytes = groups.saturating_mul(group_bytes);
        let memory = arena.take(bytes)?;
        // SAFETY: the part is as long, nobody else has it, and this is the one reference to it.
        let all = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), bytes) };
        let groups_of = Columns::new(all, group_bytes);
        pool.run(groups, (1 << 16) / group_bytes.max(1) + 1, &|_, range| {
            for group in range {
                // SAFETY: each group is handed to exactly one worker.
                let to = unsafe { groups_of.row(group) };
                let rows = rows_of_group(weights, rows, group);
                // SAFETY: the table is for this processor.
                unsafe { (kernels.pack_group)(format, layout, cols, rows, to) };
            }
        })?;
        Ok(Packed { storage: Storage::Made(memory), group_bytes, groups })
    }

    /// A matrix that was packed before; `None` if the bytes are not as many as it takes, or not aligned.
    pub(crate) fn mapped(layout: Layout, [rows, cols]: [usize; 2], bytes: Bytes) -> Option<Packed> {
        let (groups, group_bytes) = (rows.div_ceil(ROWS), layout.group_bytes(cols / 32));
        let fits = groups.checked_mul(group_bytes) == Some(bytes.len());
        let aligned = bytes.is_empty() || bytes.as_ptr().addr().is_multiple_of(ALIGN);
        (fits && aligned).then_some(Packed { storage: Storage::Mapped(bytes), group_bytes, groups })
    }

    /// Bytes of all groups.
    pub(crate) fn bytes(&self) -> usize {
        self.all().len()
    }

    /// All groups.
    pub(crate) fn all(&self) -> &[u8] {
        match &self.storage {
            // SAFETY: all of the part, which is only written while the matrix is made.
            Storage::Made(memory) => unsafe {
                std::slice::from_raw_parts(memory.as_ptr().cast_const(), memory.len)
            },
            Storage::Mapped(bytes) => bytes,
        }
    }

    /// All groups, to be found by their numbers.
    pub(crate) fn view(&self) -> Groups<'_> {
        self.groups(0..self.groups)
    }

    /// Some groups.
    pub(crate) fn groups(&self, range: Range<usize>) -> Groups<'_> {
        assert!(range.end <= self.groups, "group {} of {}", range.end, self.groups);
        let group_bytes = self.group_bytes;
        Groups { bytes: &self.all()[range.start * group_bytes..range.end * group_bytes], group_bytes }
    }
}

/// The rows of a group in the bytes of a matrix of `rows` rows without gaps: eight, or those that are left.
pub(crate) fn rows_of_group(weights: &[u8], rows: usize, group: usize) -> &[u8] {
    let row_bytes = weights.len() / rows.max(1);
    &weights[group * ROWS * row_bytes..rows.min((group + 1) * ROWS) * row_bytes]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack_group::pack_group;
    use crate::simd::SimdLevel;
    use crate::simd::blocks::for_each_block;
    use crate::simd::tests::{levels, random_weights};
    use quant::{E2M1_DOUBLED_VALUES, IQ4_NL_VALUES};

    /// The code of a column, read from the planes as the module's table says.
    fn code(bits: usize, planes: &[u8], r: usize, column: usize) -> u8 {
        let (g, c) = (column / 4, column % 4);
        let byte = |plane: usize| planes[32 * plane + 4 * r + c];
        let nibble = |g: usize| if g < 4 { byte(g) & 15 } else { byte(g - 4) >> 4 };
        let pair = |first: usize| byte(first + g / 4) >> (2 * (g % 4)) & 3;
        let single = |plane: usize| byte(plane) >> g & 1;
        match bits {
            8 => byte(g),
            6 => nibble(g) | pair(4) << 4,
            5 => nibble(g) | single(4) << 4,
            4 => nibble(g),
            3 => pair(0) | single(2) << 2,
            _ => pair(0),
        }
    }

    fn quant_of(format: Format, code: u8) -> i8 {
        match format {
            Format::IQ4_NL | Format::IQ4_XS => IQ4_NL_VALUES[usize::from(code)],
            Format::MXFP4 => E2M1_DOUBLED_VALUES[usize::from(code)],
            Format::Q4_0 => code as i8 - 8,
            Format::Q5_0 => code as i8 - 16,
            Format::Q3_K => code as i8 - 4,
            Format::Q6_K => code as i8 - 32,
            _ => code as i8,
        }
    }

    #[test]
    fn planes_have_the_codes_that_the_table_says() {
        let cols = 512;
        for format in Format::ALL {
            let Some(layout) = Layout::of(format) else { continue };
            let rows = random_weights(format, ROWS, cols, 5);
            let row_bytes = format.row_bytes(cols).unwrap();
            let mut group = vec![0; layout.group_bytes(cols / 32)];
            pack_group(format, layout, cols, &rows, &mut group);
            for kernels in levels() {
                let mut found = vec![0; group.len()];
                // SAFETY: the table is for this processor.
                unsafe { (kernels.pack_group)(format, layout, cols, &rows, &mut found) };
                assert_eq!(found, group, "{format}: {}", kernels.level);
            }
            for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
                for_each_block(format, row, |b, block| {
                    let planes = &group[b * layout.quant_bytes()..];
                    for (column, q) in block.q.into_iter().enumerate() {
                        let found = quant_of(format, code(layout.bits, planes, r, column));
                        assert_eq!(found, q, "{format}: row {r}, block {b}, column {column}");
                    }
                });
            }
        }
    }

    /// Gigabytes of the file per second and thread; the best of many short runs, since machines are shared.
    #[test]
    #[ignore = "a measurement"]
    fn speed() {
        let cols = 2048;
        let kernels = Kernels::of(SimdLevel::detect()).unwrap();
        for format in Format::ALL {
            let Some(layout) = Layout::of(format) else { continue };
            let rows = random_weights(format, ROWS, cols, 5);
            let mut group = vec![0; layout.group_bytes(cols / 32)];
            let best = (0..2000).map(|_| {
                let start = std::time::Instant::now();
                // SAFETY: the table is for this processor.
                unsafe { (kernels.pack_group)(format, layout, cols, &rows, &mut group) };
                start.elapsed()
            });
            let seconds = best.min().unwrap().as_secs_f64();
            println!("{format:8} {:5.2} GB/s", rows.len() as f64 / seconds / 1e9);
        }
    }
}
