//! One file per command.

pub mod bench;
pub mod chat;
mod counts;
pub mod devices;
pub mod inspect;
pub mod perplexity;
pub mod pull;
pub mod run;
pub mod serve;
pub mod template;
pub mod tokenize;
