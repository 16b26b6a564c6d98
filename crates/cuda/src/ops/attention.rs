//! Softmax attention over the paged cache.

use super::{Lowering, flash};
use crate::buffers::cache_type;
use crate::checks::Check;
use crate::kernels::Spec;
use crate::scratch::Region;
use crate::step::{Step, invariant};
use graph::ops::Attention;
use graph::{BackendError, StatePart};

#[repr(C)]
#[derive(Clone, Copy)]
struct AttentionArgs {
    q: u64,
    out: u64,
    keys: u64,
    values: u64,
    positions: u64,
    ranges: u64,
    pages: u64,
    partial: u64,
    done: u64,
    tokens: u32,
    sequences: u32,
    max_pages: u32,
    page_len: u32,
    cache_rows: u32,
    heads: u32,
    kv_heads: u32,
    groups: u32,
    window: u32,
    splits: u32,
    key_type: i32,
    value_type: i32,
    scale: f32,
    soft_cap: f32,
}

/// Keys of a tile, and threads of a block: as in `attention.cu`.
const KEYS: usize = 64;
const THREADS: u32 = 256;
/// Blocks that the keys of one token are shared out over, at most.
const MOST_SPLITS: usize = 64;
/// The widest heads: a thread sums a column of the values.
pub(crate) const WIDEST_VALUE: usize = THREADS as usize;
/// Queries and a tile of keys must lie in shared memory.
pub(crate) const WIDEST_KEY: usize = 256;

impl Lowering<'_> {
    pub(super) fn attention(&mut self, step: &Step, op: &Attention) -> Result<(), BackendError> {
        let state =
            self.states.get(step.state.ok_or_else(|| invariant("state", "that of a layer", "none"))?)?;
        let part = |part| {
            let (rows, _, dtype) =
                state.spec.part(part).ok_or_else(|| invariant("state", format!("{part:?}"), "none"))?;
            let kind = cache_type(dtype).ok_or_else(|| invariant("cache", "a type that is known", dtype))?;
            Ok::<_, BackendError>((rows, kind, state.part(part)?.address()))
        };
        let (key_rows, key_type, keys) = part(StatePart::Key)?;
        let (value_rows, value_type, values) = part(StatePart::Value)?;
        let rows = key_rows.min(value_rows);
        let [q, _, positions, ranges, _, pages] = step.inputs[..] else {
            return Err(invariant("inputs", 6, step.inputs.len()));
        };
        let tokens = q.shape.rows;
        let window = op.window.unwrap_or(0).min(i32::MAX as usize);
        self.check(Check::Pages { positions, ranges, pages, page_len: step.page_len, window, rows });
        let cache = flash::Cache { keys, values, key_type, value_type, rows };
        if flash::suits(op, cache, [tokens, pages.shape.rows], self.device.shared_memory as usize) {
            return self.flash(step, op, cache, window);
        }
        let per_kv = op.heads / op.kv_heads.max(1);
        let group = per_kv.next_power_of_two().min(8);
        let groups = per_kv.div_ceil(group);
        let blocks = op.kv_heads * groups;
        let splits =
            (2 * self.device.multiprocessors as usize).div_ceil(tokens * blocks).clamp(1, MOST_SPLITS);
        let partial = tokens * blocks * splits * group * (op.value_dim + 2) * 4;
        let (partial, done) = match splits {
            1 => (0, 0),
            _ => {
                (self.scratch(Region::Attention, partial)?, self.scratch(Region::Done, tokens * blocks * 4)?)
            }
        };
        let args = AttentionArgs {
            q: self.floats(&q)?,
            out: self.floats(&step.output)?,
            keys,
            values,
            positions: self.ints(&positions)?,
            ranges: self.ints(&ranges)?,
            pages: self.ints(&pages)?,
            partial,
            done,
            tokens: tokens as u32,
            sequences: pages.shape.rows as u32,
            max_pages: pages.shape.cols as u32,
            page_len: step.page_len as u32,
            cache_rows: rows as u32,
            heads: op.heads as u32,
            kv_heads: op.kv_heads as u32,
            groups: groups as u32,
            window: window as u32,
            splits: splits as u32,
            key_type,
            value_type,
            scale: op.scale,
            soft_cap: op.soft_cap.unwrap_or(0.0),
        };
        let q_stride = op.head_dim.next_multiple_of(16);
        let keys = KEYS * (q_stride + 4 + op.value_dim.next_multiple_of(4));
        let parts = THREADS as usize * group;
        let shared = (group * q_stride + keys.max(parts) + group * KEYS) * 4;
        let spec = Spec::Attention {
            group: group as u32,
            head_dim: op.head_dim as u32,
            value_dim: op.value_dim as u32,
        };
        self.launch(spec, [splits, blocks, tokens], THREADS, shared, args)
    }
}
