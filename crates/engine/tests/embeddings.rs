//! Texts become vectors: the right ones, whoever else is there, and nobody waits for ever.

mod tiny;

use engine::{
    BatchEngine, BatchEvent, BatchOptions, DType, Device, EmbedRequest, Engine, Error, GenerateOptions,
    LoadOptions, Pooling, Request, SamplerParams, Stats, Step, Wanted,
};
use graph::testing::{Control, Fault};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tiny::{HIDDEN, Tiny, TinyFile, VOCABULARY, wave};

fn file(name: &str) -> TinyFile {
    TinyFile::new(&format!("embeddings-{name}"), Tiny::default())
}

fn load(name: &str, options: &LoadOptions) -> Engine {
    file(name).load(options).unwrap()
}

/// A text that no other seed's begins like.
fn text(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 7 + seed * 31 + 3) % VOCABULARY as u32).collect()
}

fn embed(
    engine: &BatchEngine,
    inputs: Vec<Vec<u32>>,
    pooling: Pooling,
) -> Receiver<Result<Vec<Vec<f32>>, Error>> {
    let (sender, receiver) = channel();
    let request = EmbedRequest { name: "vectors".into(), inputs, pooling };
    let handle = engine
        .embed(
            request,
            Box::new(move |result| {
                let _ = sender.send(result);
            }),
        )
        .unwrap();
    // The request is not to end before its answer.
    std::mem::forget(handle);
    receiver
}

/// Waits for the snapshot that is made after a step.
#[track_caller]
fn wait_for(engine: &BatchEngine, is: impl Fn(&Stats) -> bool) {
    let start = Instant::now();
    while !is(&engine.stats()) {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", engine.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The hidden states of a text, computed in one go.
fn states(engine: &mut Engine, tokens: &[u32]) -> Vec<f32> {
    let mut sequence = engine.sequence();
    let mut states = Vec::new();
    let step = Step { sequence: &mut sequence, tokens, wanted: Wanted::All };
    assert_eq!(engine.hidden_states(&mut [step], &mut states).unwrap(), tokens.len());
    engine.release(sequence);
    states
}

fn pooled(states: &[f32], pooling: Pooling) -> Vec<f32> {
    let rows = states.chunks_exact(HIDDEN);
    match pooling {
        Pooling::First => states[..HIDDEN].to_vec(),
        Pooling::Last => states[states.len() - HIDDEN..].to_vec(),
        Pooling::Mean => (0..HIDDEN)
            .map(|column| {
                let sum: f64 = rows.clone().map(|row| f64::from(row[column])).sum();
                (sum / rows.len() as f64) as f32
            })
            .collect(),
    }
}

#[test]
fn hidden_states_are_what_the_output_head_reads() {
    let mut engine = load("head", &LoadOptions::default());
    let tokens = text(1, 5);
    let hidden = states(&mut engine, &tokens);
    let mut sequence = engine.sequence();
    let step = Step { sequence: &mut sequence, tokens: &tokens, wanted: Wanted::All };
    engine.forward(&mut [step]).unwrap();
    for (row, hidden) in hidden.chunks_exact(HIDDEN).enumerate() {
        for (token, &logit) in engine.logits(row).iter().enumerate() {
            let weights = (0..HIDDEN).map(|column| wave(token * HIDDEN + column));
            let dot: f64 = weights.zip(hidden).map(|(weight, &x)| f64::from(weight) * f64::from(x)).sum();
            // The head rounds its inputs to 8 bits on the CPU.
            assert!((dot - f64::from(logit)).abs() < 0.1, "row {row}, token {token}: {dot} {logit}");
        }
    }
}

#[test]
fn vectors_do_not_depend_on_the_step_or_on_who_else_is_there() {
    let mut single = load("steps-1", &LoadOptions::default());
    let texts: Vec<_> = (0..7).map(|seed| text(seed, 1 + seed * 20)).collect();
    for pooling in [Pooling::Mean, Pooling::First, Pooling::Last] {
        let expected: Vec<_> = texts.iter().map(|text| pooled(&states(&mut single, text), pooling)).collect();
        for batch_tokens in [1, 16, 256] {
            let cache = LoadOptions { cache_tokens: Some(4096), ..LoadOptions::default() };
            let options = BatchOptions { batch_tokens, parallel: 3, ..BatchOptions::default() };
            let engine = BatchEngine::start(load(&format!("steps-{batch_tokens}"), &cache), options).unwrap();
            let greedy = GenerateOptions {
                sampler: SamplerParams::greedy(),
                max_tokens: Some(40),
                ignore_end: true,
                ..GenerateOptions::default()
            };
            let answer = engine.generate(Request::new(text(9, 30), greedy)).unwrap();
            let (first, second) =
                (embed(&engine, texts.clone(), pooling), embed(&engine, texts[..2].to_vec(), pooling));
            assert_eq!(second.recv().unwrap().unwrap(), expected[..2]);
            assert_eq!(first.recv().unwrap().unwrap(), expected, "{pooling:?}, {batch_tokens}");
            assert_eq!(answer.filter(|event| matches!(event, BatchEvent::Token { .. })).count(), 40);
            wait_for(&engine, |stats| (stats.pages_running, stats.requests_finished) == (0, 3));
            assert_eq!(engine.load(), 0);
            let stats = engine.stats();
            let tokens: usize = texts.iter().chain(&texts[..2]).map(Vec::len).sum();
            assert_eq!(stats.embedded_tokens, tokens as u64);
        }
    }
}

#[test]
fn where_pages_are_short_all_come_to_an_end() {
    // Four pages: one sequence of the longest kind at a time.
    let cache =
        LoadOptions { context: Some(256), cache_tokens: Some(256), sequences: 1, ..LoadOptions::default() };
    let options = BatchOptions { parallel: 4, batch_tokens: 32, ..BatchOptions::default() };
    let engine = BatchEngine::start(load("pages", &cache), options).unwrap();
    let sampled = GenerateOptions {
        sampler: SamplerParams::greedy(),
        max_tokens: Some(150),
        ignore_end: true,
        ..GenerateOptions::default()
    };
    let answers: Vec<_> =
        (0..6).map(|seed| engine.generate(Request::new(text(seed, 90), sampled.clone())).unwrap()).collect();
    let vectors: Vec<_> =
        (10..14).map(|seed| embed(&engine, vec![text(seed, 250), text(seed, 3)], Pooling::Mean)).collect();
    for vectors in vectors {
        assert_eq!(vectors.recv_timeout(Duration::from_secs(60)).unwrap().unwrap().len(), 2);
    }
    for answer in answers {
        assert_eq!(answer.filter(|event| matches!(event, BatchEvent::Token { .. })).count(), 150);
    }
    wait_for(&engine, |stats| stats.pages_running == 0);
}

#[test]
fn r21_who_leaves_frees_the_engine() {
    let cache = LoadOptions { context: Some(1 << 14), cache_tokens: Some(1 << 16), ..LoadOptions::default() };
    let options = BatchOptions { batch_tokens: 16, ..BatchOptions::default() };
    let engine = BatchEngine::start(load("leaves", &cache), options).unwrap();
    let request = EmbedRequest {
        name: String::new(),
        inputs: vec![text(1, 1 << 14), text(2, 1 << 14), text(3, 1 << 14)],
        pooling: Pooling::Mean,
    };
    let (sender, receiver) = channel();
    let sink = Box::new(move |result| {
        let _ = sender.send(result);
    });
    let handle = engine.embed(request, sink).unwrap();
    wait_for(&engine, |stats| stats.pages_running > 0);
    assert_eq!(engine.stats().waiting, 2, "the texts that were not begun");
    drop(handle);
    wait_for(&engine, |stats| stats.requests_cancelled == 1 && stats.pages_running == 0);
    assert!(receiver.recv().is_err(), "an answer came after all");
    assert_eq!(engine.load(), 0);
}

#[test]
fn what_cannot_be_embedded_is_refused_and_a_broken_device_tells() {
    let engine =
        BatchEngine::start(load("refused", &LoadOptions::default()), BatchOptions::default()).unwrap();
    let refused = |inputs: Vec<Vec<u32>>| {
        let request = EmbedRequest { name: String::new(), inputs, pooling: Pooling::Mean };
        engine.embed(request, Box::new(|_| {})).unwrap_err()
    };
    assert!(matches!(refused(vec![]), Error::EmptyPrompt));
    assert!(matches!(refused(vec![vec![1], vec![]]), Error::EmptyPrompt));
    assert!(matches!(refused(vec![text(1, 257)]), Error::ContextExceeded { tokens: 257, context: 256 }));
    assert!(matches!(refused(vec![vec![VOCABULARY as u32]]), Error::Option { name: "prompt", .. }));

    let control = Control::new();
    let options = LoadOptions {
        device: Device::Auto,
        activations: Some(engine::Activations::F32),
        cache: Some(DType::F32),
        ..LoadOptions::default()
    };
    let backend = Box::new(control.backend("test"));
    let engine = Engine::load_on(&file("device").beside("gguf"), &options, vec![backend], &mut |_, _| {});
    let engine = BatchEngine::start(engine.unwrap(), BatchOptions::default()).unwrap();
    control.fail("test", Fault::Synchronize);
    let failed = embed(&engine, vec![text(1, 9)], Pooling::Mean).recv().unwrap();
    assert!(matches!(failed, Err(Error::Stopped { .. })), "{failed:?}");
}
