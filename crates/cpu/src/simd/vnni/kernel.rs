//! The inner loops, for every vector type and format. They are inlined into functions with a level's instructions.
//!
//! Quants of the weights are unsigned bytes, larger than the weights by [`offset`]; the exact sum of the activations
//! takes that off again. Sums of a block (of a half block, where halves have scales) are 32-bit integers; a scaled
//! product of a block is an integer of at most 2^24 in magnitude, and so are its parts, so floats hold them exactly.
//!
//! Loops over vectors are written with indices; see `avx2/dot.rs`.

#![allow(clippy::needless_range_loop, reason = "see above")]

use super::lanes::Lanes;
use crate::pack::ROWS;
use crate::quantize::QuantRow;
use crate::simd::avx2::unpack::{Packing, Scales};
use crate::simd::blocks::Minimum;
use crate::simd::{WEIGHTS_AHEAD, prefetch};
use std::arch::x86_64::*;

/// Rows of a packed group.
pub(super) const GROUP_ROWS: usize = ROWS;
/// The most rows that a panel has.
pub(super) const PANEL_ROWS: usize = 16;

/// What unsigned quants exceed the weights by. Signed bytes become unsigned by a turn of their top bit.
const fn offset<F: Packing>() -> i16 {
    match (F::SIGNED, F::OFFSET_BITS) {
        (true, _) => 128,
        (false, 0) => 0,
        (false, bits) => 1 << bits,
    }
}

/// Integer scales of a block.
const fn scales<F: Packing>() -> usize {
    match F::SCALES {
        Scales::One => 0,
        Scales::Block => 1,
        Scales::Half => 2,
    }
}

/// Minimums of a block.
const fn minimums<F: Packing>() -> usize {
    match F::MINIMUM {
        Minimum::None => 0,
        Minimum::Block => 1,
        Minimum::Half => 2,
    }
}

/// Vectors of a block of a panel: eight of quants, the float factors, integer scales as floats, minimums.
pub(super) const fn panel_vectors<F: Packing>() -> usize {
    9 + scales::<F>() + minimums::<F>()
}

/// One block of as many weight rows as a vector has lanes.
trait Block<V: Lanes> {
    /// Elements `4g .. 4g + 4` of each row, unsigned.
    unsafe fn quants(&self, g: usize) -> V::Int;
    /// The float factor of each row.
    unsafe fn d(&self) -> V::Float;
    /// Integer scales, of a half block where halves have their own.
    unsafe fn scale(&self, half: usize) -> V::Float;
    /// Minimums, of a half block where halves have their own.
    unsafe fn minimum(&self, half: usize) -> V::Float;
}

/// In registers.
struct Unpacked {
    quants: [__m256i; 8],
    d: __m256,
    scales: [__m256; 2],
    minimums: [__m256; 2],
}

impl Unpacked {
    /// A block of a group; it is number `j` of its unit.
    ///
    /// # Safety
    /// The processor has the level's instructions; pointers are valid for the layout's bytes, that of the planes
    /// aligned.
    #[inline(always)]
    unsafe fn new<F: Packing>(planes: *const u8, unit: *const u8, j: usize) -> Unpacked {
        // SAFETY: the caller's.
        unsafe {
            let mut quants = F::quants(planes.cast());
            if F::SIGNED {
                for g in 0..8 {
                    quants[g] = _mm256_xor_si256(quants[g], _mm256_set1_epi8(-128));
                }
            }
            let head = F::head(unit);
            let (minimums, words) = F::factors(head, unit, j);
            let mut scales = [_mm256_setzero_ps(); 2];
            for half in 0..2 {
                // The same word twice in each lane.
                scales[half] = _mm256_cvtepi32_ps(_mm256_srai_epi32::<16>(words[half]));
            }
            Unpacked { quants, d: head.d(), scales, minimums }
        }
    }
}

impl<V: Lanes<Int = __m256i, Float = __m256>> Block<V> for Unpacked {
    #[inline(always)]
    unsafe fn quants(&self, g: usize) -> __m256i {
        self.quants[g]
    }

    #[inline(always)]
    unsafe fn d(&self) -> __m256 {
        self.d
    }

    #[inline(always)]
    unsafe fn scale(&self, half: usize) -> __m256 {
        self.scales[half]
    }

    #[inline(always)]
    unsafe fn minimum(&self, half: usize) -> __m256 {
        self.minimums[half]
    }
}

/// In a panel, from an aligned address on.
struct InPanel<F> {
    vectors: *const u8,
    format: std::marker::PhantomData<F>,
}

impl<V: Lanes, F: Packing> Block<V> for InPanel<F> {
    #[inline(always)]
    unsafe fn quants(&self, g: usize) -> V::Int {
        // SAFETY: the block has eight vectors of quants.
        unsafe { V::load(self.vectors.add(4 * V::ROWS * g)) }
    }

    #[inline(always)]
    unsafe fn d(&self) -> V::Float {
        // SAFETY: vector 8 of the block.
        unsafe { V::load_floats(self.vectors.add(4 * V::ROWS * 8)) }
    }

    #[inline(always)]
    unsafe fn scale(&self, half: usize) -> V::Float {
        // SAFETY: asked for only where the format has so many.
        unsafe { V::load_floats(self.vectors.add(4 * V::ROWS * (9 + half))) }
    }

    #[inline(always)]
    unsafe fn minimum(&self, half: usize) -> V::Float {
        // SAFETY: asked for only where the format has so many.
        unsafe { V::load_floats(self.vectors.add(4 * V::ROWS * (9 + scales::<F>() + half))) }
    }
}

/// Adds the products of block `b` with `T` tokens, the rows of `x`, each of which has `blocks` blocks.
///
/// # Safety
/// The processor has the level's instructions; `x` has `T` rows, and `b` is below `blocks`.
#[inline(always)]
unsafe fn accumulate<V: Lanes, F: Packing, W: Block<V>, const T: usize>(
    w: &W,
    b: usize,
    blocks: usize,
    x: &QuantRow<'_>,
    sums: &mut [V::Float; T],
) {
    // SAFETY: the caller's: `t * blocks + b` is a block of `x`.
    unsafe {
        let mut products = [V::zeros(); T];
        let parts = if scales::<F>() == 2 { 2 } else { 1 };
        for part in 0..parts {
            let mut totals = [V::zero(); T];
            if offset::<F>() != 0 {
                for t in 0..T {
                    let at = t * blocks + b;
                    // Kept with the opposite sign, and so is the product.
                    let pair = if parts == 1 {
                        x.sums.as_ptr().add(2 * at)
                    } else {
                        x.half_sums.as_ptr().add(4 * at + 2 * part)
                    };
                    totals[t] = V::dot_words(V::splat(pair.cast()), V::splat_word(offset::<F>()));
                }
            }
            for g in part * 8 / parts..(part + 1) * 8 / parts {
                let quants = w.quants(g);
                for t in 0..T {
                    let four = x.q.as_ptr().add(32 * (t * blocks + b) + 4 * g);
                    totals[t] = V::dot(totals[t], quants, V::splat(four.cast()));
                }
            }
            for t in 0..T {
                let total = V::to_floats(totals[t]);
                products[t] = match F::SCALES {
                    Scales::One => total,
                    // Zero is added lest a product is -0, which the reference never has.
                    Scales::Block | Scales::Half => V::mul_add(w.scale(part), total, products[t]),
                };
            }
        }
        for t in 0..T {
            let d = V::splat_float(x.d.as_ptr().add(t * blocks + b));
            sums[t] = V::mul_add(V::mul(w.d(), d), products[t], sums[t]);
        }
        match F::MINIMUM {
            Minimum::None => {}
            Minimum::Block => {
                for t in 0..T {
                    let s = V::splat_float(x.s.as_ptr().add(t * blocks + b));
                    sums[t] = V::mul_sub_from(w.minimum(0), s, sums[t]);
                }
            }
            Minimum::Half => {
                for t in 0..T {
                    let at = t * blocks + b;
                    let d = V::splat_float(x.d.as_ptr().add(at));
                    for half in 0..2 {
                        let pair = x.half_sums.as_ptr().add(4 * at + 2 * half);
                        // Kept with the opposite sign, and so is the product.
                        let total = V::dot_words(V::splat(pair.cast()), V::splat_word(1));
                        sums[t] = V::mul_add(w.minimum(half), V::mul(d, V::to_floats(total)), sums[t]);
                    }
                }
            }
        }
    }
}

/// Products of a group with the `T` rows of `x`, unpacked on the way.
///
/// # Safety
/// The processor has the level's instructions; `group` has the layout's bytes for `blocks` blocks, at an address that
/// is aligned to 32 bytes; `x` has `T` rows of `blocks` blocks.
#[inline(always)]
pub(super) unsafe fn stream<V: Lanes<Int = __m256i, Float = __m256>, F: Packing, const T: usize>(
    group: &[u8],
    blocks: usize,
    x: QuantRow<'_>,
    y: &mut [[f32; GROUP_ROWS]; T],
) {
    let layout = F::LAYOUT;
    let mut planes = group.as_ptr();
    let mut ahead = planes.wrapping_add(WEIGHTS_AHEAD);
    // SAFETY: the caller's: pointers stay inside the group.
    unsafe {
        let mut sums = [V::zeros(); T];
        let mut unit = planes.add(blocks * layout.quant_bytes());
        let mut b = 0;
        while b < blocks {
            for j in 0..layout.unit {
                // Quants and scales alike, so that the groups' shares follow each other without a gap.
                prefetch(ahead, layout.block_bytes());
                ahead = ahead.wrapping_add(layout.block_bytes());
                let w = Unpacked::new::<F>(planes, unit, j);
                accumulate::<V, F, Unpacked, T>(&w, b, blocks, &x, &mut sums);
                planes = planes.add(layout.quant_bytes());
                b += 1;
            }
            unit = unit.add(layout.scale_bytes);
        }
        for t in 0..T {
            V::store(y[t].as_mut_ptr(), sums[t]);
        }
    }
}

/// Writes a group to its place among the lanes of a panel.
///
/// # Safety
/// The processor has the level's instructions; `group` has the layout's bytes for `blocks` blocks, at an address that
/// is aligned to 32 bytes; `panel`, aligned too, is valid for [`panel_vectors`] for each block but for the lanes
/// before the group's.
#[inline(always)]
pub(super) unsafe fn unpack<V: Lanes, F: Packing>(group: &[u8], blocks: usize, panel: *mut u8) {
    let layout = F::LAYOUT;
    for b in 0..blocks {
        let (index, j) = (b / layout.unit, b % layout.unit);
        // SAFETY: the caller's: inside the group and the panel.
        unsafe {
            let planes = group.as_ptr().add(b * layout.quant_bytes());
            let unit = group.as_ptr().add(blocks * layout.quant_bytes() + index * layout.scale_bytes);
            let w = Unpacked::new::<F>(planes, unit, j);
            let to = panel.add(b * panel_vectors::<F>() * 4 * V::ROWS);
            for g in 0..8 {
                _mm256_store_si256(to.add(4 * V::ROWS * g).cast(), w.quants[g]);
            }
            let to = to.add(4 * V::ROWS * 8);
            _mm256_store_ps(to.cast(), w.d);
            for i in 0..scales::<F>() {
                _mm256_store_ps(to.add(4 * V::ROWS * (1 + i)).cast(), w.scales[i]);
            }
            for i in 0..minimums::<F>() {
                _mm256_store_ps(to.add(4 * V::ROWS * (1 + scales::<F>() + i)).cast(), w.minimums[i]);
            }
        }
    }
}

/// Products of a panel with the `T` rows of `x`.
///
/// # Safety
/// The processor has the level's instructions; the panel has [`panel_vectors`] for each of `blocks` blocks, at an
/// aligned address; `x` has `T` rows of `blocks` blocks.
#[inline(always)]
pub(super) unsafe fn products<V: Lanes, F: Packing, const T: usize>(
    panel: *const u8,
    blocks: usize,
    x: QuantRow<'_>,
    y: &mut [[f32; PANEL_ROWS]; T],
) {
    // SAFETY: the caller's; a row of `y` has room for every vector.
    unsafe {
        let mut sums = [V::zeros(); T];
        for b in 0..blocks {
            let vectors = panel.add(b * panel_vectors::<F>() * 4 * V::ROWS);
            let w = InPanel::<F> { vectors, format: std::marker::PhantomData };
            accumulate::<V, F, InPanel<F>, T>(&w, b, blocks, &x, &mut sums);
        }
        for t in 0..T {
            V::store(y[t].as_mut_ptr(), sums[t]);
        }
    }
}
