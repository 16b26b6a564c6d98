//! The inner loops of attention, in portable code: the definition of the order of their sums.
//!
//! Both loops read keys and values as the cache stores them and convert them on the way, so that a decode step passes
//! over the cache once. All query heads that share a KV head are given together.

use graph::DType;
use half::{bf16, f16};
use quant::{BlockQ8_0, Format};
use std::ops::Range;

/// Elements that the loops handle at once: the widths that they are given are multiples.
pub(crate) const LANES: usize = 8;

/// The types that a cache can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Elements {
    F32,
    F16,
    BF16,
    /// Blocks of 32 with a scale.
    Q8_0,
}

impl Elements {
    /// The type of a cache, if it is one of those that a cache can have.
    pub(crate) fn of(dtype: DType) -> Option<Elements> {
        match dtype {
            DType::F32 => Some(Elements::F32),
            DType::F16 => Some(Elements::F16),
            DType::BF16 => Some(Elements::BF16),
            DType::Packed(Format::Q8_0) => Some(Elements::Q8_0),
            _ => None,
        }
    }

    /// Bytes of a head of `dim` elements, whole blocks of them.
    pub(crate) fn bytes(self, dim: usize) -> usize {
        match self {
            Elements::F32 => 4 * dim,
            Elements::F16 | Elements::BF16 => 2 * dim,
            Elements::Q8_0 => dim / 32 * size_of::<BlockQ8_0>(),
        }
    }

    /// Elements of the smallest unit.
    fn block(self) -> usize {
        if self == Elements::Q8_0 { 32 } else { 1 }
    }
}

/// One head's keys or values at positions that follow each other, in rows at a fixed distance.
#[derive(Clone, Copy)]
pub(crate) struct KvRows<'a> {
    data: &'a [u8],
    distance: usize,
    len: usize,
    dim: usize,
    elements: Elements,
    /// From a row to the one that is fetched while it is used.
    ahead: isize,
}

impl<'a> KvRows<'a> {
    /// `len` rows of `dim` elements, the first at the start of `data` and each `distance` bytes after the one before.
    pub(crate) fn new(
        data: &'a [u8],
        distance: usize,
        len: usize,
        dim: usize,
        elements: Elements,
    ) -> KvRows<'a> {
        assert!(dim.is_multiple_of(LANES) && dim.is_multiple_of(elements.block()), "{dim} {elements:?}");
        let needed = len.checked_sub(1).map_or(0, |before| before * distance + elements.bytes(dim));
        assert!(data.len() >= needed, "{len} rows {distance} bytes apart in {} bytes", data.len());
        KvRows { data, distance, len, dim, elements, ahead: 0 }
    }

    /// The same rows, while the use of which those that begin at `next`, as far apart, are to be fetched.
    pub(crate) fn fetching(self, next: *const u8) -> KvRows<'a> {
        KvRows { ahead: next.addr().wrapping_sub(self.data.as_ptr().addr()) as isize, ..self }
    }

    /// From a row to the one that is to be fetched while it is used; 0 if none is.
    pub(crate) fn ahead(&self) -> isize {
        self.ahead
    }

    /// Rows of a tile of floats, without gaps.
    pub(crate) fn floats(tile: &'a [f32], dim: usize) -> KvRows<'a> {
        let len = tile.len().checked_div(dim).unwrap_or(0);
        KvRows::new(bytemuck::cast_slice(tile), 4 * dim, len, dim, Elements::F32)
    }

    /// Some of the rows.
    pub(crate) fn slice(&self, rows: Range<usize>) -> KvRows<'a> {
        assert!(rows.end <= self.len, "rows {rows:?} of {}", self.len);
        let data = &self.data[(rows.start * self.distance).min(self.data.len())..];
        KvRows { data, len: rows.len(), ..*self }
    }

    /// The first byte.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.data.as_ptr()
    }

    /// Bytes from a row to the next.
    pub(crate) fn distance(&self) -> usize {
        self.distance
    }

    /// Rows.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Elements of a row, a multiple of [`LANES`].
    pub(crate) fn dim(&self) -> usize {
        self.dim
    }

    /// What the elements are.
    pub(crate) fn elements(&self) -> Elements {
        self.elements
    }

    /// Elements `i .. i + 8` of a row.
    fn load(&self, row: usize, i: usize) -> [f32; LANES] {
        let row = &self.data[row * self.distance..];
        let half = |e: usize| [row[2 * (i + e)], row[2 * (i + e) + 1]];
        match self.elements {
            Elements::F32 => std::array::from_fn(|e| {
                let at = 4 * (i + e);
                f32::from_le_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]])
            }),
            Elements::F16 => std::array::from_fn(|e| f16::from_le_bytes(half(e)).to_f32()),
            Elements::BF16 => std::array::from_fn(|e| bf16::from_le_bytes(half(e)).to_f32()),
            Elements::Q8_0 => {
                let block = &row[i / 32 * size_of::<BlockQ8_0>()..];
                let d = f16::from_le_bytes([block[0], block[1]]).to_f32();
                std::array::from_fn(|e| d * f32::from(block[2 + i % 32 + e] as i8))
            }
        }
    }
}

/// Some rows of a matrix of floats.
pub(crate) struct Rows<'a> {
    pub(crate) data: &'a mut [f32],
    /// Floats from the start of a row to that of the next.
    pub(crate) stride: usize,
}

/// The scores of each query with each key: row `r` of `scores` is that of query `r`. Queries follow each other without
/// gaps, as wide as the keys.
///
/// Element `i` goes to lane `i % 8`, and the lanes are added as [`sum_halves`] says.
pub(crate) fn scores(scores: Rows<'_>, queries: &[f32], keys: &KvRows<'_>) {
    for (r, query) in queries.chunks_exact(keys.dim()).enumerate() {
        for (k, score) in scores.data[r * scores.stride..][..keys.len()].iter_mut().enumerate() {
            let mut lanes = [0.0f32; LANES];
            for (i, q) in query.chunks_exact(LANES).enumerate() {
                let key = keys.load(k, i * LANES);
                for ((lane, key), q) in lanes.iter_mut().zip(key).zip(q) {
                    *lane = q.mul_add(key, *lane);
                }
            }
            *score = sum_halves(lanes);
        }
    }
}

/// The sum of eight lanes: the second half is added to the first until one is left. A vector is folded this way with
/// fewer instructions than by neighbours.
pub(crate) fn sum_halves(lanes: [f32; LANES]) -> f32 {
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// Adds to each row of `sums` the values, weighted by that row of `weights`: one fused multiply-add after the other, in
/// the order of the values. Row `r` of the weights begins at `r * weight_stride`.
pub(crate) fn weighted_sum(
    sums: Rows<'_>,
    rows: usize,
    weights: &[f32],
    weight_stride: usize,
    values: &KvRows<'_>,
) {
    for r in 0..rows {
        let sum = &mut sums.data[r * sums.stride..][..values.dim()];
        for (j, p) in weights[r * weight_stride..][..values.len()].iter().enumerate() {
            for (i, sum) in sum.chunks_exact_mut(LANES).enumerate() {
                for (s, v) in sum.iter_mut().zip(values.load(j, i * LANES)) {
                    *s = p.mul_add(v, *s);
                }
            }
        }
    }
}
