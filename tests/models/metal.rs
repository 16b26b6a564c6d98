//! Real models on the simulated GPU, against the float32 reference: the whole Metal path, from the mapped file to the
//! text, without a Mac.
//!
//! A short prompt of the smallest model runs always. All prompts of all models take the simulator an hour:
//!
//! ```text
//! cargo test --release -p smelt-tests --test metal -- --ignored --nocapture --test-threads=1
//! ```

use engine::{DType, Device, Engine, LoadOptions, Wanted};
use metal::{MetalBackend, MetalOptions, Switches};
use metal_sim::device::SimDevice;
use quant::Format;
use smelt_tests::tiny::{Reference, VOCAB};
use smelt_tests::{GoldenCase, MODELS, check_greedy, golden, kl_and_greedy, model_file};
use std::ops::ControlFlow;
use std::time::Duration;

/// Bound of the mean KL divergence with an f32 cache, in nats.
const F32_LIMIT: f64 = 1e-5;
/// With keys and values rounded to half precision.
const F16_LIMIT: f64 = 2e-5;
/// With keys and values in 8 bits, by model: below what quantised activations cost the CPU, but for Qwen, whose keys lose more
/// (2.9e-2 were measured, with the same greedy text).
const Q8_0_LIMITS: [f64; 3] = [2e-3, 2e-3, 5e-2];

fn load(alias: &str, cache: DType) -> Engine {
    let options = LoadOptions {
        device: Device::MetalSim,
        context: Some(1024),
        cache: Some(cache),
        ..LoadOptions::default()
    };
    let engine =
        Engine::load(&model_file(alias), &options, &mut |_, _| {}).unwrap_or_else(|e| panic!("{alias}: {e}"));
    assert_eq!(engine.device(), "metal-sim");
    engine
}

/// Runs prompts of a model with one type of cache, and from each goes on for so many tokens, or for all certain ones.
fn judge(model: usize, cache: DType, limit: f64, prompts: impl Fn(&GoldenCase) -> bool, tokens: usize) {
    let (alias, name) = MODELS[model];
    let golden = golden(name);
    let mut engine = load(alias, cache);
    let (mut sum, mut positions, mut steps, mut certain) = (0.0, 0, 0, 0);
    for case in golden.cases.iter().filter(|case| prompts(case)) {
        let (kl, equal) = kl_and_greedy(&mut engine, alias, case, tokens.max(case.certain_steps));
        let mean = kl / case.positions.len() as f64;
        eprintln!(
            "  {:14} {mean:.2e}, {equal} greedy steps, {} of them certain",
            case.id, case.certain_steps
        );
        sum += kl;
        positions += case.positions.len();
        steps += equal;
        certain += case.certain_steps;
    }
    let kl = sum / positions as f64;
    eprintln!(
        "{alias}, {cache} cache: mean KL {kl:.2e} over {positions} positions, {steps} greedy steps, {certain} certain"
    );
    assert!(kl < limit, "{alias}, {cache} cache: mean KL {kl}, limit {limit}");
}

/// No node of the model falls back to the CPU.
#[test]
fn a_short_prompt_of_the_smallest_model_equals_the_float32_reference() {
    judge(0, DType::F32, F32_LIMIT, |case| case.id == "plain", 16);
}

/// For the sanitizer, which takes several times as long:
/// `SMELT_SIM_SANITIZE=1 cargo test -p smelt-tests --test metal -- --ignored a_few_tokens`.
#[test]
#[ignore = "takes the simulator minutes"]
fn a_few_tokens_of_every_model() {
    for (alias, name) in MODELS {
        let golden = golden(name);
        let shortest = golden.cases.iter().min_by_key(|case| case.token_ids.len());
        let mut engine = load(alias, DType::F16);
        check_greedy(&mut engine, alias, shortest.unwrap(), 3);
        eprintln!("{alias}: {:?}", engine.counters());
    }
}

/// What the simulated GPU was given so many of.
fn counter(engine: &Engine, wanted: &str) -> u64 {
    let counters = engine.counters().into_iter().find(|(name, _)| *name == "metal-sim");
    let found = counters.and_then(|(_, all)| all.into_iter().find(|(name, _)| *name == wanted));
    found.unwrap_or_else(|| panic!("metal-sim counts {wanted}")).1
}

/// A prompt in one command buffer, and token by token with a command buffer each; `scripts/mutate-metal.py` leaves out
/// each of their barriers in turn. With `SMELT_TEST_CASE`, only that case.
#[test]
fn a_tiny_model_of_every_architecture_equals_its_reference() {
    let wanted = std::env::var("SMELT_TEST_CASE").ok();
    let reference = Reference::read();
    let folder = tempfile::tempdir().unwrap();
    for (name, tiny) in reference.models() {
        for (kind, batch) in [("prompt", reference.ids.len()), ("token", 1)] {
            let case = format!("{name} {kind}");
            if wanted.as_ref().is_some_and(|wanted| *wanted != case) {
                continue;
            }
            let path = folder.path().join(format!("{case}.gguf"));
            tiny.write(&path);
            let options = LoadOptions { device: Device::MetalSim, batch, ..LoadOptions::default() };
            let mut engine = Engine::load(&path, &options, &mut |_, _| {}).unwrap();
            assert_eq!(engine.device(), "metal-sim");
            let (before, mut rows) = (counter(&engine, "barriers"), 0);
            let mut sequence = engine.sequence();
            let fed = engine.prefill(&mut sequence, &reference.ids, Wanted::All, &mut |position, logits| {
                if let Some(logits) = logits {
                    reference.check(name, position, logits);
                    rows += 1;
                }
                Ok(ControlFlow::Continue(()))
            });
            let _ = fed.unwrap();
            assert_eq!(rows, reference.ids.len());
            let forwards = (reference.ids.len() / batch) as u64;
            println!("barriers of {case}: {}", (counter(&engine, "barriers") - before) / forwards);
        }
    }
}

/// As on a GPU that would take seconds for the prompt. The longest dispatches are cut, too.
#[test]
fn a_long_prompt_is_several_command_buffers_and_a_token_is_one() {
    const TOKENS: usize = 1024;
    let reference = Reference::read();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    let (_, tiny) = reference.models().into_iter().find(|(name, _)| *name == "gemma3").unwrap();
    tiny.write(&path);
    let ids: Vec<u32> = (0..TOKENS as u32).map(|i| i * i % VOCAB as u32).collect();
    let run = |cut: Option<Duration>| {
        let device = SimDevice::from_environment().unwrap();
        let timeout = Duration::from_secs(600);
        let switches = Switches { cut, ..Switches::default() };
        let backend =
            MetalBackend::new(device, MetalOptions { name: "metal-sim", timeout, switches }).unwrap();
        let options = LoadOptions { context: Some(TOKENS + 1), batch: TOKENS, ..LoadOptions::default() };
        let mut engine = Engine::load_on(&path, &options, vec![Box::new(backend)], &mut |_, _| {}).unwrap();
        let mut sequence = engine.sequence();
        let mut feed = |ids: &[u32]| {
            let before = ["submissions", "dispatches"].map(|name| counter(&engine, name));
            let mut last = Vec::new();
            let fed = engine.prefill(&mut sequence, ids, Wanted::Last, &mut |_, logits| {
                if let Some(logits) = logits {
                    last = logits.to_vec();
                }
                Ok(ControlFlow::Continue(()))
            });
            let _ = fed.unwrap();
            assert_eq!(last.len(), VOCAB);
            let after = ["submissions", "dispatches"].map(|name| counter(&engine, name));
            (last, after[0] - before[0], after[1] - before[1])
        };
        [feed(&ids), feed(&[5])]
    };
    let [whole, cut] = [None, Some(Duration::from_micros(200))].map(run);
    let [(prompt, submissions, dispatches), (token, of_token, dispatches_of_token)] = &whole;
    assert_eq!((*submissions, *of_token), (1, 1));
    let [(cut_prompt, cut_submissions, cut_dispatches), (cut_token, cut_of_token, cut_dispatches_of_token)] =
        &cut;
    // The attention of the layer without a window is five dispatches at least, a command buffer each.
    assert!(*cut_submissions > 5 && cut_dispatches - dispatches >= 4, "{cut_submissions}, {cut_dispatches}");
    assert_eq!((*cut_of_token, cut_dispatches_of_token), (1, dispatches_of_token));
    assert!(prompt == cut_prompt && token == cut_token, "other logits");
}

macro_rules! all_prompts {
    ($($model:ident: $index:literal),*) => {
        $(mod $model {
            use super::*;

            #[test]
            #[ignore = "takes the simulator many minutes"]
            fn all_prompts_equal_the_float32_reference() {
                judge($index, DType::F32, F32_LIMIT, |_| true, 8);
            }

            #[test]
            #[ignore = "takes the simulator many minutes"]
            fn a_half_precision_cache_stays_close() {
                judge($index, DType::F16, F16_LIMIT, |case| case.token_ids.len() < 64, 8);
            }

            #[test]
            #[ignore = "takes the simulator many minutes"]
            fn an_8_bit_cache_stays_close() {
                let cache = DType::Packed(Format::Q8_0);
                judge($index, cache, Q8_0_LIMITS[$index], |case| case.token_ids.len() < 64, 8);
            }
        })*
    };
}

all_prompts!(smollm2: 0, gemma3: 1, qwen2: 2);
