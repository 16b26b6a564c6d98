//! `smelt run`: answers one prompt.

use crate::args::RunArgs;
use crate::error::{Error, Result};
use crate::logprobs::{PromptEntry, TokenEntry};
use crate::output::{Output, print, print_json};
use crate::prompt::{self, ChatFormat, message};
use crate::{input, interrupt, load};
use chat::Conversation;
use engine::{Engine, Event, FinishReason, GenerateOptions, Generation, Token};
use hub::Spec;
use serde::Serialize;
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

/// The object that `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    device: &'a str,
    prompt_tokens: &'a [u32],
    /// With the one that ended the answer, if the model ended it.
    tokens: Vec<u32>,
    /// Without the text of the one that ended it.
    text: &'a str,
    finish_reason: &'static str,
    /// Empty unless asked for.
    logprobs: Vec<TokenEntry>,
    /// Empty unless asked for; entry i is the prediction after prompt token i.
    prompt_logprobs: Vec<PromptEntry>,
    timings: Timings,
}

#[derive(Serialize)]
struct Timings {
    load_ms: f64,
    prompt_n: usize,
    /// Up to and with the first token of the answer.
    prompt_ms: f64,
    predicted_n: usize,
    /// Of the tokens after the first.
    predicted_ms: f64,
}

/// Model and prompt, as far as the words of the command line say.
#[derive(Debug, PartialEq)]
struct Words<'a> {
    model: &'a str,
    prompt: Option<&'a str>,
}

/// Runs the command.
pub fn run(args: &RunArgs, output: &Output) -> Result<()> {
    let words = words(args)?;
    let text = input::text(words.prompt, args.file.as_deref(), "prompt")
        .and_then(|text| if is_prompt(&text, args.raw) { Ok(text) } else { Err(input::missing("prompt")) })
        .map_err(|error| match error {
            Error::Usage(usage) => {
                Error::Usage(format!("{usage}; to talk with a model: smelt chat {}", words.model))
            }
            error => error,
        })?;
    let options = GenerateOptions {
        logprobs: args.logprobs,
        prompt_logprobs: args.prompt_logprobs,
        ignore_end: args.ignore_eos,
        ..args.sampling.options()?
    };
    // One word is a prompt if it is not exactly a model, and an answer to a mistyped model puzzles.
    if let (Some(word), None, None, None) = (&args.first, &args.second, &args.model, &args.prompt)
        && words.prompt.is_some()
        && let Some(alias) = hub::similar_alias(word)
    {
        output.warning(format_args!("taking '{word}' as the prompt; the model is called '{alias}'"));
    }
    if let Some(word) = words.prompt.filter(|word| names_text_file(word)) {
        output.warning(format_args!("the prompt is the text '{word}'; `-f {word}` reads one from a file"));
    }
    let mut engine = load::engine(words.model, &args.load, output)?;
    args.sampling.check(engine.tokenizer())?;
    let tokens = tokens(&engine, args, &text, output)?;
    let _polled = interrupt::polled();
    let answer = generate(&mut engine, &tokens, options, !args.json, output)?;
    let device = engine.device().to_owned();
    let context = engine.context();
    let tokenizer = engine.tokenizer();
    let timings = Timings {
        load_ms: milliseconds(engine.load_time()),
        prompt_n: tokens.len(),
        prompt_ms: milliseconds(answer.prompt_time),
        predicted_n: answer.tokens.len(),
        predicted_ms: milliseconds(answer.predicted_time),
    };
    output.note(timings.summary());
    if !args.json
        && answer.reason == FinishReason::Length
        && args.sampling.max_tokens.is_none_or(|most| answer.tokens.len() < most)
    {
        output.warning(format_args!("the answer ends where the context of {context} tokens does"));
    }
    if args.json {
        let wanted = |token: &Token| args.logprobs.map(|_| TokenEntry::new(tokenizer, token));
        print_json(&Report {
            model: words.model,
            device: &device,
            prompt_tokens: &tokens,
            tokens: answer.tokens.iter().map(|token| token.id).collect(),
            text: &answer.text,
            finish_reason: answer.reason.name(),
            logprobs: answer.tokens.iter().filter_map(wanted).collect(),
            prompt_logprobs: answer.prompt_top.iter().map(|top| PromptEntry::new(tokenizer, top)).collect(),
            timings,
        })?;
    }
    match answer.reason {
        FinishReason::Cancelled => Err(Error::Interrupted),
        FinishReason::Stop | FinishReason::Length => Ok(()),
    }
}

/// Whether there is anything to answer. A model that is given nothing babbles to the end of its context. Raw text is
/// continued, and white space can be: only an empty one is nothing.
fn is_prompt(text: &str, raw: bool) -> bool {
    if raw { !text.is_empty() } else { !text.trim().is_empty() }
}

/// Tells model and prompt apart: see the command's help.
fn words(args: &RunArgs) -> Result<Words<'_>> {
    let first = args.first.as_deref();
    let second = args.second.as_deref();
    if let Some(prompt) = args.prompt.as_deref() {
        let model = match (args.model.as_deref(), first, second) {
            (Some(model), None, None) | (None, Some(model), None) => model,
            (None, None, None) => hub::DEFAULT_ALIAS,
            (Some(_), Some(extra), _) | (None, _, Some(extra)) | (Some(_), None, Some(extra)) => {
                return Err(Error::Usage(format!("-p is the prompt, so '{extra}' is one word too many")));
            }
        };
        return Ok(Words { model, prompt: Some(prompt) });
    }
    let (model, prompt) = match (args.model.as_deref(), first, second) {
        (Some(_), Some(_), Some(extra)) => {
            return Err(Error::Usage(format!("-m names the model, so '{extra}' is one word too many")));
        }
        (Some(model), prompt, None) => (model, prompt),
        (None, Some(model), Some(prompt)) => (model, Some(prompt)),
        (None, Some(word), None) if args.file.is_some() || names_model(word) => (word, None),
        (None, word, _) => (hub::DEFAULT_ALIAS, word),
        (Some(_), None, Some(_)) => return Err(Error::Usage("expected MODEL before PROMPT".into())),
    };
    if let (Some(_), Some(file)) = (prompt, &args.file) {
        let message = format!("two prompts: one on the command line, one in '{}'", file.display());
        return Err(Error::Usage(message));
    }
    Ok(Words { model, prompt })
}

/// Whether a word can only be meant as a model. A form with a mistake in it is still meant as one.
fn names_model(word: &str) -> bool {
    match Spec::parse(word) {
        Err(hub::Error::Unknown { .. }) => word.ends_with(".gguf"),
        Ok(_) | Err(_) => true,
    }
}

/// Whether a prompt is more likely meant as the name of a file.
fn names_text_file(word: &str) -> bool {
    let path = Path::new(word);
    let extension = path.extension().and_then(OsStr::to_str);
    !word.contains(char::is_whitespace) && (matches!(extension, Some("txt" | "md")) || path.is_file())
}

fn tokens(engine: &Engine, args: &RunArgs, text: &str, output: &Output) -> Result<Vec<u32>> {
    if args.raw {
        return Ok(prompt::encode_raw(engine.tokenizer(), text));
    }
    let path = engine.file().path();
    let model = prompt::Model { path, metadata: engine.file().metadata(), tokenizer: engine.tokenizer() };
    let Some(format) = ChatFormat::new(&model, args.template.as_deref(), false)? else {
        if args.system.is_some() {
            let message =
                "the model has no chat template, so there is no place for --system; give one with --template";
            return Err(Error::Content { path: path.to_path_buf(), message: message.into() });
        }
        output.warning("the model has no chat template: continuing the prompt as text, as with --raw");
        return Ok(prompt::encode_raw(engine.tokenizer(), text));
    };
    let system = args.system.iter().map(|system| message("system", system));
    let messages = system.chain([message("user", text)]).collect();
    let rendered = format.render(&Conversation { messages, tools: None })?;
    Ok(format.encode(&rendered))
}

/// What came of a prompt.
struct Answer {
    tokens: Vec<Token>,
    text: String,
    reason: FinishReason,
    prompt_top: Vec<Vec<engine::TokenLogProb>>,
    prompt_time: Duration,
    predicted_time: Duration,
}

fn generate(
    engine: &mut Engine,
    prompt: &[u32],
    options: GenerateOptions,
    stream: bool,
    output: &Output,
) -> Result<Answer> {
    let mut sequence = engine.sequence();
    let mut generation = Generation::new(engine, &sequence, prompt, options)?;
    let mut tokens = Vec::new();
    let mut text = String::new();
    let mut reason = FinishReason::Cancelled;
    let bar = output.steps("prompt", prompt.len() as u64);
    while let Some(event) = generation.next(engine, &mut sequence)? {
        let piece = match event {
            Event::Prefill { done, .. } => {
                bar.set_position(done as u64);
                String::new()
            }
            Event::Token { token, text } => {
                bar.finish_and_clear();
                tokens.push(token);
                text
            }
            Event::End { text, reason: why } => {
                reason = why;
                text
            }
        };
        if stream && !piece.is_empty() {
            print(&piece)?;
        }
        text.push_str(&piece);
        if interrupt::requested() {
            generation.cancel();
        }
    }
    bar.finish_and_clear();
    if stream && !text.ends_with('\n') {
        print("\n")?;
    }
    let (prompt_time, predicted_time) = generation.times();
    let prompt_top = generation.prompt_logprobs().to_vec();
    engine.release(sequence);
    Ok(Answer { tokens, text, reason, prompt_top, prompt_time, predicted_time })
}

impl Timings {
    fn summary(&self) -> String {
        format!(
            "load {:.0} ms; prompt {} tokens, {:.1} per second; answer {} tokens, {:.1} per second",
            self.load_ms,
            self.prompt_n,
            per_second(self.prompt_n, self.prompt_ms),
            self.predicted_n,
            per_second(self.predicted_n.saturating_sub(1), self.predicted_ms)
        )
    }
}

/// To a microsecond.
pub fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// Tokens per second; 0 where nothing was measured.
pub fn per_second(tokens: usize, milliseconds: f64) -> f64 {
    if milliseconds > 0.0 { tokens as f64 * 1e3 / milliseconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn args(line: &[&str]) -> RunArgs {
        match Cli::parse_from(["smelt", "run"].iter().chain(line)).command {
            Command::Run(args) => args,
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn one_word_is_the_prompt_unless_it_names_a_model() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        for (line, model, prompt) in [
            (vec!["Why is the sky blue?"], "smollm2", Some("Why is the sky blue?")),
            (vec!["gemma3-270m"], "gemma3-270m", None),
            (vec![file], file, None),
            (vec!["not-there.gguf"], "not-there.gguf", None),
            (vec!["hf:owner"], "hf:owner", None),
            (vec!["pip:package"], "pip:package", None),
            (vec!["word", "-f", "x.txt"], "word", None),
            (vec!["-m", "a.gguf", "smollm2"], "a.gguf", Some("smollm2")),
            (vec!["-m", "a.gguf"], "a.gguf", None),
            (vec!["a.gguf", "hello"], "a.gguf", Some("hello")),
            (vec!["-p", "hello"], "smollm2", Some("hello")),
            (vec!["-p", "hello", "word"], "word", Some("hello")),
            (vec!["-m", "a.gguf", "-p", "hello"], "a.gguf", Some("hello")),
            (vec![], "smollm2", None),
        ] {
            assert_eq!(words(&args(&line)).unwrap(), Words { model, prompt }, "{line:?}");
        }
    }

    #[test]
    fn a_prompt_given_twice_is_refused() {
        for line in [
            vec!["-m", "a.gguf", "b", "c"],
            vec!["a.gguf", "hello", "-f", "x.txt"],
            vec!["a.gguf", "hello", "-p", "hello"],
            vec!["-m", "a.gguf", "hello", "-p", "hello"],
        ] {
            assert!(matches!(words(&args(&line)), Err(Error::Usage(_))), "{line:?}");
        }
    }

    #[test]
    fn white_space_is_a_prompt_only_for_raw_text() {
        assert!(is_prompt("a", false) && is_prompt("\n", true));
        assert!(!is_prompt("\n", false) && !is_prompt("", false) && !is_prompt("", true));
    }

    #[test]
    fn a_rate_without_time_is_no_division_by_zero() {
        assert_eq!(per_second(5, 0.0), 0.0);
        assert_eq!(per_second(5, 500.0), 10.0);
    }
}
