//! The inner loops of attention. Blocks of query heads and of keys (or of columns of the values) stay in registers: an
//! element is converted once for up to four heads, and six to nine chains of multiply-adds hide most of their latency.
//! More do not help: with 12 sums, 3 queries and a key the compiler already spills registers in the innermost loop.
//!
//! Loops over vectors are written with indices; see `dot.rs`.

#![allow(clippy::needless_range_loop, reason = "see above")]

use super::math::exp;
use crate::simd::attention::{Elements, KvRows, LANES, Rows};
use crate::simd::math::sum_lanes;
use crate::simd::prefetch;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Bytes of the keys (or values) that all blocks of heads pass over before the next: a quarter of a first-level cache.
const CHUNK: usize = 8192;

/// Blocks of scores whose lanes are added up together. Alone, a block's chains and the tree over their lanes wait for each
/// other longer than the processor looks ahead.
const BLOCKS: usize = 4;

/// The type of the elements, as a type.
trait Type {
    const ELEMENTS: Elements;
    /// Elements that [`scale`] holds for.
    const BLOCK: usize;
}

struct F32;
struct F16;
struct BF16;
struct Q8_0;

impl Type for F32 {
    const ELEMENTS: Elements = Elements::F32;
    const BLOCK: usize = LANES;
}
impl Type for F16 {
    const ELEMENTS: Elements = Elements::F16;
    const BLOCK: usize = LANES;
}
impl Type for BF16 {
    const ELEMENTS: Elements = Elements::BF16;
    const BLOCK: usize = LANES;
}
impl Type for Q8_0 {
    const ELEMENTS: Elements = Elements::Q8_0;
    const BLOCK: usize = 32;
}

/// The scale of the block that element `i` is in; of no use for types without.
///
/// # Safety
/// `row` is valid for the bytes of element `i`'s block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scale<T: Type>(row: *const u8, i: usize) -> __m256 {
    match T::ELEMENTS {
        Elements::Q8_0 => {
            // SAFETY: the two bytes of the block's scale.
            let d = unsafe { row.add(i / 32 * 34).cast::<i16>().read_unaligned() };
            _mm256_cvtph_ps(_mm_set1_epi16(d))
        }
        _ => _mm256_setzero_ps(),
    }
}

/// Elements `i .. i + 8`, `i` being a multiple of 8.
///
/// # Safety
/// `row` is valid for the bytes of these elements.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn load<T: Type>(row: *const u8, i: usize, scale: __m256) -> __m256 {
    // SAFETY: the caller's.
    unsafe {
        match T::ELEMENTS {
            Elements::F32 => _mm256_loadu_ps(row.add(4 * i).cast()),
            Elements::F16 => _mm256_cvtph_ps(_mm_loadu_si128(row.add(2 * i).cast())),
            Elements::BF16 => {
                let half = _mm256_cvtepu16_epi32(_mm_loadu_si128(row.add(2 * i).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(half))
            }
            Elements::Q8_0 => {
                let quants = _mm_loadl_epi64(row.add(i / 32 * 34 + 2 + i % 32).cast());
                _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(quants)))
            }
        }
    }
}

/// See [`crate::simd::attention::scores`].
///
/// # Safety
/// None but the instructions.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn scores(scores: Rows<'_>, queries: &[f32], keys: &KvRows<'_>) {
    match keys.elements() {
        Elements::F32 => scores_of::<F32>(scores, queries, keys),
        Elements::F16 => scores_of::<F16>(scores, queries, keys),
        Elements::BF16 => scores_of::<BF16>(scores, queries, keys),
        Elements::Q8_0 => scores_of::<Q8_0>(scores, queries, keys),
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn scores_of<T: Type>(scores: Rows<'_>, queries: &[f32], keys: &KvRows<'_>) {
    let (dim, len) = (keys.dim(), keys.len());
    let rows = queries.len().checked_div(dim).unwrap_or(0);
    if rows == 0 || len == 0 {
        return;
    }
    assert!(scores.data.len() >= (rows - 1) * scores.stride + len, "{rows} rows of {len} scores");
    let step = (CHUNK / keys.elements().bytes(dim)).clamp(LANES, len.max(LANES));
    for first in (0..len).step_by(step) {
        let keys_here = first..len.min(first + step);
        let mut row = 0;
        while row < rows {
            let heads = block_of(rows - row);
            let to = scores.data[row * scores.stride..].as_mut_ptr();
            let query = queries[row * dim..].as_ptr();
            let ahead = if row == 0 { keys.ahead() } else { 0 };
            // SAFETY: `heads` queries and rows of scores from `row` on.
            unsafe {
                match heads {
                    1 => key_blocks::<T, 1, 4>(to, scores.stride, query, keys, &keys_here, ahead),
                    2 => key_blocks::<T, 2, 4>(to, scores.stride, query, keys, &keys_here, ahead),
                    3 => key_blocks::<T, 3, 2>(to, scores.stride, query, keys, &keys_here, ahead),
                    _ => key_blocks::<T, 4, 2>(to, scores.stride, query, keys, &keys_here, ahead),
                }
            }
            row += heads;
        }
    }
}

/// How many of the rows that are left are taken together: up to four, and no single one left behind.
#[inline]
fn block_of(left: usize) -> usize {
    match left {
        5 | 6 => 3,
        _ => left.min(4),
    }
}

/// Scores of `R` queries with some keys, `K` at a time.
///
/// # Safety
/// `to` is valid for `R` rows of scores at the distance `stride`, `query` for `R` queries; `range` is within the keys.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn key_blocks<T: Type, const R: usize, const K: usize>(
    to: *mut f32,
    stride: usize,
    query: *const f32,
    keys: &KvRows<'_>,
    range: &Range<usize>,
    ahead: isize,
) {
    let bytes = keys.elements().bytes(keys.dim());
    let (dim, distance) = (keys.dim(), keys.distance());
    // SAFETY: the caller's; each block of keys is within them. All lanes are written before they are added up.
    unsafe {
        let mut key = keys.as_ptr().add(range.start * distance);
        let mut first = range.start;
        while first + BLOCKS * K <= range.end {
            let mut lanes = [MaybeUninit::<[[__m256; K]; R]>::uninit(); BLOCKS];
            for block in 0..BLOCKS {
                if ahead != 0 {
                    for k in 0..K {
                        prefetch(key.wrapping_add(k * distance).wrapping_offset(ahead), bytes);
                    }
                }
                lanes[block].write(products::<T, R, K>(query, dim, key, distance));
                key = key.wrapping_add(K * distance);
            }
            for block in 0..BLOCKS {
                store_sums(to.add(first), stride, lanes[block].assume_init());
                first += K;
            }
        }
        while first + K <= range.end {
            let lanes = products::<T, R, K>(query, dim, key, distance);
            store_sums(to.add(first), stride, lanes);
            key = key.wrapping_add(K * distance);
            first += K;
        }
        if first == range.end {
            return;
        }
        if range.end >= K {
            // The last keys again, some of them: their scores get the same bits.
            first = range.end - K;
            let key = keys.as_ptr().add(first * distance);
            let lanes = products::<T, R, K>(query, dim, key, distance);
            store_sums(to.add(first), stride, lanes);
        } else {
            for k in first..range.end {
                // One key over and over.
                let key = keys.as_ptr().add(k * distance);
                let mut sums = [[0.0f32; K]; R];
                store_sums(sums.as_mut_ptr().cast(), K, products::<T, R, K>(query, dim, key, 0));
                for r in 0..R {
                    *to.add(r * stride + k) = sums[r][0];
                }
            }
        }
    }
}

/// The lanes of the products of `R` queries with `K` keys.
///
/// # Safety
/// All keys and queries are valid for `dim` elements.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn products<T: Type, const R: usize, const K: usize>(
    query: *const f32,
    dim: usize,
    key: *const u8,
    distance: usize,
) -> [[__m256; K]; R] {
    let mut lanes = [[_mm256_setzero_ps(); K]; R];
    let mut scales = [_mm256_setzero_ps(); K];
    let mut i = 0;
    // SAFETY: the caller's; `dim` is a multiple of the block, and of 8.
    unsafe {
        if T::BLOCK == 32 {
            while i < dim {
                for k in 0..K {
                    scales[k] = scale::<T>(key.add(k * distance), i);
                }
                for part in 0..4 {
                    let at = i + part * LANES;
                    multiply::<T, R, K>(&mut lanes, query, dim, key, distance, at, &scales);
                }
                i += 32;
            }
        } else {
            while i + 2 * LANES <= dim {
                multiply::<T, R, K>(&mut lanes, query, dim, key, distance, i, &scales);
                multiply::<T, R, K>(&mut lanes, query, dim, key, distance, i + LANES, &scales);
                i += 2 * LANES;
            }
            if i < dim {
                multiply::<T, R, K>(&mut lanes, query, dim, key, distance, i, &scales);
            }
        }
    }
    lanes
}

/// Adds the products of elements `i .. i + 8`.
///
/// # Safety
/// See [`products`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
#[allow(clippy::too_many_arguments, reason = "all of them stay in registers")]
unsafe fn multiply<T: Type, const R: usize, const K: usize>(
    lanes: &mut [[__m256; K]; R],
    query: *const f32,
    dim: usize,
    key: *const u8,
    distance: usize,
    i: usize,
    scales: &[__m256; K],
) {
    // SAFETY: the caller's.
    unsafe {
        let mut q = [_mm256_setzero_ps(); R];
        for r in 0..R {
            q[r] = _mm256_loadu_ps(query.add(r * dim + i));
        }
        for k in 0..K {
            let key = load::<T>(key.add(k * distance), i, scales[k]);
            for r in 0..R {
                lanes[r][k] = _mm256_fmadd_ps(q[r], key, lanes[r][k]);
            }
        }
    }
}

/// Stores the sums of the lanes, each as [`crate::simd::attention::sum_halves`], in rows of `K`.
///
/// # Safety
/// `to` is valid for `R` rows of `K` floats at the distance `stride`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn store_sums<const R: usize, const K: usize>(to: *mut f32, stride: usize, lanes: [[__m256; K]; R]) {
    // SAFETY: the caller's. Rows and keys are those of `scores_of`.
    unsafe {
        if K == 4 {
            for r in 0..R {
                let v = &lanes[r];
                let sums = sum_of_four([v[0], v[1 % K], v[2 % K], v[3 % K]]);
                _mm_storeu_ps(to.add(r * stride), sums);
            }
        } else {
            for r in (0..R).step_by(2) {
                let (v, w) = (&lanes[r], &lanes[(r + 1).min(R - 1)]);
                let sums = _mm_castps_pd(sum_of_four([v[0], v[1 % K], w[0], w[1 % K]]));
                _mm_storel_pd(to.add(r * stride).cast(), sums);
                if r + 1 < R {
                    _mm_storeh_pd(to.add((r + 1) * stride).cast(), sums);
                }
            }
        }
    }
}

/// Lane `i` plus lane `i + 4`: of `a` in the lower half, of `b` in the upper half.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fold(a: __m256, b: __m256) -> __m256 {
    let crossed = _mm256_permute2f128_ps::<0x21>(a, b);
    _mm256_add_ps(_mm256_blend_ps::<0xf0>(a, b), crossed)
}

/// In each half, lanes 0 and 1 plus lanes 2 and 3: of `a`, then of `b`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fold_pairs(a: __m256, b: __m256) -> __m256 {
    _mm256_add_ps(_mm256_shuffle_ps::<0x44>(a, b), _mm256_shuffle_ps::<0xee>(a, b))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_of_four(v: [__m256; 4]) -> __m128 {
    let a = fold_pairs(fold(v[0], v[2]), fold(v[1], v[3]));
    let (low, high) = (_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
    _mm_add_ps(_mm_shuffle_ps::<0x88>(low, high), _mm_shuffle_ps::<0xdd>(low, high))
}

/// See [`crate::simd::attention::weighted_sum`].
///
/// # Safety
/// None but the instructions.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn weighted_sum(
    sums: Rows<'_>,
    rows: usize,
    weights: &[f32],
    weight_stride: usize,
    values: &KvRows<'_>,
) {
    match values.elements() {
        Elements::F32 => weighted_sum_of::<F32>(sums, rows, weights, weight_stride, values),
        Elements::F16 => weighted_sum_of::<F16>(sums, rows, weights, weight_stride, values),
        Elements::BF16 => weighted_sum_of::<BF16>(sums, rows, weights, weight_stride, values),
        Elements::Q8_0 => weighted_sum_of::<Q8_0>(sums, rows, weights, weight_stride, values),
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn weighted_sum_of<T: Type>(
    sums: Rows<'_>,
    rows: usize,
    weights: &[f32],
    weight_stride: usize,
    values: &KvRows<'_>,
) {
    let (dim, len) = (values.dim(), values.len());
    if rows == 0 || len == 0 {
        return;
    }
    assert!(sums.data.len() >= (rows - 1) * sums.stride + dim, "{rows} sums of {dim}");
    assert!(weights.len() >= (rows - 1) * weight_stride + len, "{rows} rows of {len} weights");
    let step = (CHUNK / values.elements().bytes(dim)).max(2 * LANES);
    for first in (0..len).step_by(step) {
        let range = first..len.min(first + step);
        let mut row = 0;
        while row < rows {
            let heads = block_of(rows - row);
            let ahead = if row == 0 { values.ahead() } else { 0 };
            let block = Weighted {
                sums: sums.data[row * sums.stride..].as_mut_ptr(),
                stride: sums.stride,
                weights: weights[row * weight_stride..].as_ptr(),
                weight_stride,
            };
            // SAFETY: `heads` rows of sums and weights from `row` on.
            unsafe {
                match heads {
                    1 => block.columns::<T, 1, 8>(values, &range, ahead),
                    2 => block.columns::<T, 2, 4>(values, &range, ahead),
                    3 => block.columns::<T, 3, 3>(values, &range, ahead),
                    _ => block.columns::<T, 4, 2>(values, &range, ahead),
                }
            }
            row += heads;
        }
    }
}

/// A block of rows of sums, and their weights.
struct Weighted {
    sums: *mut f32,
    stride: usize,
    weights: *const f32,
    weight_stride: usize,
}

impl Weighted {
    /// Adds some values to all columns of `R` rows, `V` vectors at a time.
    ///
    /// # Safety
    /// The pointers are valid for `R` rows, as wide as the values and of as many weights; `range` is within the values.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn columns<T: Type, const R: usize, const V: usize>(
        &self,
        values: &KvRows<'_>,
        range: &Range<usize>,
        ahead: isize,
    ) {
        let mut col = 0;
        // SAFETY: the caller's; the columns are within the row.
        unsafe {
            while col + V * LANES <= values.dim() {
                self.add::<T, R, V>(values, range, col, ahead);
                col += V * LANES;
            }
            while col + 2 * LANES <= values.dim() {
                self.add::<T, R, 2>(values, range, col, ahead);
                col += 2 * LANES;
            }
            if col < values.dim() {
                self.add::<T, R, 1>(values, range, col, ahead);
            }
        }
    }

    /// # Safety
    /// See [`Weighted::columns`]; there are `V` vectors from `col` on.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add<T: Type, const R: usize, const V: usize>(
        &self,
        values: &KvRows<'_>,
        range: &Range<usize>,
        col: usize,
        ahead: isize,
    ) {
        let mut sums = [[_mm256_setzero_ps(); V]; R];
        // SAFETY: the caller's.
        unsafe {
            for r in 0..R {
                for v in 0..V {
                    sums[r][v] = _mm256_loadu_ps(self.sums.add(r * self.stride + col + v * LANES));
                }
            }
            let from = values.elements().bytes(col);
            let bytes = values.elements().bytes(col + V * LANES) - from;
            for j in range.start..range.end {
                let row = values.as_ptr().add(j * values.distance());
                if ahead != 0 {
                    prefetch(row.wrapping_offset(ahead).wrapping_add(from), bytes);
                }
                let mut weights = [_mm256_setzero_ps(); R];
                for r in 0..R {
                    weights[r] = _mm256_broadcast_ss(&*self.weights.add(r * self.weight_stride + j));
                }
                for v in 0..V {
                    let i = col + v * LANES;
                    let value = load::<T>(row, i, scale::<T>(row, i));
                    for r in 0..R {
                        sums[r][v] = _mm256_fmadd_ps(weights[r], value, sums[r][v]);
                    }
                }
            }
            for r in 0..R {
                for v in 0..V {
                    _mm256_storeu_ps(self.sums.add(r * self.stride + col + v * LANES), sums[r][v]);
                }
            }
        }
    }
}

/// See [`crate::simd::float::exp_scores`]. Lanes past the end hold -inf, which has no weight.
///
/// # Safety
/// None but the instructions.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn exp_scores(scores: &mut [f32]) -> (f32, f32) {
    let whole = scores.len() / LANES * LANES;
    let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32((scores.len() - whole) as i32), lane);
    let nothing = _mm256_set1_ps(f32::NEG_INFINITY);
    let at = scores.as_mut_ptr();
    let mut top = nothing;
    // SAFETY: whole vectors, and the lanes below the mask, are inside `scores`.
    unsafe {
        let rest = _mm256_maskload_ps(at.add(whole), mask);
        let rest = _mm256_blendv_ps(nothing, rest, _mm256_castsi256_ps(mask));
        for i in (0..whole).step_by(LANES) {
            top = _mm256_max_ps(_mm256_loadu_ps(at.add(i)), top);
        }
        top = _mm256_max_ps(rest, top);
        let half = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps::<1>(top));
        let pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
        let top = _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
        // With nothing above -inf, any finite reference makes the differences -inf (or keeps a NaN).
        let reference = _mm256_set1_ps(if top == f32::NEG_INFINITY { 0.0 } else { top });
        let mut sums = _mm256_setzero_ps();
        for i in (0..whole).step_by(LANES) {
            let weights = exp(_mm256_sub_ps(_mm256_loadu_ps(at.add(i)), reference));
            _mm256_storeu_ps(at.add(i), weights);
            sums = _mm256_add_ps(sums, weights);
        }
        if whole < scores.len() {
            let weights = exp(_mm256_sub_ps(rest, reference));
            _mm256_maskstore_ps(at.add(whole), mask, weights);
            sums = _mm256_add_ps(sums, weights);
        }
        let mut lanes = [0.0f32; LANES];
        _mm256_storeu_ps(lanes.as_mut_ptr(), sums);
        (top, sum_lanes(lanes))
    }
}
