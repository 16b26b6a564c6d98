//! Integer dot products from the order of [`crate::pack`], in the two shapes of `avx2/dot.rs`: a few tokens meet
//! weights that are unpacked on the way; for many, groups of eight rows are unpacked once into a panel.

use super::kernel::{GROUP_ROWS, PANEL_ROWS, panel_vectors};
use crate::buffers::ALIGN;
use crate::quantize::QuantRow;
use crate::simd::avx2::{pack_group, unpack::*};
use crate::simd::{DotTile, Line, Panel};
use quant::Format;
use std::ops::Range;

/// From this many tokens on, unpacking a panel pays.
const STREAMED_TOKENS: usize = 6;

/// The functions of a level.
///
/// # Safety
/// All demand that the processor has the level's instructions; the rest is said where their bodies are, in `kernel`.
pub(super) trait Level {
    /// Groups side by side in a panel.
    const PANEL_GROUPS: usize;
    /// The most tokens that a panel is multiplied with at a time: 6 or 8.
    const TOKENS: usize;

    /// See `kernel::stream`.
    unsafe fn stream<F: Packing, const T: usize>(
        group: &[u8],
        blocks: usize,
        x: QuantRow<'_>,
        y: &mut [[f32; GROUP_ROWS]; T],
    );

    /// See `kernel::unpack`.
    unsafe fn unpack<F: Packing>(group: &[u8], blocks: usize, panel: *mut u8);

    /// See `kernel::products`.
    unsafe fn products<F: Packing, const T: usize>(
        panel: *const u8,
        blocks: usize,
        x: QuantRow<'_>,
        y: &mut [[f32; PANEL_ROWS]; T],
    );
}

/// One worker's memory.
#[derive(Default)]
pub(crate) struct PanelMemory {
    /// Unpacked groups.
    panel: Vec<Line>,
    /// A group that is packed on the way, where weights were not packed before.
    group: Vec<Line>,
}

/// Products of some rows with some tokens; see [`crate::simd::scalar`] for what they are. `rows` starts at a whole
/// group and ends at one, or at the last row.
///
/// # Safety
/// The processor has the level's instructions; `tile.out` is valid for the results of these rows and tokens, and
/// nobody else accesses them meanwhile.
pub(super) unsafe fn dot_tile<L: Level>(
    tile: &DotTile<'_>,
    rows: Range<usize>,
    tokens: Range<usize>,
    panel: &mut Panel,
) {
    use Format::*;
    // SAFETY: the caller's.
    unsafe {
        match tile.format {
            Q4_0 => run::<L, PackedQ4_0>(tile, rows, tokens, panel),
            Q4_1 => run::<L, PackedQ4_1>(tile, rows, tokens, panel),
            Q5_0 => run::<L, PackedQ5_0>(tile, rows, tokens, panel),
            Q5_1 => run::<L, PackedQ5_1>(tile, rows, tokens, panel),
            Q8_0 => run::<L, PackedQ8_0>(tile, rows, tokens, panel),
            Q2_K => run::<L, PackedQ2_K>(tile, rows, tokens, panel),
            Q3_K => run::<L, PackedQ3_K>(tile, rows, tokens, panel),
            Q4_K => run::<L, PackedQ4_K>(tile, rows, tokens, panel),
            Q5_K => run::<L, PackedQ5_K>(tile, rows, tokens, panel),
            Q6_K => run::<L, PackedQ6_K>(tile, rows, tokens, panel),
            IQ4_NL => run::<L, PackedIQ4_NL>(tile, rows, tokens, panel),
            IQ4_XS => run::<L, PackedIQ4_XS>(tile, rows, tokens, panel),
            MXFP4 => run::<L, PackedMXFP4>(tile, rows, tokens, panel),
            F32 | F16 | BF16 | Q8_K => unreachable!("{} has no integer dot product", tile.format),
        }
    }
}

/// # Safety
/// See [`dot_tile`].
unsafe fn run<L: Level, F: Packing>(
    tile: &DotTile<'_>,
    rows: Range<usize>,
    tokens: Range<usize>,
    panel: &mut Panel,
) {
    let blocks = tile.cols / 32;
    assert!(
        rows.start.is_multiple_of(GROUP_ROWS)
            && (rows.end.is_multiple_of(GROUP_ROWS) || rows.end == tile.out.cols)
    );
    assert!(tokens.end <= tile.out.rows && rows.end <= tile.out.cols);
    assert!(tokens.end <= tile.activations.rows() && tile.activations.blocks() == blocks);
    let PanelMemory { panel: memory, group: scratch } = &mut panel.vnni;
    let groups = rows.start / GROUP_ROWS..rows.end.div_ceil(GROUP_ROWS);
    if tokens.len() < STREAMED_TOKENS {
        for group in groups {
            // SAFETY: the processor has the level's instructions.
            let bytes = unsafe { tile.group(pack_group, F::LAYOUT, group, scratch) };
            let mut token = tokens.start;
            while token < tokens.end {
                // SAFETY: the group has the layout's bytes for `blocks`, and so have the activations, as checked
                // above; results are the caller's.
                token += unsafe {
                    match tokens.end - token {
                        1 => streamed::<L, F, 1>(tile, bytes, &rows, group, token),
                        2 | 3 => streamed::<L, F, 2>(tile, bytes, &rows, group, token),
                        _ => streamed::<L, F, 4>(tile, bytes, &rows, group, token),
                    }
                };
            }
        }
        return;
    }
    let vector = 4 * GROUP_ROWS * L::PANEL_GROUPS;
    let lines = (blocks * panel_vectors::<F>() * vector).div_ceil(ALIGN);
    if memory.len() < lines {
        memory.resize(lines, Line([0; ALIGN]));
    }
    for first in groups.clone().step_by(L::PANEL_GROUPS) {
        // Lanes without a group keep what they had: nobody reads their results.
        for group in first..groups.end.min(first + L::PANEL_GROUPS) {
            // SAFETY: the processor has the level's instructions.
            let bytes = unsafe { tile.group(pack_group, F::LAYOUT, group, scratch) };
            // SAFETY: the group has the layout's bytes for `blocks`; the panel has as many blocks.
            unsafe {
                let to = memory.as_mut_ptr().cast::<u8>().add(4 * GROUP_ROWS * (group - first));
                L::unpack::<F>(bytes, blocks, to);
            }
        }
        let mut token = tokens.start;
        while token < tokens.end {
            // SAFETY: as above.
            token += unsafe {
                match (tokens.end - token).min(tokens_together::<L, F>()) {
                    1 => multiplied::<L, F, 1>(tile, memory, &rows, first, token),
                    2 | 3 => multiplied::<L, F, 2>(tile, memory, &rows, first, token),
                    4 | 5 => multiplied::<L, F, 4>(tile, memory, &rows, first, token),
                    8 if L::TOKENS == 8 => multiplied::<L, F, 8>(tile, memory, &rows, first, token),
                    _ => multiplied::<L, F, 6>(tile, memory, &rows, first, token),
                }
            };
        }
    }
}

/// The most tokens that a panel is multiplied with at a time. Where halves have scales, a token takes three registers
/// instead of two.
const fn tokens_together<L: Level, F: Packing>() -> usize {
    match F::SCALES {
        Scales::Half => L::TOKENS - 2,
        _ => L::TOKENS,
    }
}

/// Products of a group with `T` tokens from `token` on. Returns `T`.
///
/// # Safety
/// The processor has the level's instructions; the group has the layout's bytes for the blocks of a row, and there
/// are as many tokens; results are the caller's.
unsafe fn streamed<L: Level, F: Packing, const T: usize>(
    tile: &DotTile<'_>,
    bytes: &[u8],
    rows: &Range<usize>,
    group: usize,
    token: usize,
) -> usize {
    let mut y = [[0.0; GROUP_ROWS]; T];
    // SAFETY: the caller's.
    unsafe {
        L::stream::<F, T>(bytes, tile.cols / 32, tile.activations.rows_from(token), &mut y);
        put(tile, rows, group, token, &y);
    }
    T
}

/// Products of a panel, whose first group is `group`, with `T` tokens from `token` on. Returns `T`.
///
/// # Safety
/// The processor has the level's instructions; the panel has the blocks of a row, and there are as many tokens;
/// results are the caller's.
unsafe fn multiplied<L: Level, F: Packing, const T: usize>(
    tile: &DotTile<'_>,
    panel: &[Line],
    rows: &Range<usize>,
    group: usize,
    token: usize,
) -> usize {
    let mut y = [[0.0; PANEL_ROWS]; T];
    // SAFETY: the caller's.
    unsafe {
        let x = tile.activations.rows_from(token);
        L::products::<F, T>(panel.as_ptr().cast(), tile.cols / 32, x, &mut y);
        let y = y.each_ref().map(|y| &y[..GROUP_ROWS * L::PANEL_GROUPS]);
        put(tile, rows, group, token, &y);
    }
    T
}

/// Writes the results of the rows of a group, or of groups side by side, for some tokens.
///
/// # Safety
/// `tile.out` is valid for them, and nobody else accesses them meanwhile.
unsafe fn put(tile: &DotTile<'_>, rows: &Range<usize>, group: usize, token: usize, y: &[impl AsRef<[f32]>]) {
    let first = group * GROUP_ROWS;
    for (t, y) in y.iter().enumerate() {
        let y = y.as_ref();
        let to = tile.out.row(token + t).wrapping_add(first);
        // SAFETY: the caller's; no more than there are of both.
        unsafe { std::ptr::copy_nonoverlapping(y.as_ptr(), to, y.len().min(rows.end - first)) };
    }
}
