//! Attention of one new token for each sequence, over a cache of halves or of Q8_0: a decode step. Norms of heads, the rotation and
//! the store that come right before it become part of the launch.

use super::Lowering;
use super::attention::Attended;
use super::flash::format_of;
use super::heads::HeadsArgs;
use crate::buffers::cache_type;
use crate::kernels::{HeadsBefore, Spec};
use crate::scratch::Region;
use crate::step::{Step, invariant};
use graph::ops::Attention;
use graph::{BackendError, NodeId, Op, StatePart};
use quant::Format;

#[repr(C)]
#[derive(Clone, Copy)]
struct DecodeAttentionArgs {
    attended: Attended,
    k: u64,
    v: u64,
    q_norm: u64,
    k_norm: u64,
    angles: u64,
    new_rows: u64,
    partial: u64,
    done: u64,
    least: u32,
    epsilon: f32,
    splits: u32,
    ahead_bytes: [u32; MOST_AHEAD],
    ahead: [u64; MOST_AHEAD],
}

/// Query heads of a block, keys of a tile, and tiles under way in a warp: as in `decode_attention.cu`.
const HEADS: usize = 8;
const TILE_KEYS: usize = 16;
const SLOTS: usize = 3;
/// Keys of a block, at least, where a token's keys are shared out: adding up costs as much as reading some hundred keys.
const LEAST_KEYS: usize = 256;
/// Blocks that the keys of one token are shared out over, at most.
const MOST_SPLITS: usize = 64;
/// Matrices that a launch fetches ahead, at most, as in `decode_attention.cu`; their bytes, a part of the second-level cache; and the
/// blocks that do so, whose threads ask for all at once.
const MOST_AHEAD: usize = 3;
const MOST_AHEAD_BYTES: usize = 16 << 20;
const FETCHING: usize = 32;
/// The widest heads, whose results a warp keeps in registers.
const WIDEST: usize = 256;

/// What was launched last, if it was norms, rotations and a store of one token that attention can do itself.
#[derive(Clone, Copy)]
pub(super) struct LastHeads {
    /// Launches so far, with that one.
    launches: usize,
    args: HeadsArgs,
    /// The value with the queries, and how often it is read.
    queries: (NodeId, usize),
}

/// What attention reads, and does before.
#[derive(Clone, Copy, Default)]
struct Before {
    q: u64,
    k: u64,
    v: u64,
    q_norm: u64,
    k_norm: u64,
    angles: u64,
    cache_rows: u64,
    pairs: u32,
    interleaved: u32,
    epsilon: f32,
}

impl Lowering<'_> {
    /// Remembers the launch that was just added.
    pub(super) fn note_heads(&mut self, args: HeadsArgs, queries: NodeId, uses: usize) {
        let launches = self.out.launches.len();
        self.last_heads = Some(LastHeads { launches, args, queries: (queries, uses) });
    }

    /// Whether the kernel for a decode step can do this.
    pub(super) fn is_decode_attention(&self, step: &Step, op: &Attention) -> Result<bool, BackendError> {
        let state =
            self.states.get(step.state.ok_or_else(|| invariant("state", "that of a layer", "none"))?)?;
        let kind = |part| state.spec.part(part).and_then(|(_, _, dtype)| cache_type(dtype));
        let (key, value) = (kind(StatePart::Key), kind(StatePart::Value));
        // The heads of a cache of blocks are whole blocks.
        let width = |width: usize| width.is_multiple_of(16) && (16..=WIDEST).contains(&width);
        Ok(self.device.capability.0 >= 8
            && step.inputs[0].shape.rows == step.inputs.get(5).map_or(0, |pages| pages.shape.rows)
            && key == value
            && key.is_some_and(|kind| format_of(kind).is_some())
            && width(op.head_dim)
            && width(op.value_dim))
    }

    /// The launch before this one undone, if attention can do its part.
    fn take_heads(&mut self, step: &Step, op: &Attention, [keys, values, out]: [u64; 3]) -> Option<Before> {
        let last = self.last_heads.take()?;
        let out = out..out + step.output.bytes() as u64;
        let reads = step.inputs.iter().filter(|input| input.producer == last.queries.0).count();
        if last.launches != self.out.launches.len()
            || step.inputs[0].producer != last.queries.0
            || reads != last.queries.1
            || step.inputs[0].shape.rows != 1
        {
            return None;
        }
        let args = last.args;
        let given = args.kinds.iter().filter(|kind| kind.heads > 0);
        let mut before = Before { cache_rows: args.cache_rows, epsilon: args.epsilon, ..Before::default() };
        let mut turned = Vec::new();
        for kind in given {
            // Where rows are one wide head, there is neither norm nor rotation.
            let plain = kind.norm == 0 && kind.turned == 0;
            let heads = |count: usize, width: usize| {
                kind.heads as usize * kind.width as usize == count * width
                    && (plain || kind.width as usize == width)
            };
            let fits = if kind.cache == 0 {
                (before.q, before.q_norm) = (kind.x, kind.norm);
                turned.push(kind.turned);
                heads(op.heads, op.head_dim)
            } else if kind.cache == keys {
                (before.k, before.k_norm) = (kind.x, kind.norm);
                turned.push(kind.turned);
                heads(op.kv_heads, op.head_dim)
            } else {
                before.v = kind.x;
                kind.cache == values && plain && heads(op.kv_heads, op.value_dim)
            };
            // Other blocks may write results while one still reads what it begins with.
            let x = kind.x..kind.x + u64::from(kind.heads) * u64::from(kind.width) * 4;
            let apart = x.end <= out.start || out.end <= x.start;
            if !fits || !apart || kind.bias != 0 {
                return None;
            }
        }
        let [q_turned, k_turned] = turned[..] else { return None };
        if before.q == 0 || before.k == 0 || before.v == 0 || q_turned != k_turned {
            return None;
        }
        if q_turned != 0 {
            (before.angles, before.pairs, before.interleaved) = (args.angles, args.pairs, args.interleaved);
        }
        self.out.launches.pop();
        Some(before)
    }

    /// Attention, and what came right before it if that is possible.
    pub(super) fn decode_attention(&mut self, steps: &[Step], op: &Attention) -> Result<(), BackendError> {
        let step = &steps[0];
        let (mut attended, [cache, _]) = self.attended(step, op)?;
        let before = match self.take_heads(step, op, [attended.keys, attended.values, attended.out]) {
            Some(before) => before,
            None => Before { q: attended.q, ..Before::default() },
        };
        attended.q = before.q;
        let tokens = attended.tokens as usize;
        let groups = (op.heads / op.kv_heads.max(1)).div_ceil(HEADS);
        let blocks = op.kv_heads * groups;
        let keys = (attended.max_pages as usize).saturating_mul(step.page_len);
        let splits = (self.device.multiprocessors as usize / (tokens * blocks)).clamp(1, MOST_SPLITS);
        // Blocks that would never have keys are in the way of the launches before and after.
        let splits = splits.min(keys.div_ceil(LEAST_KEYS)).max(1);
        let (ahead, ahead_bytes) = match tokens {
            1 if self.device.capability.0 >= 9 => self.weights_ahead(&steps[1..])?,
            _ => Default::default(),
        };
        let fetching = if ahead_bytes[0] > 0 { FETCHING.div_ceil(blocks) } else { 0 };
        let (partial, done) = match splits {
            1 => (0, 0),
            _ => {
                let partial = tokens * blocks * splits * HEADS * (op.value_dim + 4) * 4;
                (self.scratch(Region::Attention, partial)?, self.scratch(Region::Done, tokens * blocks * 4)?)
            }
        };
        let args = DecodeAttentionArgs {
            attended,
            k: before.k,
            v: before.v,
            q_norm: before.q_norm,
            k_norm: before.k_norm,
            angles: before.angles,
            new_rows: before.cache_rows,
            partial,
            done,
            least: LEAST_KEYS as u32,
            epsilon: before.epsilon,
            splits: splits as u32,
            ahead_bytes,
            ahead,
        };
        let warps = decode_warps(op.head_dim.max(op.value_dim));
        let (key_stride, value_stride) = (op.head_dim + 8, op.value_dim + 8);
        let rings = warps * SLOTS * TILE_KEYS * key_stride.max(value_stride) * 2;
        let found = warps * HEADS * (op.value_dim + 4) * 4;
        let new_tiles = 2 * TILE_KEYS * key_stride.max(value_stride) * 2;
        let shared = 2 * HEADS * key_stride * 2 + new_tiles + warps * op.head_dim * 4 + rings.max(found);
        let spec = Spec::DecodeAttention {
            head_dim: op.head_dim as u32,
            value_dim: op.value_dim as u32,
            cache: format_of(cache).unwrap_or(Format::F16),
            warps: warps as u32,
            heads: op.heads as u32,
            kv_heads: op.kv_heads as u32,
            page_len: step.page_len as u32,
            soft_cap: op.soft_cap.is_some(),
            window: attended.window > 0,
            sinks: op.sinks.is_some(),
            before: (before.k != 0).then_some(HeadsBefore {
                norms: u32::from(before.q_norm != 0) | u32::from(before.k_norm != 0) << 1,
                pairs: before.pairs,
                interleaved: before.interleaved != 0,
            }),
        };
        self.launch(spec, [splits + fetching, blocks, tokens], warps as u32 * 32, shared, args)
    }

    /// The matrices of the products after the next one, whose launch begins with its own as soon as this one has begun: addresses
    /// and bytes, of none where they are more than the second-level cache has room for.
    fn weights_ahead(
        &mut self,
        steps: &[Step],
    ) -> Result<([u64; MOST_AHEAD], [u32; MOST_AHEAD]), BackendError> {
        let (mut addresses, mut bytes) = ([0; MOST_AHEAD], [0; MOST_AHEAD]);
        let mut matrices = Vec::with_capacity(MOST_AHEAD + 1);
        for step in steps {
            let count = match &step.node.op {
                Op::MatMul(_) => 1,
                Op::FusedFfn(_) => 2,
                Op::FusedQkv(_) => 3,
                Op::Attention(_) => break,
                _ => 0,
            };
            for index in 0..count {
                matrices.push(step.weight(index)?.name.clone());
            }
            if matrices.len() > MOST_AHEAD {
                break;
            }
        }
        let mut total = 0;
        for (place, name) in matrices.iter().skip(1).take(MOST_AHEAD).enumerate() {
            let matrix = self.tiled(name)?;
            total += matrix.shape.bytes;
            if total > MOST_AHEAD_BYTES {
                return Ok(Default::default());
            }
            addresses[place] = matrix.address;
            // Whole records of multiples of 16 bytes.
            bytes[place] = matrix.shape.bytes as u32;
        }
        Ok((addresses, bytes))
    }
}

/// Warps of a block: so many that two blocks fit a multiprocessor.
fn decode_warps(width: usize) -> usize {
    if width <= 128 { 8 } else { 4 }
}
