//! The search for scales, shared by the formats that leave them to the encoder.
//!
//! A format is a *grid*, the set of integers that its quants can be, with or without a minimum. Encoding has
//! three steps:
//!
//! 1. For each sub-block on its own, in floats: try some scales, quantise with each, and take the scale that is
//!    best for the quants found (a linear least-squares problem with a closed solution).
//! 2. Round the scales to the integers that the format stores, given the block's own scale, trying the
//!    neighbours of each too: another integer scale with other quants is often better than the nearest.
//! 3. With all integers fixed, solve for the block's scale, and repeat from 2 as long as the error falls.
//!
//! Everything here is deterministic and finite-valued for finite input; scales that half precision cannot hold
//! are reported as `None`.

use half::f16;

use super::{extremes, finite_half, largest, reciprocal};

/// The integers that a quant can be.
pub(super) trait Grid {
    /// The one of largest magnitude; it is negative in every format that has a sign.
    const LARGEST: f32;

    /// The one nearest to `x`.
    fn nearest(x: f32) -> f32;
}

/// All integers in `LOW..=HIGH`.
pub(super) struct Uniform<const LOW: i8, const HIGH: i8>;

impl<const LOW: i8, const HIGH: i8> Grid for Uniform<LOW, HIGH> {
    const LARGEST: f32 = if LOW < 0 { LOW as f32 } else { HIGH as f32 };

    fn nearest(x: f32) -> f32 {
        round(x.clamp(f32::from(LOW), f32::from(HIGH)))
    }
}

/// Rounds to the nearest integer, ties to even, for magnitudes below 2^22: adding 1.5 * 2^23 leaves no bits for a
/// fraction. Unlike the library's function it needs no instruction that a baseline x86-64 lacks, so that loops
/// over it are vectorised.
fn round(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (x + SHIFT) - SHIFT
}

/// The sums of some terms over the values, whose number is a multiple of the 8 lanes that are added up separately:
/// a single running sum could not be vectorised.
fn sums<const N: usize>(values: &[f32], terms: impl Fn(f32) -> [f32; N]) -> [f32; N] {
    let mut lanes = [[0.0; 8]; N];
    for values in values.as_chunks::<8>().0 {
        for (i, &value) in values.iter().enumerate() {
            for (lanes, term) in lanes.iter_mut().zip(terms(value)) {
                lanes[i] += term;
            }
        }
    }
    lanes.map(|lanes| lanes.iter().sum())
}

/// Scales to try, as the place on the grid that the largest value is given, relative to the grid's end. Below 1
/// leaves part of the grid unused, above 1 clips the largest value: with few levels, both can pay.
fn extents() -> impl Iterator<Item = f32> {
    (0..=20).map(|k| 0.7 + 0.025 * k as f32)
}

/// The scale, of either sign, with the least squared error of `scale * nearest(value / scale)`.
pub(super) fn fit_scale<G: Grid>(values: &[f32]) -> f32 {
    let largest = largest(values).1;
    let mut best = largest / G::LARGEST;
    if best == 0.0 {
        return 0.0;
    }
    let mut best_gain = 0.0;
    for extent in extents().flat_map(|extent| [extent, -extent]) {
        let inverse = reciprocal(largest / (extent * G::LARGEST));
        let [value_quant, quant_quant] = sums(values, |value| {
            let quant = G::nearest(value * inverse);
            [value * quant, quant * quant]
        });
        // The squared error of the best scale for these quants, `value_quant / quant_quant`, is the sum of the
        // squared values less this.
        let gain = value_quant * value_quant / quant_quant;
        if gain > best_gain {
            best_gain = gain;
            best = value_quant / quant_quant;
        }
    }
    best
}

/// A block without minimums: element `i` is `d * scales[i * SUBS / 256] * quants[i]`.
pub(super) struct Scaled<const SUBS: usize> {
    pub d: f16,
    pub scales: [i8; SUBS],
    pub quants: [i8; 256],
    error: f32,
}

impl<const SUBS: usize> Scaled<SUBS> {
    /// Encodes with quants on the grid `G` and integer scales in `low..=high`, the larger in magnitude being `low`.
    pub(super) fn fit<G: Grid>(values: &[f32; 256], low: i8, high: i8) -> Option<Self> {
        let sub = 256 / SUBS;
        let mut scales = [0.0; SUBS];
        for (scale, values) in scales.iter_mut().zip(values.chunks_exact(sub)) {
            *scale = fit_scale::<G>(values);
        }
        let d = finite_half(largest(&scales).1 / f32::from(low))?;
        let mut best = Self::assign::<G>(values, &scales, d, low, high);
        while let Some(d) = best.refit(values) {
            let next = Self::assign::<G>(values, &scales, d, low, high);
            if next.error >= best.error {
                break;
            }
            best = next;
        }
        Some(best)
    }

    /// The best integers for the block scale `d`, near those that approximate `scales`.
    fn assign<G: Grid>(values: &[f32; 256], scales: &[f32; SUBS], d: f16, low: i8, high: i8) -> Self {
        let (low, high) = (f32::from(low), f32::from(high));
        let sub = 256 / SUBS;
        let mut block = Self { d, scales: [0; SUBS], quants: [0; 256], error: 0.0 };
        let d = d.to_f32();
        for (j, values) in values.chunks_exact(sub).enumerate() {
            let nearest = round((scales[j] * reciprocal(d)).clamp(low, high));
            let (mut best, mut least) = (0.0, f32::INFINITY);
            for candidate in [nearest, nearest - 1.0, nearest + 1.0] {
                let error = squared_error::<G>(values, d * candidate, 0.0);
                if error < least && (low..=high).contains(&candidate) {
                    (best, least) = (candidate, error);
                }
            }
            block.scales[j] = best as i8;
            block.error += least;
            quantise::<G>(values, d * best, 0.0, &mut block.quants[j * sub..][..sub]);
        }
        block
    }

    /// The block scale with the least squared error for these integers; `None` if there is no better one.
    fn refit(&self, values: &[f32; 256]) -> Option<f16> {
        let (mut value_product, mut product_product) = (0.0, 0.0);
        for (i, (&value, &quant)) in values.iter().zip(&self.quants).enumerate() {
            let product = f32::from(self.scales[i * SUBS / 256]) * f32::from(quant);
            value_product += value * product;
            product_product += product * product;
        }
        finite_half(value_product / product_product).filter(|&d| d != self.d)
    }
}

/// The scale and the minimum (subtracted, so not negative) with the least squared error of
/// `scale * quant - min`, quants on the grid `G` from 0 up.
fn fit_scale_min<G: Grid>(values: &[f32]) -> (f32, f32) {
    let (low, high) = extremes(values);
    let low = low.min(0.0);
    let mut best = ((high - low).max(0.0) / G::LARGEST, -low);
    let mut least = squared_error::<G>(values, best.0, best.1);
    for extent in extents() {
        let mut scale = (high - low) / (extent * G::LARGEST);
        // The middle of the grid stays at the middle of the values, unless its lower end were above zero.
        let mut min = (0.5 * (G::LARGEST * scale - high - low)).max(0.0);
        // Alternate between the best quants for the scale and the best scale for the quants.
        for _ in 0..3 {
            let Some(fitted) = solve_scale_min::<G>(values, scale, min) else { break };
            let error = squared_error::<G>(values, fitted.0, fitted.1);
            if error < least {
                (best, least) = (fitted, error);
            }
            (scale, min) = fitted;
        }
    }
    best
}

/// Quantises with `scale` and `min` and returns the best scale and minimum for those quants: the solution of the
/// normal equations, with the minimum kept from becoming negative. `None` if there is none.
fn solve_scale_min<G: Grid>(values: &[f32], scale: f32, min: f32) -> Option<(f32, f32)> {
    let inverse = reciprocal(scale);
    let [sum_v, sum_q, sum_vq, sum_qq] = sums(values, |value| {
        let quant = G::nearest((value + min) * inverse);
        [value, quant, value * quant, quant * quant]
    });
    let count = values.len() as f32;
    let determinant = count * sum_qq - sum_q * sum_q;
    let min = (sum_q * sum_vq - sum_qq * sum_v) / determinant;
    let (scale, min) = if min > 0.0 {
        ((count * sum_vq - sum_q * sum_v) / determinant, min)
    } else {
        (sum_vq / sum_qq, 0.0)
    };
    (scale.is_finite() && scale > 0.0 && min.is_finite()).then_some((scale, min))
}

/// A block with minimums: element `i`, in sub-block `j = i * SUBS / 256`, is
/// `d * scales[j] * quants[i] - dmin * mins[j]`.
pub(super) struct ScaledLessMin<const SUBS: usize> {
    pub d: f16,
    pub dmin: f16,
    pub scales: [u8; SUBS],
    pub mins: [u8; SUBS],
    pub quants: [i8; 256],
    error: f32,
}

impl<const SUBS: usize> ScaledLessMin<SUBS> {
    /// Encodes with quants on the grid `G` (from 0 up) and integer scales and minimums in `0..=top`.
    pub(super) fn fit<G: Grid>(values: &[f32; 256], top: u8) -> Option<Self> {
        let mut scales = [(0.0, 0.0); SUBS];
        for (scale, values) in scales.iter_mut().zip(values.chunks_exact(256 / SUBS)) {
            *scale = fit_scale_min::<G>(values);
        }
        let largest_scale = scales.iter().fold(0.0, |largest: f32, s| largest.max(s.0));
        let largest_min = scales.iter().fold(0.0, |largest: f32, s| largest.max(s.1));
        let d = finite_half(largest_scale / f32::from(top))?;
        let dmin = finite_half(largest_min / f32::from(top))?;
        let mut best = Self::assign::<G>(values, &scales, d, dmin, top);
        while let Some((d, dmin)) = best.refit(values) {
            let next = Self::assign::<G>(values, &scales, d, dmin, top);
            if next.error >= best.error {
                break;
            }
            best = next;
        }
        Some(best)
    }

    /// The best integers for the block scales `d` and `dmin`, near those that approximate `scales`.
    fn assign<G: Grid>(values: &[f32; 256], scales: &[(f32, f32); SUBS], d: f16, dmin: f16, top: u8) -> Self {
        let sub = 256 / SUBS;
        let valid = 0.0..=f32::from(top);
        let mut block = Self { d, dmin, scales: [0; SUBS], mins: [0; SUBS], quants: [0; 256], error: 0.0 };
        let (d, dmin) = (d.to_f32(), dmin.to_f32());
        for (j, values) in values.chunks_exact(sub).enumerate() {
            let nearest_scale = round((scales[j].0 * reciprocal(d)).clamp(0.0, f32::from(top)));
            let nearest_min = round((scales[j].1 * reciprocal(dmin)).clamp(0.0, f32::from(top)));
            let (mut best, mut least) = ((0.0, 0.0), f32::INFINITY);
            for scale in [nearest_scale, nearest_scale - 1.0, nearest_scale + 1.0] {
                for min in [nearest_min, nearest_min - 1.0, nearest_min + 1.0] {
                    let error = squared_error::<G>(values, d * scale, dmin * min);
                    if error < least && valid.contains(&scale) && valid.contains(&min) {
                        (best, least) = ((scale, min), error);
                    }
                }
            }
            block.scales[j] = best.0 as u8;
            block.mins[j] = best.1 as u8;
            block.error += least;
            quantise::<G>(values, d * best.0, dmin * best.1, &mut block.quants[j * sub..][..sub]);
        }
        block
    }

    /// The block scales with the least squared error for these integers; `None` if there are no better ones.
    fn refit(&self, values: &[f32; 256]) -> Option<(f16, f16)> {
        // Least squares for value = d * product - dmin * min: sums of products of value (v), product (p), min (m).
        let (mut vp, mut vm, mut pp, mut pm, mut mm) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (i, (&value, &quant)) in values.iter().zip(&self.quants).enumerate() {
            let j = i * SUBS / 256;
            let product = f32::from(self.scales[j]) * f32::from(quant);
            let min = f32::from(self.mins[j]);
            vp += value * product;
            vm += value * min;
            pp += product * product;
            pm += product * min;
            mm += min * min;
        }
        let determinant = pp * mm - pm * pm;
        let (d, dmin) = if mm > 0.0 {
            ((mm * vp - pm * vm) / determinant, (pm * vp - pp * vm) / determinant)
        } else {
            (vp / pp, 0.0)
        };
        let (d, dmin) = (finite_half(d)?, finite_half(dmin)?);
        (d != self.d || dmin != self.dmin).then_some((d, dmin))
    }
}

/// The squared error of values encoded with `scale` and `min`.
fn squared_error<G: Grid>(values: &[f32], scale: f32, min: f32) -> f32 {
    let inverse = reciprocal(scale);
    let [sum] = sums(values, |value| {
        let error = scale * G::nearest((value + min) * inverse) - min - value;
        [error * error]
    });
    sum
}

/// The quants of values encoded with `scale` and `min`.
pub(super) fn quantise<G: Grid>(values: &[f32], scale: f32, min: f32, quants: &mut [i8]) {
    let inverse = reciprocal(scale);
    for (quant, &value) in quants.iter_mut().zip(values) {
        *quant = G::nearest((value + min) * inverse) as i8;
    }
}
