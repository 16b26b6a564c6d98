//! Softmax attention over a paged cache.
//!
//! # The order of the sums
//!
//! The keys of a sequence are cut into segments of [`SEGMENT`] positions, at multiples of it counted from position 0.
//! For one query and one segment, on its own: the scores of the visible keys (`simd/attention.rs` has the order of a
//! dot product), their maximum, the exponentials and their sum (lane `position % 8`, the lanes as a tree), and the
//! weighted sum of the values in the order of positions. The segments' results are then merged one after the other, by
//! rising position, after a sink, if there is one. All of this depends on the query's position and window alone: not on the batch, on how the prompt
//! was cut into forwards, on where pages lie, or on who computes what.
//!
//! # Who computes what
//!
//! An item is some tokens of a sequence, and one KV head, or all of them for a single token: all query heads that share
//! a KV head are computed together. A single token reads keys and values where they are, and converts them in registers;
//! several tokens share tiles of decoded ones, small enough for the first-level cache (`segment.rs`). Where items alone
//! do not keep all threads busy (decoding at depth), the segments are spread over the threads too, in rounds whose
//! results fit in a few megabytes; where even these are few, KV heads become items of their own.
//!
//! With all KV heads in one item, a worker passes over whole rows of the cache in their order. Head by head it would
//! come three times or more to the same pages of memory, for a few cache lines of each row: measured, half the speed.

mod segment;

use crate::exec::{Exec, In, Out, StateMatrix, equal, index, invariant};
use crate::quantize::Columns;
use crate::simd::attention::{Elements, LANES};
use graph::ops::Attention;
use graph::{BackendError, StatePart};
use segment::Tiles;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Positions of a segment.
pub(crate) const SEGMENT: usize = 256;
/// Rows (query heads times tokens) that share the decoding of keys and values in prefill.
const ROWS: usize = 64;
/// Units of work for a thread, at least, if one token's KV heads are to stay together: with fewer, the last ones would
/// leave threads idle.
const UNITS: usize = 4;
/// Floats of the results of segments that wait to be merged: 4 MiB.
const PARTIALS: usize = 1 << 20;

/// Reused memory.
#[derive(Default)]
pub(crate) struct AttentionScratch {
    items: Vec<Item>,
    units: Vec<Unit>,
    partials: Vec<f32>,
}

/// Some tokens of one sequence and one KV head, or one token and several KV heads.
#[derive(Clone, Debug, PartialEq)]
struct Item {
    sequence: usize,
    kv_heads: Range<usize>,
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
    /// Floats of a padded query and key.
    stride: usize,
    /// Floats of a padded value.
    value_stride: usize,
    key_elements: Elements,
    value_elements: Elements,
    /// A logit for each query head.
    sinks: Option<&'a [f32]>,
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
    let count = |items: &[Item]| items.iter().map(|item| item.segments().len()).sum();
    let mut segments: usize = count(items);
    if segments < UNITS * threads && threads > 1 {
        part_heads(items);
        segments = count(items);
    }
    if threads == 1 || items.len() >= 4 * threads || segments <= items.len() {
        let failed = Failure::default();
        exec.pool.run(items.len(), 1, &|worker, range| {
            // SAFETY: the pool's index, and the one reference in this body.
            let scratch = unsafe { workers.of(worker) };
            for i in range {
                // The last tokens see most: they go first, so that no thread is left with one at the end.
                let item = &items[items.len() - 1 - i];
                failed.note(shape.whole_item(kernels, item, out, scratch));
            }
        })?;
        return failed.result();
    }

    units.clear();
    for (item, what) in items.iter().enumerate() {
        units.extend(what.segments().map(|segment| Unit { item, segment }));
    }
    let rows = items.iter().map(|item| shape.rows_of(item)).max().unwrap_or(0);
    let part_len = rows * shape.width();
    let together = (PARTIALS / part_len.max(1)).max(threads).min(units.len());
    // The totals of the items, and then the parts of a round.
    partials.clear();
    partials.resize((items.len() + together) * part_len, 0.0);
    let (totals, parts) = partials.split_at_mut(items.len() * part_len);
    for (item, total) in items.iter().zip(totals.chunks_exact_mut(part_len)) {
        shape.start(item, total);
    }
    for round in units.chunks(together) {
        let failed = Failure::default();
        let to = Columns::new(parts, part_len);
        exec.pool.run(round.len(), (round.len() / (UNITS * threads)).max(1), &|worker, range| {
            // SAFETY: the pool's index, and the one reference in this body.
            let scratch = unsafe { workers.of(worker) };
            for i in range.clone() {
                let Unit { item, segment } = round[i];
                let next = round[i + 1..range.end].first().filter(|next| next.item == item);
                let item = &items[item];
                let mut tiles = Tiles::new(&mut scratch.floats, &shape, item);
                shape.scale_queries(item, tiles.queries);
                // SAFETY: each unit has its own part.
                let part = unsafe { to.row(i) };
                failed.note(shape.segment(kernels, item, segment, next.is_some(), &mut tiles, part));
            }
        })?;
        failed.result()?;
        let (first, last) = (round[0].item, round[round.len() - 1].item);
        let (to, parts) = (Columns::new(totals, shape.width()), &*parts);
        exec.pool.run((last + 1 - first) * rows, rows.div_ceil(threads), &|_, range| {
            for i in range {
                let (i, row) = (first + i / rows, i % rows);
                let item = &items[i];
                if row >= shape.rows_of(item) {
                    continue;
                }
                // SAFETY: each row of each item has its own total.
                let total = unsafe { to.row(i * rows + row) };
                let begin = round.partition_point(|unit| unit.item < i);
                let end = round.partition_point(|unit| unit.item <= i);
                for part in parts[begin * part_len..end * part_len].chunks_exact(part_len) {
                    shape.merge(kernels, total, &part[row * shape.width()..][..shape.width()]);
                }
                if round[end - 1].segment + 1 == item.segments().end {
                    shape.finish(item, row, total, out);
                }
            }
        })?;
    }
    Ok(())
}

/// Gives each KV head of each item an item of its own.
fn part_heads(items: &mut Vec<Item>) {
    let joined = items.len();
    for i in 0..joined {
        for kv_head in items[i].kv_heads.clone() {
            items.push(Item { kv_heads: kv_head..kv_head + 1, ..items[i].clone() });
        }
    }
    items.drain(..joined);
}

/// The last error of a job's workers.
#[derive(Default)]
struct Failure(Mutex<Option<BackendError>>);

impl Failure {
    fn note(&self, result: Result<(), BackendError>) {
        if let Err(error) = result {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    }

    fn result(self) -> Result<(), BackendError> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

impl<'a> Shape<'a> {
    fn new(exec: &Exec<'a>, op: &'a Attention, out: Out<'_>) -> Result<Shape<'a>, BackendError> {
        let queries = exec.input(0)?;
        let (keys, values) = (exec.state_part(StatePart::Key)?, exec.state_part(StatePart::Value)?);
        if op.kv_heads == 0 || op.heads == 0 || !op.heads.is_multiple_of(op.kv_heads) {
            return Err(invariant("heads", format!("a multiple of {} KV heads", op.kv_heads), op.heads));
        }
        if op.head_dim == 0 || op.value_dim == 0 {
            let found = format!("{} and {}", op.head_dim, op.value_dim);
            return Err(invariant("columns of key and value heads", "at least 1", found));
        }
        equal("columns of the queries", queries.cols, op.heads * op.head_dim)?;
        equal("columns of the cached keys", keys.cols, op.kv_heads * op.head_dim)?;
        equal("columns of the cached values", values.cols, op.kv_heads * op.value_dim)?;
        equal("rows of the result", out.rows, queries.rows)?;
        equal("columns of the result", out.cols, op.heads * op.value_dim)?;
        let sinks = op.sinks.map(|id| exec.vector(id)).transpose()?;
        if let Some(sinks) = sinks {
            equal("elements of the sinks", sinks.len(), op.heads)?;
        }
        let positions = exec.ints(2)?;
        equal("positions", positions.len(), queries.rows)?;
        let page_len = exec.call.graph.params().cache.page_len;
        if page_len == 0 || op.window == Some(0) {
            return Err(invariant("page length and window", "at least 1", 0));
        }
        let elements = |what, matrix: StateMatrix<'_>| {
            let found = matrix.dtype;
            Elements::of(found).ok_or_else(|| invariant(what, "f32, f16, bf16 or q8_0", found))
        };
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
            value_stride: op.value_dim.next_multiple_of(LANES),
            key_elements: elements("cached keys", keys)?,
            value_elements: elements("cached values", values)?,
            sinks,
        })
    }

    /// Floats of a row's result: the values, padded, the sum and the maximum.
    fn width(&self) -> usize {
        self.value_stride + 2
    }

    /// Rows of an item: its query heads times its tokens.
    fn rows_of(&self, item: &Item) -> usize {
        item.tokens.len() * item.kv_heads.len() * self.group
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
                let heads = if tokens.len() == 1 { self.op.kv_heads } else { 1 };
                items.extend((0..self.op.kv_heads).step_by(heads).map(|first| Item {
                    sequence,
                    kv_heads: first..first + heads,
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
}
