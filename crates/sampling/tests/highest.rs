//! A token chosen from the highest logits alone is the one chosen from all.

use proptest::prelude::*;
use sampling::{Error, Sampler, SamplerParams};

/// The `count` highest logits, the lowest id first on ties.
fn highest(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
    all.truncate(count);
    all
}

fn needed(params: SamplerParams, accepted: &[u32], vocab: usize) -> Option<usize> {
    let mut sampler = Sampler::new(params).unwrap();
    accepted.iter().for_each(|&token| sampler.accept(token));
    sampler.highest_needed(vocab, 0)
}

#[test]
fn how_many_are_needed() {
    let greedy = SamplerParams::greedy;
    let chat = SamplerParams::default;
    for (params, expected) in [
        (greedy(), Some(1)),
        (SamplerParams { top_k: 3, ..greedy() }, Some(1)),
        (chat(), Some(40)),
        (SamplerParams { typical_p: 0.5, ..chat() }, Some(40)),
        (SamplerParams { top_k: 0, ..chat() }, None),
        (SamplerParams { top_k: 1000, ..chat() }, None),
        (SamplerParams::unmodified(), None),
        (SamplerParams { repeat_penalty: 1.1, ..greedy() }, Some(3)),
        (SamplerParams { repeat_penalty: 1.1, repeat_last_n: 1, ..greedy() }, Some(2)),
        (SamplerParams { repeat_penalty: 1.1, repeat_last_n: 0, ..greedy() }, Some(1)),
        (SamplerParams { presence_penalty: 0.5, frequency_penalty: 0.5, ..chat() }, Some(42)),
        (SamplerParams { logit_bias: vec![(3, -1.0), (4, f32::NEG_INFINITY)], ..chat() }, Some(42)),
        // What may raise a logit.
        (SamplerParams { repeat_penalty: 0.9, ..chat() }, None),
        (SamplerParams { presence_penalty: -0.5, ..chat() }, None),
        (SamplerParams { frequency_penalty: -0.5, ..chat() }, None),
        (SamplerParams { logit_bias: vec![(3, 1.0)], ..chat() }, None),
        // An error that the whole row tells.
        (SamplerParams { logit_bias: vec![(500, -1.0)], ..chat() }, None),
    ] {
        let found = needed(params.clone(), &[7, 8, 7], 500);
        assert_eq!(found, expected, "{params:?}");
    }
}

#[test]
fn tokens_ahead_count_where_they_are_penalised() {
    let sampler = |params| Sampler::new(params).unwrap();
    assert_eq!(sampler(SamplerParams::greedy()).highest_needed(500, 5), Some(1));
    let penalised = SamplerParams { repeat_penalty: 1.1, ..SamplerParams::greedy() };
    assert_eq!(sampler(penalised).highest_needed(500, 5), Some(6));
}

#[test]
fn what_nothing_can_be_drawn_from() {
    let mut sampler = Sampler::new(SamplerParams::default()).unwrap();
    assert_eq!(sampler.sample_highest([]), Err(Error::NoCandidate { vocab: 0 }));
    assert_eq!(sampler.sample_highest([(4, f32::NEG_INFINITY)]), Err(Error::NoCandidate { vocab: 1 }));
    assert_eq!(sampler.sample_highest([(4, f32::NAN)]), Err(Error::NanLogit { index: 4, vocab: 1 }));
}

proptest! {
    #[test]
    fn the_same_as_from_all(
        // Few distinct values, so that ties are common, and zeros of both signs.
        rows in prop::collection::vec(prop::collection::vec(-6i8..12, 60), 1..6),
        (top_k, top_p, min_p, typical_p) in (0usize..30, 0u8..5, 0u8..3, 0u8..3),
        (repeat, presence, frequency, last) in (0u8..3, 0u8..3, 0u8..3, 0usize..6),
        bias in prop::collection::vec((0u32..60, -3i8..1), 0..4),
        (temperature, seed) in (0u8..3, any::<u64>()),
    ) {
        let params = SamplerParams {
            temperature: f32::from(temperature) * 0.7,
            top_k,
            top_p: 1.0 - f32::from(top_p) * 0.2,
            min_p: f32::from(min_p) * 0.1,
            typical_p: 1.0 - f32::from(typical_p) * 0.3,
            repeat_penalty: 1.0 + f32::from(repeat) * 0.3,
            repeat_last_n: last,
            presence_penalty: f32::from(presence) * 0.5,
            frequency_penalty: f32::from(frequency) * 0.5,
            logit_bias: bias.iter().map(|&(id, b)| (id, if b == -3 { f32::NEG_INFINITY } else { b.into() })).collect(),
            seed: Some(seed),
        };
        let mut of_all = Sampler::new(params).unwrap();
        let mut of_highest = of_all.clone();
        for row in rows {
            let logits: Vec<f32> =
                row.iter().enumerate().map(|(i, &v)| if v == 0 && i % 2 == 0 { -0.0 } else { f32::from(v) * 0.5 }).collect();
            let Some(needed) = of_highest.highest_needed(logits.len(), 0) else {
                prop_assert!(top_k == 0 || top_k + bias.len() + last >= logits.len());
                break;
            };
            let expected = of_all.sample(&logits).unwrap();
            let found = of_highest.sample_highest(highest(&logits, needed)).unwrap();
            prop_assert_eq!(found, expected);
            of_all.accept(expected.id);
            of_highest.accept(expected.id);
        }
    }
}
