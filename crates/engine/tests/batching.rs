//! Many requests at once: what each of them gets is what it would get alone, whatever happens around it.

mod tiny;

use engine::{
    BatchEngine, BatchEvent, BatchOptions, Constraint, DType, Device, Engine, Error, Event, FinishReason,
    GenerateOptions, Generation, LoadOptions, Request, SamplerParams, Stats,
};
use graph::testing::{Control, Fault};
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use tiny::{Tiny, TinyFile, VOCABULARY};

fn file(name: &str) -> TinyFile {
    file_of(name, None)
}

fn file_of(name: &str, window: Option<u32>) -> TinyFile {
    TinyFile::new(&format!("batching-{name}"), Tiny { window, ..Tiny::default() })
}

fn load(name: &str, options: &LoadOptions) -> Engine {
    file(name).load(options).unwrap()
}

fn start(name: &str, options: BatchOptions) -> BatchEngine {
    let cache = LoadOptions { cache_tokens: Some(4096), ..LoadOptions::default() };
    BatchEngine::start(load(name, &cache), options).unwrap()
}

/// The same where an answer or a prompt can be so long that nobody sees its end.
fn start_long(name: &str, options: BatchOptions) -> BatchEngine {
    let cache = LoadOptions { context: Some(1 << 16), cache_tokens: Some(1 << 17), ..LoadOptions::default() };
    BatchEngine::start(load(name, &cache), options).unwrap()
}

/// A prompt that no other seed's begins like.
fn prompt(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 7 + seed * 31 + 3) % VOCABULARY as u32).collect()
}

fn sampled(seed: u64, tokens: usize) -> GenerateOptions {
    GenerateOptions {
        sampler: SamplerParams { seed: Some(seed), ..SamplerParams::unmodified() },
        max_tokens: Some(tokens),
        ignore_end: true,
        ..GenerateOptions::default()
    }
}

fn greedy(tokens: usize) -> GenerateOptions {
    GenerateOptions { sampler: SamplerParams::greedy(), ..sampled(0, tokens) }
}

/// What one engine, asked for nothing else, answers.
fn alone(engine: &mut Engine, prompt: &[u32], options: GenerateOptions) -> Vec<u32> {
    let mut sequence = engine.sequence();
    let mut generation = Generation::new(engine, &sequence, prompt, options).unwrap();
    let mut tokens = Vec::new();
    while let Some(event) = generation.next(engine, &mut sequence).unwrap() {
        if let Event::Token { token, .. } = event {
            tokens.push(token.id);
        }
    }
    engine.release(sequence);
    tokens
}

/// Everything that is told about a request.
#[derive(Debug, Default)]
struct Answer {
    cached: usize,
    tokens: Vec<Vec<u32>>,
    reasons: Vec<FinishReason>,
    failed: Option<String>,
}

fn collect(events: impl Iterator<Item = BatchEvent>, choices: usize) -> Answer {
    let mut answer = Answer { tokens: vec![Vec::new(); choices], ..Answer::default() };
    for event in events {
        match event {
            BatchEvent::Started { cached_tokens } => answer.cached = cached_tokens,
            BatchEvent::Token { choice, token, .. } => answer.tokens[choice].push(token.id),
            BatchEvent::Finished { reason, .. } => answer.reasons.push(reason),
            BatchEvent::Failed(error) => answer.failed = Some(error.to_string()),
        }
    }
    answer
}

fn generate(engine: &BatchEngine, prompt: Vec<u32>, options: GenerateOptions) -> Answer {
    collect(engine.generate(Request::new(prompt, options)).unwrap(), 1)
}

#[track_caller]
fn wait_for(engine: &BatchEngine, what: &str, is: impl Fn(&Stats) -> bool) {
    let start = Instant::now();
    while !is(&engine.stats()) {
        assert!(start.elapsed() < Duration::from_secs(20), "{what} did not come: {:?}", engine.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn r17_an_answer_does_not_depend_on_its_neighbours_or_on_the_cache() {
    let cases: Vec<_> =
        (0..12u32).map(|seed| (prompt(seed, 1 + seed * 9), sampled(seed.into(), 20))).collect();
    let mut single = load("neighbours-1", &LoadOptions::default());
    let expected: Vec<_> =
        cases.iter().map(|(prompt, options)| alone(&mut single, prompt, options.clone())).collect();
    let engine = start("neighbours", BatchOptions { batch_tokens: 16, ..BatchOptions::default() });
    for round in ["cold", "warm"] {
        let requests = cases.iter().map(|(prompt, options)| Request::new(prompt.clone(), options.clone()));
        let events: Vec<_> = requests.map(|request| engine.generate(request).unwrap()).collect();
        for (events, expected) in events.into_iter().zip(&expected) {
            let answer = collect(events, 1);
            assert_eq!((&answer.tokens[0], answer.failed), (expected, None), "{round}");
            assert_eq!(answer.reasons, [FinishReason::Length]);
        }
    }
    wait_for(&engine, "an idle engine", |stats| stats.slots.is_empty());
    let stats = engine.stats();
    assert_eq!((stats.waiting, stats.pages_running, stats.requests_finished), (0, 0, 24));
    assert_eq!(stats.generated_tokens, 24 * 20);
    assert!(stats.cached_tokens > 0 && engine.load() == 0, "{stats:?}");
}

#[test]
fn sequences_that_outgrow_the_cache_wait_and_answer_the_same() {
    let mut single = load("preempt-1", &LoadOptions::default());
    let cases: Vec<_> = (0..4u32).map(|seed| (prompt(seed, 60), sampled(seed.into(), 150))).collect();
    let cache = LoadOptions { cache_tokens: Some(512), ..LoadOptions::default() };
    let engine = BatchEngine::start(load("preempt", &cache), BatchOptions::default()).unwrap();
    let requests = cases.iter().map(|(prompt, options)| Request::new(prompt.clone(), options.clone()));
    let events: Vec<_> = requests.map(|request| engine.generate(request).unwrap()).collect();
    for (events, (prompt, options)) in events.into_iter().zip(&cases) {
        let answer = collect(events, 1);
        assert_eq!(answer.tokens[0], alone(&mut single, prompt, options.clone()), "{:?}", answer.failed);
    }
    let stats = engine.stats();
    assert!(stats.preemptions > 0, "8 pages for 4 sequences of 4: {stats:?}");
}

#[test]
fn long_sequences_of_a_windowed_model_run_at_the_same_time() {
    let file = file_of("window", Some(20));
    let load = LoadOptions { context: Some(2048), batch: 32, ..LoadOptions::default() };
    // The windows of each sequence, with the batch and what can be cut back: ten pages of 64 tokens, less than a prompt.
    let sequences = 4;
    let cache = LoadOptions { sequences, cache_tokens: Some(4 * 2048), ..load.clone() };
    let engine = BatchEngine::start(file.load(&cache).unwrap(), BatchOptions::default()).unwrap();
    assert_eq!(engine.stats().pages_total, sequences * 10);
    let cases: Vec<_> =
        (0..sequences as u32).map(|seed| (prompt(seed, 1200), sampled(seed.into(), 100))).collect();
    let (sender, receiver) = channel();
    // The first one waits until all are there, however slowly this thread gets on.
    let (all_submitted, submitted) = channel();
    let mut submitted = Some(submitted);
    let handles = cases.iter().enumerate().map(|(case, (prompt, options))| {
        let (sender, mut submitted) = (sender.clone(), submitted.take());
        let sink = move |event| {
            submitted.take().into_iter().for_each(|submitted: Receiver<()>| submitted.recv().unwrap());
            sender.send((case, event)).unwrap();
            ControlFlow::Continue(())
        };
        engine.submit(Request::new(prompt.clone(), options.clone()), Box::new(sink)).unwrap()
    });
    let handles: Vec<_> = handles.collect();
    all_submitted.send(()).unwrap();
    drop(sender);
    let mut answers = vec![Vec::new(); sequences];
    let mut begun_together = true;
    for (case, event) in receiver {
        match event {
            BatchEvent::Token { token, .. } => answers[case].push(token.id),
            BatchEvent::Finished { .. } => begun_together &= answers.iter().all(|tokens| !tokens.is_empty()),
            BatchEvent::Started { .. } => {}
            BatchEvent::Failed(error) => panic!("{error}"),
        }
    }
    drop(handles);
    assert!(begun_together, "some waited for others to end");
    let mut single = file.load(&load).unwrap();
    for (tokens, (prompt, options)) in answers.iter().zip(&cases) {
        assert_eq!(*tokens, alone(&mut single, prompt, options.clone()));
    }
    assert_eq!(engine.stats().preemptions, 0);
}

#[test]
fn windows_count_in_the_memory_of_a_cache() {
    let bytes = |model: &models::Model, sequences, bytes| {
        let options = LoadOptions { context: Some(2048), batch: 32, sequences, ..LoadOptions::default() };
        engine::cache_tokens_within(model, &options, bytes, 8192)
    };
    let of = |window| file_of("memory", window).load(&LoadOptions::default()).unwrap();
    // Keys and values of 32 columns in f16.
    let token = 2 * 2 * tiny::HIDDEN;
    let full = of(None);
    assert_eq!(bytes(full.model(), 4, 4096 * token), 4096);
    assert_eq!(bytes(full.model(), 4, usize::MAX), 8192);
    assert_eq!(bytes(full.model(), 4, 63 * token), 0);
    // Windows of ten pages for each sequence, and no more however many tokens there are.
    let windowed = of(Some(20));
    assert_eq!(bytes(windowed.model(), 4, 40 * 64 * token), 8192);
    assert_eq!(bytes(windowed.model(), 4, 39 * 64 * token), 39 * 64);
    assert_eq!(bytes(windowed.model(), 4, 9 * 64 * token), 0);
}

#[test]
fn answers_to_one_prompt_share_it_and_are_those_of_the_seeds_after_the_first() {
    let mut single = load("choices-1", &LoadOptions::default());
    let engine = start("choices", BatchOptions::default());
    let request = Request { choices: 3, ..Request::new(prompt(1, 70), sampled(5, 12)) };
    let answer = collect(engine.generate(request).unwrap(), 3);
    for (choice, tokens) in answer.tokens.iter().enumerate() {
        assert_eq!(*tokens, alone(&mut single, &prompt(1, 70), sampled(5 + choice as u64, 12)));
    }
    assert_eq!(answer.reasons.len(), 3);
    // The last tokens are sent before they are counted.
    wait_for(&engine, "an idle engine", |stats| stats.slots.is_empty());
    let stats = engine.stats();
    assert_eq!((stats.prompt_tokens, stats.generated_tokens), (70, 36));
}

#[test]
fn a_prompt_that_begins_like_an_earlier_one_costs_only_what_is_new() {
    let engine = start("prefix", BatchOptions::default());
    let first = generate(&engine, prompt(1, 150), greedy(8));
    assert_eq!(first.cached, 0);
    let longer: Vec<u32> = prompt(1, 150).into_iter().chain(first.tokens[0].iter().copied()).collect();
    let longer: Vec<u32> = longer.into_iter().chain([1, 2, 3]).collect();
    // The last token of an answer is never fed.
    assert_eq!(generate(&engine, longer, greedy(2)).cached, 157);
    // Half a page in common is copied.
    let other: Vec<u32> = prompt(1, 100).into_iter().chain(prompt(9, 20)).collect();
    let mut single = load("prefix-1", &LoadOptions::default());
    let answer = generate(&engine, other.clone(), greedy(8));
    assert_eq!((answer.cached, &answer.tokens[0]), (100, &alone(&mut single, &other, greedy(8))));
    // All of it: the last token is fed again, for its logits.
    assert_eq!(generate(&engine, prompt(1, 150), greedy(8)).cached, 149);
    let off = start("prefix-off", BatchOptions { prefix_cache: false, ..BatchOptions::default() });
    generate(&off, prompt(1, 150), greedy(1));
    assert_eq!(generate(&off, prompt(1, 150), greedy(1)).cached, 0);
    wait_for(&off, "free pages", |stats| stats.pages_cached == 0);
}

#[test]
fn prompt_lookup_changes_no_answer() {
    let mut single = load("lookup-1", &LoadOptions::default());
    let engine = start("lookup", BatchOptions { lookup_tokens: 5, ..BatchOptions::default() });
    for (seed, options) in [(1, greedy(120)), (2, sampled(3, 120)), (3, greedy(1)), (4, greedy(500))] {
        let expected = alone(&mut single, &prompt(seed, 40), options.clone());
        assert_eq!(generate(&engine, prompt(seed, 40), options).tokens[0], expected);
    }
    let stats = engine.stats();
    assert!(stats.accepted_tokens > 0 && stats.accepted_tokens <= stats.drafted_tokens, "{stats:?}");
    assert!(stats.steps < stats.generated_tokens, "{stats:?}");
}

#[test]
fn r21_a_request_ends_in_every_phase_when_nobody_wants_it() {
    let one = BatchOptions { parallel: 1, batch_tokens: 1, ..BatchOptions::default() };
    let engine = start_long("cancel", one);
    let forever = || Request::new(prompt(1, 16), GenerateOptions { max_tokens: None, ..sampled(1, 1) });
    for round in 0..20u32 {
        let mut decoding = engine.generate(forever()).unwrap();
        while !matches!(decoding.next(), Some(BatchEvent::Token { .. })) {}
        let queued = engine.generate(forever()).unwrap();
        let after = engine.generate(Request::new(prompt(2 + round, 30_000), greedy(1))).unwrap();
        wait_for(&engine, "a queue of two", |stats| stats.waiting == 2);
        drop(queued);
        wait_for(&engine, "a queue of one", |stats| stats.waiting == 1);
        drop(decoding);
        wait_for(&engine, "the one behind", |stats| {
            stats.slots.first().is_some_and(|s| s.prompt_tokens == 30_000)
        });
        // In the middle of its prompt, of which a step takes a token.
        drop(after);
        wait_for(&engine, "an idle engine", |stats| stats.slots.is_empty() && stats.waiting == 0);
        assert_eq!((engine.load(), engine.stats().pages_running), (0, 0));
    }
    assert_eq!(engine.stats().requests_cancelled, 60);
}

#[test]
fn a_long_prompt_does_not_stop_others() {
    let engine = start_long("fair", BatchOptions { batch_tokens: 4, ..BatchOptions::default() });
    let mut short = engine
        .generate(Request::new(prompt(1, 2), GenerateOptions { max_tokens: None, ..sampled(1, 1) }))
        .unwrap();
    while !matches!(short.next(), Some(BatchEvent::Token { .. })) {}
    let before = engine.stats();
    let long = engine.generate(Request::new(prompt(2, 200), greedy(1))).unwrap();
    assert_eq!(collect(long, 1).tokens[0].len(), 1);
    let after = engine.stats();
    // Each step took three tokens of the prompt and gave the other a token.
    let steps = after.steps - before.steps;
    assert!(steps >= 200 / 3 && after.generated_tokens - before.generated_tokens >= steps - 1, "{after:?}");
}

#[test]
fn what_cannot_be_is_refused_at_once() {
    let engine = start_long("refused", BatchOptions { parallel: 2, queue: 1, ..BatchOptions::default() });
    let submit = |request| engine.generate(request).expect_err("it is refused");
    let ok = || Request::new(prompt(1, 4), sampled(1, 4));
    assert!(matches!(submit(Request { prompt: Vec::new(), ..ok() }), Error::EmptyPrompt));
    let long = submit(Request { prompt: vec![1; (1 << 16) + 1], ..ok() });
    assert!(matches!(long, Error::ContextExceeded { tokens: 65537, context: 65536 }), "{long}");
    let foreign = submit(Request { prompt: vec![256], ..ok() });
    assert!(foreign.to_string().contains("expected ids below 256, found 256"), "{foreign}");
    let many = submit(Request { choices: 3, ..ok() });
    assert!(many.to_string().contains("choices: expected 1 to 2, found 3"), "{many}");
    let sampler = SamplerParams { top_p: 2.0, ..SamplerParams::default() };
    let options = GenerateOptions { sampler, ..GenerateOptions::default() };
    assert!(matches!(submit(Request { options, ..ok() }), Error::Sampling(_)));
    let options = GenerateOptions { prompt_logprobs: Some(1), ..GenerateOptions::default() };
    assert!(matches!(submit(Request { options, ..ok() }), Error::Option { .. }));

    let forever = || Request::new(prompt(1, 16), GenerateOptions { max_tokens: None, ..sampled(1, 1) });
    let held: Vec<_> = (0..3).map(|_| engine.generate(forever()).unwrap()).collect();
    let busy = submit(ok());
    assert!(matches!(busy, Error::Busy { requests: 3 }) && busy.to_string().contains("try again"), "{busy}");
    drop(held);
    wait_for(&engine, "room", |_| engine.load() == 0);
    assert_eq!(generate(&engine, prompt(1, 4), sampled(1, 4)).tokens[0].len(), 4);
}

#[test]
fn rows_of_logits_that_stand_for_no_token_are_never_chosen() {
    let tokens = 40;
    let file = TinyFile::new("batching-padded", Tiny { tokens, ..Tiny::default() });
    let mut single = file.load(&LoadOptions::default()).unwrap();
    let engine = BatchEngine::start(file.load(&LoadOptions::default()).unwrap(), BatchOptions::default());
    let engine = engine.unwrap();
    let prompt: Vec<u32> = (0..20).collect();
    let logprobs = GenerateOptions { logprobs: Some(2), ..sampled(1, 100) };
    for options in [greedy(100), sampled(1, 100), logprobs] {
        let answer = generate(&engine, prompt.clone(), options.clone());
        assert_eq!((answer.tokens[0].len(), answer.failed), (100, None));
        assert!(answer.tokens[0].iter().all(|&id| (id as usize) < tokens), "{:?}", answer.tokens);
        assert_eq!(answer.tokens[0], alone(&mut single, &prompt, options));
    }
}

#[test]
fn options_out_of_range_are_refused() {
    for (name, options) in [
        ("sequences at a time", BatchOptions { parallel: 0, ..BatchOptions::default() }),
        ("tokens of a step", BatchOptions { batch_tokens: 0, ..BatchOptions::default() }),
        ("guessed tokens", BatchOptions { lookup_tokens: 65, ..BatchOptions::default() }),
    ] {
        let engine = load("range", &LoadOptions::default());
        let error = BatchEngine::start(engine, options).expect_err("it is out of range");
        assert!(error.to_string().starts_with(name), "{error}");
    }
    let small = LoadOptions { cache_tokens: Some(255), ..LoadOptions::default() };
    let error = file("small").load(&small).err().expect("the cache is too small");
    assert!(error.to_string().contains("expected 256 (the context)"), "{error}");
}

#[test]
fn the_context_ends_an_answer_and_not_with_an_error() {
    let engine = start("context", BatchOptions::default());
    for (len, tokens) in [(256, 1), (255, 2), (250, 7)] {
        let answer = generate(&engine, prompt(1, len), greedy(100));
        assert_eq!((answer.tokens[0].len(), &answer.reasons[..]), (tokens, &[FinishReason::Length][..]));
    }
    let none = generate(&engine, prompt(1, 5), greedy(0));
    assert_eq!((none.tokens[0].len(), &none.reasons[..]), (0, &[FinishReason::Length][..]));
}

/// Allows one token after the other, then is complete.
struct Script(Vec<u32>);

impl Constraint for Script {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
        let Some(&next) = self.0.first() else { return Err("nothing may follow".into()) };
        let kept = logits[next as usize];
        logits.fill(f32::NEG_INFINITY);
        logits[next as usize] = kept;
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<bool, String> {
        assert_eq!(self.0.remove(0), token);
        Ok(self.0 == [0])
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(Script(self.0.clone()))
    }
}

#[test]
fn a_constraint_is_followed_and_its_end_and_its_failure_end_the_answer() {
    let engine = start("constraint", BatchOptions::default());
    let constrained = |script: &[u32]| {
        let constraint: Option<Box<dyn Constraint>> = Some(Box::new(Script(script.to_vec())));
        let request = Request { choices: 2, constraint, ..Request::new(prompt(1, 4), greedy(10)) };
        collect(engine.generate(request).unwrap(), 2)
    };
    let answer = constrained(&[9, 8, 7, 0]);
    assert_eq!((answer.tokens, answer.reasons), (vec![vec![9, 8, 7]; 2], vec![FinishReason::Stop; 2]));
    let failed = constrained(&[9, 8]);
    assert!(failed.failed.as_ref().is_some_and(|text| text.contains("nothing may follow")), "{failed:?}");
    wait_for(&engine, "an idle engine", |stats| stats.slots.is_empty());
    assert_eq!((engine.load(), engine.stats().requests_failed), (0, 1));
}

/// Panics where it is told to, and tells the threads that copy it.
struct Faulty {
    fork: bool,
    mask: bool,
    copied_on: Sender<Option<String>>,
}

impl Constraint for Faulty {
    fn mask(&mut self, _logits: &mut [f32]) -> Result<(), String> {
        if self.mask { panic!("no mask") } else { Ok(()) }
    }

    fn accept(&mut self, _token: u32) -> Result<bool, String> {
        Ok(false)
    }

    fn fork(&self) -> Box<dyn Constraint> {
        if self.fork {
            panic!("no copy");
        }
        self.copied_on.send(std::thread::current().name().map(str::to_owned)).unwrap();
        Box::new(Faulty { copied_on: self.copied_on.clone(), ..*self })
    }
}

#[test]
fn a_fault_of_a_constraint_costs_its_request_alone() {
    let engine = start_long("faulty", BatchOptions::default());
    let forever = GenerateOptions { max_tokens: None, ..sampled(1, 1) };
    let mut other = engine.generate(Request::new(prompt(2, 4), forever)).unwrap();
    let (copied_on, _copies) = channel();
    let constrained = |fork, mask| {
        let constraint: Box<dyn Constraint> = Box::new(Faulty { fork, mask, copied_on: copied_on.clone() });
        let request = Request::new(prompt(1, 4), sampled(1, 4));
        engine.generate(Request { choices: 2, constraint: Some(constraint), ..request })
    };
    let error = constrained(true, false).expect_err("it cannot be copied");
    assert!(matches!(&error, Error::Internal(words) if words == "no copy"), "{error}");
    assert_eq!(engine.load(), 1);
    let failed = collect(constrained(false, true).unwrap(), 2).failed;
    assert_eq!(failed.as_deref(), Some("internal error: no mask"));
    assert_eq!(
        collect(constrained(false, false).unwrap(), 2).tokens.iter().map(Vec::len).collect::<Vec<_>>(),
        [4, 4]
    );
    assert!(engine.stopped().is_none() && other.any(|event| matches!(event, BatchEvent::Token { .. })));
}

#[test]
fn what_answers_need_is_not_made_on_the_engines_thread() {
    let engine = start("prepare", BatchOptions::default());
    let (copied_on, copies) = channel();
    let constraint: Box<dyn Constraint> = Box::new(Faulty { fork: false, mask: false, copied_on });
    let request = Request::new(prompt(1, 4), sampled(1, 4));
    let events = engine.generate(Request { choices: 3, constraint: Some(constraint), ..request }).unwrap();
    assert_eq!(collect(events, 3).reasons.len(), 3);
    let here = std::thread::current().name().map(str::to_owned);
    assert_eq!(copies.iter().collect::<Vec<_>>(), [here.clone(), here]);
}

#[test]
fn a_device_that_fails_ends_all_requests_and_takes_no_more() {
    let file = file("device");
    let control = Control::new();
    let options = LoadOptions {
        device: Device::Auto,
        activations: Some(engine::Activations::F32),
        cache: Some(DType::F32),
        cache_tokens: Some(1024),
        ..LoadOptions::default()
    };
    let backend = Box::new(control.backend("test"));
    let engine = Engine::load_on(&file.beside("gguf"), &options, vec![backend], &mut |_, _| {}).unwrap();
    let engine = BatchEngine::start(engine, BatchOptions { parallel: 1, ..BatchOptions::default() }).unwrap();
    let mut first = engine.generate(Request::new(prompt(1, 4), sampled(1, 200))).unwrap();
    while !matches!(first.next(), Some(BatchEvent::Token { .. })) {}
    let second = engine.generate(Request::new(prompt(2, 4), sampled(1, 200))).unwrap();
    control.fail("test", Fault::Synchronize);
    for events in [first, second] {
        let failed = collect(events, 1).failed.expect("it failed");
        assert!(failed.contains("the engine has stopped") && failed.contains("test, node"), "{failed}");
    }
    assert!(engine.stopped().is_some_and(|reason| reason.contains("test")));
    let refused = engine.generate(Request::new(prompt(1, 4), sampled(1, 2))).expect_err("it is refused");
    assert!(matches!(refused, Error::Stopped { .. }), "{refused}");
    assert_eq!(engine.load(), 0);
}

#[test]
fn who_drops_the_engine_or_stops_listening_waits_for_nothing() {
    let engine = start_long("drop", BatchOptions::default());
    let forever = || Request::new(prompt(1, 16), GenerateOptions { max_tokens: None, ..sampled(1, 1) });
    let deaf = engine.submit(forever(), Box::new(|_| ControlFlow::Break(()))).unwrap();
    wait_for(&engine, "the end of a request that nobody hears", |stats| stats.requests_cancelled == 1);
    drop(deaf);
    let (sender, receiver): (_, Receiver<BatchEvent>) = channel();
    let sink = Box::new(move |event| {
        sender.send(event).unwrap();
        ControlFlow::Continue(())
    });
    let handle = engine.submit(forever(), sink).unwrap();
    receiver.recv().unwrap();
    drop(engine);
    assert!(receiver.iter().all(|event| !matches!(event, BatchEvent::Failed(_))));
    drop(handle);
}
