//! Attention of prompts on the tensor cores: what `kernels/flash.cu` runs.

use super::Lowering;
use super::attention::Attended;
use crate::kernels::Spec;
use graph::BackendError;
use graph::ops::Attention;
use quant::Format;

/// Keys of a tile, and rows of a warp: as in the kernel.
const KEYS: usize = 64;
const WARP_ROWS: usize = 16;
/// The widest heads.
const WIDEST: usize = 256;
/// New tokens for each sequence, on average, from which tiles of rows pay.
const FEWEST_TOKENS: usize = 2;

/// The formats of caches whose elements are multiplied as halves, by their numbers.
pub(super) fn format_of(kind: i32) -> Option<Format> {
    [Format::F16, Format::Q8_0].into_iter().find(|format| format.id() as i32 == kind)
}

/// How the kernel runs for heads of these widths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// Warps of a block.
    warps: usize,
    /// Whether warpgroups multiply.
    hopper: bool,
    /// Bytes of shared memory of a block.
    shared: usize,
}

impl Shape {
    fn of(op: &Attention, hopper: bool) -> Shape {
        let (head_dim, value_dim) = (op.head_dim, op.value_dim);
        let hopper = hopper && head_dim.is_multiple_of(64) && value_dim.is_multiple_of(64);
        // Blocks of two warpgroups that share a multiprocessor have too few registers for heads of 128.
        let warps = if hopper && matches!(head_dim.max(value_dim), 65..=128) { 12 } else { 8 };
        // Without panels, rows are 16 bytes longer.
        let [key_bytes, value_bytes] = [head_dim, value_dim].map(|dim| dim * 2 + if hopper { 0 } else { 16 });
        let rows = warps * WARP_ROWS;
        let shared = 1024 + (rows + 2 * KEYS) * key_bytes + 2 * KEYS * value_bytes;
        Shape { warps, hopper, shared }
    }
}

/// Whether the kernel takes these heads and keys and values of these types with so much shared memory, and the batch has
/// prompts.
pub(super) fn suits(
    op: &Attention,
    [key_type, value_type]: [i32; 2],
    [tokens, sequences]: [usize; 2],
    memory: usize,
) -> bool {
    let is_width = |width: usize| width.is_multiple_of(16) && width <= WIDEST;
    key_type == value_type
        && format_of(key_type).is_some()
        && is_width(op.head_dim)
        && is_width(op.value_dim)
        && tokens >= FEWEST_TOKENS * sequences
        && Shape::of(op, false).shared <= memory
}

impl Lowering<'_> {
    /// Attention that [`suits`].
    pub(super) fn flash(
        &mut self,
        op: &Attention,
        args: Attended,
        [cache_type, _]: [i32; 2],
    ) -> Result<(), BackendError> {
        let [tokens, sequences] = [args.tokens, args.sequences].map(|count| count as usize);
        let shape = Shape::of(op, self.kernels.hopper);
        let spec = Spec::Flash {
            head_dim: op.head_dim as u32,
            value_dim: op.value_dim as u32,
            cache: format_of(cache_type).unwrap_or(Format::F16),
            warps: shape.warps as u32,
            hopper: shape.hopper,
        };
        // Every sequence begins a tile of its own.
        let per_kv = op.heads / op.kv_heads.max(1);
        let tiles = (tokens * per_kv).div_ceil(shape.warps * WARP_ROWS) + sequences.min(tokens) - 1;
        self.launch(spec, [tiles, op.kv_heads, 1], shape.warps as u32 * 32, shape.shared, args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::GroupId;

    #[test]
    fn odd_heads_and_exact_caches_are_left_to_the_other_kernel() {
        let op = Attention {
            layer: 0,
            group: GroupId(0),
            heads: 8,
            kv_heads: 2,
            head_dim: 128,
            value_dim: 128,
            scale: 1.0,
            window: None,
            soft_cap: None,
            sinks: None,
        };
        let cache = |key: Format, value: Format| [key.id() as i32, value.id() as i32];
        let halves = cache(Format::F16, Format::F16);
        let memory = 227 << 10;
        let suits = |op: &Attention, cache, tokens| suits(op, cache, [tokens, 2], memory);
        assert!(suits(&op, halves, 32));
        assert!(suits(&op, cache(Format::Q8_0, Format::Q8_0), 32));
        assert!(!suits(&op, halves, 2), "a decode step");
        assert!(!suits(&op, cache(Format::F32, Format::F32), 32));
        assert!(!suits(&op, cache(Format::F16, Format::Q8_0), 32));
        assert!(!suits(&Attention { head_dim: 20, ..op }, halves, 32));
        assert!(!suits(&Attention { value_dim: 512, ..op }, halves, 32));
        assert!(!super::suits(&op, halves, [32, 2], 48 << 10), "too little shared memory");
        // The widest heads fit a block of compute capability 9.0.
        for (head_dim, value_dim) in [(64, 64), (96, 64), (128, 128), (192, 128), (WIDEST, WIDEST)] {
            let op = Attention { head_dim, value_dim, ..op };
            for hopper in [false, true] {
                assert!(Shape::of(&op, hopper).shared <= memory, "{head_dim} {value_dim} {hopper}");
            }
        }
        assert_eq!(
            Shape::of(&op, true),
            Shape { warps: 12, hopper: true, shared: 1024 + 320 * 256 + 128 * 256 }
        );
        assert!(!Shape::of(&Attention { head_dim: 80, ..op }, true).hopper);
    }
}
