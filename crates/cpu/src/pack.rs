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
//! The small functions here are always inlined, and loops are plain: a call or an iterator adaptor that is left over in
//! the innermost loop costs as much as all the rest.

use crate::buffers::{ALIGN, AlignedMemory};
use crate::pool::Pool;
use crate::quantize::Columns;
use bytemuck::AnyBitPattern;
use bytes::Bytes;
use graph::BackendError;
use half::f16;
use quant::{
    BlockIQ4_NL, BlockIQ4_XS, BlockMXFP4, BlockQ2_K, BlockQ3_K, BlockQ4_0, BlockQ4_1, BlockQ4_K, BlockQ5_0,
    BlockQ5_1, BlockQ5_K, BlockQ6_K, BlockQ8_0, Format, e8m0_half, unpack_scales_mins_k, unpack_scales_q3_k,
};
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
    /// Packs a matrix of whole blocks; `row` gives the bytes of a row in the file.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`] if there is no memory for the copy.
    pub(crate) fn new<'w>(
        pool: &mut Pool,
        arena: &mut Arena,
        format: Format,
        layout: Layout,
        [rows, cols]: [usize; 2],
        row: impl Fn(usize) -> &'w [u8] + Sync,
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
                for r in 0..ROWS.min(rows - group * ROWS) {
                    pack_row(format, layout, cols / 32, row(group * ROWS + r), r, to);
                }
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

    /// The bytes of a group, which starts at a cache line.
    pub(crate) fn group(&self, group: usize) -> &[u8] {
        assert!(group < self.groups, "group {group} of {}", self.groups);
        &self.all()[group * self.group_bytes..][..self.group_bytes]
    }
}

/// Writes row `r` of a group that starts as zeros.
///
/// # Panics
/// If the format has no packed form, or the slices are shorter than the layout says.
pub(crate) fn pack_row(
    format: Format,
    layout: Layout,
    blocks: usize,
    row: &[u8],
    r: usize,
    group: &mut [u8],
) {
    let (quants, scales) = group[..layout.group_bytes(blocks)].split_at_mut(blocks * layout.quant_bytes());
    let mut to = RowWriter { layout, r, quants, scales };
    match format {
        Format::Q4_0 => each::<BlockQ4_0>(row, |i, b| {
            to.nibbles(i, &b.qs);
            to.halves(i, &[b.d]);
        }),
        Format::Q4_1 => each::<BlockQ4_1>(row, |i, b| {
            to.nibbles(i, &b.qs);
            to.halves(i, &[b.d, b.m]);
        }),
        Format::Q5_0 => each::<BlockQ5_0>(row, |i, b| {
            to.nibbles(i, &b.qs);
            to.put(i, 4, bits_of_block(u32::from_le_bytes(b.qh)));
            to.halves(i, &[b.d]);
        }),
        Format::Q5_1 => each::<BlockQ5_1>(row, |i, b| {
            to.nibbles(i, &b.qs);
            to.put(i, 4, bits_of_block(u32::from_le_bytes(b.qh)));
            to.halves(i, &[b.d, b.m]);
        }),
        Format::Q8_0 => each::<BlockQ8_0>(row, |i, b| {
            let quants: [u32; 8] = words(bytemuck::cast_slice(&b.qs));
            for (g, word) in quants.into_iter().enumerate() {
                to.put(i, g, word);
            }
            to.halves(i, &[b.d]);
        }),
        Format::IQ4_NL => each::<BlockIQ4_NL>(row, |i, b| {
            to.nibbles(i, &b.qs);
            to.halves(i, &[b.d]);
        }),
        Format::MXFP4 => each::<BlockMXFP4>(row, |i, b| {
            to.nibbles(i, &b.qs);
            to.float(i, e8m0_half(b.e));
        }),
        Format::Q2_K => each::<BlockQ2_K>(row, |i, b| {
            for half in 0..2 {
                to.pairs(8 * i + 4 * half, 0, &b.qs[32 * half..]);
            }
            to.halves(i, &[b.d, b.dmin]);
            to.bytes(i, 32, 2, |j, h| b.scales[2 * j + h]);
        }),
        Format::Q3_K => each::<BlockQ3_K>(row, |i, b| {
            let scales = unpack_scales_q3_k(&b.scales);
            for half in 0..2 {
                to.pairs(8 * i + 4 * half, 0, &b.qs[32 * half..]);
            }
            to.singles(i, 2, &b.hmask);
            to.halves(i, &[b.d]);
            to.bytes(i, 16, 2, |j, h| scales[2 * j + h] as u8);
        }),
        Format::Q4_K => each::<BlockQ4_K>(row, |i, b| {
            let (scales, mins) = unpack_scales_mins_k(&b.scales);
            for pair in 0..4 {
                to.two_nibbles([8 * i + 2 * pair, 8 * i + 2 * pair + 1], &b.qs[32 * pair..]);
            }
            to.halves(i, &[b.d, b.dmin]);
            to.bytes(i, 32, 2, |j, h| [scales, mins][h][j]);
        }),
        Format::Q5_K => each::<BlockQ5_K>(row, |i, b| {
            let (scales, mins) = unpack_scales_mins_k(&b.scales);
            for pair in 0..4 {
                to.two_nibbles([8 * i + 2 * pair, 8 * i + 2 * pair + 1], &b.qs[32 * pair..]);
            }
            to.singles(i, 4, &b.qh);
            to.halves(i, &[b.d, b.dmin]);
            to.bytes(i, 32, 2, |j, h| [scales, mins][h][j]);
        }),
        Format::Q6_K => each::<BlockQ6_K>(row, |i, b| {
            for half in 0..2 {
                let first = 8 * i + 4 * half;
                to.two_nibbles([first, first + 2], &b.ql[64 * half..]);
                to.two_nibbles([first + 1, first + 3], &b.ql[64 * half + 32..]);
                to.pairs(first, 4, &b.qh[32 * half..]);
            }
            to.halves(i, &[b.d]);
            to.bytes(i, 16, 2, |j, h| b.scales[2 * j + h] as u8);
        }),
        Format::IQ4_XS => each::<BlockIQ4_XS>(row, |i, b| {
            let scales = b.unpack_scales();
            for j in 0..8 {
                to.nibbles(8 * i + j, &b.qs[16 * j..]);
            }
            to.halves(i, &[b.d]);
            to.bytes(i, 16, 1, |j, _| scales[j] as u8);
        }),
        Format::F32 | Format::F16 | Format::BF16 | Format::Q8_K => {
            unreachable!("`Layout::of` is asked before rows are packed")
        }
    }
}

#[inline]
fn each<B: AnyBitPattern>(row: &[u8], mut f: impl FnMut(usize, B)) {
    for (index, bytes) in row.chunks_exact(size_of::<B>()).enumerate() {
        f(index, bytemuck::pod_read_unaligned(bytes));
    }
}

/// The first bytes as words of four columns.
///
/// # Panics
/// If there are fewer.
#[inline(always)]
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes[..4 * N].as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

/// The bits of a block's 32 columns, in order, as their plane: bit `g` of byte `c` is that of column `4g + c`.
#[inline(always)]
fn bits_of_block(bits: u32) -> u32 {
    let mut word = 0;
    for g in 0..8 {
        // The product has each of the four bits at the bottom of a byte of its own.
        word |= ((bits >> (4 * g) & 15).wrapping_mul(0x0020_4081) & 0x0101_0101) << g;
    }
    word
}

/// Exchanges the fields of `words[i]` that `mask << shift` covers with those of `words[j]` that `mask` covers: a step of
/// transposing a matrix of bit fields, in the four bytes alike.
#[inline(always)]
fn exchange(words: &mut [u32], [i, j]: [usize; 2], shift: u32, mask: u32) {
    let changed = ((words[i] >> shift) ^ words[j]) & mask;
    words[j] ^= changed;
    words[i] ^= changed << shift;
}

/// Where the numbers of one row of a group go.
struct RowWriter<'a> {
    layout: Layout,
    r: usize,
    quants: &'a mut [u8],
    scales: &'a mut [u8],
}

impl RowWriter<'_> {
    /// A word of a plane of a block: four columns of this row, or bits of more of them.
    #[inline(always)]
    fn put(&mut self, block: usize, plane: usize, word: u32) {
        let at = block * self.layout.quant_bytes() + 32 * plane + 4 * self.r;
        self.quants[at..][..4].copy_from_slice(&word.to_le_bytes());
    }

    /// 16 bytes with columns `i` in low and `i + 16` in high nibbles: as they are.
    #[inline(always)]
    fn nibbles(&mut self, block: usize, bytes: &[u8]) {
        let words: [u32; 4] = words(bytes);
        for (g, word) in words.into_iter().enumerate() {
            self.put(block, g, word);
        }
    }

    /// 32 bytes with the columns of one block in low, of another in high nibbles.
    #[inline(always)]
    fn two_nibbles(&mut self, [low, high]: [usize; 2], bytes: &[u8]) {
        const LOW: u32 = 0x0f0f_0f0f;
        let words: [u32; 8] = words(bytes);
        for g in 0..4 {
            let (first, second) = (words[g], words[g + 4]);
            self.put(low, g, first & LOW | (second & LOW) << 4);
            self.put(high, g, first >> 4 & LOW | second & !LOW);
        }
    }

    /// 32 bytes whose bit pair `k` belongs to block `first + k`: two planes of four blocks, from `plane` on.
    #[inline(always)]
    fn pairs(&mut self, first: usize, plane: usize, bytes: &[u8]) {
        let mut words: [u32; 8] = words(bytes);
        for (p, words) in words.chunks_exact_mut(4).enumerate() {
            for [i, j] in [[0, 1], [2, 3]] {
                exchange(words, [i, j], 2, 0x3333_3333);
            }
            for [i, j] in [[0, 2], [1, 3]] {
                exchange(words, [i, j], 4, 0x0f0f_0f0f);
            }
            for (k, &mut word) in words.iter_mut().enumerate() {
                self.put(first + k, plane + p, word);
            }
        }
    }

    /// 32 bytes whose bit `j` belongs to block `j` of a super-block: a plane of each.
    #[inline(always)]
    fn singles(&mut self, unit: usize, plane: usize, bytes: &[u8]) {
        let mut words: [u32; 8] = words(bytes);
        for (step, mask) in [(1, 0x5555_5555), (2, 0x3333_3333), (4, 0x0f0f_0f0f)] {
            for i in 0..8 {
                if i & step == 0 {
                    exchange(&mut words, [i, i + step], step as u32, mask);
                }
            }
        }
        for (j, word) in words.into_iter().enumerate() {
            self.put(8 * unit + j, plane, word);
        }
    }

    fn unit(&mut self, unit: usize) -> &mut [u8] {
        let size = self.layout.scale_bytes;
        &mut self.scales[unit * size..][..size]
    }

    /// Half floats at the start of a unit: eight of the first number, then of the second.
    #[inline]
    fn halves(&mut self, unit: usize, values: &[f16]) {
        let r = self.r;
        for (to, value) in self.unit(unit).chunks_exact_mut(2 * ROWS).zip(values) {
            to[2 * r..][..2].copy_from_slice(&value.to_ne_bytes());
        }
    }

    /// An f32 in place of the half floats.
    fn float(&mut self, unit: usize, value: f32) {
        let r = self.r;
        self.unit(unit)[4 * r..][..4].copy_from_slice(&value.to_ne_bytes());
    }

    /// `each` bytes for each block of a unit, from byte `first` on.
    #[inline]
    fn bytes(&mut self, unit: usize, first: usize, each: usize, value: impl Fn(usize, usize) -> u8) {
        let r = self.r;
        let to = &mut self.unit(unit)[first..];
        for j in 0..8 {
            for h in 0..each {
                to[(each * j + h) * ROWS + r] = value(j, h);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::blocks::for_each_block;
    use crate::simd::tests::random_weights;
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
            for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
                pack_row(format, layout, cols / 32, row, r, &mut group);
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
        for format in Format::ALL {
            let Some(layout) = Layout::of(format) else { continue };
            let rows = random_weights(format, ROWS, cols, 5);
            let row_bytes = format.row_bytes(cols).unwrap();
            let mut group = vec![0; layout.group_bytes(cols / 32)];
            let best = (0..2000).map(|_| {
                let start = std::time::Instant::now();
                for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
                    pack_row(format, layout, cols / 32, row, r, &mut group);
                }
                start.elapsed()
            });
            let seconds = best.min().unwrap().as_secs_f64();
            println!("{format:8} {:5.2} GB/s", rows.len() as f64 / seconds / 1e9);
        }
    }
}
