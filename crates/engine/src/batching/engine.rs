//! The handle on the engine's thread.

use super::events::{BatchEvent, EmbedRequest, EmbedSink, Events, Request, RequestHandle, Sink};
use super::stats::Stats;
use super::worker::{Prepared, Submission, Work, Worker, caught};
use crate::answer::Answer;
use crate::{Engine, Error};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tokenizer::Tokenizer;

/// How requests share the device.
#[derive(Clone, Debug)]
pub struct BatchOptions {
    /// Most sequences computed at a time.
    pub parallel: usize,
    /// Most tokens of one step, at most those of [`LoadOptions::batch`](crate::LoadOptions::batch). Every decoding
    /// sequence has one of them; the rest is for prompts.
    pub batch_tokens: usize,
    /// Most sequences that wait beyond those; more are refused with [`Error::Busy`].
    pub queue: usize,
    /// Whether finished prefixes are kept for requests that begin alike.
    pub prefix_cache: bool,
    /// Most tokens to guess per step by prompt lookup; 0 is off.
    pub lookup_tokens: usize,
}

impl Default for BatchOptions {
    fn default() -> BatchOptions {
        BatchOptions { parallel: 32, batch_tokens: 256, queue: 256, prefix_cache: true, lookup_tokens: 0 }
    }
}

impl BatchOptions {
    /// Checks that the options are in range, as far as that can be known without a model.
    ///
    /// # Errors
    /// [`Error::Option`].
    pub fn validate(&self) -> Result<(), Error> {
        let in_range = |name, value: usize, least: usize, most: usize| {
            if (least..=most).contains(&value) {
                Ok(())
            } else {
                let message = format!("expected {least} to {most}, found {value}");
                Err(Error::Option { name, message })
            }
        };
        in_range("sequences at a time", self.parallel, 1, 1 << 12)?;
        in_range("tokens of a step", self.batch_tokens, 1, usize::MAX)?;
        in_range("guessed tokens", self.lookup_tokens, 0, 64)
    }
}

/// What the engine's thread and its handles share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Sequences that wait or run.
    pub load: AtomicUsize,
    /// Why the thread ended, once it has.
    pub stopped: Mutex<Option<String>>,
    pub stats: Mutex<Stats>,
    /// The thread is to end what it does and then itself.
    pub closing: AtomicBool,
}

/// A lock that a panic elsewhere does not take away: what it guards is replaced as a whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An engine that computes many requests at once, on a thread of its own.
///
/// Every step is one ragged forward: all sequences that are decoding, and as many tokens of prompts as
/// [`BatchOptions::batch_tokens`] leaves room for, shared fairly. KV pages are shared by sequences that begin alike; what
/// finished requests leave in the cache stays until its room is needed. When sequences outgrow the cache, the youngest gives
/// its pages back and is computed again later, which changes nothing in its answer. On the CPU an answer depends on its
/// request alone.
///
/// ```no_run
/// use engine::{BatchEngine, BatchEvent, BatchOptions, Engine, GenerateOptions, LoadOptions, Request};
/// use tokenizer::EncodeOptions;
///
/// # fn main() -> Result<(), engine::Error> {
/// let load = LoadOptions { cache_tokens: Some(65_536), context: Some(8192), ..LoadOptions::default() };
/// let engine = Engine::load("model.gguf".as_ref(), &load, &mut |_, _| {})?;
/// let engine = BatchEngine::start(engine, BatchOptions::default())?;
/// let options = EncodeOptions { add_special: true, parse_special: false };
/// let prompt = engine.tokenizer().encode("Once upon a time", options);
/// for event in engine.generate(Request::new(prompt, GenerateOptions::default()))? {
///     if let BatchEvent::Token { text, .. } | BatchEvent::Finished { text, .. } = event {
///         print!("{text}");
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BatchEngine {
    sender: Option<Sender<Submission>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    tokenizer: Arc<Tokenizer>,
    context: usize,
    limit: usize,
    options: BatchOptions,
}

impl BatchEngine {
    /// Gives an engine to a thread of its own.
    ///
    /// # Errors
    /// [`Error::Option`] for options out of range, [`Error::Stopped`] if there is no thread to be had.
    pub fn start(engine: Engine, options: BatchOptions) -> Result<BatchEngine, Error> {
        options.validate()?;
        let batch_tokens = options.batch_tokens.min(engine.setup.batch_size);
        let options = BatchOptions { batch_tokens, ..options };
        let shared = Arc::new(Shared::default());
        let (sender, receiver) = channel();
        let (tokenizer, context) = (Arc::clone(engine.tokenizer()), engine.context());
        let limit = options.parallel.saturating_add(options.queue);
        let worker = Worker::new(engine, options.clone(), receiver, Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("engine".into())
            .spawn(move || worker.run())
            .map_err(|error| Error::Stopped { reason: format!("no thread: {error}") })?;
        Ok(BatchEngine {
            sender: Some(sender),
            thread: Some(thread),
            shared,
            tokenizer,
            context,
            limit,
            options,
        })
    }

    /// Continues a prompt; the events come as they happen.
    ///
    /// # Errors
    /// As for [`submit`](BatchEngine::submit).
    pub fn generate(&self, request: Request) -> Result<Events, Error> {
        let (sender, receiver) = channel();
        let sink: Sink = Box::new(move |event: BatchEvent| match sender.send(event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        });
        Ok(Events { _handle: self.submit(request, sink)?, receiver })
    }

    /// Continues a prompt; the events go to `sink`, which is dropped after the last one. The request lives as long as
    /// the handle.
    ///
    /// What the answers need is made here and not on the engine's thread, where it would hold up all others: copies of a
    /// constraint, and the prompt as penalties see it. With many choices that can take a while.
    ///
    /// # Errors
    /// What can be known at once: [`Error::EmptyPrompt`], [`Error::ContextExceeded`], [`Error::Sampling`] and
    /// [`Error::Option`] for what can never be done, [`Error::Busy`] if too many wait, [`Error::Stopped`] after a
    /// device has failed, [`Error::Internal`] where the constraint panics.
    pub fn submit(&self, request: Request, sink: Sink) -> Result<RequestHandle, Error> {
        self.check_prompt(&request.prompt)?;
        request.options.sampler.validate()?;
        if request.options.prompt_logprobs.is_some() {
            let message = "not available when batching".to_owned();
            return Err(Error::Option { name: "prompt log-probabilities", message });
        }
        let choices = request.choices;
        if !(1..=self.options.parallel).contains(&choices) {
            let message = format!("expected 1 to {}, found {choices}", self.options.parallel);
            return Err(Error::Option { name: "choices", message });
        }
        let place = self.reserve(choices)?;
        let prepared = caught(|| self.prepare(request))?;
        self.send(place, Work::Generate(prepared, sink))
    }

    /// The answers to a request, ready to be begun.
    fn prepare(&self, request: Request) -> Result<Prepared, Error> {
        let Request { name, prompt, options, mut constraint, choices } = request;
        let answers = (0..choices).map(|index| {
            let mut options = options.clone();
            let seed = &mut options.sampler.seed;
            *seed = seed.map(|seed| seed.wrapping_add(index as u64));
            // The last answer needs no copy.
            let constraint = if index + 1 == choices {
                constraint.take()
            } else {
                constraint.as_ref().map(|constraint| constraint.fork())
            };
            let mut answer = Answer::new(&self.tokenizer, options, constraint)?;
            prompt.iter().for_each(|&token| answer.accept_prompt(token));
            Ok(answer)
        });
        let answers = answers.collect::<Result<VecDeque<_>, Error>>()?;
        Ok(Prepared { name, prompt, answers })
    }

    /// Turns texts into vectors; they go to `sink`, all at once. The request lives as long as the handle.
    ///
    /// # Errors
    /// As for [`submit`](BatchEngine::submit).
    pub fn embed(&self, request: EmbedRequest, sink: EmbedSink) -> Result<RequestHandle, Error> {
        if request.inputs.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        request.inputs.iter().try_for_each(|input| self.check_prompt(input))?;
        self.send(self.reserve(1)?, Work::Embed(request, sink))
    }

    fn check_prompt(&self, prompt: &[u32]) -> Result<(), Error> {
        if let Some(reason) = self.stopped() {
            return Err(Error::Stopped { reason });
        }
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if prompt.len() > self.context {
            return Err(Error::ContextExceeded { tokens: prompt.len(), context: self.context });
        }
        if let Some(&token) = prompt.iter().find(|&&id| id as usize >= self.tokenizer.vocab_size()) {
            let message = format!("expected ids below {}, found {token}", self.tokenizer.vocab_size());
            return Err(Error::Option { name: "prompt", message });
        }
        Ok(())
    }

    /// Takes the places of so many sequences.
    fn reserve(&self, choices: usize) -> Result<Place<'_>, Error> {
        let admitted = self.shared.load.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |load| {
            // A request that asks for much at once is not locked out by the limit when nothing else is there.
            (load == 0 || load + choices <= self.limit).then_some(load + choices)
        });
        match admitted {
            Ok(_) => Ok(Place { shared: &self.shared, choices }),
            Err(requests) => Err(Error::Busy { requests }),
        }
    }

    /// Hands work over, and its place with it.
    fn send(&self, mut place: Place<'_>, work: Work) -> Result<RequestHandle, Error> {
        let cancelled = Arc::new(AtomicBool::new(false));
        let submission = Submission { work, cancelled: Arc::clone(&cancelled) };
        let sent = self.sender.as_ref().is_some_and(|sender| sender.send(submission).is_ok());
        if !sent {
            let reason = self.stopped().unwrap_or_else(|| "its thread has ended".into());
            return Err(Error::Stopped { reason });
        }
        // From here on the thread counts.
        place.choices = 0;
        Ok(RequestHandle { cancelled })
    }

    /// Sequences that wait or are being computed.
    pub fn load(&self) -> usize {
        self.shared.load.load(Ordering::Relaxed)
    }

    /// Why no request can be computed any more, if so: a device has failed.
    pub fn stopped(&self) -> Option<String> {
        lock(&self.shared.stopped).clone()
    }

    /// Counters and what is being computed.
    pub fn stats(&self) -> Stats {
        lock(&self.shared.stats).clone()
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Tokens that a sequence can have.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The options that it was started with.
    pub fn options(&self) -> &BatchOptions {
        &self.options
    }
}

/// Places of sequences, given back unless work was handed over for them.
struct Place<'a> {
    shared: &'a Shared,
    choices: usize,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // A device that has failed meanwhile took all places away.
        let less = |load: usize| Some(load.saturating_sub(self.choices));
        let _ = self.shared.load.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

impl Drop for BatchEngine {
    /// Ends the thread; requests that are still under way are cancelled.
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Relaxed);
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            // A panic was noted in `stopped` when it happened.
            let _ = thread.join();
        }
    }
}
