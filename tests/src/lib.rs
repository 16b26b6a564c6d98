//! Shared helpers of the cross-crate tests: real models, and the reference outputs that they are judged by.

pub mod tiny;

use engine::{
    Activations, Device, Engine, Event, GenerateOptions, Generation, LoadOptions, SamplerParams, Sequence,
    Wanted,
};
use serde::Deserialize;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Reference outputs of one model; see `tests/data/goldens/README.md`.
#[derive(Debug, Deserialize)]
pub struct Golden {
    /// The model.
    pub model: GoldenModel,
    /// Perplexities of the text beside the files.
    pub perplexity: GoldenPerplexity,
    /// llama.cpp's mean KL divergence.
    pub peer_mean_kl: f64,
    /// The prompts.
    pub cases: Vec<GoldenCase>,
}

/// What a golden says of its model.
#[derive(Debug, Deserialize)]
pub struct GoldenModel {
    /// `general.architecture`.
    pub architecture: String,
    /// Tokens that end a generation.
    pub end_of_generation_ids: Vec<u32>,
}

/// Perplexities.
#[derive(Debug, Deserialize)]
pub struct GoldenPerplexity {
    /// Tokens of the text.
    pub n_tokens: usize,
    /// By the float32 reference.
    pub f32: f64,
    /// By llama.cpp.
    pub llama_cpp: f64,
}

/// A prompt.
#[derive(Debug, Deserialize)]
pub struct GoldenCase {
    /// Its name.
    pub id: String,
    /// The prompt.
    pub text: String,
    /// Its ids.
    pub token_ids: Vec<u32>,
    /// The greedy continuation.
    pub greedy: GoldenGreedy,
    /// Steps that must be reproduced.
    #[serde(rename = "steps_before_margin_below_0.5")]
    pub certain_steps: usize,
    /// The most likely next tokens at every position.
    pub positions: Vec<Vec<(u32, f64)>>,
}

/// A greedy continuation.
#[derive(Debug, Deserialize)]
pub struct GoldenGreedy {
    /// Its ids.
    pub ids: Vec<u32>,
    /// How far each was ahead of the runner-up.
    pub margins: Vec<f64>,
}

/// The three models: alias and golden.
pub const MODELS: [(&str, &str); 3] = [
    ("smollm2", "SmolLM2-135M-Instruct.Q4_1"),
    ("gemma3-270m", "gemma-3-270m-q4_k_m"),
    ("qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b-q4"),
];

/// A file of the reference data.
pub fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data").join(name)
}

/// Reads a model's golden.
pub fn golden(name: &str) -> Golden {
    let path = data("goldens").join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The file of a model, fetched if it is not there: a test that needs it fails where it cannot be had.
pub fn model_file(alias: &str) -> PathBuf {
    hub::resolve(alias, &hub::Options::from_env(), &mut ()).unwrap_or_else(|e| panic!("{alias}: {e}"))
}

/// A model loaded on the CPU, with a context of 1024.
pub fn load(alias: &str, activations: Activations) -> Engine {
    let options = LoadOptions {
        device: Device::Cpu,
        context: Some(1024),
        activations: Some(activations),
        ..LoadOptions::default()
    };
    Engine::load(&model_file(alias), &options, &mut |_, _| {}).unwrap_or_else(|e| panic!("{alias}: {e}"))
}

/// Mean KL divergence over all positions of prompts.
pub fn mean_kl<'a>(engine: &mut Engine, cases: impl Iterator<Item = &'a GoldenCase>) -> f64 {
    let (mut sum, mut count) = (0.0, 0usize);
    for case in cases {
        let mut sequence = engine.sequence();
        let (case_sum, _) = prompt_kl(engine, &mut sequence, case);
        engine.release(sequence);
        eprintln!("  {:14} {:.3e}", case.id, case_sum / case.positions.len() as f64);
        sum += case_sum;
        count += case.positions.len();
    }
    sum / count as f64
}

/// Feeds a prompt to an empty sequence: the sum of the KL divergences of its positions, and the most likely next token.
fn prompt_kl(engine: &mut Engine, sequence: &mut Sequence, case: &GoldenCase) -> (f64, u32) {
    let (mut sum, mut next) = (0.0, 0);
    let fed = engine.prefill(sequence, &case.token_ids, Wanted::All, &mut |index, logits| {
        if let Some(logits) = logits {
            sum += kl_divergence(&case.positions[index], logits);
            // Of equals the first, as the sampler does it.
            let best = logits.iter().enumerate().rev().max_by(|a, b| a.1.total_cmp(b.1));
            next = best.map_or(0, |(id, _)| id as u32);
        }
        Ok(ControlFlow::Continue(()))
    });
    let _ = fed.unwrap();
    (sum, next)
}

/// Fails unless `tokens` greedy tokens equal the reference's: for the steps that are certain, and up to the first at
/// which the reference itself nearly took another.
pub fn check_greedy(engine: &mut Engine, model: &str, case: &GoldenCase, tokens: usize) {
    let sequence = engine.sequence();
    let ids = greedy(engine, sequence, &case.token_ids, tokens);
    check_ids(model, case, &ids, tokens);
}

/// Both at once, with the prompt fed once, for devices that take minutes for it: the sum of the KL divergences, and how many
/// greedy steps equal the reference's. Fails as [`check_greedy`].
pub fn kl_and_greedy(engine: &mut Engine, model: &str, case: &GoldenCase, tokens: usize) -> (f64, usize) {
    let mut sequence = engine.sequence();
    let (sum, first) = prompt_kl(engine, &mut sequence, case);
    let mut ids = vec![first];
    if tokens > 1 {
        ids.extend(greedy(engine, sequence, &[first], tokens - 1));
    } else {
        engine.release(sequence);
    }
    (sum, check_ids(model, case, &ids, tokens))
}

/// Continues a sequence by a prompt and then by its most likely tokens, and releases it.
fn greedy(engine: &mut Engine, mut sequence: Sequence, prompt: &[u32], tokens: usize) -> Vec<u32> {
    let options = GenerateOptions {
        sampler: SamplerParams::greedy(),
        max_tokens: Some(tokens),
        ..GenerateOptions::default()
    };
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

/// Compares greedy tokens with the reference's: how many are equal before the first that is not.
fn check_ids(model: &str, case: &GoldenCase, ids: &[u32], tokens: usize) -> usize {
    let expected = &case.greedy.ids[..case.greedy.ids.len().min(tokens)];
    let equal = ids.iter().zip(expected).take_while(|(a, b)| a == b).count();
    let certain = case.certain_steps.min(expected.len());
    assert!(
        equal >= certain,
        "{model}, {}: equal for {equal} steps of {certain} certain ones: {ids:?}",
        case.id
    );
    if equal < expected.len() {
        let margin = case.greedy.margins[equal];
        assert!(margin < 0.5, "{model}, {}: differs at step {equal}, with a margin of {margin}", case.id);
    }
    equal
}

/// KL divergence of logits from a reference's most likely tokens, all others in one bucket, in nats.
pub fn kl_divergence(reference: &[(u32, f64)], logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    let log_prob = |id: u32| f64::from(logits[id as usize] - max) - sum.ln();
    let mut kl = 0.0;
    let (mut rest_p, mut rest_q) = (1.0, 1.0);
    for &(id, log_p) in reference {
        let log_q = log_prob(id);
        kl += log_p.exp() * (log_p - log_q);
        rest_p -= log_p.exp();
        rest_q -= log_q.exp();
    }
    // The reference is rounded to four digits: a rest smaller than that says nothing.
    if rest_p > 1e-4 && rest_q > 0.0 { kl + rest_p * (rest_p / rest_q).ln() } else { kl }
}
