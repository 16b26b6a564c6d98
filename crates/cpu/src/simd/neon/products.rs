//! Integer products of eight rows with some tokens, with the instructions of each level.
//!
//! All three give the same integers; they differ in how many instructions that takes. For a block of 32 columns of
//! eight rows and one token: 16 `sdot`, half as many `smmla` where there are two tokens, or 32 `smlal` and some
//! additions.

#![allow(clippy::needless_range_loop, reason = "vectors are named by their number in all arrays alike")]

use std::arch::aarch64::*;
use std::arch::asm;

/// The quants of a block of eight rows: vector `h` of quant `g` holds elements `4g .. 4g + 4` of rows `4h .. 4h + 4`,
/// unless it is [`Products::arrange`]d. Signed, or unsigned below 128.
pub(super) type Quants = [[int8x16_t; 2]; 8];

/// An integer for each of eight rows.
pub(super) type Integers = [int32x4_t; 2];

/// The integer products of a level.
pub(super) trait Products {
    /// Adds the products of the halves `first .. first + count` of a block with as many activations of `T` tokens.
    /// `run` is the number of quants (each of four elements) whose products with activations of at most 127 can be
    /// added, less than 2^15 in all.
    ///
    /// # Safety
    /// The processor has the level's instructions; each of `x` is valid for the 32 activations of the block.
    unsafe fn add<const T: usize>(
        sums: &mut [Integers; T],
        quants: &Quants,
        x: [*const i8; T],
        halves: [usize; 2],
        run: usize,
    );

    /// Puts the quants of a block into the order of [`add_arranged`](Products::add_arranged).
    ///
    /// # Safety
    /// The processor has the level's instructions.
    #[inline(always)]
    unsafe fn arrange(quants: Quants) -> Quants {
        quants
    }

    /// As [`add`](Products::add), with quants that were arranged.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    unsafe fn add_arranged<const T: usize>(
        sums: &mut [Integers; T],
        quants: &Quants,
        x: [*const i8; T],
        halves: [usize; 2],
        run: usize,
    ) {
        // SAFETY: the caller's.
        unsafe { Self::add(sums, quants, x, halves, run) }
    }
}

/// Products with the instructions of every aarch64 processor.
pub(super) struct Neon;

/// Products with `sdot`.
pub(super) struct Dotprod;

/// Products with `sdot`, and with `smmla` where there is more than one token.
pub(super) struct I8mm;

impl Products for Neon {
    #[inline(always)]
    unsafe fn add<const T: usize>(
        sums: &mut [Integers; T],
        quants: &Quants,
        x: [*const i8; T],
        [first, count]: [usize; 2],
        run: usize,
    ) {
        let run = run.min(4);
        // SAFETY: the caller's.
        unsafe {
            for half in first..first + count {
                for t in 0..T {
                    let x = vreinterpretq_s32_s8(vld1q_s8(x[t].add(16 * half)));
                    // Four activations, in every lane.
                    let fours = [
                        vreinterpretq_s8_s32(vdupq_laneq_s32::<0>(x)),
                        vreinterpretq_s8_s32(vdupq_laneq_s32::<1>(x)),
                        vreinterpretq_s8_s32(vdupq_laneq_s32::<2>(x)),
                        vreinterpretq_s8_s32(vdupq_laneq_s32::<3>(x)),
                    ];
                    for start in (0..4).step_by(run) {
                        for h in 0..2 {
                            // Four products of each of two rows.
                            let mut low = vdupq_n_s16(0);
                            let mut high = vdupq_n_s16(0);
                            for g in start..start + run {
                                let q = quants[4 * half + g][h];
                                low = vmlal_s8(low, vget_low_s8(q), vget_low_s8(fours[g]));
                                high = vmlal_high_s8(high, q, fours[g]);
                            }
                            let rows = vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
                            sums[t][h] = vaddq_s32(sums[t][h], rows);
                        }
                    }
                }
            }
        }
    }
}

impl Products for Dotprod {
    #[inline(always)]
    unsafe fn add<const T: usize>(
        sums: &mut [Integers; T],
        quants: &Quants,
        x: [*const i8; T],
        [first, count]: [usize; 2],
        _run: usize,
    ) {
        // SAFETY: the caller's.
        unsafe {
            for half in first..first + count {
                let mut sixteen = [vdupq_n_s8(0); T];
                for t in 0..T {
                    sixteen[t] = vld1q_s8(x[t].add(16 * half));
                }
                let q = |g: usize, h: usize| quants[4 * half + g][h];
                for h in 0..2 {
                    for t in 0..T {
                        sums[t][h] = sdot::<0>(sums[t][h], q(0, h), sixteen[t]);
                    }
                    for t in 0..T {
                        sums[t][h] = sdot::<1>(sums[t][h], q(1, h), sixteen[t]);
                    }
                    for t in 0..T {
                        sums[t][h] = sdot::<2>(sums[t][h], q(2, h), sixteen[t]);
                    }
                    for t in 0..T {
                        sums[t][h] = sdot::<3>(sums[t][h], q(3, h), sixteen[t]);
                    }
                }
            }
        }
    }
}

impl Products for I8mm {
    #[inline(always)]
    unsafe fn add<const T: usize>(
        sums: &mut [Integers; T],
        quants: &Quants,
        x: [*const i8; T],
        halves: [usize; 2],
        run: usize,
    ) {
        // SAFETY: the caller's; who has `smmla` has `sdot`.
        unsafe { Dotprod::add(sums, quants, x, halves, run) }
    }

    /// Eight columns of two rows in each vector: of rows `4h` and `4h + 1`, then of the other two.
    #[inline(always)]
    unsafe fn arrange(mut quants: Quants) -> Quants {
        for g in (0..8).step_by(2) {
            for h in 0..2 {
                // SAFETY: the caller's.
                unsafe {
                    let a = vreinterpretq_s32_s8(quants[g][h]);
                    let b = vreinterpretq_s32_s8(quants[g + 1][h]);
                    quants[g][h] = vreinterpretq_s8_s32(vzip1q_s32(a, b));
                    quants[g + 1][h] = vreinterpretq_s8_s32(vzip2q_s32(a, b));
                }
            }
        }
        quants
    }

    #[inline(always)]
    unsafe fn add_arranged<const T: usize>(
        sums: &mut [Integers; T],
        quants: &Quants,
        x: [*const i8; T],
        [first, count]: [usize; 2],
        _run: usize,
    ) {
        // SAFETY: the caller's.
        unsafe {
            let zero = vdupq_n_s32(0);
            // For each pair of tokens, rows `4h + 2i` and the next: two numbers of one token, then of the other. A
            // single token makes a pair with itself.
            let mut pairs = [[[zero; 2]; 2]; T];
            for half in first..first + count {
                // Eight columns of two tokens in each vector.
                let mut eights = [[vdupq_n_s8(0); 2]; T];
                for p in 0..T.div_ceil(2) {
                    let a = vreinterpretq_s64_s8(vld1q_s8(x[2 * p].add(16 * half)));
                    let b = vreinterpretq_s64_s8(vld1q_s8(x[(2 * p + 1).min(T - 1)].add(16 * half)));
                    eights[p] =
                        [vreinterpretq_s8_s64(vzip1q_s64(a, b)), vreinterpretq_s8_s64(vzip2q_s64(a, b))];
                }
                for k in 0..2 {
                    for h in 0..2 {
                        for i in 0..2 {
                            for p in 0..T.div_ceil(2) {
                                let q = quants[4 * half + 2 * k + i][h];
                                pairs[p][h][i] = smmla(pairs[p][h][i], eights[p][k], q);
                            }
                        }
                    }
                }
            }
            for t in 0..T {
                for h in 0..2 {
                    let [a, b] = pairs[t / 2][h].map(|v| vreinterpretq_s64_s32(v));
                    let rows = if t % 2 == 0 { vzip1q_s64(a, b) } else { vzip2q_s64(a, b) };
                    sums[t][h] = vaddq_s32(sums[t][h], vreinterpretq_s32_s64(rows));
                }
            }
        }
    }
}

/// Adds to each lane the products of its four bytes of `q` with bytes `4 LANE .. 4 LANE + 4` of `x`.
///
/// # Safety
/// The processor has `sdot` (FEAT_DotProd), and this is inlined into a function that enables it.
#[inline(always)]
unsafe fn sdot<const LANE: i32>(mut sums: int32x4_t, q: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: the caller's: registers only.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {q:v}.16b, {x:v}.4b[{lane}]",
            sums = inout(vreg) sums,
            q = in(vreg) q,
            x = in(vreg) x,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Adds the products of two rows of eight bytes with two others: `a0 b0`, `a0 b1`, `a1 b0`, `a1 b1`.
///
/// # Safety
/// The processor has `smmla` (FEAT_I8MM), and this is inlined into a function that enables it.
#[inline(always)]
unsafe fn smmla(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the caller's: registers only.
    unsafe {
        asm!(
            "smmla {sums:v}.4s, {a:v}.16b, {b:v}.16b",
            sums = inout(vreg) sums,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}
