//! What goes into the batching engine, and what comes out.

use crate::{Constraint, Error, FinishReason, GenerateOptions, Pooling, Token};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;

/// A prompt to be continued.
#[derive(Debug)]
pub struct Request {
    /// A name for logs and [`Slot`](crate::Slot)s; need not be unique.
    pub name: String,
    /// The ids of the prompt.
    pub prompt: Vec<u32>,
    /// How to continue it. Prompt log-probabilities are for [`Generation`](crate::Generation) only.
    pub options: GenerateOptions,
    /// A rule that the answer must follow.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Answers to give; they share the prompt. Where there is a seed, answer `i` uses the seed plus `i`.
    pub choices: usize,
}

impl Request {
    /// A request for one answer.
    pub fn new(prompt: Vec<u32>, options: GenerateOptions) -> Request {
        Request { name: String::new(), prompt, options, constraint: None, choices: 1 }
    }
}

/// Texts to be turned into vectors.
#[derive(Debug)]
pub struct EmbedRequest {
    /// A name for logs and [`Slot`](crate::Slot)s; need not be unique.
    pub name: String,
    /// The ids of each text.
    pub inputs: Vec<Vec<u32>>,
    /// Which hidden states make a text's vector.
    pub pooling: Pooling,
}

/// Where the vectors of a request's texts go, in the order of the texts and each of
/// [`hidden_size`](models::Model::hidden_size) columns: called once, on the engine's thread, so it must not block. Their
/// lengths are what they come to.
pub type EmbedSink = Box<dyn FnOnce(Result<Vec<Vec<f32>>, Error>) + Send>;

/// What happened to a request.
#[derive(Debug)]
pub enum BatchEvent {
    /// It was admitted and is being computed. Comes once.
    Started {
        /// Tokens of the prompt that were in the cache already.
        cached_tokens: usize,
    },
    /// A token of an answer.
    Token {
        /// Which answer, from 0.
        choice: usize,
        /// The token.
        token: Token,
        /// The text that is certain since: possibly none, never half a character.
        text: String,
    },
    /// An answer has ended. Each answer does so once.
    Finished {
        /// Which answer, from 0.
        choice: usize,
        /// The text that was held back.
        text: String,
        /// Why.
        reason: FinishReason,
    },
    /// The request failed: nothing follows.
    Failed(Error),
}

/// Where a request's events go: called on the engine's thread, so it must not block. `Break` cancels the request.
pub type Sink = Box<dyn FnMut(BatchEvent) -> ControlFlow<()> + Send>;

/// A request under way. Dropping it cancels the request, whatever phase it is in, within one step.
#[derive(Debug)]
pub struct RequestHandle {
    pub(super) cancelled: Arc<AtomicBool>,
}

impl RequestHandle {
    /// Cancels the request; it has no events any more.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// The events of one request as an iterator, which ends after the last one. Dropping it cancels the request.
#[derive(Debug)]
pub struct Events {
    pub(super) receiver: Receiver<BatchEvent>,
    pub(super) _handle: RequestHandle,
}

impl Iterator for Events {
    type Item = BatchEvent;

    fn next(&mut self) -> Option<BatchEvent> {
        self.receiver.recv().ok()
    }
}
