//! Sequences, KV pages and generation over a loaded model.
//!
//! [`Engine::load`] opens a GGUF file and makes it ready on a device. A [`Sequence`] is one conversation's tokens and
//! the KV pages that hold them; [`Engine::forward`] runs a ragged batch of any number of sequences, and
//! [`Generation`] is the loop that turns logits into text for one of them.
//!
//! ```no_run
//! use engine::{Engine, Event, GenerateOptions, Generation, LoadOptions};
//! use tokenizer::EncodeOptions;
//!
//! # fn main() -> Result<(), engine::Error> {
//! let mut engine = Engine::load("model.gguf".as_ref(), &LoadOptions::default(), &mut |_, _| {})?;
//! let options = EncodeOptions { add_special: true, parse_special: false };
//! let prompt = engine.tokenizer().encode("Once upon a time", options);
//! let mut sequence = engine.sequence();
//! let options = GenerateOptions { max_tokens: Some(100), ..GenerateOptions::default() };
//! let mut generation = Generation::new(&engine, &sequence, &prompt, options)?;
//! while let Some(event) = generation.next(&mut engine, &mut sequence)? {
//!     if let Event::Token { text, .. } | Event::End { text, .. } = event {
//!         print!("{text}");
//!     }
//! }
//! engine.release(sequence);
//! # Ok(())
//! # }
//! ```
//!
//! [`BatchEngine`] runs many requests at once on a thread of its own: what a server needs.
//!
//! This crate does not know HTTP, chat templates or where files come from.

mod answer;
mod batching;
mod constraint;
mod device;
mod embedding;
mod error;
mod fit;
mod forward;
mod generate;
mod levers;
mod load;
mod memory;
mod pages;
mod placement;
mod repack;
mod score;
mod sequence;
mod setup;
mod stop;
mod traffic;

pub use batching::{
    BatchEngine, BatchEvent, BatchOptions, EmbedRequest, EmbedSink, Events, Phase, Request, RequestHandle,
    Sink, Slot, Stats,
};
pub use constraint::{AfterText, Constraint};
pub use device::{Device, Gpus};
pub use embedding::Pooling;
pub use error::Error;
pub use fit::Fit;
pub use forward::{Needed, PrefillSink, Row, Step, Wanted};
pub use generate::{Event, FinishReason, GenerateOptions, Generation, Token};
pub use load::{Engine, LoadOptions, MemoryUse, Trace, TraceSink};
pub use memory::{MemoryNeed, readable};
pub use placement::Split;
pub use score::{Perplexity, PerplexityOptions};
pub use sequence::Sequence;
pub use setup::{DEFAULT_CONTEXT, cache_tokens_within};
pub use traffic::read_bandwidth;

pub use cpu::Activations;
pub use graph::DType;
pub use sampling::{SamplerParams, TokenLogProb};
