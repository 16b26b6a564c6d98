//! Softmax attention over the paged cache.

use super::{Lowering, flash};
use crate::buffers::cache_type;
use crate::checks::Check;
use crate::kernels::Spec;
use crate::scratch::Region;
use crate::step::{Step, invariant};
use graph::ops::Attention;
use graph::{BackendError, StatePart};

/// What attention reads, and where its results go: the first of the arguments of all its kernels, as in `cache.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Attended {
    pub(super) q: u64,
    pub(super) out: u64,
    pub(super) keys: u64,
    pub(super) values: u64,
    pub(super) positions: u64,
    pub(super) ranges: u64,
    pub(super) pages: u64,
    pub(super) sinks: u64,
    pub(super) tokens: u32,
    pub(super) sequences: u32,
    pub(super) max_pages: u32,
    pub(super) page_len: u32,
    pub(super) cache_rows: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) window: u32,
    pub(super) scale: f32,
    pub(super) soft_cap: f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct AttentionArgs {
    attended: Attended,
    partial: u64,
    done: u64,
    groups: u32,
    splits: u32,
    key_type: i32,
    value_type: i32,
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
    /// What attention reads, and the types of keys and values. That it may read so is checked before every run.
    pub(super) fn attended(
        &mut self,
        step: &Step,
        op: &Attention,
    ) -> Result<(Attended, [i32; 2]), BackendError> {
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
        let sinks = match op.sinks {
            Some(_) => {
                let name = step.weight(0)?.name.clone();
                self.vector(&name)?
            }
            None => 0,
        };
        let window = op.window.unwrap_or(0).min(i32::MAX as usize);
        self.check(Check::Pages { positions, ranges, pages, page_len: step.page_len, window, rows });
        let attended = Attended {
            q: self.floats(&q)?,
            out: self.floats(&step.output)?,
            keys,
            values,
            positions: self.ints(&positions)?,
            ranges: self.ints(&ranges)?,
            pages: self.ints(&pages)?,
            sinks,
            tokens: q.shape.rows as u32,
            sequences: pages.shape.rows as u32,
            max_pages: pages.shape.cols as u32,
            page_len: step.page_len as u32,
            cache_rows: rows as u32,
            heads: op.heads as u32,
            kv_heads: op.kv_heads as u32,
            window: window as u32,
            scale: op.scale,
            soft_cap: op.soft_cap.unwrap_or(0.0),
        };
        Ok((attended, [key_type, value_type]))
    }

    pub(super) fn attention(&mut self, step: &Step, op: &Attention) -> Result<(), BackendError> {
        let (attended, types) = self.attended(step, op)?;
        let [tokens, sequences] = [attended.tokens, attended.sequences].map(|count| count as usize);
        if flash::suits(op, types, [tokens, sequences], self.device.shared_memory as usize) {
            return self.flash(op, attended, types);
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
        let [key_type, value_type] = types;
        let args = AttentionArgs {
            attended,
            partial,
            done,
            groups: groups as u32,
            splits: splits as u32,
            key_type,
            value_type,
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
