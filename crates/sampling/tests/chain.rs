//! What each step of the chain keeps, against a plain version that sorts everything.

use proptest::prelude::*;
use sampling::{Sampler, SamplerParams};

fn kept(params: SamplerParams, logits: &[f32]) -> Vec<u32> {
    let mut sampler = Sampler::new(params).unwrap();
    let mut ids: Vec<u32> = sampler.candidates(logits).unwrap().iter().map(|c| c.id).collect();
    ids.sort_unstable();
    ids
}

/// Logits whose probabilities at temperature 1 are the given ones.
fn logits_of(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_it() {
    let row = logits_of(&[0.1, 0.5, 0.15, 0.25]);
    let with = |top_p| kept(SamplerParams { top_p, ..SamplerParams::unmodified() }, &row);
    assert_eq!(with(0.0), [1]);
    assert_eq!(with(0.49), [1]);
    assert_eq!(with(0.7), [1, 3]);
    assert_eq!(with(0.89), [1, 2, 3]);
    assert_eq!(with(1.0), [0, 1, 2, 3]);
}

#[test]
fn top_p_after_top_k_uses_the_probabilities_of_what_is_left() {
    // Of the best two, 0.5 is 2/3 of the probability.
    let row = logits_of(&[0.1, 0.5, 0.15, 0.25]);
    assert_eq!(kept(SamplerParams { top_k: 2, top_p: 0.6, ..SamplerParams::unmodified() }, &row), [1]);
    assert_eq!(kept(SamplerParams { top_k: 2, top_p: 0.7, ..SamplerParams::unmodified() }, &row), [1, 3]);
}

#[test]
fn min_p_is_relative_to_the_best() {
    let row = logits_of(&[0.1, 0.5, 0.15, 0.25]);
    let with = |min_p| kept(SamplerParams { min_p, ..SamplerParams::unmodified() }, &row);
    assert_eq!(with(0.29), [1, 2, 3]);
    assert_eq!(with(0.31), [1, 3]);
    assert_eq!(with(1.0), [1]);
}

#[test]
fn typical_keeps_what_is_nearest_to_the_entropy() {
    // H = 1.2080; information 2.303, 0.693, 1.897, 1.386: distances 1.095, 0.515, 0.689, 0.178.
    let row = logits_of(&[0.1, 0.5, 0.15, 0.25]);
    let with = |typical_p| kept(SamplerParams { typical_p, ..SamplerParams::unmodified() }, &row);
    assert_eq!(with(0.2), [3]);
    assert_eq!(with(0.7), [1, 3]);
    assert_eq!(with(0.85), [1, 2, 3]);
}

#[test]
fn temperature_reshapes_but_does_not_move_the_cut() {
    let row = logits_of(&[0.1, 0.5, 0.15, 0.25]);
    for temperature in [0.1, 1.0, 10.0] {
        let params = SamplerParams { temperature, top_p: 0.7, ..SamplerParams::unmodified() };
        assert_eq!(kept(params.clone(), &row), [1, 3]);
        let mut sampler = Sampler::new(params).unwrap();
        let weights: Vec<f64> = sampler.candidates(&row).unwrap().iter().map(|c| c.weight).collect();
        let want = 0.5f64.powf(1.0 / f64::from(temperature));
        assert!((weights[1] / weights[0] - want).abs() < 1e-6, "{weights:?} at {temperature}");
    }
}

#[test]
fn forbidden_tokens_are_never_candidates() {
    let mut row = vec![f32::NEG_INFINITY; 1000];
    row[3] = -50.0;
    row[700] = -80.0;
    for top_k in [0, 1, 40, 2000] {
        let params = SamplerParams { top_k, ..SamplerParams::unmodified() };
        let want: &[u32] = if top_k == 1 { &[3] } else { &[3, 700] };
        assert_eq!(kept(params, &row), want);
    }
}

/// The chain written plainly: sort everything, one step after the other.
fn plain_chain(p: &SamplerParams, logits: &[f32]) -> Vec<u32> {
    let mut list: Vec<(u32, f64)> =
        logits.iter().zip(0..).filter(|(l, _)| l.is_finite()).map(|(&l, i)| (i, f64::from(l))).collect();
    let rank = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    list.sort_by(rank);
    if p.top_k > 0 {
        list.truncate(p.top_k);
    }
    let softmax = |list: &[(u32, f64)]| -> Vec<f64> {
        let total: f64 = list.iter().map(|t| t.1.exp()).sum();
        list.iter().map(|t| t.1.exp() / total).collect()
    };
    let cut = |list: &mut Vec<(u32, f64)>, probabilities: &[f64], share: f32| {
        let mut sum = 0.0;
        if let Some(n) = probabilities.iter().position(|q| {
            sum += q;
            sum >= f64::from(share)
        }) {
            list.truncate(n + 1);
        }
    };
    if p.typical_p < 1.0 {
        let q = softmax(&list);
        let entropy: f64 = q.iter().map(|q| -q * q.ln()).sum();
        let mut order: Vec<usize> = (0..list.len()).collect();
        order.sort_by(|&a, &b| (-q[a].ln() - entropy).abs().total_cmp(&(-q[b].ln() - entropy).abs()));
        let by_distance: Vec<f64> = order.iter().map(|&i| q[i]).collect();
        list = order.iter().map(|&i| list[i]).collect();
        cut(&mut list, &by_distance, p.typical_p);
        list.sort_by(rank);
    }
    if p.top_p < 1.0 {
        let q = softmax(&list);
        cut(&mut list, &q, p.top_p);
    }
    let q = softmax(&list);
    let best = q[0];
    let mut ids: Vec<u32> =
        list.iter().zip(&q).filter(|(_, q)| **q >= f64::from(p.min_p) * best).map(|(t, _)| t.0).collect();
    ids.sort_unstable();
    ids
}

/// Distinct logits, so that the cuts do not hang on the last bit of equal probabilities.
fn distinct_logits() -> impl Strategy<Value = Vec<f32>> {
    (prop::collection::vec(0.0f32..1.0, 1..400), 0.5f32..12.0).prop_map(|(jitter, spread)| {
        let n = jitter.len();
        let mut row: Vec<f32> = (0..n).map(|i| (i as f32 + 0.8 * jitter[i]) / n as f32 * spread).collect();
        // A fixed shuffle: n is never a multiple of the prime 997.
        row = (0..n).map(|i| row[i * 997 % n]).collect();
        row
    })
}

fn any_params() -> impl Strategy<Value = SamplerParams> {
    let or = |off: f32| prop_oneof![Just(off), 0.011f32..0.99];
    (0usize..60, or(1.0), or(0.0), or(1.0), 0.1f32..3.0, any::<u64>()).prop_map(
        |(top_k, top_p, min_p, typical_p, temperature, seed)| SamplerParams {
            top_k,
            top_p,
            min_p,
            typical_p,
            temperature,
            seed: Some(seed),
            ..SamplerParams::unmodified()
        },
    )
}

proptest! {
    #[test]
    fn the_chain_equals_the_plain_one(row in distinct_logits(), params in any_params()) {
        prop_assert_eq!(kept(params.clone(), &row), plain_chain(&params, &row), "{:?}", params);
    }

    #[test]
    fn the_draw_is_one_of_the_kept(row in distinct_logits(), params in any_params()) {
        let ids = kept(params.clone(), &row);
        let mut sampler = Sampler::new(params).unwrap();
        for _ in 0..20 {
            let id = sampler.sample(&row).unwrap().id;
            prop_assert!(ids.binary_search(&id).is_ok(), "{} not in {:?}", id, ids);
        }
    }

    #[test]
    fn nothing_is_cut_when_everything_is_off(row in distinct_logits()) {
        prop_assert_eq!(kept(SamplerParams::unmodified(), &row), (0..row.len() as u32).collect::<Vec<_>>());
    }

    #[test]
    fn tightening_a_step_only_removes(row in distinct_logits(), params in any_params(), f in 0.0f32..1.0) {
        // Typical sampling changes the set that the later steps see, so it stays as it is.
        let loose = kept(params.clone(), &row);
        let min_p = params.min_p.max(f);
        let tight = kept(SamplerParams { top_p: params.top_p * f, min_p, ..params }, &row);
        prop_assert!(!tight.is_empty());
        prop_assert!(tight.iter().all(|id| loose.contains(id)), "{:?} in {:?}", tight, loose);
    }

    #[test]
    fn renaming_tokens_renames_the_kept(row in distinct_logits(), params in any_params()) {
        let n = row.len();
        let reversed: Vec<f32> = row.iter().rev().copied().collect();
        let mut renamed: Vec<u32> =
            kept(params.clone(), &reversed).iter().map(|id| n as u32 - 1 - id).collect();
        renamed.sort_unstable();
        prop_assert_eq!(renamed, kept(params, &row));
    }

    #[test]
    fn a_constant_added_to_all_logits_changes_nothing(row in distinct_logits(), params in any_params()) {
        // Logits on a grid of 1/1024 stay exact after the shift.
        let grid: Vec<f32> = row.iter().map(|l| (l * 1024.0).round() / 1024.0).collect();
        let shifted: Vec<f32> = grid.iter().map(|l| l - 64.0).collect();
        let mut a = Sampler::new(params.clone()).unwrap();
        let mut b = Sampler::new(params).unwrap();
        for _ in 0..10 {
            prop_assert_eq!(a.sample(&grid).unwrap(), b.sample(&shifted).unwrap());
        }
    }
}
