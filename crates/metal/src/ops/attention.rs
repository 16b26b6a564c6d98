//! Attention over the paged cache (`kernels/attention_decode.metal`, `kernels/attention_prefill.metal`): the choice of the
//! tier and its geometry.

use super::cache::{ByCache, Cache};
use super::checks::{int, require, share};
use super::inputs::{host_values, index};
use super::matmul::nothing;
use crate::device::{Device, Result, Size};
use crate::families::attention::{
    AttentionArgs, CLASSIC_MOST_DIM, DECODE, FLASH_SIMDGROUPS, PREFILL, PREFILL_SIMDGROUPS,
};
use crate::pass::{Pass, equal};
use crate::pipelines::{LibraryLoader, Loader, PipelineId};
use crate::tensor::{Slice, Tensor};
use graph::ops::Attention;
use graph::{BackendError, DType, Shape, WeightId};
use quant::Format;

/// Head dims that the one-pass kernels are made for.
const FLASH_DIMS: [usize; 6] = [64, 80, 96, 128, 192, 256];
/// Fewer keys than this are not worth a threadgroup of their own.
const KEYS_PER_SPLIT: usize = 128;
/// Most threadgroups that the keys of a query head are spread over.
const MOST_SPLITS: usize = 16;
/// Threadgroups that keep a GPU busy: beyond, splits only cost their joining.
const ENOUGH_THREADGROUPS: usize = 512;
/// How many times as long as in tiles an operation on floats takes at least: in the one-pass kernel, which has no matrix units, and
/// in the one that has an element at a time.
const FLASH_COST: u64 = 2;
const CLASSIC_COST: u64 = 8;
/// From so many queries a sequence on, on average, tiles are used: half a tile.
const PREFILL_LEAST_QUERIES: usize = 8;

/// The pipelines of the family.
pub(crate) struct Kernels {
    classic: ByCache,
    flash: Vec<ByCache>,
    combine: PipelineId,
    /// Where the device has matrix units.
    prefill: Option<Vec<ByCache>>,
}

impl Kernels {
    /// Loads them.
    pub fn load<D: Device>(loader: &mut Loader<'_, D>) -> Result<Kernels> {
        fn by_dim<D: Device>(library: &mut LibraryLoader<'_, '_, D>, prefix: &str) -> Vec<ByCache> {
            FLASH_DIMS.iter().map(|dim| ByCache::load_fast(library, prefix, &format!("_d{dim}"))).collect()
        }
        let mut library = loader.library(&DECODE)?;
        let classic = ByCache::load(&mut library, "attention_classic_", "");
        let flash = by_dim(&mut library, "attention_flash_");
        let combine = library.kernel("attention_combine");
        let prefill = match loader.capabilities().simdgroup_matrix {
            true => Some(by_dim(&mut loader.library(&PREFILL)?, "attention_prefill_")),
            false => None,
        };
        Ok(Kernels { classic, flash, combine, prefill })
    }
}

/// Whether a kernel computes heads of these widths.
pub(crate) fn supports(op: &Attention) -> bool {
    (1..=CLASSIC_MOST_DIM).contains(&op.head_dim) && (1..=CLASSIC_MOST_DIM).contains(&op.value_dim)
}

/// Queries of a tile; as in `attention_prefill.metal`.
fn tile_queries(head_dim: usize) -> usize {
    if head_dim <= 128 { 16 } else { 8 }
}

/// A node's operands.
struct Operands<B> {
    q: Tensor<B>,
    y: Tensor<B>,
    positions: Tensor<B>,
    ranges: Tensor<B>,
    pages: Tensor<B>,
    cache: Cache<B>,
    /// A score per head that takes part in the softmax without a value.
    sinks: Slice<B>,
    /// Rows of the cache that are read, at most, for the counts.
    keys_read: usize,
    seen: Seen,
}

/// What the queries of a batch see, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// The most keys of a query.
    longest: usize,
    /// Those of all queries together.
    pairs: u64,
}

/// What a kernel does of a node: tokens or tiles, each for every head.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// How many.
    count: usize,
    /// Of so many.
    of: usize,
    operations: u64,
}

/// Attention of every query to the keys of its sequence.
pub(super) fn attention<D: Device>(
    pass: &mut Pass<'_, D>,
    op: &Attention,
) -> std::result::Result<(), BackendError> {
    let (q, y) = (pass.input(0)?, pass.output()?);
    let sinks = match op.sinks {
        Some(id) => sinks(pass, id, op.heads)?,
        None => nothing(&q.slice),
    };
    let mut operands = Operands {
        y,
        positions: pass.input(2)?,
        ranges: pass.input(3)?,
        pages: pass.input(5)?,
        cache: Cache::of(pass)?,
        sinks,
        q,
        keys_read: 0,
        seen: Seen::default(),
    };
    operands.seen = check(pass, op, &operands)?;
    operands.keys_read =
        operands.seen.longest.saturating_mul(operands.pages.shape.rows).min(operands.cache.keys.shape.rows);
    let [key_row_bytes, value_row_bytes] = operands.cache.row_bytes()?;
    let page_len = pass.page_len();
    let args = AttentionArgs {
        key_row_bytes,
        value_row_bytes,
        heads: int("heads", op.heads)?,
        kv_heads: int("KV heads", op.kv_heads)?,
        head_dim: int("head dim", op.head_dim)?,
        value_dim: int("value dim", op.value_dim)?,
        sequences: int("sequences", operands.pages.shape.rows)?,
        max_pages: int("pages of a sequence", operands.pages.shape.cols)?,
        page_len: int("page length", page_len)?,
        page_shift: if page_len.is_power_of_two() { page_len.trailing_zeros() as i32 } else { -1 },
        cache_rows: int("rows of the cache", operands.cache.keys.shape.rows)?,
        window: op.window.and_then(|window| i32::try_from(window).ok()).unwrap_or(i32::MAX),
        splits: 1,
        has_sinks: i32::from(op.sinks.is_some()),
        first: 0,
        reserved: 0,
        scale: op.scale,
        soft_cap: op.soft_cap.unwrap_or(0.0),
    };
    let dtype = operands.cache.keys.dtype;
    let dim = FLASH_DIMS.iter().position(|&dim| dim == op.head_dim && dim == op.value_dim);
    let of_dim = |kernels: &[ByCache]| dim.and_then(|dim| kernels[dim].find(dtype));
    let (tokens, sequences) = (operands.q.shape.rows, operands.pages.shape.rows);
    let many = tokens >= PREFILL_LEAST_QUERIES.saturating_mul(sequences);
    let switches = pass.switches();
    let kernels = &pass.kernels().attention;
    let prefill = kernels.prefill.as_deref().and_then(of_dim).filter(|_| many && switches.prefill_flash);
    if let Some(kernel) = prefill {
        let tiles = tokens / tile_queries(op.head_dim) + sequences;
        let threads = Size::width(PREFILL_SIMDGROUPS * 32);
        return in_shares(pass, kernel, &args, &operands, [tiles, tile_queries(op.head_dim)], 1, threads);
    }
    if let Some(kernel) = of_dim(&kernels.flash).filter(|_| switches.flash) {
        return flash(pass, kernel, args, &operands);
    }
    let kernel = kernels.classic.get(dtype)?;
    in_shares(pass, kernel, &args, &operands, [tokens, 1], CLASSIC_COST, Size::width(32))
}

/// Operations on floats of so many pairs of a query and a key it sees, in every head: two for each element of the key and of the
/// value.
fn operations(args: &AttentionArgs, pairs: u64) -> u64 {
    let of_pair =
        [args.head_dim, args.value_dim].iter().fold(0, |sum, &dim| sum + 2 * u64::from(dim.unsigned_abs()));
    pairs.saturating_mul(of_pair).saturating_mul(u64::from(args.heads.unsigned_abs()))
}

/// Launches a kernel for all of `count` tokens or tiles of so many queries: in as many dispatches as take no longer than a command
/// buffer may, were the longest of its queries like the longest of all.
fn in_shares<D: Device>(
    pass: &mut Pass<'_, D>,
    kernel: PipelineId,
    args: &AttentionArgs,
    operands: &Operands<D::Buffer>,
    [count, queries]: [usize; 2],
    cost: u64,
    threads: Size,
) -> std::result::Result<(), BackendError> {
    let Seen { longest, pairs } = operands.seen;
    let most = operations(args, (longest as u64).saturating_mul(queries as u64)).saturating_mul(cost);
    let all = operations(args, pairs).saturating_mul(cost);
    let at_once = pass.at_once(most);
    for first in (0..count).step_by(at_once) {
        let args = AttentionArgs { first: int("first query", first)?, ..*args };
        let number = at_once.min(count - first);
        let part = Part { count: number, of: count, operations: most.saturating_mul(number as u64).min(all) };
        let groups = Size::new(args.heads as usize, number, 1);
        launch(pass, kernel, "", &args, operands, None, part, groups, threads)?;
    }
    Ok(())
}

/// A logit for each head.
fn sinks<D: Device>(
    pass: &Pass<'_, D>,
    id: WeightId,
    heads: usize,
) -> std::result::Result<Slice<D::Buffer>, BackendError> {
    let sinks = pass.weight(id)?;
    require(sinks.format == Format::F32, "format of the sinks", Format::F32, sinks.format)?;
    equal("sinks", sinks.rows * sinks.cols, heads)?;
    Ok(sinks.slice)
}

/// The one-pass kernel, over several threadgroups a query head where there are many keys and few queries.
fn flash<D: Device>(
    pass: &mut Pass<'_, D>,
    kernel: PipelineId,
    args: AttentionArgs,
    operands: &Operands<D::Buffer>,
) -> std::result::Result<(), BackendError> {
    let (tokens, heads, dim) = (operands.q.shape.rows, args.heads as usize, args.value_dim as usize);
    let Seen { longest, pairs } = operands.seen;
    let splits = match (pass.switches().split_attention, pass.switches().attention_chunks) {
        (false, _) => 1,
        (true, Some(chunks)) => chunks.min(longest.max(1)),
        (true, None) => {
            let useful = (ENOUGH_THREADGROUPS / (tokens * heads).max(1)).clamp(1, MOST_SPLITS);
            (longest / KEYS_PER_SPLIT).clamp(1, useful)
        }
    };
    let threads = Size::width(FLASH_SIMDGROUPS * 32);
    if splits == 1 {
        return in_shares(pass, kernel, &args, operands, [tokens, 1], FLASH_COST, threads);
    }
    // Few queries: far from what is too long for a dispatch. One is as long as it takes to read its keys.
    let all = if tokens == 1 { 0 } else { operations(&args, pairs).saturating_mul(FLASH_COST) };
    let (part, grid) =
        (Part { count: tokens, of: tokens, operations: all }, Size::new(heads, tokens, splits));
    let args = AttentionArgs { splits: int("splits", splits)?, ..args };
    let partial = pass.scratch(DType::F32, Shape::new(tokens * heads * splits, dim + 2))?;
    launch(pass, kernel, "split", &args, operands, Some(&partial), part, grid, threads)?;
    let combine = pass.kernels().attention.combine;
    pass.launch(combine, "combine")
        .reads(0, &partial)
        .writes(1, &operands.y)
        .bytes(2, &args)
        .reads(3, &operands.sinks)
        .threads(Size::new(dim, heads, tokens), Size::width(dim.min(256)))
}

#[allow(clippy::too_many_arguments, reason = "the parts of one dispatch")]
fn launch<D: Device>(
    pass: &mut Pass<'_, D>,
    kernel: PipelineId,
    step: &str,
    args: &AttentionArgs,
    operands: &Operands<D::Buffer>,
    partial: Option<&Tensor<D::Buffer>>,
    part: Part,
    groups: Size,
    threads: Size,
) -> std::result::Result<(), BackendError> {
    let y = partial.unwrap_or(&operands.y);
    let touched = |tensor: &Tensor<D::Buffer>| share(tensor.slice.length, part.count, part.of);
    pass.launch(kernel, step)
        .operations(part.operations)
        .reads_some(0, &operands.q, touched(&operands.q))
        .writes_some(1, y, touched(y))
        .bytes(2, args)
        .reads_some(3, &operands.cache.keys, args.key_row_bytes as usize * operands.keys_read)
        .reads_some(4, &operands.cache.values, args.value_row_bytes as usize * operands.keys_read)
        .reads(5, &operands.positions)
        .reads(6, &operands.ranges)
        .reads(7, &operands.pages)
        .reads(8, &operands.sinks)
        .threadgroups(groups, threads)
}

/// Checks shapes, and what the host filled in. What the queries see.
fn check<D: Device>(
    pass: &Pass<'_, D>,
    op: &Attention,
    operands: &Operands<D::Buffer>,
) -> std::result::Result<Seen, BackendError> {
    let Operands { q, y, positions, ranges, pages, cache, .. } = operands;
    let heads = op.kv_heads > 0 && op.heads.is_multiple_of(op.kv_heads);
    require(heads, "heads", format!("a multiple of {} KV heads", op.kv_heads), op.heads)?;
    require(
        supports(op),
        "head dims",
        format!("1 to {CLASSIC_MOST_DIM}"),
        format!("{} and {}", op.head_dim, op.value_dim),
    )?;
    require(op.window != Some(0), "window", "at least 1", 0)?;
    require(
        op.soft_cap.is_none_or(|cap| cap > 0.0),
        "soft cap",
        "a positive number",
        op.soft_cap.unwrap_or(0.0),
    )?;
    let page_len = pass.page_len();
    require(page_len > 0, "page length", "at least 1", page_len)?;
    equal("columns of the queries", q.shape.cols, op.heads * op.head_dim)?;
    equal("columns of the result", y.shape.cols, op.heads * op.value_dim)?;
    equal("rows of the result", y.shape.rows, q.shape.rows)?;
    equal("columns of the keys", cache.keys.shape.cols, op.kv_heads * op.head_dim)?;
    equal("columns of the values", cache.values.shape.cols, op.kv_heads * op.value_dim)?;
    equal("positions", positions.shape.elements(), q.shape.rows)?;
    equal("query ranges", ranges.shape.elements(), pages.shape.rows + 1)?;
    let (sequences, max_pages) = (pages.shape.rows, pages.shape.cols);
    let limit = max_pages * page_len;
    let window = op.window.unwrap_or(usize::MAX);
    let values = [host_values(pass, 2)?, host_values(pass, 3)?, host_values(pass, 5)?];
    let [Some(positions), Some(ranges), Some(pages)] = values else {
        let longest = limit.min(window);
        return Ok(Seen { longest, pairs: (longest as u64).saturating_mul(q.shape.rows as u64) });
    };
    let physical = cache.keys.shape.rows / page_len;
    let mut seen = Seen::default();
    for sequence in 0..sequences {
        let end = index("query range", sequence + 1, ranges[sequence + 1], q.shape.rows + 1)?;
        let start = index("query range", sequence, ranges[sequence], end + 1)?;
        let (mut earliest, mut latest) = (usize::MAX, 0);
        for (token, &position) in positions.iter().enumerate().take(end).skip(start) {
            let position = index("position", token, position, limit)?;
            let first = (position + 1).saturating_sub(window);
            seen.longest = seen.longest.max(position + 1 - first);
            seen.pairs += (position + 1 - first) as u64;
            (earliest, latest) = (earliest.min(first), latest.max(position + 1));
        }
        for logical in earliest / page_len..latest.div_ceil(page_len) {
            let entry = sequence * max_pages + logical;
            index("page table", entry, pages[entry], physical)?;
        }
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flash_dim_is_whole_pieces_of_sixteen() {
        assert!(FLASH_DIMS.iter().all(|dim| dim.is_multiple_of(16)));
    }
}
