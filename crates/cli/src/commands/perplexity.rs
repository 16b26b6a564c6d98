//! `smelt perplexity`: measures how well a model predicts a text.

use crate::args::PerplexityArgs;
use crate::error::{Error, Result};
use crate::output::{Output, print, print_json};
use crate::{input, interrupt, load};
use engine::PerplexityOptions;
use serde::Serialize;
use std::ops::ControlFlow;
use tokenizer::EncodeOptions;

/// The first token of a chunk's second half is not scored, so that half needs two.
const MIN_CHUNK: usize = 3;

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
    if args.chunk < MIN_CHUNK {
        let message = format!("--chunk: expected at least {MIN_CHUNK} tokens, found {}", args.chunk);
        return Err(Error::Usage(message));
    }
    if args.chunks == Some(0) {
        return Err(Error::Usage("--chunks: expected at least 1, found 0".into()));
    }
    let text = input::file(&args.file)?;
    let mut engine = load::engine(&args.model.model, &args.load, output)?;
    if args.chunk > engine.context() {
        let context = engine.context();
        let message =
            format!("--chunk: expected {MIN_CHUNK} to {context} tokens, the context, found {}", args.chunk);
        return Err(Error::Usage(message));
    }
    // The text is somebody's writing: what looks like a control token in it is plain text.
    let options = EncodeOptions { add_special: true, parse_special: false };
    let mut tokens = engine.tokenizer().encode(&text, options);
    if let Some(chunks) = args.chunks {
        tokens.truncate(chunks.saturating_mul(args.chunk));
    }
    let _polled = interrupt::polled();
    let options = PerplexityOptions { chunk: args.chunk, skip: args.chunk / 2 };
    let mut interrupted = false;
    let score = engine.perplexity(&tokens, &options, &mut |score| {
        output.info(format_args!(
            "[{}/{}] {:.4} +/- {:.4}",
            score.chunks, score.total, score.value, score.error
        ));
        interrupted = score.chunks < score.total && interrupt::requested();
        if interrupted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let score = score.map_err(|error| match error {
        engine::Error::TextTooShort { tokens, chunk } => Error::Content {
            path: if args.file.as_os_str() == "-" { "stdin".into() } else { args.file.clone() },
            message: format!(
                "the text is too short to score: expected at least {chunk} tokens, found {tokens}; \
                 a smaller --chunk takes shorter texts"
            ),
        },
        error => error.into(),
    })?;
    if interrupted {
        // Of a part of the text: no result, and nothing that looks like one.
        output.info(format_args!("interrupted after {} of {} chunks", score.chunks, score.total));
        return Err(Error::Interrupted);
    }
    if args.json {
        return print_json(&Report {
            model: &args.model.model,
            device: engine.device(),
            perplexity: score.value,
            error: score.error,
            scored: score.scored,
            chunks: score.chunks,
            chunk: args.chunk,
        });
    }
    print(&format!("perplexity: {:.4} +/- {:.4}\n", score.value, score.error))
}
