//! Whole models on an NVIDIA GPU: tiny ones of every architecture against their references, and a real one against the
//! float32 reference.
//!
//! cargo test --release -p smelt-tests --test cuda -- --ignored

use engine::{Device, Engine, Event, GenerateOptions, Generation, LoadOptions, SamplerParams, Step, Wanted};
use serde::Deserialize;
use smelt_tests::tiny::{self, VOCAB};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;

#[derive(Deserialize)]
struct Reference {
    ids: Vec<u32>,
    positions: Vec<usize>,
    cases: HashMap<String, Case>,
}

#[derive(Deserialize)]
struct Case {
    logits: Vec<Vec<f64>>,
    rope_freqs: Option<Vec<f32>>,
}

fn load(path: &Path) -> Engine {
    let options = LoadOptions { device: Device::Cuda, context: Some(1024), ..LoadOptions::default() };
    let engine = Engine::load(path, &options, &mut |_, _| {}).unwrap();
    assert_eq!(engine.device(), "cuda");
    engine
}

/// Fails if a logit is further from its reference than this share of the largest.
fn check(what: &str, found: &[f32], expected: &[f64], bound: f64) {
    assert_eq!(expected.len(), VOCAB);
    let scale = expected.iter().fold(0.0f64, |max, x| max.max(x.abs()));
    for (token, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(*found) - expected).abs();
        assert!(error <= bound * scale, "{what}, token {token}: {found}, expected {expected}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/test-cuda.sh"]
fn every_architecture_is_near_its_reference() {
    let text = std::fs::read_to_string(smelt_tests::data("tiny/reference.json")).unwrap();
    let reference: Reference = serde_json::from_str(&text).unwrap();
    let factors = reference.cases["llama-3-factors"].rope_freqs.clone().unwrap();
    for (name, tiny) in tiny::cases(factors) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        tiny.write(&path);
        let mut engine = load(&path);
        let mut rows = Vec::new();
        let mut sequence = engine.sequence();
        let fed = engine.prefill(&mut sequence, &reference.ids, Wanted::All, &mut |_, logits| {
            rows.extend(logits.map(<[f32]>::to_vec));
            Ok(ControlFlow::Continue(()))
        });
        let _ = fed.unwrap();
        engine.release(sequence);
        let mut steps = Vec::new();
        let mut sequence = engine.sequence();
        for id in &reference.ids {
            let tokens = [*id];
            engine
                .forward(&mut [Step { sequence: &mut sequence, tokens: &tokens, wanted: Wanted::Last }])
                .unwrap();
            steps.push(engine.logits(0).to_vec());
        }
        engine.release(sequence);
        for (expected, &position) in reference.cases[name].logits.iter().zip(&reference.positions) {
            // Several rows are multiplied in half precision, one with 16 bits.
            check(&format!("{name}, prompt, position {position}"), &rows[position], expected, 1e-2);
            check(&format!("{name}, steps, position {position}"), &steps[position], expected, 1e-3);
        }
    }
}

/// The tokens of an answer to some tokens.
fn answer(engine: &mut Engine, prompt: &[u32], options: GenerateOptions) -> Vec<u32> {
    let mut sequence = engine.sequence();
    let mut generation = Generation::new(engine, &sequence, prompt, options).unwrap();
    let mut ids = Vec::new();
    while let Some(event) = generation.next(engine, &mut sequence).unwrap() {
        if let Event::Token { token, .. } = event {
            ids.push(token.id);
        }
    }
    engine.release(sequence);
    ids
}

/// The highest logits alone come to the host, unless something needs all: log-probabilities do.
#[test]
#[ignore = "needs an NVIDIA GPU: scripts/test-cuda.sh"]
fn tokens_are_those_chosen_from_all_logits() {
    let text = std::fs::read_to_string(smelt_tests::data("tiny/reference.json")).unwrap();
    let reference: Reference = serde_json::from_str(&text).unwrap();
    let factors = reference.cases["llama-3-factors"].rope_freqs.clone().unwrap();
    let (_, tiny) = tiny::cases(factors).into_iter().next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    tiny.write(&path);
    let mut engine = load(&path);
    for seed in 0..6 {
        let sampler = SamplerParams {
            temperature: if seed == 0 { 0.0 } else { 1.5 },
            top_k: 10,
            repeat_penalty: if seed < 3 { 1.0 } else { 1.2 },
            repeat_last_n: 8,
            seed: Some(seed),
            ..SamplerParams::default()
        };
        let options = |logprobs| GenerateOptions {
            sampler: sampler.clone(),
            max_tokens: Some(40),
            ignore_end: true,
            logprobs,
            ..GenerateOptions::default()
        };
        let from_highest = answer(&mut engine, &reference.ids, options(None));
        assert_eq!(from_highest.len(), 40);
        assert_eq!(from_highest, answer(&mut engine, &reference.ids, options(Some(1))), "seed {seed}");
    }
}

/// The model is `SMELT_TEST_SMOLLM2`, a file, or else fetched.
#[test]
#[ignore = "needs an NVIDIA GPU: scripts/test-cuda.sh"]
fn a_real_model_says_what_its_reference_says() {
    let (alias, name) = smelt_tests::MODELS[0];
    let path = match std::env::var_os("SMELT_TEST_SMOLLM2") {
        Some(path) => path.into(),
        None => smelt_tests::model_file(alias),
    };
    let golden = smelt_tests::golden(name);
    let mut engine = load(&path);
    let kl = smelt_tests::mean_kl(&mut engine, golden.cases.iter());
    let peer = golden.peer_mean_kl;
    eprintln!("{alias}: mean KL {kl:.6}, llama.cpp on a CPU {peer:.6}");
    assert!(kl <= 1.1 * peer, "{alias}: mean KL {kl}, llama.cpp {peer}");
    for case in &golden.cases {
        let options = GenerateOptions {
            sampler: SamplerParams::greedy(),
            max_tokens: Some(48),
            ..GenerateOptions::default()
        };
        let ids = answer(&mut engine, &case.token_ids, options);
        let equal = ids.iter().zip(&case.greedy.ids).take_while(|(a, b)| a == b).count();
        eprintln!("  {:14} equal for {equal} of {} steps", case.id, case.greedy.ids.len());
        if equal < case.greedy.ids.len() {
            let margin = case.greedy.margins[equal];
            assert!(margin < 0.5, "{alias}, {}: differs at step {equal}, with a margin of {margin}", case.id);
        }
    }
}
