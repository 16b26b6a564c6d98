//! Temperature 0 is argmax, whatever else is set.

use sampling::{Sampler, SamplerParams};

fn pick(params: SamplerParams, logits: &[f32]) -> u32 {
    Sampler::new(params).unwrap().sample(logits).unwrap().id
}

#[test]
fn r17_temperature_zero_is_argmax_with_the_lowest_id_on_ties() {
    assert_eq!(pick(SamplerParams::greedy(), &[1.0, 5.0, 2.0, 5.0]), 1);
    assert_eq!(pick(SamplerParams::greedy(), &[-0.0, 0.0]), 0);
    assert_eq!(pick(SamplerParams::greedy(), &[0.0, -0.0]), 0);
    let mut wide = vec![0.25; 262_144];
    wide[200_001] = 0.5;
    wide[262_143] = 0.5;
    assert_eq!(pick(SamplerParams::greedy(), &wide), 200_001);
}

#[test]
fn r17_temperature_zero_ignores_truncation_and_seed() {
    // Typical sampling would drop the most likely token here.
    let logits = [2.0, 1.0, 1.0, 1.0, 1.0, 1.0];
    let typical = SamplerParams { typical_p: 0.2, ..SamplerParams::unmodified() };
    let kept: Vec<u32> =
        Sampler::new(typical.clone()).unwrap().candidates(&logits).unwrap().iter().map(|c| c.id).collect();
    assert!(!kept.contains(&0), "kept {kept:?}");
    for seed in 0..20 {
        let params = SamplerParams { temperature: 0.0, seed: Some(seed), top_p: 0.5, ..typical.clone() };
        assert_eq!(pick(params, &logits), 0);
    }
}

#[test]
fn penalties_and_bias_come_before_argmax() {
    let params = SamplerParams { presence_penalty: 2.0, ..SamplerParams::greedy() };
    let mut sampler = Sampler::new(params).unwrap();
    let logits = [3.0, 2.5, 1.0];
    assert_eq!(sampler.sample(&logits).unwrap().id, 0);
    sampler.accept(0);
    assert_eq!(sampler.sample(&logits).unwrap().id, 1);
    sampler.reset();
    assert_eq!(sampler.sample(&logits).unwrap().id, 0);

    let biased = SamplerParams { logit_bias: vec![(2, 1.5), (2, 1.0)], ..SamplerParams::greedy() };
    assert_eq!(pick(biased, &logits), 2, "entries for one token add up");
}

#[test]
fn infinities_are_handled() {
    let inf = f32::INFINITY;
    assert_eq!(pick(SamplerParams::greedy(), &[1.0, inf, inf, 2.0]), 1);
    // +inf shares all the probability; nothing else can be drawn.
    let mut sampler = Sampler::new(SamplerParams { seed: Some(1), ..SamplerParams::default() }).unwrap();
    let mut seen = [0; 4];
    for _ in 0..200 {
        seen[sampler.sample(&[50.0, inf, -inf, inf]).unwrap().id as usize] += 1;
    }
    assert_eq!((seen[0], seen[2]), (0, 0));
    assert!(seen[1] > 50 && seen[3] > 50, "{seen:?}");
    // Forbidden wins over forced.
    let forbid = SamplerParams { logit_bias: vec![(0, -inf)], ..SamplerParams::greedy() };
    assert_eq!(pick(forbid, &[inf, 0.0]), 1);
    let force = SamplerParams { logit_bias: vec![(0, inf), (1, inf)], ..SamplerParams::greedy() };
    assert_eq!(pick(force, &[-inf, 0.0, 9.0]), 1);
}

#[test]
fn a_minute_temperature_is_as_good_as_zero() {
    let params =
        SamplerParams { temperature: f32::from_bits(1), seed: Some(3), ..SamplerParams::unmodified() };
    let mut sampler = Sampler::new(params).unwrap();
    for _ in 0..50 {
        assert_eq!(sampler.sample(&[1.0, 1.000_001, 0.0]).unwrap().id, 1);
    }
}
