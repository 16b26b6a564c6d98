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

use crate::buffers::{ALIGN, AlignedMemory};
use crate::pool::Pool;
use crate::quantize::Columns;
use bytemuck::AnyBitPattern;
use graph::BackendError;
use half::f16;
use quant::{
    BlockIQ4_NL, BlockIQ4_XS, BlockMXFP4, BlockQ2_K, BlockQ3_K, BlockQ4_0, BlockQ4_1, BlockQ4_K, BlockQ5_0,
    BlockQ5_1, BlockQ5_K, BlockQ6_K, BlockQ8_0, Format, e8m0_half, unpack_scales_mins_k, unpack_scales_q3_k,
};

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
    memory: AlignedMemory,
    group_bytes: usize,
    groups: usize,
}

impl Packed {
    /// Packs a matrix of whole blocks; `row` gives the bytes of a row in the file.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`] if there is no memory for the copy.
    pub(crate) fn new<'w>(
        pool: &mut Pool,
        format: Format,
        layout: Layout,
        [rows, cols]: [usize; 2],
        row: impl Fn(usize) -> &'w [u8] + Sync,
    ) -> Result<Packed, BackendError> {
        let (groups, group_bytes) = (rows.div_ceil(ROWS), layout.group_bytes(cols / 32));
        let bytes = groups.saturating_mul(group_bytes);
        let memory = AlignedMemory::zeroed(bytes, "packed weights")?;
        memory.prefer_huge_pages();
        // SAFETY: the memory is as long, and this is the one reference to it.
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
        Ok(Packed { memory, group_bytes, groups })
    }

    /// The bytes of a group, which starts at a cache line.
    pub(crate) fn group(&self, group: usize) -> &[u8] {
        assert!(group < self.groups, "group {group} of {}", self.groups);
        // SAFETY: inside the memory, which is only written while it is made.
        unsafe {
            std::slice::from_raw_parts(
                self.memory.as_ptr().add(group * self.group_bytes).cast_const(),
                self.group_bytes,
            )
        }
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
            to.codes(i, around(b.quants(), 8));
            to.halves(i, &[b.d]);
        }),
        Format::Q4_1 => each::<BlockQ4_1>(row, |i, b| {
            to.codes(i, around(b.quants(), 0));
            to.halves(i, &[b.d, b.m]);
        }),
        Format::Q5_0 => each::<BlockQ5_0>(row, |i, b| {
            to.codes(i, around(b.quants(), 16));
            to.halves(i, &[b.d]);
        }),
        Format::Q5_1 => each::<BlockQ5_1>(row, |i, b| {
            to.codes(i, around(b.quants(), 0));
            to.halves(i, &[b.d, b.m]);
        }),
        Format::Q8_0 => each::<BlockQ8_0>(row, |i, b| {
            to.codes(i, around(b.qs, 0));
            to.halves(i, &[b.d]);
        }),
        Format::IQ4_NL => each::<BlockIQ4_NL>(row, |i, b| {
            to.codes(i, b.indices());
            to.halves(i, &[b.d]);
        }),
        Format::MXFP4 => each::<BlockMXFP4>(row, |i, b| {
            to.codes(i, b.indices());
            to.float(i, e8m0_half(b.e));
        }),
        Format::Q2_K => each::<BlockQ2_K>(row, |i, b| {
            to.super_codes(i, &b.quants(), 0);
            to.halves(i, &[b.d, b.dmin]);
            to.bytes(i, 32, 2, |j, h| b.scales[2 * j + h]);
        }),
        Format::Q3_K => each::<BlockQ3_K>(row, |i, b| {
            let scales = unpack_scales_q3_k(&b.scales);
            to.super_codes(i, &b.quants(), 4);
            to.halves(i, &[b.d]);
            to.bytes(i, 16, 2, |j, h| scales[2 * j + h] as u8);
        }),
        Format::Q4_K => each::<BlockQ4_K>(row, |i, b| {
            let (scales, mins) = unpack_scales_mins_k(&b.scales);
            to.super_codes(i, &b.quants(), 0);
            to.halves(i, &[b.d, b.dmin]);
            to.bytes(i, 32, 2, |j, h| [scales, mins][h][j]);
        }),
        Format::Q5_K => each::<BlockQ5_K>(row, |i, b| {
            let (scales, mins) = unpack_scales_mins_k(&b.scales);
            to.super_codes(i, &b.quants(), 0);
            to.halves(i, &[b.d, b.dmin]);
            to.bytes(i, 32, 2, |j, h| [scales, mins][h][j]);
        }),
        Format::Q6_K => each::<BlockQ6_K>(row, |i, b| {
            to.super_codes(i, &b.quants(), 32);
            to.halves(i, &[b.d]);
            to.bytes(i, 16, 2, |j, h| b.scales[2 * j + h] as u8);
        }),
        Format::IQ4_XS => each::<BlockIQ4_XS>(row, |i, b| {
            let (indices, scales) = (b.indices(), b.unpack_scales());
            for j in 0..8 {
                to.codes(8 * i + j, std::array::from_fn(|k| indices[32 * j + k]));
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

/// Quants around an offset as unsigned codes (signed bytes keep their bits).
#[inline]
fn around(quants: [i8; 32], offset: i8) -> [u8; 32] {
    quants.map(|q| q.wrapping_add(offset) as u8)
}

/// Where the numbers of one row of a group go.
struct RowWriter<'a> {
    layout: Layout,
    r: usize,
    quants: &'a mut [u8],
    scales: &'a mut [u8],
}

impl RowWriter<'_> {
    /// The codes of a block. Four columns are a word, and travel together.
    #[inline]
    fn codes(&mut self, block: usize, codes: [u8; 32]) {
        let size = self.layout.quant_bytes();
        let planes = &mut self.quants[block * size..][..size];
        let first = 4 * self.r;
        let mut put = |plane: usize, word: u32| {
            planes[32 * plane + first..][..4].copy_from_slice(&word.to_le_bytes());
        };
        let words: [u32; 8] = std::array::from_fn(|g| {
            u32::from_le_bytes([codes[4 * g], codes[4 * g + 1], codes[4 * g + 2], codes[4 * g + 3]])
        });
        let field = |g: usize, bit: u32, mask: u32| words[g] >> bit & mask;
        // Bit pairs of quants `4 p .. 4 p + 4`, from bit `bit` of the codes.
        let pairs = |p: usize, bit: u32| {
            (0..4).fold(0, |word, i| word | field(4 * p + i, bit, 0x0303_0303) << (2 * i))
        };
        let single = |bit: u32| (0..8).fold(0, |word, g| word | field(g, bit, 0x0101_0101) << g);
        match self.layout.bits {
            8 => (0..8).for_each(|g| put(g, words[g])),
            4..=6 => {
                let nibbles = |g: usize| field(g, 0, 0x0f0f_0f0f) | field(g + 4, 0, 0x0f0f_0f0f) << 4;
                (0..4).for_each(|g| put(g, nibbles(g)));
                match self.layout.bits {
                    5 => put(4, single(4)),
                    6 => (0..2).for_each(|p| put(4 + p, pairs(p, 4))),
                    _ => {}
                }
            }
            bits => {
                (0..2).for_each(|p| put(p, pairs(p, 0)));
                if bits == 3 {
                    put(2, single(2));
                }
            }
        }
    }

    /// The codes of a super-block.
    #[inline]
    fn super_codes(&mut self, unit: usize, quants: &[i8; 256], offset: i8) {
        for j in 0..8 {
            self.codes(8 * unit + j, around(std::array::from_fn(|k| quants[32 * j + k]), offset));
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
