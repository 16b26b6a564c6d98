//! Tests that drive the program as a user would, without a network: the models are tiny and made on the spot.

mod bench;
mod chat;
mod crafted;
mod errors;
mod help;
mod inspect;
mod interrupt;
mod perplexity;
mod pull;
mod run;
mod serve;
mod template;
mod tiny;
mod tokenize;
mod usage;
mod util;
