//! Many requests at once on one device: continuous batching.
//!
//! A [`BatchEngine`] owns a loaded [`Engine`] on a thread of its own; requests come to it by channel and their events
//! go back by whatever sink the caller brings. Every step is one ragged forward: all sequences that are decoding, and
//! as many tokens of prompts as [`BatchOptions::batch_tokens`] leaves room for, shared fairly, so that a long prompt
//! delays other people's answers by a step and no more.
//!
//! KV pages are shared by sequences that begin alike, and copied when one of them writes (`fork`). What finished
//! requests leave in the cache stays until its pages are needed, least recently used first. A request is admitted when
//! there are pages for its whole prompt; when running sequences outgrow the cache, the youngest gives its pages back
//! and is computed again later, which changes nothing in its answer.
//!
//! Texts to be embedded have forwards of their own between those steps, of as many tokens, and yield their pages to
//! answers under way.
//!
//! Numbers: on the CPU an answer does not depend on what else is in the batch, on what was cached, or on preemption.
//!
//! This module does not know HTTP, text of prompts, or templates.

mod choice;
mod embeddings;
mod engine;
mod events;
mod lookup;
mod plan;
mod prefixes;
mod stats;
mod worker;

pub use engine::{BatchEngine, BatchOptions};
pub use events::{BatchEvent, EmbedRequest, EmbedSink, Events, Request, RequestHandle, Sink};
pub use stats::{Phase, Slot, Stats};
