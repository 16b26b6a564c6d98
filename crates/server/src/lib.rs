//! An OpenAI-compatible HTTP server over the batching engine.
//!
//! [`Server::bind`] takes an address and answers at once, so that health can be asked while a model is loading;
//! [`Server::ready`] takes the model into service, and [`Server::wait`] serves until SIGTERM or Ctrl-C, after which the
//! answers that were begun are ended.
//!
//! ```no_run
//! use server::{Model, ModelOptions, Server, ServerOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::bind(ServerOptions::default())?;
//! let load = engine::LoadOptions { cache_tokens: Some(65_536), context: Some(8192), ..Default::default() };
//! let engine = engine::Engine::load("model.gguf".as_ref(), &load, &mut |_, _| {})?;
//! let options = ModelOptions { name: "my-model".into(), ..ModelOptions::default() };
//! server.ready(Model::new(engine, options)?);
//! println!("http://{}", server.address());
//! server.wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! This crate does not know kernels, files or where models come from.

mod app;
mod chat;
mod completions;
mod embeddings;
mod error;
mod fields;
mod halves;
mod http;
mod inspect;
mod listen;
mod logprobs;
mod logs;
mod memory;
mod metrics;
mod model;
mod origin;
mod params;
mod reply;
mod responses;
mod run;
mod splitter;
mod stall;
mod tools;

pub use error::{ApiError, Error};
pub use listen::{Server, ServerOptions};
pub use logs::{LogFormat, init_logs};
pub use model::{Model, ModelOptions};
