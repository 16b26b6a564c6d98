//! The truncation steps over a list of candidates.
//!
//! Every step keeps at least one candidate. Weights are `exp(logit - max)`, not normalised.

use std::cmp::Ordering;

use crate::SamplerParams;
use crate::math::{exp_nonpositive, sum_exp};
use crate::select::{by_rank, top_k};

/// A token that may be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Token id.
    pub id: u32,
    /// Its logit after penalties and bias.
    pub logit: f32,
    /// Its share of the draw, relative to the weights of the other candidates.
    pub weight: f64,
}

/// Fills `out` with what the chain keeps, weighted for the draw. `max` is the largest logit and finite;
/// the temperature is above 0.
pub(crate) fn truncate(params: &SamplerParams, logits: &[f32], max: f32, out: &mut Vec<Candidate>) {
    let typical = params.typical_p < 1.0;
    let nucleus = params.top_p < 1.0;
    let limited = params.top_k > 0 && params.top_k < logits.len();
    // Where steps 3 and 4 are off, top-p sees the whole row and need not sort it.
    let of_row = nucleus && !typical && !limited;
    if limited {
        top_k(logits, params.top_k, out);
    } else if of_row {
        top_p_of_row(logits, max, params.top_p, out);
    } else {
        out.clear();
        let above = logits.iter().zip(0u32..).filter(|(l, _)| **l > f32::NEG_INFINITY);
        out.extend(above.map(|(&logit, id)| Candidate { id, logit, weight: 0.0 }));
        if nucleus {
            out.sort_unstable_by(by_rank);
        }
    }
    narrow(params, max, nucleus && !of_row, out);
}

/// The steps after top-k, and the weights: of candidates in rank order where top-p, which `nucleus` tells, is still to come.
pub(crate) fn narrow(params: &SamplerParams, max: f32, nucleus: bool, out: &mut Vec<Candidate>) {
    if params.typical_p < 1.0 {
        keep_typical(out, max, params.typical_p, nucleus);
    }
    if nucleus {
        keep_top_p(out, params.top_p);
    }
    if params.min_p > 0.0 {
        keep_min_p(out, params.min_p);
    }
    weigh(out, 1.0 / f64::from(params.temperature));
}

/// Sets each weight to `exp((logit - best) * scale)`, the best candidate's being 1.
fn weigh(candidates: &mut [Candidate], scale: f64) {
    let best = best_logit(candidates);
    for c in candidates {
        c.weight = exp_nonpositive((f64::from(c.logit) - best) * scale);
    }
}

fn best_logit(candidates: &[Candidate]) -> f64 {
    f64::from(candidates.iter().fold(f32::NEG_INFINITY, |m, c| m.max(c.logit)))
}

/// How many candidates from the front reach `share` of `total`; at least one.
fn prefix_reaching(candidates: &[Candidate], share: f64, total: f64) -> Option<usize> {
    let mut sum = 0.0;
    candidates
        .iter()
        .position(|c| {
            sum += c.weight;
            sum >= share * total
        })
        .map(|i| i + 1)
}

/// Top-p over a ranked list.
fn keep_top_p(candidates: &mut Vec<Candidate>, top_p: f32) {
    weigh(candidates, 1.0);
    let total = candidates.iter().map(|c| c.weight).sum();
    if let Some(n) = prefix_reaching(candidates, f64::from(top_p), total) {
        candidates.truncate(n);
    }
}

/// Top-p over a whole row: ranks as many of the best as it takes, which is usually few.
fn top_p_of_row(logits: &[f32], max: f32, top_p: f32, out: &mut Vec<Candidate>) {
    let total = sum_exp(logits, max);
    let mut k = 256;
    loop {
        top_k(logits, k, out);
        weigh(out, 1.0);
        if let Some(n) = prefix_reaching(out, f64::from(top_p), total) {
            out.truncate(n);
            return;
        }
        if k >= logits.len() {
            // Rounding kept the sum just under the share: everything is in.
            return;
        }
        k = k.saturating_mul(8).min(logits.len());
    }
}

fn keep_min_p(candidates: &mut Vec<Candidate>, min_p: f32) {
    weigh(candidates, 1.0);
    candidates.retain(|c| c.weight >= f64::from(min_p));
}

/// Locally typical sampling (Meister et al., 2022): keeps the tokens whose information content
/// `-ln p` is nearest to the entropy, until their probability reaches `typical_p`.
///
/// With `d = logit - max`, the distance `|-ln p - H|` equals `|E[d] - d|`: the normaliser cancels.
fn keep_typical(candidates: &mut Vec<Candidate>, max: f32, typical_p: f32, ranked: bool) {
    let difference = |c: &Candidate| f64::from(c.logit) - f64::from(max);
    weigh(candidates, 1.0);
    let total: f64 = candidates.iter().map(|c| c.weight).sum();
    let mean = candidates.iter().map(|c| c.weight * difference(c)).sum::<f64>() / total;
    let distance = |c: &Candidate| (mean - difference(c)).abs();
    candidates.sort_unstable_by(|a, b| {
        distance(a).partial_cmp(&distance(b)).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
    });
    if let Some(n) = prefix_reaching(candidates, f64::from(typical_p), total) {
        candidates.truncate(n);
    }
    if ranked {
        candidates.sort_unstable_by(by_rank);
    }
}
