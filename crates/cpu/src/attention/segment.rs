//! The result of a segment, and merging it into the total.

use super::{Item, SEGMENT, Shape};
use crate::cache::cached_rows;
use crate::exec::{Out, Scratch, StateMatrix};
use crate::rows::decode_cached;
use crate::simd::Kernels;
use crate::simd::attention::{Elements, KvRows, LANES, Rows};
use graph::BackendError;
use std::ops::Range;

/// Bytes of keys (or values) that are used while as many behind them are fetched: what all KV heads of an item read in
/// turn, small enough that both halves stay in a first-level cache.
const CHUNK: usize = 8192;
/// Rows of a chunk, at least: the kernels handle up to so many keys together.
const CHUNK_ROWS: usize = 16;
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
    pub(super) fn new(floats: &'t mut Vec<f32>, shape: &Shape<'_>, item: &Item) -> Tiles<'t> {
        let rows = shape.rows_of(item);
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
        let mut tiles = Tiles::new(&mut scratch.floats, self, item);
        self.scale_queries(item, tiles.queries);
        self.start(item, tiles.total);
        for segment in item.segments() {
            let part = std::mem::take(&mut tiles.part);
            let more = segment + 1 < item.segments().end;
            let done = self.segment(kernels, item, segment, more, &mut tiles, part);
            let rows = tiles.total.chunks_exact_mut(self.width()).zip(part.chunks_exact(self.width()));
            rows.for_each(|(total, part)| self.merge(kernels, total, part));
            tiles.part = part;
            done?;
        }
        for (row, total) in tiles.total.chunks_exact(self.width()).enumerate() {
            self.finish(item, row, total, out);
        }
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

    /// The token and the head of a row of an item: all heads of the first token come first, then those of the next.
    fn token_and_head(&self, item: &Item, row: usize) -> (usize, usize) {
        let heads = item.kv_heads.len() * self.group;
        (item.tokens.start + row / heads, item.kv_heads.start * self.group + row % heads)
    }

    pub(super) fn scale_queries(&self, item: &Item, queries: &mut [f32]) {
        let dim = self.op.head_dim;
        for row in 0..self.rows_of(item) {
            let (token, head) = self.token_and_head(item, row);
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

    /// The result of one segment, for all rows of an item. `more` says that the caller goes on with the next.
    pub(super) fn segment(
        &self,
        kernels: &Kernels,
        item: &Item,
        segment: usize,
        more: bool,
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
        let heads = item.kv_heads.len() * group;
        let Tiles { queries, scores, tile, .. } = tiles;

        // For each token, the part of some keys (counted from the segment's first) that it sees.
        let seen_of = |keys: &Range<usize>, token: usize| {
            let seen = within(&self.visible(token));
            let seen = seen.start.max(keys.start)..seen.end.min(keys.end);
            (!seen.is_empty()).then_some(seen)
        };
        let after = self.values().matrix.row(self.cache_row(item.sequence, all.start));
        self.for_each_run(kernels, item, self.keys(), all.clone(), after, tile, |kv_head, first, keys| {
            let here = first - base..first - base + keys.len();
            for (t, token) in item.tokens.clone().enumerate() {
                let Some(seen) = seen_of(&here, token) else { continue };
                let row = t * heads + kv_head * group;
                let queries = &queries[row * stride..][..group * stride];
                let to = Rows { data: &mut scores[row * SEGMENT + seen.start..], stride: SEGMENT };
                let keys = keys.slice(seen.start - here.start..seen.end - here.start);
                // SAFETY: the table is for this processor.
                unsafe { (kernels.scores)(to, queries, &keys) };
            }
        })?;
        for row in 0..self.rows_of(item) {
            let (token, _) = self.token_and_head(item, row);
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
        let after = if more {
            self.keys().matrix.row(self.cache_row(item.sequence, base + SEGMENT)).cast_const()
        } else {
            std::ptr::null()
        };
        self.for_each_run(kernels, item, self.values(), all, after, tile, |kv_head, first, values| {
            let here = first - base..first - base + values.len();
            for (t, token) in item.tokens.clone().enumerate() {
                let Some(seen) = seen_of(&here, token) else { continue };
                let row = t * heads + kv_head * group;
                let weights = &scores[row * SEGMENT + seen.start..];
                let sums = Rows { data: &mut part[row * width..], stride: width };
                let values = values.slice(seen.start - here.start..seen.end - here.start);
                // SAFETY: the table is for this processor.
                unsafe { (kernels.weighted_sum)(sums, group, weights, SEGMENT, &values) };
            }
        })
    }

    /// Calls `each` with every KV head (counted from the item's first) and every stretch of `positions`, with its first
    /// position and its rows: where they lie in the cache, if few rows need them, else decoded into the tile. Stretches
    /// come in their order for each head. `after` is the row of the cache that is needed after them, or null.
    #[allow(clippy::too_many_arguments, reason = "one loop over the cache, for keys and for values")]
    fn for_each_run(
        &self,
        kernels: &Kernels,
        item: &Item,
        half: Half<'_, 'a>,
        positions: Range<usize>,
        after: *const u8,
        tile: &mut [f32],
        mut each: impl FnMut(usize, usize, KvRows<'_>),
    ) -> Result<(), BackendError> {
        let Half { matrix, elements, dim, stride } = half;
        let bytes = elements.bytes(dim);
        let offset = item.kv_heads.start * bytes;
        let heads = item.kv_heads.len();
        if dim == stride && item.tokens.len() * self.group <= DIRECT_ROWS {
            let chunk = (CHUNK / (heads * bytes).max(1) / CHUNK_ROWS * CHUNK_ROWS).max(CHUNK_ROWS);
            let mut first = positions.start;
            while first < positions.end {
                let row = self.cache_row(item.sequence, first);
                let mut end = (first / self.page_len + 1) * self.page_len;
                // Pages that lie one after the other are one stretch.
                while end < positions.end
                    && end - first < chunk
                    && self.cache_row(item.sequence, end) == row + (end - first)
                {
                    end += self.page_len;
                }
                let len = (end.min(positions.end) - first).min(chunk);
                let next = if first + len < positions.end {
                    matrix.row(self.cache_row(item.sequence, first + len)).cast_const()
                } else {
                    after
                };
                let data = cached_rows(matrix, row, len);
                for kv_head in 0..heads {
                    let at = offset + kv_head * bytes;
                    let rows = KvRows::new(&data[at..], matrix.row_bytes, len, dim, elements);
                    let rows = if next.is_null() { rows } else { rows.fetching(next.wrapping_add(at)) };
                    each(kv_head, first, rows);
                }
                first += len;
            }
            return Ok(());
        }
        for first in positions.clone().step_by(self.tile_keys()) {
            let here = first..positions.end.min(first + self.tile_keys());
            let tile = &mut tile[..here.len() * stride];
            for kv_head in 0..heads {
                for (position, row) in here.clone().zip(tile.chunks_exact_mut(stride)) {
                    let cached = cached_rows(matrix, self.cache_row(item.sequence, position), 1);
                    let (head, padding) = row.split_at_mut(dim);
                    decode_cached(kernels, matrix.dtype, &cached[offset + kv_head * bytes..][..bytes], head)?;
                    padding.fill(0.0);
                }
                each(kv_head, first, KvRows::floats(tile, stride));
            }
        }
        Ok(())
    }

    /// The result of no keys: a sink counts as one whose value is zero.
    pub(super) fn start(&self, item: &Item, total: &mut [f32]) {
        let last = self.width() - 1;
        total.fill(0.0);
        for (row, total) in total.chunks_exact_mut(self.width()).take(self.rows_of(item)).enumerate() {
            let (_, head) = self.token_and_head(item, row);
            (total[last - 1], total[last]) = match self.sinks {
                Some(sinks) => (1.0, sinks[head]),
                None => (0.0, f32::NEG_INFINITY),
            };
        }
    }

    /// Merges a row's result of the next segment into its total.
    pub(super) fn merge(&self, kernels: &Kernels, total: &mut [f32], part: &[f32]) {
        let last = self.width() - 1;
        if part[last] == f32::NEG_INFINITY && part[last - 1] == 0.0 {
            return;
        }
        // Both maximums relative to the larger one, as factors.
        let mut factors = [total[last], part[last]];
        // SAFETY: the table is for this processor.
        let (top, _) = unsafe { (kernels.exp_scores)(&mut factors) };
        total[last] = top;
        // SAFETY: as above.
        unsafe { (kernels.axpby)(&mut total[..last], factors[0], &part[..last], factors[1]) };
    }

    /// Divides a row's total by its sum and writes the result.
    pub(super) fn finish(&self, item: &Item, row: usize, total: &[f32], out: Out<'_>) {
        let (token, head) = self.token_and_head(item, row);
        let dim = self.op.value_dim;
        let inverse = 1.0 / total[self.width() - 2];
        // SAFETY: this head of this token is written by this item alone.
        let result = unsafe { std::slice::from_raw_parts_mut(out.row(token).wrapping_add(head * dim), dim) };
        for (r, t) in result.iter_mut().zip(total) {
            *r = t * inverse;
        }
    }
}
