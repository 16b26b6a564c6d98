//! The inner loops of attention. Blocks of query heads and of keys (or of columns of the values) stay in registers: an
//! element is converted once for up to four heads, and twelve to sixteen chains of multiply-adds hide their latency.

#![allow(clippy::needless_range_loop, reason = "vectors are named by their number in all arrays alike")]

use super::float::{f16_high, f16_low};
use super::math::exp;
use crate::simd::attention::{Elements, KvRows, LANES, Rows};
use crate::simd::math::sum_lanes;
use crate::simd::prefetch;
use std::arch::aarch64::*;
use std::ops::Range;

/// Bytes of the keys (or values) that all blocks of heads pass over before the next: a quarter of a first-level cache.
const CHUNK: usize = 8192;

/// Eight floats.
type Eight = [float32x4_t; 2];

/// The type of the elements, as a type.
trait Type {
    const ELEMENTS: Elements;
    /// Elements that [`scale`] holds for.
    const BLOCK: usize = LANES;
}

struct F32;
struct F16;
struct BF16;
struct Q8_0;

impl Type for F32 {
    const ELEMENTS: Elements = Elements::F32;
}
impl Type for F16 {
    const ELEMENTS: Elements = Elements::F16;
}
impl Type for BF16 {
    const ELEMENTS: Elements = Elements::BF16;
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
#[target_feature(enable = "neon")]
unsafe fn scale<T: Type>(row: *const u8, i: usize) -> float32x4_t {
    match T::ELEMENTS {
        Elements::Q8_0 => {
            // SAFETY: the two bytes of the block's scale.
            let d = unsafe { row.add(i / 32 * 34).cast::<u16>().read_unaligned() };
            f16_low(vdupq_n_u16(d))
        }
        _ => vdupq_n_f32(0.0),
    }
}

/// Elements `i .. i + 8`, `i` being a multiple of 8.
///
/// # Safety
/// `row` is valid for the bytes of these elements.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load<T: Type>(row: *const u8, i: usize, scale: float32x4_t) -> Eight {
    // SAFETY: the caller's.
    unsafe {
        match T::ELEMENTS {
            Elements::F32 => load_floats(row.cast(), i),
            Elements::F16 => {
                let half = vreinterpretq_u16_u8(vld1q_u8(row.add(2 * i)));
                [f16_low(half), f16_high(half)]
            }
            Elements::BF16 => {
                let half = vreinterpretq_u16_u8(vld1q_u8(row.add(2 * i)));
                let (low, high) = (vshll_n_u16::<16>(vget_low_u16(half)), vshll_high_n_u16::<16>(half));
                [vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(high)]
            }
            Elements::Q8_0 => {
                let quants = vmovl_s8(vld1_s8(row.add(i / 32 * 34 + 2 + i % 32).cast()));
                let low = vcvtq_f32_s32(vmovl_s16(vget_low_s16(quants)));
                let high = vcvtq_f32_s32(vmovl_high_s16(quants));
                [vmulq_f32(scale, low), vmulq_f32(scale, high)]
            }
        }
    }
}

/// # Safety
/// `p` is valid for the floats `i .. i + 8`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load_floats(p: *const f32, i: usize) -> Eight {
    // SAFETY: the caller's; the floats need not be aligned.
    unsafe {
        [vreinterpretq_f32_u8(vld1q_u8(p.add(i).cast())), vreinterpretq_f32_u8(vld1q_u8(p.add(i + 4).cast()))]
    }
}

/// See [`crate::simd::attention::scores`].
///
/// # Safety
/// None but the instructions.
#[target_feature(enable = "neon")]
pub(super) unsafe fn scores(scores: Rows<'_>, queries: &[f32], keys: &KvRows<'_>) {
    match keys.elements() {
        Elements::F32 => scores_of::<F32>(scores, queries, keys),
        Elements::F16 => scores_of::<F16>(scores, queries, keys),
        Elements::BF16 => scores_of::<BF16>(scores, queries, keys),
        Elements::Q8_0 => scores_of::<Q8_0>(scores, queries, keys),
    }
}

#[target_feature(enable = "neon")]
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
            // SAFETY: `heads` queries and rows of scores from `row` on.
            unsafe {
                let ahead = if row == 0 { keys.ahead() } else { 0 };
                match heads {
                    1 => key_blocks::<T, 1, 8>(to, scores.stride, query, keys, keys_here.clone(), ahead),
                    2 => key_blocks::<T, 2, 4>(to, scores.stride, query, keys, keys_here.clone(), ahead),
                    3 => key_blocks::<T, 3, 2>(to, scores.stride, query, keys, keys_here.clone(), ahead),
                    _ => key_blocks::<T, 4, 2>(to, scores.stride, query, keys, keys_here.clone(), ahead),
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
#[target_feature(enable = "neon")]
unsafe fn key_blocks<T: Type, const R: usize, const K: usize>(
    to: *mut f32,
    stride: usize,
    query: *const f32,
    keys: &KvRows<'_>,
    range: Range<usize>,
    ahead: isize,
) {
    let (dim, distance) = (keys.dim(), keys.distance());
    let bytes = keys.elements().bytes(dim);
    let mut first = range.start;
    while first < range.end {
        if range.end - first < K && range.end >= K {
            // The last keys again: their scores get the same bits.
            first = range.end - K;
        }
        let left = (range.end - first).min(K);
        let mut key = [keys.as_ptr(); K];
        for k in 0..K {
            // SAFETY: a row of the keys; the last one stands in for those that are not there.
            key[k] = unsafe { key[k].add((first + k.min(left - 1)) * distance) };
            if ahead != 0 {
                prefetch(key[k].wrapping_offset(ahead), bytes);
            }
        }
        // SAFETY: the caller's.
        unsafe {
            let sums = products::<T, R, K>(query, dim, key);
            for r in 0..R {
                std::ptr::copy_nonoverlapping(sums[r].as_ptr(), to.add(r * stride + first), left);
            }
        }
        first += left;
    }
}

/// The products of `R` queries with `K` (an even number) keys.
///
/// # Safety
/// All keys and queries are valid for `dim` elements.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn products<T: Type, const R: usize, const K: usize>(
    query: *const f32,
    dim: usize,
    key: [*const u8; K],
) -> [[f32; K]; R] {
    let mut lanes = [[[vdupq_n_f32(0.0); 2]; K]; R];
    let mut block = 0;
    while block < dim {
        // SAFETY: the caller's; `dim` is a multiple of the block.
        unsafe {
            let mut scales = [vdupq_n_f32(0.0); K];
            for k in 0..K {
                scales[k] = scale::<T>(key[k], block);
            }
            let mut i = block;
            while i < block + T::BLOCK {
                let mut q = [[vdupq_n_f32(0.0); 2]; R];
                for r in 0..R {
                    q[r] = load_floats(query, r * dim + i);
                }
                for k in 0..K {
                    let key = load::<T>(key[k], i, scales[k]);
                    for r in 0..R {
                        for half in 0..2 {
                            lanes[r][k][half] = vfmaq_f32(lanes[r][k][half], q[r][half], key[half]);
                        }
                    }
                }
                i += LANES;
            }
        }
        block += T::BLOCK;
    }
    let mut sums = [[0.0; K]; R];
    for r in 0..R {
        for k in (0..K).step_by(2) {
            // As `sum_halves` adds the lanes: halves, then pairs, then neighbours.
            let a = vaddq_f32(lanes[r][k][0], lanes[r][k][1]);
            let b = vaddq_f32(lanes[r][k + 1][0], lanes[r][k + 1][1]);
            let [c, d] = [a, b].map(|v| vreinterpretq_f64_f32(v));
            let (low, high) = (vzip1q_f64(c, d), vzip2q_f64(c, d));
            let pairs = vaddq_f32(vreinterpretq_f32_f64(low), vreinterpretq_f32_f64(high));
            let both = vget_low_f32(vpaddq_f32(pairs, pairs));
            (sums[r][k], sums[r][k + 1]) = (vget_lane_f32::<0>(both), vget_lane_f32::<1>(both));
        }
    }
    sums
}

/// See [`crate::simd::attention::weighted_sum`].
///
/// # Safety
/// None but the instructions.
#[target_feature(enable = "neon")]
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

#[target_feature(enable = "neon")]
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
                    3 => block.columns::<T, 3, 2>(values, &range, ahead),
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
    /// Adds some values to all columns of `R` rows, `8 V` at a time.
    ///
    /// # Safety
    /// The pointers are valid for `R` rows, as wide as the values and of as many weights; `range` is within the values.
    #[inline]
    #[target_feature(enable = "neon")]
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
            while col < values.dim() {
                self.add::<T, R, 1>(values, range, col, ahead);
                col += LANES;
            }
        }
    }

    /// # Safety
    /// See [`Weighted::columns`]; there are `8 V` columns from `col` on.
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn add<T: Type, const R: usize, const V: usize>(
        &self,
        values: &KvRows<'_>,
        range: &Range<usize>,
        col: usize,
        ahead: isize,
    ) {
        let mut sums = [[[vdupq_n_f32(0.0); 2]; V]; R];
        // SAFETY: the caller's.
        unsafe {
            for r in 0..R {
                for v in 0..V {
                    sums[r][v] = load_floats(self.sums, r * self.stride + col + v * LANES);
                }
            }
            let from = values.elements().bytes(col);
            let bytes = values.elements().bytes(col + V * LANES) - from;
            for j in range.start..range.end {
                let row = values.as_ptr().add(j * values.distance());
                if ahead != 0 {
                    prefetch(row.wrapping_offset(ahead).wrapping_add(from), bytes);
                }
                let mut value = [[vdupq_n_f32(0.0); 2]; V];
                for v in 0..V {
                    let i = col + v * LANES;
                    value[v] = load::<T>(row, i, scale::<T>(row, i));
                }
                for r in 0..R {
                    let weight = *self.weights.add(r * self.weight_stride + j);
                    for v in 0..V {
                        for half in 0..2 {
                            sums[r][v][half] = vfmaq_n_f32(sums[r][v][half], value[v][half], weight);
                        }
                    }
                }
            }
            for r in 0..R {
                for v in 0..V {
                    let to = self.sums.add(r * self.stride + col + v * LANES);
                    vst1q_f32(to, sums[r][v][0]);
                    vst1q_f32(to.add(4), sums[r][v][1]);
                }
            }
        }
    }
}

/// See [`crate::simd::float::exp_scores`]. Lanes past the end hold -inf, which has no weight.
///
/// # Safety
/// None but the instructions.
#[target_feature(enable = "neon")]
pub(super) unsafe fn exp_scores(scores: &mut [f32]) -> (f32, f32) {
    let whole = scores.len() / LANES * LANES;
    let mut last = [f32::NEG_INFINITY; LANES];
    let left = scores.len() - whole;
    last[..left].copy_from_slice(&scores[whole..]);
    let at = scores.as_mut_ptr();
    // SAFETY: whole vectors are inside `scores`, and `last` and `lanes` are two vectors each.
    unsafe {
        let mut rest = load_floats(last.as_ptr(), 0);
        // A NaN is greater than nothing and passed over.
        let greater = |a: float32x4_t, b: float32x4_t| vbslq_f32(vcgtq_f32(a, b), a, b);
        let mut top = rest.map(|v| greater(v, vdupq_n_f32(f32::NEG_INFINITY)));
        for i in (0..whole).step_by(LANES) {
            let v = load_floats(at, i);
            top = [greater(v[0], top[0]), greater(v[1], top[1])];
        }
        let top = vmaxvq_f32(vmaxq_f32(top[0], top[1]));
        // With nothing above -inf, any finite reference makes the differences -inf (or keeps a NaN).
        let reference = vdupq_n_f32(if top == f32::NEG_INFINITY { 0.0 } else { top });
        let mut sums = [vdupq_n_f32(0.0); 2];
        for i in (0..whole).step_by(LANES) {
            let v = load_floats(at, i);
            for half in 0..2 {
                let weights = exp(vsubq_f32(v[half], reference));
                vst1q_f32(at.add(i + 4 * half), weights);
                sums[half] = vaddq_f32(sums[half], weights);
            }
        }
        for half in 0..2 {
            rest[half] = exp(vsubq_f32(rest[half], reference));
            sums[half] = vaddq_f32(sums[half], rest[half]);
            vst1q_f32(last.as_mut_ptr().add(4 * half), rest[half]);
        }
        scores[whole..].copy_from_slice(&last[..left]);
        let mut lanes = [0.0f32; LANES];
        vst1q_f32(lanes.as_mut_ptr(), sums[0]);
        vst1q_f32(lanes.as_mut_ptr().add(4), sums[1]);
        (top, sum_lanes(lanes))
    }
}
