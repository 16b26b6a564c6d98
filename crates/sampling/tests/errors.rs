//! One test per error variant, and what the messages say.

use sampling::{Error, Sampler, SamplerParams, log_prob_of, log_probs};

fn sampler() -> Sampler {
    Sampler::new(SamplerParams { seed: Some(0), ..SamplerParams::default() }).unwrap()
}

#[test]
fn parameter() {
    let base = SamplerParams::default;
    let nan = f32::NAN;
    let bad: Vec<(&str, SamplerParams)> = vec![
        ("temperature", SamplerParams { temperature: -0.1, ..base() }),
        ("temperature", SamplerParams { temperature: nan, ..base() }),
        ("temperature", SamplerParams { temperature: f32::INFINITY, ..base() }),
        ("top_p", SamplerParams { top_p: 1.01, ..base() }),
        ("top_p", SamplerParams { top_p: nan, ..base() }),
        ("min_p", SamplerParams { min_p: -0.01, ..base() }),
        ("min_p", SamplerParams { min_p: nan, ..base() }),
        ("typical_p", SamplerParams { typical_p: 2.0, ..base() }),
        ("repeat_penalty", SamplerParams { repeat_penalty: 0.0, ..base() }),
        ("repeat_penalty", SamplerParams { repeat_penalty: nan, ..base() }),
        ("presence_penalty", SamplerParams { presence_penalty: nan, ..base() }),
        ("frequency_penalty", SamplerParams { frequency_penalty: f32::INFINITY, ..base() }),
    ];
    for (field, params) in bad {
        let error = Sampler::new(params).unwrap_err();
        assert!(matches!(error, Error::Parameter { name, .. } if name == field), "{field}: {error:?}");
    }
    let error = Sampler::new(SamplerParams { top_p: 1.5, ..base() }).unwrap_err();
    assert_eq!(error.to_string(), "sampling parameter top_p is 1.5, expected a number from 0 to 1");
}

#[test]
fn limits_of_the_ranges_are_accepted() {
    for params in [
        SamplerParams {
            temperature: 0.0,
            top_p: 0.0,
            min_p: 0.0,
            typical_p: 0.0,
            ..SamplerParams::default()
        },
        SamplerParams {
            temperature: f32::MAX,
            top_p: 1.0,
            min_p: 1.0,
            typical_p: 1.0,
            ..SamplerParams::default()
        },
        SamplerParams { presence_penalty: -2.0, frequency_penalty: -2.0, ..SamplerParams::default() },
    ] {
        let mut sampler = Sampler::new(params).unwrap();
        sampler.accept(1);
        assert!(sampler.sample(&[1.0, 2.0, 3.0]).unwrap().id < 3);
    }
}

#[test]
fn bias_nan() {
    let params = SamplerParams { logit_bias: vec![(1, 0.0), (7, f32::NAN)], ..SamplerParams::default() };
    let error = Sampler::new(params).unwrap_err();
    assert_eq!(error, Error::BiasNan { id: 7 });
    assert!(error.to_string().contains("logit_bias is NaN for token 7"), "{error}");
}

#[test]
fn bias_out_of_vocab() {
    let params = SamplerParams { logit_bias: vec![(3, 1.0)], ..SamplerParams::default() };
    let error = Sampler::new(params).unwrap().sample(&[0.0; 3]).unwrap_err();
    assert_eq!(error, Error::BiasOutOfVocab { id: 3, vocab: 3 });
    assert!(error.to_string().contains("token 3") && error.to_string().contains("size 3"), "{error}");
}

#[test]
fn token_out_of_vocab() {
    let error = log_prob_of(&[0.0; 3], 3).unwrap_err();
    assert_eq!(error, Error::TokenOutOfVocab { id: 3, vocab: 3 });
    assert!(error.to_string().contains("token 3"), "{error}");
}

#[test]
fn nan_logit() {
    let mut row = vec![0.0; 1000];
    row[517] = f32::NAN;
    row[901] = f32::NAN;
    let want = Error::NanLogit { index: 517, vocab: 1000 };
    assert_eq!(sampler().sample(&row).unwrap_err(), want);
    assert_eq!(Sampler::new(SamplerParams::greedy()).unwrap().sample(&row).unwrap_err(), want);
    assert_eq!(log_probs(&row, 5).unwrap_err(), want);
    assert!(want.to_string().contains("NaN, first at token 517 of 1000"), "{want}");
}

#[test]
fn no_candidate() {
    let row = [f32::NEG_INFINITY; 5];
    let want = Error::NoCandidate { vocab: 5 };
    assert_eq!(sampler().sample(&row).unwrap_err(), want);
    assert_eq!(Sampler::new(SamplerParams::greedy()).unwrap().sample(&row).unwrap_err(), want);
    assert_eq!(log_probs(&row, 5).unwrap_err(), want);
    assert!(want.to_string().contains("all 5 logits are -inf"), "{want}");
    // A bias that forbids the last one has the same outcome.
    let forbid = SamplerParams { logit_bias: vec![(0, f32::NEG_INFINITY)], ..SamplerParams::default() };
    assert_eq!(Sampler::new(forbid).unwrap().sample(&[1.0]).unwrap_err(), Error::NoCandidate { vocab: 1 });
}

#[test]
fn empty_logits() {
    assert_eq!(sampler().sample(&[]).unwrap_err(), Error::EmptyLogits);
    assert_eq!(log_probs(&[], 1).unwrap_err(), Error::EmptyLogits);
    assert!(Error::EmptyLogits.to_string().contains("empty"));
}

#[test]
fn an_error_leaves_the_sampler_usable() {
    let mut sampler = sampler();
    assert!(sampler.sample(&[f32::NAN]).is_err());
    assert_eq!(sampler.sample(&[f32::NEG_INFINITY, 1.0]).unwrap().id, 1);
}
