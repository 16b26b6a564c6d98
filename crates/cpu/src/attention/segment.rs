//! The result of a segment, and merging it into the total.

use super::{Item, SEGMENT, Shape};
use crate::cache::cached_rows;
use crate::exec::{Out, Scratch, StateMatrix};
use crate::rows::decode_cached;
use crate::simd::Kernels;
use crate::simd::attention::{Elements, KvRows, LANES, Rows};
use graph::BackendError;
use std::ops::Range;

/// Floats of a tile of decoded keys or values: half of a first-level cache of 32 KiB.
const TILE: usize = 4096;
/// Rows up to which keys and values are converted in registers, for each block of rows again, instead of in tiles.
const DIRECT_ROWS: usize = 8;

/// A worker's memory for one item.
pub(super) struct Tiles<'t> {
    /// Scaled and padded queries, a row for each head and token.
    pub(super) queries: &'t mut [f32],
    /// Scores of each row with the keys of a segment.
    scores: &'t mut [f32],
    /// Decoded keys or values.
    tile: &'t mut [f32],
    /// The result of a segment: for each row the weighted sum of the values, the sum of the weights, and the maximum.
    part: &'t mut [f32],
    /// The merged results.
    total: &'t mut [f32],
}

impl<'t> Tiles<'t> {
    pub(super) fn new(floats: &'t mut Vec<f32>, shape: &Shape<'_>, tokens: usize) -> Tiles<'t> {
        let rows = tokens * shape.group;
        let part = rows * shape.width();
        let tile = shape.tile_keys() * shape.stride.max(shape.value_stride);
        let sizes = [rows * shape.stride, rows * SEGMENT, tile, part, part];
        let needed = sizes.iter().sum();
        if floats.len() < needed {
            floats.resize(needed, 0.0);
        }
        let (queries, rest) = floats.split_at_mut(sizes[0]);
        let (scores, rest) = rest.split_at_mut(sizes[1]);
        let (tile, rest) = rest.split_at_mut(sizes[2]);
        let (part, rest) = rest.split_at_mut(sizes[3]);
        Tiles { queries, scores, tile, part, total: &mut rest[..sizes[4]] }
    }
}

/// One half of the cache.
#[derive(Clone, Copy)]
struct Half<'s, 'a> {
    matrix: &'s StateMatrix<'a>,
    elements: Elements,
    /// Elements of a head.
    dim: usize,
    /// The same, padded.
    stride: usize,
}

impl<'a> Shape<'a> {
    /// An item's segments one after the other.
    pub(super) fn whole_item(
        &self,
        kernels: &Kernels,
        item: &Item,
        out: Out<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), BackendError> {
        let mut tiles = Tiles::new(&mut scratch.floats, self, item.tokens.len());
        self.scale_queries(item, tiles.queries);
        self.start(tiles.total);
        for segment in item.segments() {
            let part = std::mem::take(&mut tiles.part);
            let done = self.segment(kernels, item, segment, &mut tiles, part);
            self.merge(kernels, tiles.total, part);
            tiles.part = part;
            done?;
        }
        self.finish(item, tiles.total, out);
        Ok(())
    }

    /// Keys (or values) of a tile.
    fn tile_keys(&self) -> usize {
        (TILE / self.stride.max(self.value_stride).max(1) / LANES * LANES).clamp(LANES, SEGMENT)
    }

    fn keys(&self) -> Half<'_, 'a> {
        let (matrix, elements) = (&self.keys, self.key_elements);
        Half { matrix, elements, dim: self.op.head_dim, stride: self.stride }
    }

    fn values(&self) -> Half<'_, 'a> {
        let (matrix, elements) = (&self.values, self.value_elements);
        Half { matrix, elements, dim: self.op.value_dim, stride: self.value_stride }
    }

    /// Row `r` of an item: head `r % group` of the KV head's group, of token `r / group`.
    fn rows<'s>(&'s self, item: &'s Item) -> impl Iterator<Item = (usize, usize, usize)> + use<'s, 'a> {
        let heads = item.kv_head * self.group..(item.kv_head + 1) * self.group;
        let of_token = move |token| heads.clone().map(move |head| (token, head));
        item.tokens.clone().flat_map(of_token).enumerate().map(|(row, (token, head))| (row, token, head))
    }

    pub(super) fn scale_queries(&self, item: &Item, queries: &mut [f32]) {
        let dim = self.op.head_dim;
        for (row, token, head) in self.rows(item) {
            // SAFETY: a head of the queries' row, which nothing writes to.
            let query =
                unsafe { std::slice::from_raw_parts(self.queries.row(token).wrapping_add(head * dim), dim) };
            let (scaled, padding) = queries[row * self.stride..][..self.stride].split_at_mut(dim);
            for (s, q) in scaled.iter_mut().zip(query) {
                *s = q * self.op.scale;
            }
            padding.fill(0.0);
        }
    }

    /// The result of one segment, for all rows of an item.
    pub(super) fn segment(
        &self,
        kernels: &Kernels,
        item: &Item,
        segment: usize,
        tiles: &mut Tiles<'_>,
        part: &mut [f32],
    ) -> Result<(), BackendError> {
        let base = segment * SEGMENT;
        // Positions counted from the segment's first.
        let within = |visible: &Range<usize>| {
            visible.start.clamp(base, base + SEGMENT) - base..visible.end.clamp(base, base + SEGMENT) - base
        };
        let all = within(&item.visible);
        let all = base + all.start..base + all.end;
        let (group, stride, width) = (self.group, self.stride, self.width());
        let Tiles { queries, scores, tile, .. } = tiles;

        // For each token, the part of some keys (counted from the segment's first) that it sees.
        let seen_of = |keys: &Range<usize>, token: usize| {
            let seen = within(&self.visible(token));
            let seen = seen.start.max(keys.start)..seen.end.min(keys.end);
            (!seen.is_empty()).then_some(seen)
        };
        self.for_each_run(kernels, item, self.keys(), all.clone(), tile, |first, keys| {
            let here = first - base..first - base + keys.len();
            for (t, token) in item.tokens.clone().enumerate() {
                let Some(seen) = seen_of(&here, token) else { continue };
                let queries = &queries[t * group * stride..][..group * stride];
                let to = Rows { data: &mut scores[t * group * SEGMENT + seen.start..], stride: SEGMENT };
                let keys = keys.slice(seen.start - here.start..seen.end - here.start);
                // SAFETY: the table is for this processor.
                unsafe { (kernels.scores)(to, queries, &keys) };
            }
        })?;
        for (row, token, _) in self.rows(item) {
            let result = &mut part[row * width..][..width];
            result.fill(0.0);
            let seen = within(&self.visible(token));
            if seen.is_empty() {
                result[width - 1] = f32::NEG_INFINITY;
                continue;
            }
            // From a multiple of the lanes on, so that a position's lane is that of its number.
            let first = seen.start / LANES * LANES;
            let scores = &mut scores[row * SEGMENT..][first..seen.end];
            let (hidden, seen) = scores.split_at_mut(seen.start - first);
            if let Some(cap) = self.op.soft_cap {
                let ptr = seen.as_mut_ptr();
                // SAFETY: the result may be the input, and the table is for this processor.
                unsafe { (kernels.soft_cap)(ptr, ptr.cast_const(), cap, seen.len()) };
            }
            hidden.fill(f32::NEG_INFINITY);
            // SAFETY: the table is for this processor.
            (result[width - 1], result[width - 2]) = unsafe { (kernels.exp_scores)(scores) };
        }
        self.for_each_run(kernels, item, self.values(), all, tile, |first, values| {
            let here = first - base..first - base + values.len();
            for (t, token) in item.tokens.clone().enumerate() {
                let Some(seen) = seen_of(&here, token) else { continue };
                let weights = &scores[t * group * SEGMENT + seen.start..];
                let sums = Rows { data: &mut part[t * group * width..], stride: width };
                let values = values.slice(seen.start - here.start..seen.end - here.start);
                // SAFETY: the table is for this processor.
                unsafe { (kernels.weighted_sum)(sums, group, weights, SEGMENT, &values) };
            }
        })
    }

    /// Calls `each` with the first position and the rows of every stretch of `positions`: where they lie in the cache,
    /// if few rows need them, else decoded into the tile.
    fn for_each_run(
        &self,
        kernels: &Kernels,
        item: &Item,
        half: Half<'_, 'a>,
        positions: Range<usize>,
        tile: &mut [f32],
        mut each: impl FnMut(usize, KvRows<'_>),
    ) -> Result<(), BackendError> {
        let Half { matrix, elements, dim, stride } = half;
        let bytes = elements.bytes(dim);
        let offset = item.kv_head * bytes;
        if dim == stride && item.tokens.len() * self.group <= DIRECT_ROWS {
            let mut first = positions.start;
            while first < positions.end {
                let row = self.cache_row(item.sequence, first);
                let mut end = (first / self.page_len + 1) * self.page_len;
                // Pages that lie one after the other are one stretch.
                while end < positions.end && self.cache_row(item.sequence, end) == row + (end - first) {
                    end += self.page_len;
                }
                let len = end.min(positions.end) - first;
                let data = cached_rows(matrix, row, len);
                each(first, KvRows::new(&data[offset..], matrix.row_bytes, len, dim, elements));
                first += len;
            }
            return Ok(());
        }
        for first in positions.clone().step_by(self.tile_keys()) {
            let here = first..positions.end.min(first + self.tile_keys());
            let tile = &mut tile[..here.len() * stride];
            for (position, row) in here.zip(tile.chunks_exact_mut(stride)) {
                let cached = cached_rows(matrix, self.cache_row(item.sequence, position), 1);
                let (head, padding) = row.split_at_mut(dim);
                decode_cached(kernels, matrix.dtype, &cached[offset..][..bytes], head)?;
                padding.fill(0.0);
            }
            each(first, KvRows::floats(tile, stride));
        }
        Ok(())
    }

    /// The result of no keys.
    pub(super) fn start(&self, total: &mut [f32]) {
        total.fill(0.0);
        for row in total.chunks_exact_mut(self.width()) {
            row[self.width() - 1] = f32::NEG_INFINITY;
        }
    }

    /// Merges the result of the next segment into the total, row by row.
    pub(super) fn merge(&self, kernels: &Kernels, total: &mut [f32], part: &[f32]) {
        let last = self.width() - 1;
        let rows = total.chunks_exact_mut(self.width()).zip(part.chunks_exact(self.width()));
        for (total, part) in rows {
            if part[last] == f32::NEG_INFINITY && part[last - 1] == 0.0 {
                continue;
            }
            // Both maximums relative to the larger one, as factors.
            let mut factors = [total[last], part[last]];
            // SAFETY: the table is for this processor.
            let (top, _) = unsafe { (kernels.exp_scores)(&mut factors) };
            total[last] = top;
            // SAFETY: as above.
            unsafe { (kernels.axpby)(&mut total[..last], factors[0], &part[..last], factors[1]) };
        }
    }

    /// Divides by the sums and writes the result.
    pub(super) fn finish(&self, item: &Item, total: &[f32], out: Out<'_>) {
        let (dim, width) = (self.op.value_dim, self.width());
        for (row, token, head) in self.rows(item) {
            let total = &total[row * width..][..width];
            let inverse = 1.0 / total[width - 2];
            // SAFETY: this head of this token is written by this item alone.
            let result =
                unsafe { std::slice::from_raw_parts_mut(out.row(token).wrapping_add(head * dim), dim) };
            for (r, t) in result.iter_mut().zip(total) {
                *r = t * inverse;
            }
        }
    }
}
