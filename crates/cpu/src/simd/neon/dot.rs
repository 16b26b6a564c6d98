//! Integer dot products of eight rows at a time, from the order of [`crate::pack`], in two shapes with the same bits.
//!
//! A few tokens (decode): weights stream through registers, unpacked on the way. Many tokens (prefill): some blocks of
//! eight rows are unpacked once into a panel that a first-level cache holds, and multiplied with all tokens, four at a
//! time; between panels the sums wait where the results go.
//!
//! The bodies are written once for all levels and formats, and inlined into a function with the level's instructions
//! for each format.

#![allow(clippy::needless_range_loop, reason = "vectors are named by their number in all arrays alike")]

use super::products::{Dotprod, I8mm, Integers, Neon, Products};
use super::unpack::*;
use crate::pack::ROWS;
use crate::quantize::QuantRow;
use crate::simd::blocks::Minimum;
use crate::simd::scalar::pack_group;
use crate::simd::{DotTile, Line, Panel};
use quant::Format;
use std::arch::aarch64::*;
use std::ops::Range;

/// From this many tokens on, unpacking a panel pays.
const PANEL_TOKENS: usize = 5;
/// Blocks of a panel: 14 KiB, and whole units.
const PANEL_BLOCKS: usize = 32;

/// One worker's memory.
#[derive(Default)]
pub(crate) struct PanelMemory {
    /// The panel.
    blocks: Vec<Block>,
    /// A group that is packed on the way, where weights were not packed before.
    group: Vec<Line>,
}

/// `dot_tile` of a level, and the function for each format that has the level's instructions.
macro_rules! dot_tile {
    ($name:ident, $products:ident, $run:ident, $features:literal) => {
        /// Products of some rows with some tokens; see [`crate::simd::scalar`] for what they are. `rows` starts at a
        /// whole group and ends at one, or at the last row.
        ///
        /// # Safety
        /// The processor has the level's instructions; `tile.out` is valid for the results of these rows and tokens,
        /// and nobody else accesses them meanwhile.
        pub(super) unsafe fn $name(
            tile: &DotTile<'_>,
            rows: Range<usize>,
            tokens: Range<usize>,
            panel: &mut Panel,
        ) {
            use Format::*;
            // SAFETY: the caller's.
            unsafe {
                match tile.format {
                    Q4_0 => $run::<PackedQ4_0>(tile, rows, tokens, panel),
                    Q4_1 => $run::<PackedQ4_1>(tile, rows, tokens, panel),
                    Q5_0 => $run::<PackedQ5_0>(tile, rows, tokens, panel),
                    Q5_1 => $run::<PackedQ5_1>(tile, rows, tokens, panel),
                    Q8_0 => $run::<PackedQ8_0>(tile, rows, tokens, panel),
                    Q2_K => $run::<PackedQ2_K>(tile, rows, tokens, panel),
                    Q3_K => $run::<PackedQ3_K>(tile, rows, tokens, panel),
                    Q4_K => $run::<PackedQ4_K>(tile, rows, tokens, panel),
                    Q5_K => $run::<PackedQ5_K>(tile, rows, tokens, panel),
                    Q6_K => $run::<PackedQ6_K>(tile, rows, tokens, panel),
                    IQ4_NL => $run::<PackedIQ4_NL>(tile, rows, tokens, panel),
                    IQ4_XS => $run::<PackedIQ4_XS>(tile, rows, tokens, panel),
                    MXFP4 => $run::<PackedMXFP4>(tile, rows, tokens, panel),
                    F32 | F16 | BF16 | Q8_K => unreachable!("{} has no integer dot product", tile.format),
                }
            }
        }

        #[target_feature(enable = $features)]
        unsafe fn $run<F: Packing>(
            tile: &DotTile<'_>,
            rows: Range<usize>,
            tokens: Range<usize>,
            panel: &mut Panel,
        ) {
            // SAFETY: the caller's.
            unsafe { run::<$products, F>(tile, rows, tokens, panel) }
        }
    };
}

dot_tile!(neon, Neon, run_neon, "neon");
dot_tile!(dotprod, Dotprod, run_dotprod, "neon,dotprod");
dot_tile!(i8mm, I8mm, run_i8mm, "neon,dotprod,i8mm");

/// # Safety
/// As for `dot_tile`.
#[inline(always)]
unsafe fn run<P: Products, F: Packing>(
    tile: &DotTile<'_>,
    rows: Range<usize>,
    tokens: Range<usize>,
    panel: &mut Panel,
) {
    let blocks = tile.cols / 32;
    assert!(rows.start.is_multiple_of(ROWS) && (rows.end.is_multiple_of(ROWS) || rows.end == tile.out.cols));
    assert!(tokens.end <= tile.out.rows && rows.end <= tile.out.cols);
    assert!(tokens.end <= tile.activations.rows() && tile.activations.blocks() == blocks);
    let PanelMemory { blocks: memory, group: scratch } = &mut panel.neon;
    for group in rows.start / ROWS..rows.end.div_ceil(ROWS) {
        // SAFETY: the processor has the level's instructions.
        let bytes = unsafe { tile.group(pack_group, F::LAYOUT, group, scratch) };
        let to = Results { tile, first: group * ROWS, count: ROWS.min(rows.end - group * ROWS) };
        // SAFETY: the group has the layout's bytes for `blocks`, and so have the activations, as checked above;
        // results are the caller's.
        unsafe {
            if tokens.len() < PANEL_TOKENS {
                stream_tokens::<P, F>(bytes, blocks, &to, tokens.clone());
            } else {
                for first in (0..blocks).step_by(PANEL_BLOCKS) {
                    let range = first..blocks.min(first + PANEL_BLOCKS);
                    unpack::<P, F>(bytes, blocks, range.clone(), memory);
                    multiply::<P, F>(memory, range.start, &to, tokens.clone());
                }
            }
        }
    }
}

/// Where the results of a group go.
struct Results<'a> {
    tile: &'a DotTile<'a>,
    /// The group's first row.
    first: usize,
    /// Its rows, at most [`ROWS`].
    count: usize,
}

impl Results<'_> {
    /// # Safety
    /// `tile.out` is valid for the group's results for this token, and nobody else accesses them meanwhile.
    #[inline(always)]
    unsafe fn put(&self, token: usize, y: Floats) {
        let to = self.tile.out.row(token).wrapping_add(self.first);
        // SAFETY: the caller's: `count` results side by side.
        unsafe {
            if self.count == ROWS {
                store(to, y);
            } else {
                let mut all = [0.0f32; ROWS];
                store(all.as_mut_ptr(), y);
                std::ptr::copy_nonoverlapping(all.as_ptr(), to, self.count);
            }
        }
    }

    /// What was put for this token.
    ///
    /// # Safety
    /// As for [`put`](Results::put).
    #[inline(always)]
    unsafe fn get(&self, token: usize) -> Floats {
        let from = self.tile.out.row(token).wrapping_add(self.first).cast_const();
        // SAFETY: the caller's: `count` results side by side.
        unsafe {
            if self.count == ROWS {
                load(from)
            } else {
                let mut all = [0.0f32; ROWS];
                std::ptr::copy_nonoverlapping(from, all.as_mut_ptr(), self.count);
                load(all.as_ptr())
            }
        }
    }

    /// The activations of `T` tokens.
    #[inline(always)]
    fn activations<const T: usize>(&self, token: usize) -> [QuantRow<'_>; T] {
        std::array::from_fn(|t| self.tile.activations.row(token + t))
    }
}

/// # Safety
/// `to` is valid for eight floats.
#[inline(always)]
unsafe fn store(to: *mut f32, y: Floats) {
    // SAFETY: the caller's.
    unsafe {
        vst1q_f32(to, y[0]);
        vst1q_f32(to.add(4), y[1]);
    }
}

/// # Safety
/// `from` is valid for eight floats.
#[inline(always)]
unsafe fn load(from: *const f32) -> Floats {
    // SAFETY: the caller's.
    unsafe { [vld1q_f32(from), vld1q_f32(from.add(4))] }
}

/// Products of a group with a few tokens.
///
/// # Safety
/// As for [`stream`]; results are valid to be put.
#[inline(always)]
unsafe fn stream_tokens<P: Products, F: Packing>(
    group: &[u8],
    blocks: usize,
    to: &Results<'_>,
    tokens: Range<usize>,
) {
    let mut token = tokens.start;
    // SAFETY: the caller's.
    unsafe {
        while token < tokens.end {
            token += match tokens.end - token {
                1 => stream::<P, F, 1>(group, blocks, to, token),
                2 | 3 => stream::<P, F, 2>(group, blocks, to, token),
                _ => stream::<P, F, 4>(group, blocks, to, token),
            };
        }
    }
}

/// Products of a group with `T` tokens, unpacked on the way. Returns `T`.
///
/// # Safety
/// `group` has the layout's bytes for `blocks` blocks, and activations have as many; results are valid to be put.
#[inline(always)]
unsafe fn stream<P: Products, F: Packing, const T: usize>(
    group: &[u8],
    blocks: usize,
    to: &Results<'_>,
    token: usize,
) -> usize {
    let layout = F::LAYOUT;
    let x = to.activations::<T>(token);
    // SAFETY: the caller's: pointers stay inside the group.
    unsafe {
        let mut sums = [[vdupq_n_f32(0.0); 2]; T];
        let mut planes = group.as_ptr();
        let mut scales = planes.add(blocks * layout.quant_bytes());
        let mut b = 0;
        while b < blocks {
            let head = F::head(scales);
            for j in 0..layout.unit {
                let (m, s) = F::factors(head, scales, j);
                let w = Block { q: F::quants(planes), d: head.d, m, s };
                accumulate::<P, F, T, false>(&w, b, &x, &mut sums);
                planes = planes.add(layout.quant_bytes());
                b += 1;
            }
            scales = scales.add(layout.scale_bytes);
        }
        for t in 0..T {
            to.put(token + t, sums[t]);
        }
    }
    T
}

/// Fills a panel with some blocks of a group.
///
/// # Safety
/// `group` has the layout's bytes for `blocks` blocks, of which `range` are some.
#[inline(always)]
unsafe fn unpack<P: Products, F: Packing>(
    group: &[u8],
    blocks: usize,
    range: Range<usize>,
    panel: &mut Vec<Block>,
) {
    let layout = F::LAYOUT;
    panel.clear();
    panel.reserve(PANEL_BLOCKS);
    for b in range {
        let (unit, j) = (b / layout.unit, b % layout.unit);
        // SAFETY: the caller's: inside the group.
        unsafe {
            let planes = group.as_ptr().add(b * layout.quant_bytes());
            let scales = group.as_ptr().add(blocks * layout.quant_bytes() + unit * layout.scale_bytes);
            let head = F::head(scales);
            let (m, s) = F::factors(head, scales, j);
            panel.push(Block { q: P::arrange(F::quants(planes)), d: head.d, m, s });
        }
    }
}

/// Products of a panel, whose first block is `first`, with tokens.
///
/// # Safety
/// Activations have the panel's blocks from `first` on; results are valid to be put.
#[inline(always)]
unsafe fn multiply<P: Products, F: Packing>(
    panel: &[Block],
    first: usize,
    to: &Results<'_>,
    tokens: Range<usize>,
) {
    let mut token = tokens.start;
    // SAFETY: the caller's.
    unsafe {
        while token < tokens.end {
            token += match tokens.end - token {
                1 => panel_products::<P, F, 1>(panel, first, to, token),
                2 | 3 => panel_products::<P, F, 2>(panel, first, to, token),
                _ => panel_products::<P, F, 4>(panel, first, to, token),
            };
        }
    }
}

/// Products of a panel with `T` tokens. Returns `T`.
///
/// # Safety
/// See [`multiply`].
#[inline(always)]
unsafe fn panel_products<P: Products, F: Packing, const T: usize>(
    panel: &[Block],
    first: usize,
    to: &Results<'_>,
    token: usize,
) -> usize {
    let x = to.activations::<T>(token);
    // SAFETY: the caller's.
    unsafe {
        let mut sums = [[vdupq_n_f32(0.0); 2]; T];
        if first > 0 {
            for t in 0..T {
                sums[t] = to.get(token + t);
            }
        }
        for (b, w) in (first..).zip(panel) {
            accumulate::<P, F, T, true>(w, b, &x, &mut sums);
        }
        for t in 0..T {
            to.put(token + t, sums[t]);
        }
    }
    T
}

/// Adds the products of block `b`; `ARRANGED` tells the order of its quants.
///
/// # Safety
/// The processor has the level's instructions, and rows of `x` have more than `b` blocks.
#[inline(always)]
unsafe fn accumulate<P: Products, F: Packing, const T: usize, const ARRANGED: bool>(
    w: &Block,
    b: usize,
    x: &[QuantRow<'_>; T],
    sums: &mut [Floats; T],
) {
    // SAFETY: the caller's: block `b` is inside every row of `x`.
    unsafe {
        let mut products = match F::SCALES {
            Scales::One | Scales::Block => half_products::<P, F, T, ARRANGED>(w, b, x, 0, 2),
            // Both halves are written out, so that all quants are named by constants and stay in registers.
            Scales::Half => half_products::<P, F, T, ARRANGED>(w, b, x, 0, 1),
        };
        if !matches!(F::SCALES, Scales::One) {
            for t in 0..T {
                for h in 0..2 {
                    products[t][h] = vmulq_s32(products[t][h], w.s[0][h]);
                }
            }
        }
        if matches!(F::SCALES, Scales::Half) {
            let second = half_products::<P, F, T, ARRANGED>(w, b, x, 1, 1);
            for t in 0..T {
                for h in 0..2 {
                    products[t][h] = vmlaq_s32(products[t][h], second[t][h], w.s[1][h]);
                }
            }
        }
        for t in 0..T {
            let d = *x[t].d.get_unchecked(b);
            for h in 0..2 {
                let factor = vmulq_n_f32(w.d[h], d);
                sums[t][h] = vfmaq_f32(sums[t][h], factor, vcvtq_f32_s32(products[t][h]));
            }
            match F::MINIMUM {
                Minimum::None => {}
                Minimum::Block => {
                    let s = *x[t].s.get_unchecked(b);
                    for h in 0..2 {
                        sums[t][h] = vfmsq_n_f32(sums[t][h], w.m[0][h], s);
                    }
                }
                Minimum::Half => {
                    for half in 0..2 {
                        // Kept with the opposite sign, and so is the product.
                        let total = vcvtq_f32_s32(pair(x[t].half_sums, 2 * b + half));
                        let total = vmulq_n_f32(total, d);
                        for h in 0..2 {
                            sums[t][h] = vfmaq_f32(sums[t][h], w.m[half][h], total);
                        }
                    }
                }
            }
        }
    }
}

/// Products of the halves `first .. first + count` of block `b`, without scales; `ARRANGED` tells the order of its
/// quants. `count` is 2 where halves share a scale.
///
/// # Safety
/// As for [`accumulate`].
#[inline(always)]
unsafe fn half_products<P: Products, F: Packing, const T: usize, const ARRANGED: bool>(
    w: &Block,
    b: usize,
    x: &[QuantRow<'_>; T],
    first: usize,
    count: usize,
) -> [Integers; T] {
    // SAFETY: the caller's: block `b` is inside every row of `x`.
    unsafe {
        let mut sums = [[vdupq_n_s32(0); 2]; T];
        if F::OFFSET_BITS > 0 {
            for t in 0..T {
                let less = if count == 1 { pair(x[t].half_sums, 2 * b + first) } else { pair(x[t].sums, b) };
                sums[t] = [vshlq_s32(less, vdupq_n_s32(F::OFFSET_BITS)); 2];
            }
        }
        let quants: [*const i8; T] = std::array::from_fn(|t| x[t].q.as_ptr().wrapping_add(32 * b));
        if ARRANGED {
            P::add_arranged(&mut sums, &w.q, quants, [first, count], F::RUN);
        } else {
            P::add(&mut sums, &w.q, quants, [first, count], F::RUN);
        }
        sums
    }
}

/// The sum of pair `index` of words, in every lane.
///
/// # Safety
/// There are more pairs.
#[inline(always)]
unsafe fn pair(words: &[i16], index: usize) -> int32x4_t {
    // SAFETY: the caller's; two i16 are read as one i32.
    unsafe {
        let both = words.as_ptr().add(2 * index).cast::<i32>().read_unaligned();
        vpaddlq_s16(vreinterpretq_s16_s32(vdupq_n_s32(both)))
    }
}
