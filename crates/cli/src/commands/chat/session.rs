//! The conversation itself: its messages, and the tokens of it that are in the KV cache.

use crate::args::ChatArgs;
use crate::commands::run::{milliseconds, per_second};
use crate::error::{Error, Result};
use crate::output::{Output, print};
use crate::prompt::{self, ChatFormat, message};
use crate::{input, interrupt};
use chat::Conversation;
use engine::{Engine, Event, FinishReason, GenerateOptions, Generation, Sequence};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// A conversation.
pub struct Session {
    format: ChatFormat,
    options: GenerateOptions,
    sequence: Sequence,
    system: Option<String>,
    /// Questions and answers, without the system message.
    messages: Vec<Value>,
    /// The answers that are part of the conversation and were given here, in their order.
    turns: Vec<Turn>,
}

/// An answer.
struct Turn {
    /// Messages up to it, the answer among them.
    messages: usize,
    /// Tokens of the conversation in the cache with it.
    context: usize,
    stats: Stats,
}

/// Tokens and times of an answer.
struct Stats {
    /// Prompt tokens that were in the cache already.
    cached: usize,
    /// Prompt tokens that had to be fed.
    prefilled: usize,
    prompt_time: Duration,
    generated: usize,
    generation_time: Duration,
}

impl Session {
    /// An empty conversation.
    pub fn new(engine: &Engine, args: &ChatArgs, options: GenerateOptions) -> Result<Session> {
        let path = engine.file().path();
        let model = prompt::Model { path, metadata: engine.file().metadata(), tokenizer: engine.tokenizer() };
        let Some(format) = ChatFormat::new(&model, args.template.as_deref(), false)? else {
            let message =
                "the model has no chat template: give one with --template, or use `smelt run --raw`";
            return Err(Error::Content { path: path.to_path_buf(), message: message.into() });
        };
        Ok(Session {
            format,
            options,
            sequence: engine.sequence(),
            system: args.system.clone(),
            messages: Vec::new(),
            turns: Vec::new(),
        })
    }

    /// Puts a question and streams the answer. Nothing of it stays in the conversation if that fails.
    pub fn say(&mut self, engine: &mut Engine, text: &str, output: &Output) -> Result<()> {
        self.messages.push(message("user", text));
        match self.answer(engine, output) {
            Ok(Some(answer)) => {
                self.keep(answer);
                Ok(())
            }
            // Interrupted before the answer began: the question was not meant.
            Ok(None) => {
                self.messages.pop();
                Ok(())
            }
            Err(error) => {
                self.messages.pop();
                Err(error)
            }
        }
    }

    /// Answers the last question again.
    pub fn regenerate(&mut self, engine: &mut Engine, output: &Output) -> Result<()> {
        let Some(last) = self.last_question() else {
            output.info("nothing to answer again");
            return Ok(());
        };
        let answered = self.messages.split_off(last + 1);
        match self.answer(engine, output) {
            Ok(Some(answer)) => {
                self.turns.retain(|turn| turn.messages <= self.messages.len());
                self.keep(answer);
                Ok(())
            }
            Ok(None) => {
                self.messages.extend(answered);
                Ok(())
            }
            Err(error) => {
                self.messages.extend(answered);
                Err(error)
            }
        }
    }

    /// Takes an answer into the conversation.
    fn keep(&mut self, (text, stats): (String, Stats)) {
        self.messages.push(message("assistant", &text));
        self.turns.push(Turn { messages: self.messages.len(), context: self.sequence.len(), stats });
    }

    /// Forgets the last question and what followed it; whether there was one.
    pub fn undo(&mut self) -> bool {
        let last = self.last_question();
        if let Some(last) = last {
            self.messages.truncate(last);
            self.turns.retain(|turn| turn.messages <= last);
        }
        last.is_some()
    }

    /// How many messages there are, in words.
    pub fn count(&self) -> String {
        match self.messages.len() + usize::from(self.system.is_some()) {
            1 => "1 message".into(),
            count => format!("{count} messages"),
        }
    }

    /// Forgets everything but the system message.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.turns.clear();
    }

    /// Sets the system message; an empty one removes it.
    pub fn set_system(&mut self, text: &str) {
        self.system = (!text.is_empty()).then(|| text.to_owned());
    }

    /// All messages, as [`Session::load`] and `smelt template` read them.
    pub fn to_json(&self) -> String {
        format!("{:#}", Value::Array(self.all_messages()))
    }

    /// Goes on from messages; `path` is named in errors.
    pub fn load(&mut self, path: &Path, text: &str) -> Result<()> {
        let wrong = |message: String| Error::Content { path: path.to_path_buf(), message };
        let mut messages = input::json_array(text, path, "messages")?;
        if let Some(index) = messages.iter().position(|message| role(message).is_none()) {
            return Err(wrong(format!("expected an object with a 'role' in message {index}")));
        }
        let system = messages.first().filter(|first| role(first) == Some("system"));
        let system = system.and_then(|first| first["content"].as_str()).map(str::to_owned);
        if system.is_some() {
            messages.remove(0);
        }
        self.system = system;
        self.messages = messages;
        self.turns.clear();
        Ok(())
    }

    /// What `/stats` prints: about the last answer that is part of the conversation.
    pub fn stats(&self, engine: &Engine) -> String {
        let last = self.turns.last();
        let tokens = last.map_or(0, |turn| turn.context);
        let context = format!("context: {tokens} of {} tokens\n", engine.context());
        let Some(Turn { stats: last, .. }) = last else { return context };
        let line = |what: &str, tokens: usize, time: Duration, rate: usize| {
            let ms = milliseconds(time);
            format!("{what}: {tokens} tokens in {ms:.1} ms, {:.1} per second\n", per_second(rate, ms))
        };
        format!(
            "cached: {} tokens\n{}{}{context}",
            last.cached,
            line("prefilled", last.prefilled, last.prompt_time, last.prefilled),
            // The first token's time is the prompt's.
            line("generated", last.generated, last.generation_time, last.generated.saturating_sub(1)),
        )
    }

    /// Streams the answer to the messages so far; `None` if it was interrupted before its first token.
    fn answer(&mut self, engine: &mut Engine, output: &Output) -> Result<Option<(String, Stats)>> {
        let rendered = self.format.render(&Conversation { messages: self.all_messages(), tools: None })?;
        let ids = self.format.encode(&rendered);
        // At least one token must be fed: the answer is predicted from it.
        let common = self.sequence.tokens().iter().zip(&ids).take_while(|(a, b)| a == b).count();
        let cached = engine.truncate(&mut self.sequence, common.min(ids.len().saturating_sub(1)));
        let mut generation = Generation::new(engine, &self.sequence, &ids[cached..], self.options.clone())?;
        let bar = output.steps("prompt", (ids.len() - cached) as u64);
        let mut answer = String::new();
        let (mut cancelled, mut full) = (false, false);
        let _polled = interrupt::polled();
        while let Some(event) = generation.next(engine, &mut self.sequence)? {
            if let Event::End { reason: FinishReason::Length, .. } = event {
                full = self.options.max_tokens.is_none_or(|most| generation.generated() < most);
            }
            match event {
                Event::Prefill { done, .. } => bar.set_position(done as u64),
                Event::Token { text, .. } | Event::End { text, .. } => {
                    bar.finish_and_clear();
                    answer.push_str(&text);
                    print(&text)?;
                }
            }
            if interrupt::requested() {
                cancelled = true;
                generation.cancel();
            }
        }
        bar.finish_and_clear();
        // What comes next begins a line, and there is none between that is not part of an answer.
        if !answer.ends_with('\n') {
            print("\n")?;
        }
        if full {
            output.warning(format_args!(
                "the answer ends where the context of {} tokens does; /undo or /clear makes room",
                engine.context()
            ));
        }
        let (prompt_time, generation_time) = generation.times();
        let generated = generation.generated();
        let prefilled = ids.len() - cached;
        let stats = Stats { cached, prefilled, prompt_time, generated, generation_time };
        // An answer of no tokens is an answer if that is all that was asked for.
        Ok((generated > 0 || !cancelled).then_some((answer, stats)))
    }

    fn all_messages(&self) -> Vec<Value> {
        let system = self.system.iter().map(|system| message("system", system));
        system.chain(self.messages.iter().cloned()).collect()
    }

    fn last_question(&self) -> Option<usize> {
        self.messages.iter().rposition(|message| role(message) == Some("user"))
    }
}

fn role(message: &Value) -> Option<&str> {
    message.get("role")?.as_str()
}
