//! `smelt perplexity`: measures how well a model predicts a text.

use crate::args::PerplexityArgs;
use crate::error::{Error, Result};
use crate::output::{Output, print, print_json};
use crate::{input, interrupt, load};
use engine::PerplexityOptions;
use serde::Serialize;
use std::ops::ControlFlow;
use tokenizer::EncodeOptions;

#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    device: &'a str,
    perplexity: f64,
    /// The standard error.
    error: f64,
    /// Tokens scored.
    scored: usize,
    chunks: usize,
    chunk: usize,
}

/// Runs the command.
pub fn run(args: &PerplexityArgs, output: &Output) -> Result<()> {
    let text = input::file(&args.file)?;
    let mut engine = load::engine(&args.model.model, &args.load, output)?;
    // The text is somebody's writing: what looks like a control token in it is plain text.
    let options = EncodeOptions { add_special: true, parse_special: false };
    let mut tokens = engine.tokenizer().encode(&text, options);
    if let Some(chunks) = args.chunks {
        tokens.truncate(chunks.saturating_mul(args.chunk));
    }
    interrupt::install();
    let options = PerplexityOptions { chunk: args.chunk, skip: args.chunk / 2 };
    let mut interrupted = false;
    let score = engine.perplexity(&tokens, &options, &mut |score| {
        output.info(format_args!(
            "[{}/{}] {:.4} +/- {:.4}",
            score.chunks, score.total, score.value, score.error
        ));
        interrupted = interrupt::requested();
        if interrupted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if args.json {
        print_json(&Report {
            model: &args.model.model,
            device: engine.device(),
            perplexity: score.value,
            error: score.error,
            scored: score.scored,
            chunks: score.chunks,
            chunk: args.chunk,
        })?;
    } else {
        print(&format!("perplexity: {:.4} +/- {:.4}\n", score.value, score.error))?;
    }
    if interrupted { Err(Error::Interrupted) } else { Ok(()) }
}
