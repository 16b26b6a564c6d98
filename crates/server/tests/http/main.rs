//! The server over HTTP, with a real model. Tests that carry the number of a report (`r21_...`) are its regression.

mod cancel;
mod chat;
mod client;
mod completions;
mod constrained;
mod embeddings;
mod limits;
mod openapi;
mod refused;
mod responses;
mod tokens;
mod tools;
mod util;
