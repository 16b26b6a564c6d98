//! Every error of the engine, provoked as a caller would meet it, and what it says.

mod tiny;

use engine::{
    DType, Device, Engine, Error, GenerateOptions, Generation, LoadOptions, PerplexityOptions, SamplerParams,
    Sequence, Step, Trace, Wanted,
};
use gguf::{Value, Writer};
use graph::testing::{Control, Fault};
use quant::Format;
use std::error::Error as _;
use std::ops::ControlFlow;
use std::path::PathBuf;
use tiny::{Tiny, TinyFile, VOCABULARY};

fn engine(name: &str) -> Engine {
    load(name, Tiny::default(), &LoadOptions::default()).unwrap()
}

fn load(name: &str, tiny: Tiny, options: &LoadOptions) -> Result<Engine, Error> {
    TinyFile::new(name, tiny).load(options)
}

/// Feeds one token.
fn feed(engine: &mut Engine, sequence: &mut Sequence) -> Result<usize, Error> {
    engine.forward(&mut [Step { sequence, tokens: &[1], wanted: Wanted::Last }])
}

fn perplexity(engine: &mut Engine, tokens: usize, chunk: usize, skip: usize) -> Result<f64, Error> {
    let tokens: Vec<u32> = (0..tokens as u32).collect();
    let options = PerplexityOptions { chunk, skip };
    engine.perplexity(&tokens, &options, &mut |_| ControlFlow::Continue(())).map(|score| score.value)
}

#[track_caller]
fn says<T>(result: Result<T, Error>, is: impl Fn(&Error) -> bool, words: &[&str]) {
    let error = result.err().expect("it fails");
    let text = error.to_string();
    assert!(is(&error), "{error:?}");
    for word in words {
        assert!(text.contains(word), "'{word}' is not in {text}");
    }
}

#[test]
fn file() {
    let missing = PathBuf::from("no-such-file.gguf");
    let loaded = Engine::load(&missing, &LoadOptions::default(), &mut |_, _| {});
    says(loaded, |error| matches!(error, Error::File(_)), &["no-such-file.gguf"]);
}

#[test]
fn model() {
    let mut writer = Writer::new();
    writer.metadata("general.architecture", Value::String("nonsense".into()));
    let loaded = TinyFile::of("nonsense", &writer).load(&LoadOptions::default());
    says(loaded, |error| matches!(error, Error::Model { .. }), &["nonsense.gguf", "'nonsense'"]);
}

#[test]
fn tokenizer() {
    let tiny = Tiny { tokenizer: "runes", ..Tiny::default() };
    let loaded = load("tokenizer", tiny, &LoadOptions::default());
    says(loaded, |error| matches!(error, Error::Tokenizer { .. }), &["tokenizer.gguf", "runes"]);
}

#[test]
fn vocabulary() {
    let tiny = Tiny { tokens: VOCABULARY + 1, ..Tiny::default() };
    let loaded = load("vocabulary", tiny, &LoadOptions::default());
    let words = ["vocabulary.gguf", "257 tokens", "256 rows"];
    says(loaded, |error| matches!(error, Error::Vocabulary { tokens: 257, rows: 256, .. }), &words);
}

#[test]
fn device() {
    let options = LoadOptions { threads: Some(0), ..LoadOptions::default() };
    let loaded = load("device", Tiny::default(), &options);
    says(loaded, |error| matches!(error, Error::Device { .. }), &["device 'cpu'", "thread"]);
}

#[test]
fn a_device_that_does_not_exist() {
    let parsed = "abacus".parse::<Device>();
    let words = ["device 'abacus'", "expected one of auto, cpu"];
    says(parsed, |error| matches!(error, Error::Device { name, .. } if name == "abacus"), &words);
    for device in Device::ALL {
        assert_eq!(device.name().parse::<Device>().unwrap(), device);
    }
    for device in [Device::Auto, Device::Cpu] {
        let options = LoadOptions { device, ..LoadOptions::default() };
        let loaded = load(device.name(), Tiny::default(), &options).unwrap();
        assert!(loaded.device() == "cpu" || device == Device::Auto);
    }
}

#[test]
fn graph() {
    let file = TinyFile::new("graph-fault", Tiny::default());
    let control = Control::new();
    control.fail("test", Fault::Execute("blk.0.ffn_down".into()));
    let accelerator: Vec<Box<dyn graph::Backend>> = vec![Box::new(control.backend("test"))];
    let options = LoadOptions { cache: Some(DType::F32), ..LoadOptions::default() };
    let mut engine = Engine::load_on(&file.beside("gguf"), &options, accelerator, &mut |_, _| {}).unwrap();
    let mut sequence = engine.sequence();
    let fed = feed(&mut engine, &mut sequence);
    says(fed, |error| matches!(error, Error::Graph(_)), &["blk.0.ffn_down", "test"]);
}

#[test]
fn heads_that_are_no_whole_blocks_of_the_cache() {
    // Rows of 32 are whole blocks, the heads of 16 in them are not.
    let tiny = Tiny { heads: 2, ..Tiny::default() };
    let cache = Some(DType::Packed(Format::Q8_0));
    let loaded = load("heads", tiny, &LoadOptions { cache, ..LoadOptions::default() });
    let words = ["cache type: q8_0 needs heads of whole blocks, this model's have 16 and 16 columns"];
    says(loaded, |error| matches!(error, Error::Option { name: "cache type", .. }), &words);
    // What fits fails nowhere.
    let cache = Some(DType::F32);
    let mut engine = load("heads", tiny, &LoadOptions { cache, ..LoadOptions::default() }).unwrap();
    let mut sequence = engine.sequence();
    assert_eq!(feed(&mut engine, &mut sequence).unwrap(), 1);
}

#[test]
fn batch() {
    let mut engine = engine("batch");
    let mut sequence = engine.sequence();
    let tokens = [VOCABULARY as u32];
    let done = engine.forward(&mut [Step { sequence: &mut sequence, tokens: &tokens, wanted: Wanted::Last }]);
    says(done, |error| matches!(error, Error::Batch(_)), &["256"]);
}

#[test]
fn sampling() {
    let engine = engine("sampling");
    let sampler = SamplerParams { temperature: -1.0, ..SamplerParams::default() };
    let options = GenerateOptions { sampler, ..GenerateOptions::default() };
    let generation = Generation::new(&engine, &engine.sequence(), &[1], options);
    says(generation, |error| matches!(error, Error::Sampling(_)), &["temperature is -1"]);
}

#[test]
fn context_exceeded() {
    let options = LoadOptions { context: Some(8), ..LoadOptions::default() };
    let mut engine = load("context", Tiny::default(), &options).unwrap();
    let is = |error: &Error| matches!(error, Error::ContextExceeded { tokens: 9, context: 8 });
    let words = ["9 tokens", "context of 8"];
    let mut sequence = engine.sequence();
    says(Generation::new(&engine, &sequence, &[1; 9], GenerateOptions::default()), is, &words);
    let step = Step { sequence: &mut sequence, tokens: &[1; 9], wanted: Wanted::None };
    says(engine.forward(&mut [step]), is, &words);
    let go_on = &mut |_: usize, _: Option<&[f32]>| Ok(ControlFlow::Continue(()));
    says(engine.prefill(&mut sequence, &[1; 9], Wanted::None, go_on), is, &words);
    assert!(sequence.is_empty());
}

#[test]
fn out_of_pages() {
    let options = LoadOptions { context: Some(64), sequences: 1, ..LoadOptions::default() };
    let mut engine = load("pages", Tiny::default(), &options).unwrap();
    let (mut first, mut second) = (engine.sequence(), engine.sequence());
    feed(&mut engine, &mut first).unwrap();
    let is = |error: &Error| matches!(error, Error::OutOfPages { needed: 1, free: 0 });
    says(feed(&mut engine, &mut second), is, &["1 pages needed, 0 free"]);
    engine.release(first);
    feed(&mut engine, &mut second).unwrap();
}

#[test]
fn empty_prompt() {
    let mut engine = engine("empty");
    let is = |error: &Error| matches!(error, Error::EmptyPrompt);
    let mut sequence = engine.sequence();
    says(Generation::new(&engine, &sequence, &[], GenerateOptions::default()), is, &["the prompt is empty"]);
    says(engine.forward(&mut []), is, &[]);
    let step = Step { sequence: &mut sequence, tokens: &[], wanted: Wanted::None };
    says(engine.forward(&mut [step]), is, &[]);
}

#[test]
fn text_too_short() {
    let scored = perplexity(&mut engine("short"), 15, 16, 8);
    let is = |error: &Error| matches!(error, Error::TextTooShort { tokens: 15, chunk: 16 });
    says(scored, is, &["at least 16 tokens, found 15"]);
}

#[test]
fn not_finite() {
    for factor in [f32::NAN, f32::INFINITY] {
        let tiny = Tiny { factor, ..Tiny::default() };
        let mut engine = load(&format!("finite-{factor}"), tiny, &LoadOptions::default()).unwrap();
        let is = |error: &Error| matches!(error, Error::NotFinite { token: 0, vocabulary: 256, .. });
        says(perplexity(&mut engine, 16, 16, 8), is, &["not finite", "at token 0 of 256"]);
        let mut sequence = engine.sequence();
        assert_eq!(feed(&mut engine, &mut sequence).unwrap(), 1);
        says(engine.finite_logits(0), is, &[]);
        let mut sequence = engine.sequence();
        for prompt_logprobs in [None, Some(1)] {
            let options = GenerateOptions { prompt_logprobs, ..GenerateOptions::default() };
            let mut generation = Generation::new(&engine, &sequence, &[1], options).unwrap();
            says(generation.next(&mut engine, &mut sequence), is, &["not finite"]);
        }
    }
    assert!(perplexity(&mut engine("finite"), 16, 16, 8).unwrap().is_finite());
}

#[test]
fn graph_file() {
    let file = TinyFile::new("dot", Tiny::default());
    let mut engine = file.load(&LoadOptions::default()).unwrap();
    let mut sequence = engine.sequence();
    let dot = file.beside("none").join("graph.dot");
    engine.set_trace(Trace { dot: Some(dot), ..Trace::default() });
    let done = feed(&mut engine, &mut sequence);
    assert!(
        done.as_ref().is_err_and(|error| error.source().is_some_and(|cause| cause.is::<std::io::Error>()))
    );
    says(done, |error| matches!(error, Error::GraphFile { .. }), &["graph.dot", "cannot be written"]);
    // It is not tried again.
    feed(&mut engine, &mut sequence).unwrap();
}

#[test]
fn options() {
    let defaults = LoadOptions::default;
    for (name, options, words) in [
        ("context", LoadOptions { context: Some(0), ..defaults() }, "context: expected 1 to"),
        ("batch", LoadOptions { batch: 0, ..defaults() }, "batch: expected 1 to 2048, found 0"),
        (
            "sequences",
            LoadOptions { sequences: 5000, ..defaults() },
            "sequences: expected 1 to 4096, found 5000",
        ),
    ] {
        let is = |error: &Error| matches!(error, Error::Option { name: found, .. } if *found == name);
        says(load(&format!("option-{name}"), Tiny::default(), &options), is, &[words]);
    }
    let mut engine = engine("option-chunk");
    let is = |error: &Error| matches!(error, Error::Option { .. });
    says(perplexity(&mut engine, 16, 1, 0), is, &["chunk: expected 2 to 256 tokens, found 1"]);
    says(perplexity(&mut engine, 16, 8, 7), is, &["skip: expected at most 6", "found 7"]);
}
