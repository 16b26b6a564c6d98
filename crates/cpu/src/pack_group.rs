//! Packing a group of [`crate::pack`]: from eight rows as they lie in the file to the order of the kernels.
//!
//! The rows are packed together. Four bytes of each are one of the eight words of a vector ([`Words`]), and the same few
//! steps bring all of them to their places. So packing is fast enough to be done again at every product, where weights
//! are to stay as they are in the file.
//!
//! All functions here are always inlined, so that a level compiles them with its instructions, and loops are plain: a
//! call or an iterator adaptor that is left over in the innermost loop costs as much as all the rest.

#![allow(clippy::needless_range_loop, reason = "see above")]

use crate::pack::{Layout, ROWS};
use crate::simd::prefetch;
use quant::{
    BlockIQ4_NL, BlockIQ4_XS, BlockMXFP4, BlockQ2_K, BlockQ3_K, BlockQ4_0, BlockQ4_1, BlockQ4_K, BlockQ5_0,
    BlockQ5_1, BlockQ5_K, BlockQ6_K, BlockQ8_0, Format, e8m0_half,
};
use std::mem::offset_of;

/// A word of each row.
type Words = [u32; ROWS];

/// The low nibble of each byte.
const NIBBLES: u32 = 0x0f0f_0f0f;
/// The low two bits of each byte.
const PAIRS: u32 = 0x0303_0303;

/// Packs a group: `rows` are its rows of `cols` elements, without gaps. In place of rows that are missing from eight, the
/// last one is repeated.
///
/// # Panics
/// If the format has no packed form, there is no row, or a slice is shorter than the layout says.
#[inline(always)]
pub(crate) fn pack_group(format: Format, layout: Layout, cols: usize, rows: &[u8], group: &mut [u8]) {
    let (blocks, row_bytes) = (cols / 32, format.row_bytes(cols).unwrap_or(0));
    if blocks == 0 {
        return;
    }
    let (quants, rest) = group.split_at_mut(blocks * layout.quant_bytes());
    let scales = &mut rest[..blocks / layout.unit * layout.scale_bytes];
    let count = rows.len() / row_bytes;
    assert!(count > 0, "a row of {row_bytes} bytes in {}", rows.len());
    let mut starts = [0; ROWS];
    for r in 0..ROWS {
        starts[r] = r.min(count - 1) * row_bytes;
    }
    let mut to = Group { layout, rows, starts, quants, scales };
    // Not a function with a closure: that might be compiled on its own, without the caller's instructions.
    macro_rules! each {
        ($block:ty, |$i:ident| $body:block) => {
            for $i in 0..blocks / layout.unit {
                // The rows of the next group, a part at a time.
                let together = ROWS * size_of::<$block>();
                prefetch(rows.as_ptr().wrapping_add(rows.len() + $i * together), together);
                $body
                for start in &mut to.starts {
                    *start += size_of::<$block>();
                }
            }
        };
    }
    match format {
        Format::Q4_0 => each!(BlockQ4_0, |i| {
            to.nibbles(i, offset_of!(BlockQ4_0, qs));
            to.halves(i, 0, offset_of!(BlockQ4_0, d));
        }),
        Format::Q4_1 => each!(BlockQ4_1, |i| {
            to.nibbles(i, offset_of!(BlockQ4_1, qs));
            to.two_halves(i, offset_of!(BlockQ4_1, d));
        }),
        Format::Q5_0 => each!(BlockQ5_0, |i| {
            to.nibbles(i, offset_of!(BlockQ5_0, qs));
            to.bits(i, 4, offset_of!(BlockQ5_0, qh));
            to.halves(i, 0, offset_of!(BlockQ5_0, d));
        }),
        Format::Q5_1 => each!(BlockQ5_1, |i| {
            to.nibbles(i, offset_of!(BlockQ5_1, qs));
            to.bits(i, 4, offset_of!(BlockQ5_1, qh));
            to.two_halves(i, offset_of!(BlockQ5_1, d));
        }),
        Format::Q8_0 => each!(BlockQ8_0, |i| {
            let words: [Words; 8] = to.words(offset_of!(BlockQ8_0, qs));
            for g in 0..8 {
                to.put(i, g, &words[g]);
            }
            to.halves(i, 0, offset_of!(BlockQ8_0, d));
        }),
        Format::IQ4_NL => each!(BlockIQ4_NL, |i| {
            to.nibbles(i, offset_of!(BlockIQ4_NL, qs));
            to.halves(i, 0, offset_of!(BlockIQ4_NL, d));
        }),
        Format::MXFP4 => each!(BlockMXFP4, |i| {
            to.nibbles(i, offset_of!(BlockMXFP4, qs));
            to.exponents(i, offset_of!(BlockMXFP4, e));
        }),
        Format::Q2_K => each!(BlockQ2_K, |i| {
            for half in 0..2 {
                to.pairs(8 * i + 4 * half, 0, offset_of!(BlockQ2_K, qs) + 32 * half);
            }
            to.two_halves(i, offset_of!(BlockQ2_K, d));
            let scales: [Words; 4] = to.words(offset_of!(BlockQ2_K, scales));
            to.bytes(i, 32, &scales);
        }),
        Format::Q3_K => each!(BlockQ3_K, |i| {
            for half in 0..2 {
                to.pairs(8 * i + 4 * half, 0, offset_of!(BlockQ3_K, qs) + 32 * half);
            }
            to.singles(i, 2, offset_of!(BlockQ3_K, hmask));
            to.halves(i, 0, offset_of!(BlockQ3_K, d));
            let scales = scales_q3_k(to.words(offset_of!(BlockQ3_K, scales)));
            to.bytes(i, 16, &scales);
        }),
        Format::Q4_K => each!(BlockQ4_K, |i| {
            for pair in 0..4 {
                let blocks = [8 * i + 2 * pair, 8 * i + 2 * pair + 1];
                to.two_nibbles(blocks, offset_of!(BlockQ4_K, qs) + 32 * pair);
            }
            to.two_halves(i, offset_of!(BlockQ4_K, d));
            // The first word is that of `d` and `dmin`.
            let [_, scales, mins, low] = to.words(offset_of!(BlockQ4_K, scales) - 4);
            let scales = scales_mins_k([scales, mins, low]);
            to.pairs_of_bytes(i, 32, &scales);
        }),
        Format::Q5_K => each!(BlockQ5_K, |i| {
            for pair in 0..4 {
                let blocks = [8 * i + 2 * pair, 8 * i + 2 * pair + 1];
                to.two_nibbles(blocks, offset_of!(BlockQ5_K, qs) + 32 * pair);
            }
            to.singles(i, 4, offset_of!(BlockQ5_K, qh));
            to.two_halves(i, offset_of!(BlockQ5_K, d));
            // The first word is that of `d` and `dmin`.
            let [_, scales, mins, low] = to.words(offset_of!(BlockQ5_K, scales) - 4);
            let scales = scales_mins_k([scales, mins, low]);
            to.pairs_of_bytes(i, 32, &scales);
        }),
        Format::Q6_K => each!(BlockQ6_K, |i| {
            for half in 0..2 {
                let (first, low) = (8 * i + 4 * half, offset_of!(BlockQ6_K, ql) + 64 * half);
                to.two_nibbles([first, first + 2], low);
                to.two_nibbles([first + 1, first + 3], low + 32);
                to.pairs(first, 4, offset_of!(BlockQ6_K, qh) + 32 * half);
            }
            to.halves(i, 0, offset_of!(BlockQ6_K, d));
            let scales: [Words; 4] = to.words(offset_of!(BlockQ6_K, scales));
            to.bytes(i, 16, &scales);
        }),
        Format::IQ4_XS => each!(BlockIQ4_XS, |i| {
            for j in 0..8 {
                to.nibbles(8 * i + j, offset_of!(BlockIQ4_XS, qs) + 16 * j);
            }
            to.halves(i, 0, offset_of!(BlockIQ4_XS, d));
            let scales = scales_iq4_xs(to.words(offset_of!(BlockIQ4_XS, d)));
            to.bytes(i, 16, &scales);
        }),
        Format::F32 | Format::F16 | Format::BF16 | Format::Q8_K => {
            unreachable!("`Layout::of` is asked before rows are packed")
        }
    }
}

/// A function of the words of two vectors, row by row.
#[inline(always)]
fn zip(a: &Words, b: &Words, f: impl Fn(u32, u32) -> u32) -> Words {
    let mut words = [0; ROWS];
    for r in 0..ROWS {
        words[r] = f(a[r], b[r]);
    }
    words
}

/// A function of the words of a vector.
#[inline(always)]
fn map(a: &Words, f: impl Fn(u32) -> u32) -> Words {
    zip(a, a, |a, _| f(a))
}

/// Rows become columns.
#[inline(always)]
fn transpose(rows: [[u32; 4]; 4]) -> [[u32; 4]; 4] {
    #[cfg(target_arch = "x86_64")]
    {
        use bytemuck::cast;
        use std::arch::x86_64::{
            _mm_unpackhi_epi32, _mm_unpackhi_epi64, _mm_unpacklo_epi32, _mm_unpacklo_epi64,
        };
        let [a, b, c, d] = [cast(rows[0]), cast(rows[1]), cast(rows[2]), cast(rows[3])];
        // SAFETY: every x86-64 has SSE2. (The compiler makes 16 loads of single words from the plain loop.)
        #[allow(unused_unsafe, reason = "depends on the compiler's version")]
        unsafe {
            let (low, high) = (_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
            let (low_2, high_2) = (_mm_unpacklo_epi32(c, d), _mm_unpackhi_epi32(c, d));
            [
                cast(_mm_unpacklo_epi64(low, low_2)),
                cast(_mm_unpackhi_epi64(low, low_2)),
                cast(_mm_unpacklo_epi64(high, high_2)),
                cast(_mm_unpackhi_epi64(high, high_2)),
            ]
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let mut columns = [[0; 4]; 4];
        for i in 0..4 {
            for j in 0..4 {
                columns[j][i] = rows[i][j];
            }
        }
        columns
    }
}

/// Exchanges the fields of `words[i]` that `mask << shift` covers with those of `words[j]` that `mask` covers: a step of
/// transposing a matrix of bit fields, in the four bytes alike.
#[inline(always)]
fn exchange(words: &mut [Words], [i, j]: [usize; 2], shift: u32, mask: u32) {
    let changed = zip(&words[i], &words[j], |a, b| ((a >> shift) ^ b) & mask);
    words[j] = zip(&words[j], &changed, |b, changed| b ^ changed);
    words[i] = zip(&words[i], &changed, |a, changed| a ^ changed << shift);
}

/// Exchanges the bits that `mask` covers with those `shift` places higher.
#[inline(always)]
fn exchange_bits(word: u32, shift: u32, mask: u32) -> u32 {
    let changed = ((word >> shift) ^ word) & mask;
    word ^ changed ^ changed << shift
}

/// The bits of a block's 32 columns, in order, as their plane: bit `g` of byte `c` is that of column `4g + c`.
///
/// The number of a bit has five binary digits, `g` and then `c`; four exchanges of two digits bring `c` before `g`.
#[inline(always)]
fn plane_of_bits(bits: u32) -> u32 {
    let bits = exchange_bits(bits, 14, 0x0000_cccc);
    let bits = exchange_bits(bits, 7, 0x00aa_00aa);
    let bits = exchange_bits(bits, 2, 0x0c0c_0c0c);
    exchange_bits(bits, 1, 0x2222_2222)
}

/// Scales 0 to 3, minimums 0 to 3, scales 4 to 7, minimums 4 to 7: [`quant::unpack_scales_mins_k`], as bytes of words.
#[inline(always)]
fn scales_mins_k([scales, mins, low]: [Words; 3]) -> [Words; 4] {
    let six = |w| w & 0x3f3f_3f3f;
    let high = |w: u32| (w >> 6 & PAIRS) << 4;
    [
        map(&scales, six),
        map(&mins, six),
        zip(&low, &scales, |low, w| low & NIBBLES | high(w)),
        zip(&low, &mins, |low, w| low >> 4 & NIBBLES | high(w)),
    ]
}

/// The 16 scales of [`quant::unpack_scales_q3_k`], as bytes of words.
#[inline(always)]
fn scales_q3_k([first, second, high]: [Words; 3]) -> [Words; 4] {
    let scale = |low: u32, high: u32| less_32(low & NIBBLES | (high & PAIRS) << 4);
    [
        zip(&first, &high, scale),
        zip(&second, &high, |low, high| scale(low, high >> 2)),
        zip(&first, &high, |low, high| scale(low >> 4, high >> 4)),
        zip(&second, &high, |low, high| scale(low >> 4, high >> 6)),
    ]
}

/// The 8 scales of [`BlockIQ4_XS::unpack_scales`], as bytes of words. The first word has their high bits in its upper
/// half.
#[inline(always)]
fn scales_iq4_xs([high, low]: [Words; 2]) -> [Words; 2] {
    let scale = |low: u32, high: u32| {
        // Four nibbles, and four pairs of bits, each to a byte of its own.
        let low = (low & 0xffff | low << 8) & 0x00ff_00ff;
        let low = (low | low << 4) & NIBBLES;
        let high = (high & 0xff | high << 12) & 0x000f_000f;
        let high = (high | high << 6) & PAIRS;
        less_32(low | high << 4)
    };
    [
        zip(&low, &high, |low, high| scale(low & 0xffff, high >> 16 & 0xff)),
        zip(&low, &high, |low, high| scale(low >> 16, high >> 24)),
    ]
}

/// Bytes of six bits, less 32.
#[inline(always)]
fn less_32(bytes: u32) -> u32 {
    // The sixth bit, inverted, is the sign.
    let bytes = bytes ^ 0x2020_2020;
    let sign = bytes & 0x2020_2020;
    bytes | sign << 1 | sign << 2
}

/// A group being written, and where its rows are read.
struct Group<'a> {
    layout: Layout,
    rows: &'a [u8],
    /// Where the current block of each row starts in `rows`.
    starts: [usize; ROWS],
    quants: &'a mut [u8],
    scales: &'a mut [u8],
}

impl Group<'_> {
    /// Words of each row's block, from byte `at` of it on.
    #[inline(always)]
    fn words<const N: usize>(&self, at: usize) -> [Words; N] {
        let mut words = [[0; ROWS]; N];
        let whole = N / 4 * 4;
        for first in (0..ROWS).step_by(4) {
            for k in (0..whole).step_by(4) {
                let at = at + 4 * k;
                let row = |r: usize| self.word_rows::<4>(first + r, at);
                let columns = transpose([row(0), row(1), row(2), row(3)]);
                for i in 0..4 {
                    words[k + i][first..first + 4].copy_from_slice(&columns[i]);
                }
            }
        }
        for r in 0..ROWS {
            for k in whole..N {
                let [word] = self.word_rows::<1>(r, at + 4 * k);
                words[k][r] = word;
            }
        }
        words
    }

    /// Words of one row's block.
    #[inline(always)]
    fn word_rows<const N: usize>(&self, r: usize, at: usize) -> [u32; N] {
        let bytes = &self.rows[self.starts[r] + at..][..4 * N];
        let mut words = [0; N];
        for k in 0..N {
            words[k] =
                u32::from_le_bytes([bytes[4 * k], bytes[4 * k + 1], bytes[4 * k + 2], bytes[4 * k + 3]]);
        }
        words
    }

    /// A plane of a block.
    #[inline(always)]
    fn put(&mut self, block: usize, plane: usize, words: &Words) {
        let at = block * self.layout.quant_bytes() + 32 * plane;
        let to = &mut self.quants[at..][..4 * ROWS];
        for r in 0..ROWS {
            to[4 * r..][..4].copy_from_slice(&words[r].to_le_bytes());
        }
    }

    /// 16 bytes with columns `i` in low and `i + 16` in high nibbles: as they are.
    #[inline(always)]
    fn nibbles(&mut self, block: usize, at: usize) {
        let words: [Words; 4] = self.words(at);
        for g in 0..4 {
            self.put(block, g, &words[g]);
        }
    }

    /// 32 bytes with the columns of one block in low, of another in high nibbles.
    #[inline(always)]
    fn two_nibbles(&mut self, [low, high]: [usize; 2], at: usize) {
        let words: [Words; 8] = self.words(at);
        for g in 0..4 {
            let (first, second) = (&words[g], &words[g + 4]);
            self.put(low, g, &zip(first, second, |a, b| a & NIBBLES | (b & NIBBLES) << 4));
            self.put(high, g, &zip(first, second, |a, b| a >> 4 & NIBBLES | b & !NIBBLES));
        }
    }

    /// 32 bytes whose bit pair `k` belongs to block `first + k`: two planes of four blocks, from `plane` on.
    #[inline(always)]
    fn pairs(&mut self, first: usize, plane: usize, at: usize) {
        for p in 0..2 {
            let mut words: [Words; 4] = self.words(at + 16 * p);
            for [i, j] in [[0, 1], [2, 3]] {
                exchange(&mut words, [i, j], 2, 0x3333_3333);
            }
            for [i, j] in [[0, 2], [1, 3]] {
                exchange(&mut words, [i, j], 4, NIBBLES);
            }
            for k in 0..4 {
                self.put(first + k, plane + p, &words[k]);
            }
        }
    }

    /// 32 bytes whose bit `j` belongs to block `j` of a super-block: a plane of each.
    #[inline(always)]
    fn singles(&mut self, unit: usize, plane: usize, at: usize) {
        let mut words: [Words; 8] = self.words(at);
        for (step, mask) in [(1, 0x5555_5555), (2, 0x3333_3333), (4, NIBBLES)] {
            for i in 0..8 {
                if i & step == 0 {
                    exchange(&mut words, [i, i + step], step as u32, mask);
                }
            }
        }
        for j in 0..8 {
            self.put(8 * unit + j, plane, &words[j]);
        }
    }

    /// The bits of a block's columns, in order: a plane.
    #[inline(always)]
    fn bits(&mut self, block: usize, plane: usize, at: usize) {
        let [bits] = self.words(at);
        self.put(block, plane, &map(&bits, plane_of_bits));
    }

    /// The scales of a unit.
    #[inline(always)]
    fn unit(&mut self, unit: usize) -> &mut [u8] {
        let size = self.layout.scale_bytes;
        &mut self.scales[unit * size..][..size]
    }

    /// Half floats: number `index` of the unit.
    #[inline(always)]
    fn halves(&mut self, unit: usize, index: usize, at: usize) {
        let mut bytes = [0; 2 * ROWS];
        for r in 0..ROWS {
            let half = &self.rows[self.starts[r] + at..][..2];
            bytes[2 * r..][..2].copy_from_slice(half);
        }
        self.unit(unit)[2 * ROWS * index..][..2 * ROWS].copy_from_slice(&bytes);
    }

    /// Two half floats that follow each other.
    #[inline(always)]
    fn two_halves(&mut self, unit: usize, at: usize) {
        self.halves(unit, 0, at);
        self.halves(unit, 1, at + 2);
    }

    /// A float in place of the half floats, from its exponent.
    #[inline(always)]
    fn exponents(&mut self, unit: usize, at: usize) {
        for r in 0..ROWS {
            let value = e8m0_half(self.rows[self.starts[r] + at]);
            self.unit(unit)[4 * r..][..4].copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Bytes of a unit's scales, from byte `first` on: those of all rows side by side.
    #[inline(always)]
    fn bytes(&mut self, unit: usize, first: usize, words: &[Words]) {
        for k in 0..words.len() {
            for c in 0..4 {
                self.byte(unit, first + ROWS * (4 * k + c), &words[k], c);
            }
        }
    }

    /// The same, of two times two words whose bytes take turns.
    #[inline(always)]
    fn pairs_of_bytes(&mut self, unit: usize, first: usize, words: &[Words; 4]) {
        for k in 0..4 {
            for c in 0..4 {
                self.byte(unit, first + ROWS * (8 * (k / 2) + 2 * c + k % 2), &words[k], c);
            }
        }
    }

    /// Byte `c` of each word, at byte `at` of a unit's scales.
    #[inline(always)]
    fn byte(&mut self, unit: usize, at: usize, words: &Words, c: usize) {
        let mut bytes = [0; ROWS];
        for r in 0..ROWS {
            bytes[r] = (words[r] >> (8 * c)) as u8;
        }
        self.unit(unit)[at..][..ROWS].copy_from_slice(&bytes);
    }
}
