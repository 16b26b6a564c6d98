//! Whole models on an NVIDIA GPU: tiny ones of every architecture against their references, and a real one against the
//! float32 reference.
//!
//! cargo test --release -p smelt-tests --test cuda -- --ignored

use engine::{
    DType, Engine, Event, GenerateOptions, Generation, LoadOptions, SamplerParams, Split, Step, Wanted,
};
use quant::Format;
use smelt_tests::tiny::{Reference, VOCAB};
use smelt_tests::{Golden, check_greedy};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use tokenizer::EncodeOptions;

fn load(path: &Path, options: &LoadOptions) -> Engine {
    let options = LoadOptions { context: Some(1024), ..options.clone() };
    Engine::load(path, &options, &mut |_, _| {}).unwrap()
}

fn on(device: &str) -> LoadOptions {
    LoadOptions { device: device.parse().unwrap(), ..LoadOptions::default() }
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

/// Prompts and steps of the tiny models against their references; those that `runs` is false of are left out.
fn check_architectures(options: &LoadOptions, device: &str, runs: impl Fn(&str) -> bool) {
    let reference = Reference::read();
    for (name, tiny) in reference.models().into_iter().filter(|(name, _)| runs(name)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        tiny.write(&path);
        let mut engine = load(&path, options);
        assert_eq!(engine.device(), device);
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
            let step = Step { sequence: &mut sequence, tokens: &tokens, wanted: Wanted::Last };
            engine.forward(&mut [step]).unwrap();
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
    let reference = Reference::read();
    let (_, tiny) = reference.models().into_iter().next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    tiny.write(&path);
    let mut engine = load(&path, &on("cuda"));
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

/// Devices cannot share a layer with experts.
fn dense(name: &str) -> bool {
    !["mixtral", "qwen2moe", "qwen3moe", "gpt-oss"].contains(&name)
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/test-cuda.sh"]
fn every_architecture_is_near_its_reference() {
    check_architectures(&on("cuda"), "cuda", |_| true);
}

#[test]
#[ignore = "needs two NVIDIA GPUs: scripts/test-cuda.sh"]
fn two_gpus_that_share_layers_are_near_the_reference() {
    check_architectures(&on("cuda:0,cuda:1"), "cuda:0,cuda:1", |_| true);
}

#[test]
#[ignore = "needs two NVIDIA GPUs: scripts/test-cuda.sh"]
fn two_gpus_that_share_every_layer_are_near_the_reference() {
    let options = LoadOptions { split: Some(Split::Tensor), ..on("cuda:0,cuda:1") };
    check_architectures(&options, "cuda:0+cuda:1", dense);
}

/// The largest logit is found behind the exchange that puts logits together, from the second step on as part of the same graph.
#[test]
#[ignore = "needs two NVIDIA GPUs: scripts/test-cuda.sh"]
fn two_gpus_that_share_every_layer_choose_the_tokens_of_one() {
    let reference = Reference::read();
    for (_, tiny) in reference.models().into_iter().filter(|(name, _)| dense(name)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        tiny.write(&path);
        let tensor = LoadOptions { split: Some(Split::Tensor), ..on("cuda:0,cuda:1") };
        let [one, two] = [on("cuda:0"), tensor].map(|device| {
            let options = |logprobs| GenerateOptions {
                sampler: SamplerParams { temperature: 0.0, ..SamplerParams::default() },
                max_tokens: Some(12),
                ignore_end: true,
                logprobs,
                ..GenerateOptions::default()
            };
            let mut engine = load(&path, &device);
            let chosen = answer(&mut engine, &reference.ids, options(None));
            // The same from all logits, which come to the host.
            assert_eq!(chosen, answer(&mut engine, &reference.ids, options(Some(1))));
            chosen
        });
        assert_eq!(one, two);
    }
}

/// The first of the real models: its alias, and its file, which `SMELT_TEST_SMOLLM2` can name.
fn real_model() -> (&'static str, PathBuf, Golden) {
    let (alias, name) = smelt_tests::MODELS[0];
    let path = match std::env::var_os("SMELT_TEST_SMOLLM2") {
        Some(path) => path.into(),
        None => smelt_tests::model_file(alias),
    };
    (alias, path, smelt_tests::golden(name))
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/test-cuda.sh"]
fn a_real_model_says_what_its_reference_says() {
    let (alias, path, golden) = real_model();
    for cache in [DType::F32, DType::F16, DType::Packed(Format::Q8_0)] {
        let mut engine = load(&path, &LoadOptions { cache: Some(cache), ..on("cuda") });
        assert_eq!(engine.device(), "cuda");
        for case in &golden.cases {
            let options = EncodeOptions { add_special: true, parse_special: true };
            assert_eq!(engine.tokenizer().encode(&case.text, options), case.token_ids, "{}", case.id);
        }
        let kl = smelt_tests::mean_kl(&mut engine, golden.cases.iter());
        let peer = golden.peer_mean_kl;
        eprintln!("{alias}, cache {cache}: mean KL {kl:.6}, llama.cpp on a CPU {peer:.6}");
        assert!(kl <= 1.1 * peer, "{alias}: mean KL {kl}, llama.cpp {peer}");
        for case in &golden.cases {
            check_greedy(&mut engine, alias, case, 48);
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU: scripts/test-cuda.sh"]
fn layers_on_the_cpu_change_no_text() {
    let (alias, path, golden) = real_model();
    for (layers, device) in [(0, "cpu"), (12, "cuda"), (29, "cuda"), (usize::MAX, "cuda")] {
        let mut engine = load(&path, &LoadOptions { accelerated_layers: Some(layers), ..on("cuda") });
        assert_eq!(engine.device(), device);
        for case in &golden.cases {
            check_greedy(&mut engine, alias, case, 48);
        }
    }
}
