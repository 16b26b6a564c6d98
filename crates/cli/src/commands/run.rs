//! `smelt run`: answers one prompt.

use crate::args::RunArgs;
use crate::error::{Error, Result};
use crate::logprobs::{PromptEntry, TokenEntry};
use crate::output::{Output, print, print_json};
use crate::prompt::{self, ChatFormat, message};
use crate::{input, interrupt, load, system};
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
    prompt: Option<String>,
}

/// Most log-probabilities of a kind in one report: with their texts and their JSON they take about 150 bytes each.
const MAX_LOGPROBS: usize = 4 << 20;

/// Runs the command.
pub fn run(args: &RunArgs, output: &Output) -> Result<()> {
    let words = words(args)?;
    known_model(args, &words)?;
    let text = text(args, words.prompt.as_deref())
        .and_then(|text| if is_prompt(&text, args.raw) { Ok(text) } else { Err(input::missing("prompt")) })
        .map_err(|error| match error {
            Error::Usage(_) => error.with_hint(format!("to talk with a model: smelt chat {}", words.model)),
            _ => error,
        })?;
    let options = GenerateOptions {
        logprobs: args.logprobs,
        prompt_logprobs: args.prompt_logprobs,
        ignore_end: args.ignore_eos,
        ..args.sampling.options()?
    };
    // One word is a prompt if it is not exactly a model, and an answer to a mistyped model puzzles.
    if let (Some(word), [], None, None) = (&args.first, &args.rest[..], &args.model, &args.prompt)
        && words.prompt.is_some()
        && let Some(alias) = hub::similar_alias(word)
    {
        output.warning(format_args!("taking '{word}' as the prompt; the model is called '{alias}'"));
    }
    if let Some(word) = words.prompt.as_deref().filter(|word| args.file.is_none() && names_text_file(word)) {
        output.warning(format_args!("the prompt is the text '{word}'; `-f {word}` reads one from a file"));
    }
    let mut engine = load::engine(words.model, &args.load, output)?;
    args.sampling.check(engine.tokenizer())?;
    let tokens = tokens(&engine, args, &text, output)?;
    check_logprobs(args, &tokens, &engine)?;
    // Late: what is piped has begun to come by now. It is not waited for, since a pipe may stay open without a byte.
    if words.prompt.is_some() && args.file.is_none() && system::stdin_has_data() {
        output.warning("stdin is not read, since there is a prompt; `-f -` adds it to the prompt");
    }
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
    if answer.reason == FinishReason::Length {
        match args.sampling.max_tokens {
            Some(most) if answer.tokens.len() >= most => output.note(format_args!("stopped by -n {most}")),
            _ if args.json => {}
            _ => output.warning(format_args!("the answer ends where the context of {context} tokens does")),
        }
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
    let words: Vec<&str> = args.first.iter().chain(&args.rest).map(String::as_str).collect();
    if let Some(prompt) = &args.prompt {
        let model = match (args.model.as_deref(), &words[..]) {
            (Some(model), []) | (None, &[model]) => model,
            (None, []) => hub::DEFAULT_ALIAS,
            (Some(_), [extra, ..]) | (None, [_, extra, ..]) => {
                return Err(Error::Usage(format!("-p is the prompt, so '{extra}' is one word too many")));
            }
        };
        return Ok(Words { model, prompt: Some(prompt.clone()) });
    }
    let (model, prompt) = match (args.model.as_deref(), &words[..]) {
        (Some(model), words) => (model, words),
        (None, &[word]) if args.file.is_none() && is_text_file(word) => {
            let message = format!(
                "'{word}' is a file, but no GGUF model; to take the prompt from it: smelt run -f {word}"
            );
            return Err(Error::Usage(message));
        }
        // No model's name has spaces in it.
        (None, &[word])
            if names_model(word) || args.file.is_some() && !word.contains(char::is_whitespace) =>
        {
            (word, &[][..])
        }
        (None, words @ ([] | [_])) => (hub::DEFAULT_ALIAS, words),
        (None, [model, prompt @ ..]) => (*model, prompt),
    };
    Ok(Words { model, prompt: (!prompt.is_empty()).then(|| prompt.join(" ")) })
}

/// A word that is taken for a model and is none may be meant for the prompt, unless it looks like a path.
fn known_model(args: &RunArgs, words: &Words<'_>) -> Result<()> {
    let Some(first) = args.first.as_deref().filter(|first| args.model.is_none() && *first == words.model)
    else {
        return Ok(());
    };
    match Spec::parse(first) {
        Err(error @ hub::Error::Unknown { .. }) if first.contains('/') || first.ends_with(".gguf") => {
            Err(Error::Hub(error))
        }
        Err(error @ hub::Error::Unknown { .. }) => {
            Err(Error::Hub(error).with_hint(if args.rest.is_empty() {
                format!(
                    "if '{first}' is the prompt, name the model, too: smelt run -m {} '{first}'",
                    hub::DEFAULT_ALIAS
                )
            } else {
                format!("if '{first}' begins the prompt, put the prompt in quotes")
            }))
        }
        // What else is wrong with it is told when it is fetched or loaded.
        _ => Ok(()),
    }
}

/// The prompt: that of the command line, a file's, or the one after the other.
fn text(args: &RunArgs, prompt: Option<&str>) -> Result<String> {
    match (prompt, args.file.as_deref()) {
        (Some(prompt), Some(path)) => {
            let separator = if args.raw { "" } else { "\n\n" };
            Ok([prompt, &input::file(path)?].join(separator))
        }
        (prompt, path) => input::text(prompt, path, "prompt"),
    }
}

/// Refuses what would take gigabytes before anything is computed.
fn check_logprobs(args: &RunArgs, prompt: &[u32], engine: &Engine) -> Result<()> {
    let room = (engine.context() + 1).saturating_sub(prompt.len());
    let most = args.sampling.max_tokens.unwrap_or(usize::MAX).min(room);
    for (flag, wanted, tokens) in
        [("--logprobs", args.logprobs, most), ("--prompt-logprobs", args.prompt_logprobs, prompt.len())]
    {
        let wanted = wanted.unwrap_or(0).min(engine.model().vocabulary());
        if wanted.saturating_mul(tokens) > MAX_LOGPROBS {
            return Err(Error::Usage(format!(
                "{flag} {wanted}: expected at most {MAX_LOGPROBS} log-probabilities in all, found up to {tokens} \
                 tokens of {wanted} each: {} in all",
                wanted.saturating_mul(tokens)
            )));
        }
    }
    Ok(())
}

/// Whether a word can only be meant as a model. A form with a mistake in it is still meant as one.
fn names_model(word: &str) -> bool {
    match Spec::parse(word) {
        Err(hub::Error::Unknown { .. }) => word.ends_with(".gguf"),
        Ok(_) | Err(_) => true,
    }
}

/// Whether a word is a file that holds no model and is not called one.
fn is_text_file(word: &str) -> bool {
    let start = input::start(Path::new(word), GGUF_MAGIC.len());
    !word.ends_with(".gguf") && start.is_ok_and(|start| start.is_some_and(|start| start != GGUF_MAGIC))
}

/// What a model's file begins with.
const GGUF_MAGIC: &[u8] = b"GGUF";

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
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("model");
        std::fs::write(&file, "GGUF").unwrap();
        let file = file.to_str().unwrap();
        for (line, model, prompt) in [
            (vec!["Why is the sky blue?"], "smollm2", Some("Why is the sky blue?")),
            (vec!["gemma3-270m"], "gemma3-270m", None),
            (vec![file], file, None),
            (vec!["not-there.gguf"], "not-there.gguf", None),
            (vec!["hf:owner"], "hf:owner", None),
            (vec!["pip:package"], "pip:package", None),
            (vec!["word", "-f", "x.txt"], "word", None),
            (vec!["Two words", "-f", "x.txt"], "smollm2", Some("Two words")),
            (vec!["-p", "hello", "-f", "x.txt"], "smollm2", Some("hello")),
            (vec!["a.gguf", "Why", "is", "it?"], "a.gguf", Some("Why is it?")),
            (vec!["-m", "a.gguf", "Why", "is", "it?"], "a.gguf", Some("Why is it?")),
            (vec!["-m", "a.gguf", "smollm2"], "a.gguf", Some("smollm2")),
            (vec!["-m", "a.gguf"], "a.gguf", None),
            (vec!["a.gguf", "hello"], "a.gguf", Some("hello")),
            (vec!["-p", "hello"], "smollm2", Some("hello")),
            (vec!["-p", "hello", "word"], "word", Some("hello")),
            (vec!["-m", "a.gguf", "-p", "hello"], "a.gguf", Some("hello")),
            (vec![], "smollm2", None),
        ] {
            assert_eq!(
                words(&args(&line)).unwrap(),
                Words { model, prompt: prompt.map(String::from) },
                "{line:?}"
            );
        }
    }

    #[test]
    fn a_prompt_given_twice_is_refused() {
        for line in [vec!["a.gguf", "hello", "-p", "hello"], vec!["-m", "a.gguf", "hello", "-p", "hello"]] {
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
