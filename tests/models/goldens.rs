//! Real models against the float32 reference: ids, distributions at every prompt position, greedy text, perplexity.
//!
//! Release builds judge all prompts by the whole standard. Debug builds, which check overflow and assertions in every
//! step, run the short prompts of each model, to the same standard where the number of positions allows one.

use engine::{Activations, PerplexityOptions};
use smelt_tests::{Golden, GoldenCase, MODELS, check_greedy, golden, load, mean_kl};
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokenizer::EncodeOptions;

/// Whether this build is judged by the whole standard.
const WHOLE: bool = !cfg!(debug_assertions);

/// One model at a time: each uses every core, and two of them would only wait for each other.
static CORES: Mutex<()> = Mutex::new(());

fn all_cores() -> MutexGuard<'static, ()> {
    CORES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The prompts that this build runs.
fn cases(golden: &Golden) -> impl Iterator<Item = &GoldenCase> {
    golden.cases.iter().filter(|case| WHOLE || case.token_ids.len() < 64)
}

fn ids_match(model: usize) {
    let (alias, name) = MODELS[model];
    let golden = golden(name);
    let file = gguf::File::open(smelt_tests::model_file(alias)).unwrap();
    let tokenizer = tokenizer::Tokenizer::from_metadata(file.metadata()).unwrap();
    assert_eq!(tokenizer.end_of_generation_ids(), golden.model.end_of_generation_ids);
    for case in &golden.cases {
        let ids = tokenizer.encode(&case.text, EncodeOptions { add_special: true, parse_special: true });
        assert_eq!(ids, case.token_ids, "{}", case.id);
    }
}

fn quantised_activations(model: usize) {
    let (alias, name) = MODELS[model];
    let golden = golden(name);
    let _cores = all_cores();
    let mut engine = load(alias, Activations::Quantized);
    assert_eq!(engine.model().architecture(), golden.model.architecture);
    let kl = mean_kl(&mut engine, cases(&golden));
    let peer = golden.peer_mean_kl;
    eprintln!("{alias}: mean KL {kl:.6}, llama.cpp {peer:.6}");
    // The mean of a few short prompts varies with the prompts; twice the peer's mean would still be a fault.
    let limit = if WHOLE { 1.1 } else { 2.0 } * peer;
    assert!(kl <= limit, "{alias}: mean KL {kl}, limit {limit}, llama.cpp {peer}");
    for case in cases(&golden) {
        check_greedy(&mut engine, alias, case, 48);
    }
    let text = std::fs::read_to_string(smelt_tests::data("goldens/perplexity.txt")).unwrap();
    let mut ids = engine.tokenizer().encode(&text, EncodeOptions { add_special: true, parse_special: false });
    assert_eq!(ids.len(), golden.perplexity.n_tokens);
    if !WHOLE {
        // One chunk shows that scoring works; only the whole text has a reference value.
        ids.truncate(512);
        let score =
            engine.perplexity(&ids, &PerplexityOptions::default(), &mut |_| ControlFlow::Continue(()));
        let value = score.unwrap().value;
        assert!(
            (0.7..1.3).contains(&(value / golden.perplexity.f32)),
            "{alias}: perplexity of one chunk {value}"
        );
        return;
    }
    let score =
        engine.perplexity(&ids, &PerplexityOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    let expected = golden.perplexity.f32;
    eprintln!("{alias}: perplexity {:.4}, float32 {expected:.4}", score.value);
    assert!(
        (score.value / expected - 1.0).abs() <= 0.005,
        "{alias}: perplexity {}, float32 {expected}",
        score.value
    );
}

fn float_activations(model: usize) {
    let (alias, name) = MODELS[model];
    let golden = golden(name);
    let _cores = all_cores();
    let kl = mean_kl(&mut load(alias, Activations::F32), cases(&golden));
    eprintln!("{alias}: mean KL with f32 activations {kl:.2e}");
    assert!(kl < 1e-5, "{alias}: mean KL {kl}");
}

macro_rules! models {
    ($($model:ident: $index:literal),*) => {
        $(mod $model {
            #[test]
            fn prompt_ids_equal_the_reference() {
                super::ids_match($index);
            }

            #[test]
            fn quantised_activations_stay_as_close_as_the_peer() {
                super::quantised_activations($index);
            }

            #[test]
            fn float_activations_equal_the_float32_reference() {
                super::float_activations($index);
            }
        })*
    };
}

models!(smollm2: 0, gemma3: 1, qwen2: 2);
