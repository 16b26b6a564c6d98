//! Sequences, KV pages and generation over a loaded model.
//!
//! [`Engine::load`] opens a GGUF file and makes it ready on a device. A [`Sequence`] is one conversation's tokens and
//! the KV pages that hold them; [`Engine::forward`] runs a ragged batch of any number of sequences, and
//! [`Generation`] is the loop that turns logits into text for one of them.
//!
//! This crate does not know HTTP, chat templates or where files come from.

mod error;
mod forward;
mod generate;
mod load;
mod pages;
mod score;
mod sequence;
mod stop;

pub use error::Error;
pub use forward::{PrefillSink, Step, Wanted};
pub use generate::{Event, FinishReason, GenerateOptions, Generation, Token};
pub use load::{Device, Engine, LoadOptions, MemoryUse, Trace, TraceSink};
pub use score::{Perplexity, PerplexityOptions};
pub use sequence::Sequence;

pub use cpu::Activations;
pub use graph::DType;
pub use sampling::{SamplerParams, TokenLogProb};
