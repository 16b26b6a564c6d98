//! Softmax attention over a paged cache.
//!
//! # The order of the sums
//!
//! The keys of a sequence are cut into segments of [`SEGMENT`] positions, at multiples of it counted from position 0.
//! For one query and one segment, on its own: the scores of the visible keys, their maximum, the exponentials and
//! their sum (lane `position % 8`, the lanes as a tree), and the weighted sum of the values in the order of positions.
//! The segments' results are then merged one after the other, by rising position. All of this depends on the query's
//! position and window alone: not on the batch, on how the prompt was cut into forwards, on where pages lie, or on who
//! computes what.
//!
//! All query heads that share a KV head are computed together, so each key and value is decoded once for them, in
//! tiles that fit in the first-level cache. Where heads and tokens alone do not keep all threads busy (decoding at
//! depth), the segments are spread over the threads too.

use crate::cache::cached_row;
use crate::exec::{Exec, In, Out, Scratch, StateMatrix, equal, index, invariant};
use crate::quantize::Columns;
use crate::rows::decode_cached;
use crate::simd::Kernels;
use crate::simd::float::LANES;
use graph::ops::Attention;
use graph::{BackendError, StatePart};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Positions of a segment.
pub(crate) const SEGMENT: usize = 256;
/// Rows (query heads times tokens) that share the decoding of keys and values in prefill.
const ROWS: usize = 32;
/// Elements of a tile of decoded keys or values: half of a first-level cache of 32 KiB.
const TILE: usize = 4096;

/// Reused memory.
#[derive(Default)]
pub(crate) struct AttentionScratch {
    items: Vec<Item>,
    units: Vec<Unit>,
    partials: Vec<f32>,
}

/// Some tokens of one sequence, and one KV head.
#[derive(Clone, Debug, PartialEq)]
struct Item {
    sequence: usize,
    kv_head: usize,
    tokens: Range<usize>,
    /// Positions that any of the tokens sees.
    visible: Range<usize>,
}

/// One segment of an item, where segments are spread over threads.
#[derive(Clone, Debug, PartialEq)]
struct Unit {
    item: usize,
    segment: usize,
}

impl Item {
    fn segments(&self) -> Range<usize> {
        self.visible.start / SEGMENT..self.visible.end.div_ceil(SEGMENT)
    }
}

/// Everything that stays the same over the node, checked.
struct Shape<'a> {
    op: &'a Attention,
    queries: In<'a>,
    keys: StateMatrix<'a>,
    values: StateMatrix<'a>,
    positions: &'a [i32],
    pages: &'a [i32],
    max_pages: usize,
    page_len: usize,
    /// Query heads to a KV head.
    group: usize,
    /// Floats of a padded key.
    stride: usize,
}

/// Attention of the layer of the node.
pub(crate) fn attention(exec: &mut Exec<'_>, op: &Attention) -> Result<(), BackendError> {
    let mut memory = std::mem::take(&mut exec.temporaries.attention);
    let result = run(exec, op, &mut memory);
    exec.temporaries.attention = memory;
    result
}

fn run(exec: &mut Exec<'_>, op: &Attention, memory: &mut AttentionScratch) -> Result<(), BackendError> {
    let out = exec.output()?;
    let shape = Shape::new(exec, op, out)?;
    let AttentionScratch { items, units, partials } = memory;
    shape.list_items(exec.ints(3)?, exec.ints(4)?, items)?;

    let (kernels, workers, threads) = (exec.kernels, exec.workers, exec.pool.threads());
    let segments: usize = items.iter().map(|item| item.segments().len()).sum();
    let failed = Mutex::new(None);
    let fail = |error| *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    if threads == 1 || items.len() >= 4 * threads || segments <= items.len() {
        exec.pool.run(items.len(), 1, &|worker, range| {
            // SAFETY: the pool's index, and the one reference in this body.
            let scratch = unsafe { workers.of(worker) };
            for item in &items[range] {
                if let Err(error) = shape.whole_item(kernels, item, out, scratch) {
                    fail(error);
                }
            }
        })?;
    } else {
        units.clear();
        for (item, what) in items.iter().enumerate() {
            units.extend(what.segments().map(|segment| Unit { item, segment }));
        }
        let tokens = items.iter().map(|item| item.tokens.len()).max().unwrap_or(0);
        let part_len = tokens * shape.group * shape.width();
        partials.clear();
        partials.resize(units.len() * part_len, 0.0);
        let parts = Columns::new(partials, part_len);
        exec.pool.run(units.len(), 1, &|worker, range| {
            // SAFETY: the pool's index, and the one reference in this body.
            let scratch = unsafe { workers.of(worker) };
            for i in range {
                let item = &items[units[i].item];
                let mut tiles = Tiles::new(&mut scratch.floats, &shape, item.tokens.len());
                shape.scale_queries(item, tiles.queries);
                // SAFETY: each unit has its own part.
                let part = unsafe { parts.row(i) };
                if let Err(error) = shape.segment(kernels, item, units[i].segment, &mut tiles, part) {
                    fail(error);
                }
            }
        })?;
        let parts = &*partials;
        exec.pool.run(items.len(), 1, &|worker, range| {
            // SAFETY: as above.
            let scratch = unsafe { workers.of(worker) };
            for i in range {
                let tiles = Tiles::new(&mut scratch.floats, &shape, items[i].tokens.len());
                shape.start(tiles.total);
                let first = units.partition_point(|unit| unit.item < i);
                for unit in first..units.partition_point(|unit| unit.item <= i) {
                    let part = &parts[unit * part_len..][..tiles.total.len()];
                    shape.merge(kernels, tiles.total, part);
                }
                shape.finish(&items[i], tiles.total, out);
            }
        })?;
    }
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// A worker's memory for one item.
struct Tiles<'t> {
    /// Scaled and padded queries, a row for each head and token.
    queries: &'t mut [f32],
    /// Scores of each row with the keys of a segment.
    scores: &'t mut [f32],
    /// Decoded keys or values.
    tile: &'t mut [f32],
    /// The result of a segment: for each row the maximum, the sum, and the weighted sum of the values.
    part: &'t mut [f32],
    /// The merged results.
    total: &'t mut [f32],
}

impl<'t> Tiles<'t> {
    fn new(floats: &'t mut Vec<f32>, shape: &Shape<'_>, tokens: usize) -> Tiles<'t> {
        let rows = tokens * shape.group;
        let part = rows * shape.width();
        let tile = shape.tile_keys() * shape.stride.max(shape.op.value_dim);
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

impl<'a> Shape<'a> {
    fn new(exec: &Exec<'a>, op: &'a Attention, out: Out<'_>) -> Result<Shape<'a>, BackendError> {
        let queries = exec.input(0)?;
        let (keys, values) = (exec.state_part(StatePart::Key)?, exec.state_part(StatePart::Value)?);
        if op.kv_heads == 0 || !op.heads.is_multiple_of(op.kv_heads) {
            return Err(invariant("heads", format!("a multiple of {} KV heads", op.kv_heads), op.heads));
        }
        equal("columns of the queries", queries.cols, op.heads * op.head_dim)?;
        equal("columns of the cached keys", keys.cols, op.kv_heads * op.head_dim)?;
        equal("columns of the cached values", values.cols, op.kv_heads * op.value_dim)?;
        equal("rows of the result", out.rows, queries.rows)?;
        equal("columns of the result", out.cols, op.heads * op.value_dim)?;
        let positions = exec.ints(2)?;
        equal("positions", positions.len(), queries.rows)?;
        let page_len = exec.call.graph.params().cache.page_len;
        if page_len == 0 || op.window == Some(0) {
            return Err(invariant("page length and window", "at least 1", 0));
        }
        for (what, dtype, width) in
            [("key head", keys.dtype, op.head_dim), ("value head", values.dtype, op.value_dim)]
        {
            if dtype.row_bytes(width).is_none() {
                return Err(invariant(what, format!("whole blocks of {dtype}"), width));
            }
        }
        Ok(Shape {
            op,
            queries,
            keys,
            values,
            positions,
            pages: exec.ints(5)?,
            max_pages: exec.operand(5)?.shape.cols,
            page_len,
            group: op.heads / op.kv_heads,
            stride: op.head_dim.next_multiple_of(LANES),
        })
    }

    /// Floats of a row's result: maximum, sum and values.
    fn width(&self) -> usize {
        self.op.value_dim + 2
    }

    /// Keys (or values) of a tile.
    fn tile_keys(&self) -> usize {
        (TILE / self.stride.max(self.op.value_dim).max(1) / LANES * LANES).clamp(LANES, SEGMENT)
    }

    /// Positions that a query sees.
    fn visible(&self, token: usize) -> Range<usize> {
        // `list_items` has checked that no position is negative.
        let end = self.positions[token] as usize + 1;
        end.saturating_sub(self.op.window.unwrap_or(end))..end
    }

    /// Checks the inputs that tell what each query sees, and lists the work.
    fn list_items(&self, ranges: &[i32], lens: &[i32], items: &mut Vec<Item>) -> Result<(), BackendError> {
        items.clear();
        equal("query ranges", ranges.len(), lens.len() + 1)?;
        equal("page table", self.pages.len(), lens.len() * self.max_pages)?;
        let limit = self.max_pages.saturating_mul(self.page_len);
        let together = (ROWS / self.group).max(1);
        let mut begin = 0;
        for (sequence, &len) in lens.iter().enumerate() {
            let len = index("KV length", sequence, len, limit.saturating_add(1))?;
            let end = index("query range", sequence + 1, ranges[sequence + 1], self.queries.rows + 1)?;
            let start = index("query range", sequence, ranges[sequence], end + 1)?;
            equal("start of a query range", start, begin)?;
            begin = end;
            for token in start..end {
                index("position", token, self.positions[token], len)?;
            }
            let mut first = start;
            while first < end {
                let tokens = first..end.min(first + together);
                first = tokens.end;
                let seen = |token| self.visible(token);
                let visible = tokens
                    .clone()
                    .map(seen)
                    .reduce(|all, one| all.start.min(one.start)..all.end.max(one.end));
                let visible = visible.unwrap_or(0..0);
                self.check_pages(sequence, &visible)?;
                let heads = 0..self.op.kv_heads;
                items.extend(heads.map(|kv_head| Item {
                    sequence,
                    kv_head,
                    tokens: tokens.clone(),
                    visible: visible.clone(),
                }));
            }
        }
        equal("end of the query ranges", begin, self.queries.rows)
    }

    /// Checks that positions lie in pages, and these in the cache.
    fn check_pages(&self, sequence: usize, visible: &Range<usize>) -> Result<(), BackendError> {
        let rows = self.keys.rows.min(self.values.rows);
        for logical in visible.start / self.page_len..visible.end.div_ceil(self.page_len) {
            let entry = sequence * self.max_pages + logical;
            index("page table", entry, self.pages[entry], rows / self.page_len)?;
        }
        Ok(())
    }

    /// The cache row of a position that was checked.
    fn cache_row(&self, sequence: usize, position: usize) -> usize {
        let page = self.pages[sequence * self.max_pages + position / self.page_len];
        page as usize * self.page_len + position % self.page_len
    }

    /// An item's segments one after the other.
    fn whole_item(
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

    /// Row `r` of an item: head `r % group` of the KV head's group, of token `r / group`.
    fn rows<'s>(&'s self, item: &'s Item) -> impl Iterator<Item = (usize, usize, usize)> + use<'s, 'a> {
        let heads = item.kv_head * self.group..(item.kv_head + 1) * self.group;
        let of_token = move |token| heads.clone().map(move |head| (token, head));
        item.tokens.clone().flat_map(of_token).enumerate().map(|(row, (token, head))| (row, token, head))
    }

    fn scale_queries(&self, item: &Item, queries: &mut [f32]) {
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
    fn segment(
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
        let (stride, value_dim, tile_keys) = (self.stride, self.op.value_dim, self.tile_keys());

        for first in all.clone().step_by(tile_keys) {
            let keys = first..all.end.min(first + tile_keys);
            let positions = base + keys.start..base + keys.end;
            self.decode(kernels, item, &self.keys, self.op.head_dim, stride, positions, tiles.tile)?;
            for (row, token, _) in self.rows(item) {
                let seen = within(&self.visible(token));
                let seen = seen.start.max(keys.start)..seen.end.min(keys.end);
                if seen.is_empty() {
                    continue;
                }
                let scores = &mut tiles.scores[row * SEGMENT..][seen.clone()];
                let query = &tiles.queries[row * stride..][..stride];
                let keys = &tiles.tile[(seen.start - first) * stride..(seen.end - first) * stride];
                // SAFETY: the table is for this processor.
                unsafe { (kernels.scores)(scores, query, keys, stride) };
            }
        }
        for (row, token, _) in self.rows(item) {
            let result = &mut part[row * self.width()..][..self.width()];
            result.fill(0.0);
            let seen = within(&self.visible(token));
            if seen.is_empty() {
                result[0] = f32::NEG_INFINITY;
                continue;
            }
            // From a multiple of the lanes on, so that a position's lane is that of its number.
            let first = seen.start / LANES * LANES;
            let scores = &mut tiles.scores[row * SEGMENT..][first..seen.end];
            let (hidden, seen) = scores.split_at_mut(seen.start - first);
            if let Some(cap) = self.op.soft_cap {
                let ptr = seen.as_mut_ptr();
                // SAFETY: the result may be the input, and the table is for this processor.
                unsafe { (kernels.soft_cap)(ptr, ptr.cast_const(), cap, seen.len()) };
            }
            hidden.fill(f32::NEG_INFINITY);
            // SAFETY: the table is for this processor.
            (result[0], result[1]) = unsafe { (kernels.exp_scores)(scores) };
        }
        for first in all.clone().step_by(tile_keys) {
            let keys = first..all.end.min(first + tile_keys);
            let positions = base + keys.start..base + keys.end;
            self.decode(kernels, item, &self.values, value_dim, value_dim, positions, tiles.tile)?;
            for (row, token, _) in self.rows(item) {
                let seen = within(&self.visible(token));
                let seen = seen.start.max(keys.start)..seen.end.min(keys.end);
                if seen.is_empty() {
                    continue;
                }
                let weights = &tiles.scores[row * SEGMENT..][seen.clone()];
                let values = &tiles.tile[(seen.start - first) * value_dim..(seen.end - first) * value_dim];
                let sum = &mut part[row * self.width() + 2..][..value_dim];
                // SAFETY: the table is for this processor.
                unsafe { (kernels.weighted_sum)(sum, weights, values) };
            }
        }
        Ok(())
    }

    /// Decodes the item's head of the keys or values at `positions`, `stride` floats apart, padded with zeros.
    #[allow(clippy::too_many_arguments, reason = "the two callers differ in all of them")]
    fn decode(
        &self,
        kernels: &Kernels,
        item: &Item,
        from: &StateMatrix<'_>,
        width: usize,
        stride: usize,
        positions: Range<usize>,
        tile: &mut [f32],
    ) -> Result<(), BackendError> {
        let bytes = from.dtype.row_bytes(width).unwrap_or(0);
        for (position, row) in positions.zip(tile.chunks_exact_mut(stride.max(1))) {
            let cached = cached_row(from, self.cache_row(item.sequence, position));
            let (head, padding) = row.split_at_mut(width);
            decode_cached(kernels, from.dtype, &cached[item.kv_head * bytes..][..bytes], head)?;
            padding.fill(0.0);
        }
        Ok(())
    }

    /// The result of no keys.
    fn start(&self, total: &mut [f32]) {
        total.fill(0.0);
        for row in total.chunks_exact_mut(self.width()) {
            row[0] = f32::NEG_INFINITY;
        }
    }

    /// Merges the result of the next segment into the total, row by row.
    fn merge(&self, kernels: &Kernels, total: &mut [f32], part: &[f32]) {
        let rows = total.chunks_exact_mut(self.width()).zip(part.chunks_exact(self.width()));
        for (total, part) in rows {
            if part[0] == f32::NEG_INFINITY && part[1] == 0.0 {
                continue;
            }
            // Both maximums relative to the larger one, as factors.
            let mut factors = [total[0], part[0]];
            // SAFETY: the table is for this processor.
            let (top, _) = unsafe { (kernels.exp_scores)(&mut factors) };
            total[0] = top;
            // SAFETY: as above.
            unsafe { (kernels.axpby)(&mut total[1..], factors[0], &part[1..], factors[1]) };
        }
    }

    /// Divides by the sums and writes the result.
    fn finish(&self, item: &Item, total: &[f32], out: Out<'_>) {
        let dim = self.op.value_dim;
        for (row, token, head) in self.rows(item) {
            let total = &total[row * self.width()..][..self.width()];
            let inverse = 1.0 / total[1];
            // SAFETY: this head of this token is written by this item alone.
            let result =
                unsafe { std::slice::from_raw_parts_mut(out.row(token).wrapping_add(head * dim), dim) };
            for (r, t) in result.iter_mut().zip(&total[2..]) {
                *r = t * inverse;
            }
        }
    }
}
