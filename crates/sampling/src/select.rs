//! Partial selection of the highest logits.

use std::cmp::Ordering;

use crate::chain::Candidate;

/// Highest logit first, lowest id on ties. Logits are never NaN here.
pub(crate) fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

/// Fills `out` with the `k` highest logits above `-inf`, in rank order.
///
/// One pass that keeps at most a few times `k` entries and drops everything under the k-th best so
/// far: the cost is that of reading the row once, not of sorting it.
pub(crate) fn top_k(logits: &[f32], k: usize, out: &mut Vec<Candidate>) {
    out.clear();
    if k == 0 {
        return;
    }
    let room = k.saturating_mul(2).saturating_add(64).min(logits.len());
    out.reserve(room);
    let mut threshold = f32::NEG_INFINITY;
    for (chunk, base) in logits.chunks(BLOCK).zip((0u32..).step_by(BLOCK)) {
        // Most blocks hold nothing of interest and this test vectorises.
        if !chunk.iter().fold(false, |any, &v| any | (v > threshold)) {
            continue;
        }
        for (&logit, id) in chunk.iter().zip(base..) {
            // Strictly above: among equals the lower id, seen earlier, has precedence.
            if logit > threshold {
                if out.len() == room && k < room {
                    out.select_nth_unstable_by(k - 1, by_rank);
                    out.truncate(k);
                    threshold = out[k - 1].logit;
                    if logit <= threshold {
                        continue;
                    }
                }
                out.push(Candidate { id, logit, weight: 0.0 });
            }
        }
    }
    if out.len() > k {
        out.select_nth_unstable_by(k - 1, by_rank);
        out.truncate(k);
    }
    out.sort_unstable_by(by_rank);
}

/// Logits tested at once against the threshold.
const BLOCK: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn by_sorting(logits: &[f32], k: usize) -> Vec<u32> {
        let mut all: Vec<u32> =
            (0..logits.len() as u32).filter(|&i| logits[i as usize] > f32::NEG_INFINITY).collect();
        all.sort_by(|&a, &b| logits[b as usize].partial_cmp(&logits[a as usize]).unwrap().then(a.cmp(&b)));
        all.truncate(k);
        all
    }

    proptest! {
        #[test]
        fn selection_equals_sorting(
            // Few distinct values, so that ties are common; 0 stands for -inf.
            raw in prop::collection::vec(0u8..12, 1..2000),
            k in 0usize..300,
        ) {
            let logits: Vec<f32> =
                raw.iter().map(|&v| if v == 0 { f32::NEG_INFINITY } else { f32::from(v) - 6.0 }).collect();
            let mut out = Vec::new();
            top_k(&logits, k, &mut out);
            prop_assert_eq!(out.iter().map(|c| c.id).collect::<Vec<_>>(), by_sorting(&logits, k));
        }
    }

    #[test]
    fn ascending_logits_are_the_worst_case_and_still_right() {
        let logits: Vec<f32> = (0..100_000).map(|i| i as f32).collect();
        let mut out = Vec::new();
        top_k(&logits, 40, &mut out);
        assert_eq!(out.iter().map(|c| c.id).collect::<Vec<_>>(), (99_960..100_000).rev().collect::<Vec<_>>());
        assert!(out.capacity() < 1000, "the buffer stays near k, found {}", out.capacity());
    }
}
