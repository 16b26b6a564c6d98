//! Integer dot products of eight rows at a time, from the order of [`crate::pack`], in two shapes with the same bits.
//!
//! A few tokens (decode): weights stream through registers, unpacked on the way. Many tokens (prefill): two groups of
//! eight rows are unpacked once into a panel, and each load of it and of the activations serves several products.
//!
//! Loops over vectors are written with indices: iterator adaptors and closures over vectors are not always inlined
//! into functions with other target features than their own, and every vector then travels through memory.

#![allow(clippy::needless_range_loop, reason = "see above")]

use super::unpack::*;
use crate::pack::ROWS;
use crate::quantize::QuantRow;
use crate::simd::blocks::Minimum;
use crate::simd::{DotTile, Line, Panel, WEIGHTS_AHEAD, prefetch};
use quant::Format;
use std::arch::x86_64::*;
use std::ops::Range;

/// From this many tokens on, unpacking a panel pays.
const PANEL_TOKENS: usize = 6;
/// Groups that a panel holds.
const GROUPS: usize = 2;
/// Tokens that are multiplied at a time.
const TOKENS: usize = 4;

/// One worker's memory.
#[derive(Default)]
pub(crate) struct PanelMemory {
    /// [`GROUPS`] unpacked groups, one after the other.
    blocks: Vec<PanelBlock>,
    /// A group that is packed on the way, where weights were not packed before.
    group: Vec<Line>,
}

/// Products of some rows with some tokens; see [`crate::simd::scalar`] for what they are. `rows` starts at a whole
/// group and ends at one, or at the last row.
///
/// # Safety
/// The processor has the level's instructions; `tile.out` is valid for the results of these rows and tokens, and
/// nobody else accesses them meanwhile.
pub(super) unsafe fn dot_tile(
    tile: &DotTile<'_>,
    rows: Range<usize>,
    tokens: Range<usize>,
    panel: &mut Panel,
) {
    use Format::*;
    // SAFETY: the caller's.
    unsafe {
        match tile.format {
            Q4_0 => run::<PackedQ4_0>(tile, rows, tokens, panel),
            Q4_1 => run::<PackedQ4_1>(tile, rows, tokens, panel),
            Q5_0 => run::<PackedQ5_0>(tile, rows, tokens, panel),
            Q5_1 => run::<PackedQ5_1>(tile, rows, tokens, panel),
            Q8_0 => run::<PackedQ8_0>(tile, rows, tokens, panel),
            Q2_K => run::<PackedQ2_K>(tile, rows, tokens, panel),
            Q3_K => run::<PackedQ3_K>(tile, rows, tokens, panel),
            Q4_K => run::<PackedQ4_K>(tile, rows, tokens, panel),
            Q5_K => run::<PackedQ5_K>(tile, rows, tokens, panel),
            Q6_K => run::<PackedQ6_K>(tile, rows, tokens, panel),
            IQ4_NL => run::<PackedIQ4_NL>(tile, rows, tokens, panel),
            IQ4_XS => run::<PackedIQ4_XS>(tile, rows, tokens, panel),
            MXFP4 => run::<PackedMXFP4>(tile, rows, tokens, panel),
            F32 | F16 | BF16 | Q8_K => unreachable!("{} has no integer dot product", tile.format),
        }
    }
}

/// # Safety
/// See [`dot_tile`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run<F: Packing>(tile: &DotTile<'_>, rows: Range<usize>, tokens: Range<usize>, panel: &mut Panel) {
    let blocks = tile.cols / 32;
    assert!(rows.start.is_multiple_of(ROWS) && (rows.end.is_multiple_of(ROWS) || rows.end == tile.out.cols));
    assert!(tokens.end <= tile.out.rows && rows.end <= tile.out.cols);
    assert!(tokens.end <= tile.activations.rows() && tile.activations.blocks() == blocks);
    let PanelMemory { blocks: memory, group: scratch } = &mut panel.avx2;
    let groups = rows.start / ROWS..rows.end.div_ceil(ROWS);
    if tokens.is_empty() {
        return;
    }
    if tokens.len() < PANEL_TOKENS {
        let mut x = [tile.activations.row(tokens.start); PANEL_TOKENS];
        for t in 1..tokens.len() {
            x[t] = tile.activations.row(tokens.start + t);
        }
        for group in groups {
            // SAFETY: the processor has the level's instructions.
            let bytes = unsafe { tile.group(super::pack_group, F::LAYOUT, group, scratch) };
            let mut token = tokens.start;
            // SAFETY: the group has the layout's bytes for `blocks`, and so have the activations, as checked above;
            // results are the caller's.
            unsafe {
                while tokens.end - token >= 2 {
                    let t = token - tokens.start;
                    let y = stream::<F, 2>(bytes, blocks, &[x[t], x[t + 1]]);
                    put(tile, &rows, group, token, y[0]);
                    put(tile, &rows, group, token + 1, y[1]);
                    token += 2;
                }
                if token < tokens.end {
                    let [y] = stream::<F, 1>(bytes, blocks, &[x[token - tokens.start]]);
                    put(tile, &rows, group, token, y);
                }
            }
        }
        return;
    }
    let mut group = groups.start;
    while group < groups.end {
        let together = GROUPS.min(groups.end - group);
        memory.clear();
        for g in group..group + together {
            // SAFETY: the processor has the level's instructions.
            let bytes = unsafe { tile.group(super::pack_group, F::LAYOUT, g, scratch) };
            // SAFETY: the group has the layout's bytes for `blocks`.
            unsafe { unpack::<F>(bytes, blocks, memory) };
        }
        // SAFETY: the panel has `blocks` blocks for each group; otherwise as above.
        unsafe {
            if together == GROUPS {
                multiply::<F, GROUPS>(tile, memory, &rows, group, tokens.clone());
            } else {
                multiply::<F, 1>(tile, memory, &rows, group, tokens.clone());
            }
        }
        group += together;
    }
}

/// Writes the results of a group's rows for one token.
///
/// # Safety
/// `tile.out` is valid for them, and nobody else accesses them meanwhile.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn put(tile: &DotTile<'_>, rows: &Range<usize>, group: usize, token: usize, y: __m256) {
    let first = group * ROWS;
    let to = tile.out.row(token).wrapping_add(first);
    if rows.end - first >= ROWS {
        // SAFETY: the caller's: eight results side by side.
        unsafe { _mm256_storeu_ps(to, y) };
    } else {
        let mut all = [0.0f32; ROWS];
        // SAFETY: eight floats; then the caller's.
        unsafe {
            _mm256_storeu_ps(all.as_mut_ptr(), y);
            std::ptr::copy_nonoverlapping(all.as_ptr(), to, rows.end - first);
        }
    }
}

/// Products of a group with `T` tokens, unpacked on the way.
///
/// # Safety
/// `group` has the layout's bytes for `blocks` blocks, at an aligned address; rows of `x` have as many blocks.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn stream<F: Packing, const T: usize>(
    group: &[u8],
    blocks: usize,
    x: &[QuantRow<'_>; T],
) -> [__m256; T] {
    let layout = F::LAYOUT;
    let mut sums = [[_mm256_setzero_ps(); T]; 1];
    let mut planes = group.as_ptr();
    let mut ahead = planes.wrapping_add(WEIGHTS_AHEAD);
    let mut b = 0;
    // SAFETY: the caller's: pointers stay inside the group.
    unsafe {
        let mut scales = planes.add(blocks * layout.quant_bytes());
        while b < blocks {
            let head = F::head(scales);
            for j in 0..layout.unit {
                // Quants and scales alike, so that the groups' shares follow each other without a gap.
                prefetch(ahead, layout.block_bytes());
                ahead = ahead.wrapping_add(layout.block_bytes());
                let (m, s) = F::factors(head, scales, j);
                let w = PanelBlock { q: F::quants(planes.cast()), d: head.d(), m, s };
                accumulate::<F, 1, T>([&w], 8 / F::PIECES, b, x, &mut sums);
                planes = planes.add(layout.quant_bytes());
                b += 1;
            }
            scales = scales.add(layout.scale_bytes);
        }
    }
    sums[0]
}

/// Appends a group to a panel.
///
/// # Safety
/// `group` has the layout's bytes for `blocks` blocks, at an aligned address.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack<F: Packing>(group: &[u8], blocks: usize, panel: &mut Vec<PanelBlock>) {
    let layout = F::LAYOUT;
    panel.reserve(blocks);
    for b in 0..blocks {
        let (unit, j) = (b / layout.unit, b % layout.unit);
        // SAFETY: the caller's: inside the group.
        unsafe {
            let planes = group.as_ptr().add(b * layout.quant_bytes());
            let scales = group.as_ptr().add(blocks * layout.quant_bytes() + unit * layout.scale_bytes);
            let head = F::head(scales);
            let (m, s) = F::factors(head, scales, j);
            panel.push(PanelBlock { q: F::quants(planes.cast()), d: head.d(), m, s });
        }
    }
}

/// Products of the `R` groups of a panel, the first of which is `group`, with tokens.
///
/// # Safety
/// The panel has the blocks of `R` groups, as many as rows of activations have for each; results are the caller's.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply<F: Packing, const R: usize>(
    tile: &DotTile<'_>,
    panel: &[PanelBlock],
    rows: &Range<usize>,
    group: usize,
    tokens: Range<usize>,
) {
    let blocks = panel.len() / R;
    let mut token = tokens.start;
    // SAFETY: the caller's.
    unsafe {
        while tokens.end - token >= TOKENS {
            let x: [QuantRow<'_>; TOKENS] = [
                tile.activations.row(token),
                tile.activations.row(token + 1),
                tile.activations.row(token + 2),
                tile.activations.row(token + 3),
            ];
            let y = panel_products::<F, R, TOKENS>(panel, blocks, &x);
            for r in 0..R {
                for t in 0..TOKENS {
                    put(tile, rows, group + r, token + t, y[r][t]);
                }
            }
            token += TOKENS;
        }
        for token in token..tokens.end {
            let y = panel_products::<F, R, 1>(panel, blocks, &[tile.activations.row(token)]);
            for r in 0..R {
                put(tile, rows, group + r, token, y[r][0]);
            }
        }
    }
}

/// Products of the groups of a panel with `T` tokens.
///
/// # Safety
/// The panel has `blocks` blocks for each of `R` groups, and rows of `x` have as many.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn panel_products<F: Packing, const R: usize, const T: usize>(
    panel: &[PanelBlock],
    blocks: usize,
    x: &[QuantRow<'_>; T],
) -> [[__m256; T]; R] {
    let mut sums = [[_mm256_setzero_ps(); T]; R];
    // Unrolled, the loop over quants needs more registers than there are; the compiler must not know its length.
    let quants = std::hint::black_box(8 / F::PIECES);
    for b in 0..blocks {
        let mut w = [&panel[b]; R];
        for r in 1..R {
            w[r] = &panel[r * blocks + b];
        }
        // SAFETY: the caller's: rows of `x` have more than `b` blocks.
        unsafe { accumulate::<F, R, T>(w, quants, b, x, &mut sums) };
    }
    sums
}

/// Adds the products of block `b`. `quants` is `8 / F::PIECES`.
///
/// # Safety
/// The processor has the level's instructions, and rows of `x` have more than `b` blocks.
#[inline(always)]
unsafe fn accumulate<F: Packing, const R: usize, const T: usize>(
    w: [&PanelBlock; R],
    quants: usize,
    b: usize,
    x: &[QuantRow<'_>; T],
    sums: &mut [[__m256; T]; R],
) {
    // SAFETY: the caller's: block `b` is inside every row of `x`, and `piece * quants + g` is below 8.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let mut products = [[_mm256_setzero_si256(); T]; R];
        for piece in 0..F::PIECES {
            let mut pairs = [[_mm256_setzero_si256(); T]; R];
            if F::OFFSET_BITS > 0 {
                for t in 0..T {
                    let start =
                        if F::PIECES == 1 { pair(x[t].sums, b) } else { pair(x[t].half_sums, 2 * b + piece) };
                    let start = _mm256_sll_epi16(start, _mm_cvtsi32_si128(F::OFFSET_BITS));
                    for r in 0..R {
                        pairs[r][t] = start;
                    }
                }
            }
            for g in 0..quants {
                let g = piece * (8 / F::PIECES) + g;
                for t in 0..T {
                    let four = x[t].q.as_ptr().add(32 * b + 4 * g).cast::<i32>().read_unaligned();
                    let four = _mm256_set1_epi32(four);
                    for r in 0..R {
                        let q = *w[r].q.get_unchecked(g);
                        let both = if F::SIGNED {
                            _mm256_maddubs_epi16(_mm256_abs_epi8(q), _mm256_sign_epi8(four, q))
                        } else {
                            _mm256_maddubs_epi16(q, four)
                        };
                        pairs[r][t] = _mm256_add_epi16(pairs[r][t], both);
                    }
                }
            }
            for r in 0..R {
                let scales = match F::SCALES {
                    Scales::One => ones,
                    Scales::Block => w[r].s[0],
                    Scales::Half => w[r].s[piece],
                };
                for t in 0..T {
                    let sum = _mm256_madd_epi16(pairs[r][t], scales);
                    products[r][t] = if F::PIECES == 1 { sum } else { _mm256_add_epi32(products[r][t], sum) };
                }
            }
        }
        for t in 0..T {
            let d = _mm256_broadcast_ss(x[t].d.get_unchecked(b));
            for r in 0..R {
                let factor = _mm256_mul_ps(w[r].d, d);
                sums[r][t] = _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(products[r][t]), sums[r][t]);
            }
            match F::MINIMUM {
                Minimum::None => {}
                Minimum::Block => {
                    let s = _mm256_broadcast_ss(x[t].s.get_unchecked(b));
                    for r in 0..R {
                        sums[r][t] = _mm256_fnmadd_ps(w[r].m[0], s, sums[r][t]);
                    }
                }
                Minimum::Half => {
                    for half in 0..2 {
                        // Kept with the opposite sign, and so is the product.
                        let total = _mm256_madd_epi16(pair(x[t].half_sums, 2 * b + half), ones);
                        let total = _mm256_mul_ps(d, _mm256_cvtepi32_ps(total));
                        for r in 0..R {
                            sums[r][t] = _mm256_fmadd_ps(w[r].m[half], total, sums[r][t]);
                        }
                    }
                }
            }
        }
    }
}

/// Pair `index` of words, in every lane.
///
/// # Safety
/// The processor has the level's instructions, and there are more pairs.
#[inline(always)]
unsafe fn pair(words: &[i16], index: usize) -> __m256i {
    // SAFETY: the caller's; two i16 are read as one i32.
    unsafe { _mm256_set1_epi32(words.as_ptr().add(2 * index).cast::<i32>().read_unaligned()) }
}
