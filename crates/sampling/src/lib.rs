//! The sampler chain: temperature, truncation, penalties, log-probabilities.
//!
//! A [`Sampler`] turns one row of logits into one token id. The steps, in this order:
//!
//! 1. repetition, presence and frequency penalties on the tokens of the history window,
//! 2. logit bias,
//! 3. top-k,
//! 4. locally typical,
//! 5. top-p (nucleus),
//! 6. min-p,
//! 7. temperature, then one draw.
//!
//! Truncation therefore works on the model's own probabilities and temperature only reshapes what is
//! kept. Temperature 0 skips steps 3 to 7: the answer is the highest logit, the lowest id on ties.
//!
//! A seed gives the same tokens on every platform: the generator and the exponential are this crate's
//! own, sums are in `f64` and in a fixed order. A draw consumes one number; greedy consumes none.
//!
//! This crate does not know what a token means, nor where the logits came from. A caller that forbids
//! tokens (a grammar) sets their logits to `-inf` first; nothing here ever brings such a token back.
//!
//! ```
//! use sampling::{Sampler, SamplerParams};
//!
//! let mut sampler = Sampler::new(SamplerParams { seed: Some(42), ..SamplerParams::default() })?;
//! let logits = [0.5, 3.0, -1.0, 2.5];
//! let choice = sampler.sample(&logits)?;
//! sampler.accept(choice.id);
//! assert!((choice.id as usize) < logits.len());
//!
//! let mut greedy = Sampler::new(SamplerParams::greedy())?;
//! assert_eq!(greedy.sample(&logits)?.id, 1);
//! # Ok::<(), sampling::Error>(())
//! ```

mod chain;
mod error;
mod history;
mod logprobs;
mod math;
mod params;
mod rng;
mod sampler;
mod select;

pub use chain::Candidate;
pub use error::Error;
pub use logprobs::{LogProbs, TokenLogProb, log_prob_of, log_probs};
pub use params::SamplerParams;
pub use sampler::{Choice, Sampler};
