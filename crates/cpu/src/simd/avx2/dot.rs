//! Integer dot products in two shapes with the same bits.
//!
//! A few tokens (decode): weights stream through registers, eight blocks at a time, and the eight integer sums are
//! transposed into one vector, a lane for each block. Many tokens (prefill): eight weight rows are unpacked once into
//! a panel, in which a vector holds four elements of each row, so that sums need no transposing; four tokens at a
//! time share each load. In both, block `b` is added to partial sum `b % 8` of its row and token.
//!
//! Loops over vectors are written with indices: iterator adaptors and closures over vectors are not always inlined
//! into functions with other target features than their own, and every vector then travels through memory.

#![allow(clippy::needless_range_loop, reason = "see above")]

use super::load::*;
use crate::quantize::{QuantRow, SUPER};
use crate::simd::{DotTile, Panel};
use bytemuck::Zeroable;
use quant::Format;
use std::arch::x86_64::*;
use std::ops::Range;

/// Weight rows of a panel.
const ROWS: usize = 8;
/// From this many tokens on, unpacking a panel pays.
const PANEL_TOKENS: usize = 4;

/// One block of each of eight rows.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct PanelBlock {
    /// Vector `g` holds elements `4g .. 4g + 4` of each row.
    q: [__m256i; 8],
    /// A float factor for each row.
    d: __m256,
    /// A pair of integer scales for each row.
    s: __m256i,
    dm: __m256,
    m: __m256i,
}

/// Eight unpacked rows. Blocks of equal `b % 8` are neighbours: the kernel makes one partial sum at a time.
#[derive(Default)]
pub(crate) struct PanelMemory {
    blocks: Vec<PanelBlock>,
}

/// Products of some rows with some tokens; see [`crate::simd::scalar`] for what they are.
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
            Q4_0 => run::<LoadQ4_0>(tile, rows, tokens, panel),
            Q4_1 => run::<LoadQ4_1>(tile, rows, tokens, panel),
            Q5_0 => run::<LoadQ5_0>(tile, rows, tokens, panel),
            Q5_1 => run::<LoadQ5_1>(tile, rows, tokens, panel),
            Q8_0 => run::<LoadQ8_0>(tile, rows, tokens, panel),
            Q2_K => run::<LoadQ2_K>(tile, rows, tokens, panel),
            Q3_K => run::<LoadQ3_K>(tile, rows, tokens, panel),
            Q4_K => run::<LoadQ4_K>(tile, rows, tokens, panel),
            Q5_K => run::<LoadQ5_K>(tile, rows, tokens, panel),
            Q6_K => run::<LoadQ6_K>(tile, rows, tokens, panel),
            IQ4_NL => run::<LoadIQ4_NL>(tile, rows, tokens, panel),
            IQ4_XS => run::<LoadIQ4_XS>(tile, rows, tokens, panel),
            MXFP4 => run::<LoadMXFP4>(tile, rows, tokens, panel),
            F32 | F16 | BF16 | Q8_K => unreachable!("{} has no integer dot product", tile.format),
        }
    }
}

/// # Safety
/// See [`dot_tile`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run<L: Load>(tile: &DotTile<'_>, rows: Range<usize>, tokens: Range<usize>, panel: &mut Panel) {
    let blocks = tile.cols / 32;
    let row_blocks = blocks.div_ceil(SUPER) * L::COUNT - if L::COUNT == 8 { (8 - blocks % 8) % 8 } else { 0 };
    assert!(tokens.end <= tile.out.rows && rows.end <= tile.out.cols);
    assert!(tokens.end <= tile.activations.rows() && tile.activations.padded_cols() >= blocks * 32);
    // Registration has aligned the bytes as blocks need it.
    let weights: &[L::Block] = bytemuck::cast_slice(tile.weights);
    let weights_of = |row: usize| &weights[row * row_blocks..][..row_blocks];
    // SAFETY: the caller's: results of these rows and tokens.
    let put = |row: usize, token: usize, y: f32| unsafe {
        *tile.out.row(token).wrapping_add(row) = y;
    };
    let mut first = rows.start;
    if tokens.len() >= PANEL_TOKENS {
        while rows.end - first >= ROWS {
            let panel = pack::<L>(&mut panel.avx2, blocks, |r| weights_of(first + r));
            let mut token = tokens.start;
            while tokens.end - token >= 4 {
                let results = panel_products::<L, 4>(
                    panel,
                    blocks,
                    std::array::from_fn(|t| tile.activations.row(token + t)),
                );
                for (t, result) in results.into_iter().enumerate() {
                    // SAFETY: the caller's: eight results side by side.
                    unsafe { _mm256_storeu_ps(tile.out.row(token + t).wrapping_add(first), result) };
                }
                token += 4;
            }
            for token in token..tokens.end {
                let [result] = panel_products::<L, 1>(panel, blocks, [tile.activations.row(token)]);
                // SAFETY: the caller's: eight results side by side.
                unsafe { _mm256_storeu_ps(tile.out.row(token).wrapping_add(first), result) };
            }
            first += ROWS;
        }
    }
    for row in first..rows.end {
        let weights = weights_of(row);
        let mut token = tokens.start;
        while tokens.end - token >= 2 {
            let x = [tile.activations.row(token), tile.activations.row(token + 1)];
            for (t, y) in row_products::<L, 2>(weights, blocks, x).into_iter().enumerate() {
                put(row, token + t, y);
            }
            token += 2;
        }
        if token < tokens.end {
            let [y] = row_products::<L, 1>(weights, blocks, [tile.activations.row(token)]);
            put(row, token, y);
        }
    }
}

/// Super-block `index` of a row; what the last one lacks is zero, which adds nothing.
///
/// # Safety
/// The processor has the level's instructions.
#[inline(always)]
unsafe fn load_super<L: Load>(weights: &[L::Block], index: usize) -> Super {
    let mut rest = &weights[index * L::COUNT..];
    let mut padded = [L::Block::zeroed(); SUPER];
    if rest.len() < L::COUNT {
        padded[..rest.len()].copy_from_slice(rest);
        rest = &padded;
    }
    // SAFETY: the caller's.
    unsafe { L::load(rest) }
}

/// Products of one row with `T` tokens.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn row_products<L: Load, const T: usize>(
    weights: &[L::Block],
    blocks: usize,
    x: [QuantRow<'_>; T],
) -> [f32; T] {
    let ones = _mm256_set1_epi16(1);
    let mut parts = [_mm256_setzero_ps(); T];
    for index in 0..blocks.div_ceil(SUPER) {
        // SAFETY: the instructions are enabled here.
        let w = unsafe { load_super::<L>(weights, index) };
        let halves = if L::SCALES == Scales::Half { by_half(w.s) } else { ones };
        for t in 0..T {
            let (quants, sums) = (&x[t].q[256 * index..][..256], &x[t].sums[16 * index..][..16]);
            let d = &x[t].d[8 * index..][..8];
            let mut products = [_mm256_setzero_si256(); 8];
            for j in 0..8 {
                // SAFETY: 32 of the 256 bytes.
                let a = unsafe { _mm256_loadu_si256(quants.as_ptr().add(32 * j).cast()) };
                let pairs = if L::SIGNED {
                    _mm256_maddubs_epi16(_mm256_abs_epi8(w.q[j]), _mm256_sign_epi8(a, w.q[j]))
                } else {
                    _mm256_maddubs_epi16(w.q[j], a)
                };
                let scales = if L::SCALES == Scales::Half { broadcast_word(halves, j) } else { ones };
                products[j] = _mm256_madd_epi16(pairs, scales);
            }
            let mut sum = sum_of_each(products);
            if L::SCALES == Scales::Block {
                sum = _mm256_mullo_epi32(sum, _mm256_srai_epi32::<16>(w.s));
            }
            // SAFETY: 16 sums and 8 scales.
            let (sums, d) =
                unsafe { (_mm256_loadu_si256(sums.as_ptr().cast()), _mm256_loadu_ps(d.as_ptr())) };
            parts[t] = finish::<L>(parts[t], sum, sums, w.d, w.s, w.dm, w.m, d);
        }
    }
    let mut results = [0.0; T];
    for t in 0..T {
        // ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)), as `math::sum_lanes`.
        let pairs = _mm256_hadd_ps(parts[t], parts[t]);
        let quads = _mm256_hadd_ps(pairs, pairs);
        results[t] =
            _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(quads), _mm256_extractf128_ps::<1>(quads)));
    }
    results
}

/// Adds a block (in each lane) to the partial sums: the products less the offset, then the minimum.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
#[allow(clippy::too_many_arguments, reason = "the fields of a block, in registers")]
fn finish<L: Load>(
    part: __m256,
    products: __m256i,
    sums: __m256i,
    d: __m256,
    s: __m256i,
    dm: __m256,
    m: __m256i,
    x: __m256,
) -> __m256 {
    let mut products = products;
    if L::OFFSET_BITS > 0 {
        let offset = _mm256_sll_epi32(_mm256_madd_epi16(sums, s), _mm_cvtsi32_si128(L::OFFSET_BITS));
        products = _mm256_sub_epi32(products, offset);
    }
    let mut part = _mm256_fmadd_ps(_mm256_mul_ps(d, x), _mm256_cvtepi32_ps(products), part);
    if L::MINIMUM {
        let minimum = _mm256_cvtepi32_ps(_mm256_madd_epi16(sums, m));
        part = _mm256_fnmadd_ps(_mm256_mul_ps(dm, x), minimum, part);
    }
    part
}

/// The scales of the first halves of all blocks in the lower lane, of the second halves in the upper.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn by_half(s: __m256i) -> __m256i {
    let even_odd = _mm256_set_epi8(
        15, 14, 11, 10, 7, 6, 3, 2, 13, 12, 9, 8, 5, 4, 1, 0, 15, 14, 11, 10, 7, 6, 3, 2, 13, 12, 9, 8, 5, 4,
        1, 0,
    );
    _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_shuffle_epi8(s, even_odd))
}

/// Word `j` of each lane, in all words of that lane.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn broadcast_word(v: __m256i, j: usize) -> __m256i {
    let bytes = (2 * j) as i16 | ((2 * j + 1) as i16) << 8;
    _mm256_shuffle_epi8(v, _mm256_set1_epi16(bytes))
}

/// Lane `j` of the result is the sum of vector `j`'s lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_of_each(v: [__m256i; 8]) -> __m256i {
    let a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    let b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
    _mm256_add_epi32(_mm256_permute2x128_si256::<0x20>(a, b), _mm256_permute2x128_si256::<0x31>(a, b))
}

/// Rows and columns of 32-bit elements exchanged.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn transpose(v: [__m256i; 8]) -> [__m256i; 8] {
    let pair = |a, b| (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (a0, a1) = pair(v[0], v[1]);
    let (a2, a3) = pair(v[2], v[3]);
    let (a4, a5) = pair(v[4], v[5]);
    let (a6, a7) = pair(v[6], v[7]);
    let quad = |a, b| (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let (b0, b1) = quad(a0, a2);
    let (b2, b3) = quad(a1, a3);
    let (b4, b5) = quad(a4, a6);
    let (b6, b7) = quad(a5, a7);
    let low = |a, b| _mm256_permute2x128_si256::<0x20>(a, b);
    let high = |a, b| _mm256_permute2x128_si256::<0x31>(a, b);
    [
        low(b0, b4),
        low(b1, b5),
        low(b2, b6),
        low(b3, b7),
        high(b0, b4),
        high(b1, b5),
        high(b2, b6),
        high(b3, b7),
    ]
}

/// Unpacks eight rows.
#[target_feature(enable = "avx2,fma,f16c")]
fn pack<'a, 'w, L: Load>(
    memory: &'a mut PanelMemory,
    blocks: usize,
    row: impl Fn(usize) -> &'w [L::Block],
) -> &'a [PanelBlock]
where
    L::Block: 'w,
{
    let zero = PanelBlock {
        q: [_mm256_setzero_si256(); 8],
        d: _mm256_setzero_ps(),
        s: _mm256_setzero_si256(),
        dm: _mm256_setzero_ps(),
        m: _mm256_setzero_si256(),
    };
    let supers = blocks.div_ceil(SUPER);
    if memory.blocks.len() < SUPER * supers {
        memory.blocks.resize(SUPER * supers, zero);
    }
    let panel = &mut memory.blocks[..SUPER * supers];
    let rows: [&[L::Block]; ROWS] = std::array::from_fn(row);
    for index in 0..supers {
        // SAFETY: the instructions are enabled here.
        let w: [Super; ROWS] = unsafe { each!(|R| load_super::<L>(rows[R], index)) };
        let d = transpose(each!(|R| _mm256_castps_si256(w[R].d)));
        let s = transpose(each!(|R| w[R].s));
        let (dm, m) = if L::MINIMUM {
            (transpose(each!(|R| _mm256_castps_si256(w[R].dm))), transpose(each!(|R| w[R].m)))
        } else {
            ([_mm256_setzero_si256(); 8], [_mm256_setzero_si256(); 8])
        };
        for j in 0..SUPER {
            panel[j * supers + index] = PanelBlock {
                q: transpose(each!(|R| w[R].q[j])),
                d: _mm256_castsi256_ps(d[j]),
                s: s[j],
                dm: _mm256_castsi256_ps(dm[j]),
                m: m[j],
            };
        }
    }
    panel
}

/// Products of the eight rows of a panel with `T` tokens.
#[target_feature(enable = "avx2,fma,f16c")]
fn panel_products<L: Load, const T: usize>(
    panel: &[PanelBlock],
    blocks: usize,
    x: [QuantRow<'_>; T],
) -> [__m256; T] {
    let supers = blocks.div_ceil(SUPER);
    assert!(panel.len() >= SUPER * supers);
    for x in &x {
        assert!(x.q.len() >= 32 * blocks && x.d.len() >= blocks && x.sums.len() >= 2 * blocks);
    }
    let mut parts = [[_mm256_setzero_ps(); T]; SUPER];
    for j in 0..SUPER {
        let mut part = [_mm256_setzero_ps(); T];
        let (mut b, mut index) = (j, j * supers);
        while b < blocks {
            let w = &panel[index];
            // SAFETY: block b is inside every row of `x`, as checked above.
            let products = unsafe { block_products::<L, T>(w, b, &x) };
            for t in 0..T {
                // SAFETY: as above; a pair of i16 sums is read as one i32.
                let (sums, d) = unsafe {
                    (
                        _mm256_set1_epi32(x[t].sums.as_ptr().add(2 * b).cast::<i32>().read_unaligned()),
                        _mm256_broadcast_ss(x[t].d.get_unchecked(b)),
                    )
                };
                part[t] = finish::<L>(part[t], products[t], sums, w.d, w.s, w.dm, w.m, d);
            }
            b += SUPER;
            index += 1;
        }
        parts[j] = part;
    }
    let mut results = [_mm256_setzero_ps(); T];
    for t in 0..T {
        let first =
            _mm256_add_ps(_mm256_add_ps(parts[0][t], parts[1][t]), _mm256_add_ps(parts[2][t], parts[3][t]));
        let second =
            _mm256_add_ps(_mm256_add_ps(parts[4][t], parts[5][t]), _mm256_add_ps(parts[6][t], parts[7][t]));
        results[t] = _mm256_add_ps(first, second);
    }
    results
}

/// The scaled integer products of block `b` of the panel's rows with `T` tokens.
///
/// # Safety
/// Every row of `x` has more than `b` blocks.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn block_products<L: Load, const T: usize>(
    w: &PanelBlock,
    b: usize,
    x: &[QuantRow<'_>; T],
) -> [__m256i; T] {
    let ones = _mm256_set1_epi16(1);
    let scales = match L::SCALES {
        Scales::One => [ones; 2],
        Scales::Block => [w.s; 2],
        Scales::Half => {
            // Each scale of a row's pair twice.
            let low = _mm256_or_si256(
                _mm256_and_si256(w.s, _mm256_set1_epi32(0xffff)),
                _mm256_slli_epi32::<16>(w.s),
            );
            let high = _mm256_or_si256(
                _mm256_andnot_si256(_mm256_set1_epi32(0xffff), w.s),
                _mm256_srli_epi32::<16>(w.s),
            );
            [low, high]
        }
    };
    let mut products = [_mm256_setzero_si256(); T];
    let mut g = 0;
    while g < 8 {
        let mut pairs = [_mm256_setzero_si256(); T];
        for g in g..g + L::SUMS {
            let q = w.q[g];
            let size = if L::SIGNED { _mm256_abs_epi8(q) } else { q };
            for t in 0..T {
                // SAFETY: the caller's: 32 quants from 32 b on.
                let quad = unsafe {
                    _mm256_set1_epi32(x[t].q.as_ptr().add(32 * b + 4 * g).cast::<i32>().read_unaligned())
                };
                let quad = if L::SIGNED { _mm256_sign_epi8(quad, q) } else { quad };
                pairs[t] = _mm256_add_epi16(pairs[t], _mm256_maddubs_epi16(size, quad));
            }
        }
        for t in 0..T {
            products[t] = _mm256_add_epi32(products[t], _mm256_madd_epi16(pairs[t], scales[g / 4]));
        }
        g += L::SUMS;
    }
    products
}
