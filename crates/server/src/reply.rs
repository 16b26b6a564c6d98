//! From the engine's events to the JSON of an answer, whole or in chunks.

use crate::chat::Reading;
use crate::error::ApiError;
use crate::http::{unique, unix_time};
use crate::model::Model;
use crate::params::Params;
use crate::splitter::{Piece, Splitter};
use crate::tools::CallPart;
use chat_format::token_text;
use engine::{BatchEvent, FinishReason, Token};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use tokenizer::Tokenizer;

/// Puts the engine's events together to the body of a response.
pub trait Assemble: Send {
    /// Takes an event of a prompt: the chunks that it makes.
    fn event(&mut self, prompt: usize, event: BatchEvent) -> Result<Vec<Value>, ApiError>;

    /// Whether all answers have ended.
    fn is_done(&self) -> bool;

    /// Tokens of the answers so far.
    fn completion_tokens(&self) -> usize;

    /// The chunks after all answers have ended.
    fn last_chunks(&mut self) -> Vec<Value>;

    /// The chunks that end a stream where it cannot go on.
    fn error_chunks(&mut self, error: &ApiError) -> Vec<Value>;

    /// Whether chunks have types that are named beside them. The others end with a line that says so.
    fn names_events(&self) -> bool;

    /// The answer as a whole.
    fn whole(self: Box<Self>) -> Value;
}

/// The kind of completion.
#[derive(Debug)]
pub enum Kind {
    /// Of a conversation.
    Chat(Reading),
    /// Of texts; an answer to each begins with what stands here.
    Text(Vec<String>),
}

/// An answer that is being put together.
#[derive(Debug)]
pub struct Reply {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
    tokenizer: Arc<Tokenizer>,
    include_usage: bool,
    logprobs: bool,
    ignore_end: bool,
    choices: Vec<Choice>,
    /// Answers to each prompt.
    per_prompt: usize,
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
}

#[derive(Debug)]
struct Choice {
    /// For conversations.
    splitter: Option<Splitter>,
    content: String,
    reasoning: String,
    calls: Vec<Call>,
    logprobs: Vec<Value>,
    /// Entries of `logprobs` that were told in chunks.
    told: usize,
    /// Characters of text before the next token.
    offset: usize,
    begun: bool,
    finish: Option<&'static str>,
}

#[derive(Debug)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

impl Reply {
    /// An answer to prompts that have so many tokens together.
    pub fn new(kind: Kind, model: &Model, params: &Params, prompts: usize, prompt_tokens: usize) -> Reply {
        let choices = (0..prompts * params.choices).map(|index| {
            let (splitter, content) = match &kind {
                Kind::Chat(reading) => (Some(reading.splitter()), String::new()),
                Kind::Text(echoes) => (None, echoes[index / params.choices].clone()),
            };
            Choice {
                splitter,
                offset: content.chars().count(),
                content,
                reasoning: String::new(),
                calls: Vec::new(),
                logprobs: Vec::new(),
                told: 0,
                begun: false,
                finish: None,
            }
        });
        Reply {
            choices: choices.collect(),
            id: unique(if matches!(kind, Kind::Chat(_)) { "chatcmpl-" } else { "cmpl-" }),
            kind,
            created: unix_time(),
            model: model.name.clone(),
            tokenizer: Arc::clone(model.tokenizer()),
            include_usage: params.include_usage,
            logprobs: params.options.logprobs.is_some(),
            ignore_end: params.options.ignore_end,
            per_prompt: params.choices,
            prompt_tokens,
            cached_tokens: 0,
            completion_tokens: 0,
        }
    }

    /// Text of an answer, and whether it is the last.
    fn text(&mut self, index: usize, text: &str, finished: Option<FinishReason>) -> Vec<Value> {
        let choice = &mut self.choices[index];
        let mut chunks = Vec::new();
        let Some(splitter) = &mut choice.splitter else {
            // What is given back comes with the first text.
            let first = !std::mem::replace(&mut choice.begun, true);
            let text = if first { choice.content.clone() + text } else { text.to_owned() };
            if first {
                choice.content.clone_from(&text);
            } else {
                choice.content.push_str(&text);
            }
            choice.finish = finished.map(FinishReason::name);
            if !text.is_empty() || finished.is_some() || choice.told < choice.logprobs.len() {
                chunks.push(self.text_chunk(index, &text));
            }
            return chunks;
        };
        let mut pieces = splitter.push(text);
        if finished.is_some() {
            pieces.extend(splitter.finish());
        }
        let called = splitter.calls() > 0;
        if !std::mem::replace(&mut choice.begun, true) {
            chunks.push(self.chat_chunk(index, json!({"role": "assistant", "content": ""}), None));
        }
        for piece in pieces {
            let choice = &mut self.choices[index];
            let delta = match piece {
                Piece::Content(text) => {
                    choice.content.push_str(&text);
                    json!({"content": text})
                }
                Piece::Reasoning(text) => {
                    choice.reasoning.push_str(&text);
                    json!({"reasoning_content": text})
                }
                Piece::Call(number, CallPart::Name(name)) => {
                    let id = unique("call_");
                    choice.calls.push(Call { id: id.clone(), name: name.clone(), arguments: String::new() });
                    json!({"tool_calls": [{
                        "index": number, "id": id, "type": "function",
                        "function": {"name": name, "arguments": ""},
                    }]})
                }
                Piece::Call(number, CallPart::Arguments(text)) => {
                    if let Some(call) = choice.calls.get_mut(number) {
                        call.arguments.push_str(&text);
                    }
                    json!({"tool_calls": [{"index": number, "function": {"arguments": text}}]})
                }
            };
            chunks.push(self.chat_chunk(index, delta, None));
        }
        if finished.is_none() && self.choices[index].told < self.choices[index].logprobs.len() {
            chunks.push(self.chat_chunk(index, json!({"content": ""}), None));
        }
        if let Some(reason) = finished {
            let reason = if called && reason == FinishReason::Stop { "tool_calls" } else { reason.name() };
            self.choices[index].finish = Some(reason);
            chunks.push(self.chat_chunk(index, json!({}), Some(reason)));
        }
        chunks
    }

    fn chat_chunk(&mut self, index: usize, delta: Value, finish: Option<&str>) -> Value {
        let mut chunk = self.frame(true);
        let logprobs = self.untold(index).map_or(Value::Null, chat_logprobs);
        let choice = json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish});
        chunk.insert("choices".into(), json!([choice]));
        Value::Object(chunk)
    }

    fn text_chunk(&mut self, index: usize, text: &str) -> Value {
        let mut chunk = self.frame(true);
        let logprobs = self.untold(index).map_or(Value::Null, text_logprobs);
        let finish = self.choices[index].finish;
        let choice = json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish});
        chunk.insert("choices".into(), json!([choice]));
        Value::Object(chunk)
    }

    /// Log-probabilities that no chunk has told yet.
    fn untold(&mut self, index: usize) -> Option<&[Value]> {
        let choice = &mut self.choices[index];
        let from = std::mem::replace(&mut choice.told, choice.logprobs.len());
        (from < choice.told).then(|| &choice.logprobs[from..])
    }

    /// The fields that every object of the answer has.
    fn frame(&self, chunk: bool) -> Map<String, Value> {
        let object = match (&self.kind, chunk) {
            (Kind::Chat(_), true) => "chat.completion.chunk",
            (Kind::Chat(_), false) => "chat.completion",
            (Kind::Text(_), _) => "text_completion",
        };
        let mut frame = Map::new();
        frame.insert("id".into(), self.id.clone().into());
        frame.insert("object".into(), object.into());
        frame.insert("created".into(), self.created.into());
        frame.insert("model".into(), self.model.clone().into());
        frame.insert("system_fingerprint".into(), concat!("smelt-", env!("CARGO_PKG_VERSION")).into());
        if chunk && self.include_usage {
            frame.insert("usage".into(), Value::Null);
        }
        frame
    }

    fn usage(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        })
    }

    fn text_logprob(&self, token: &Token, offset: usize) -> Value {
        let top =
            token.top.iter().map(|top| (token_text(&self.tokenizer, top.id), finite(top.log_prob).into()));
        json!({
            "token": token_text(&self.tokenizer, token.id),
            "logprob": finite(token.logprob.unwrap_or(f64::NEG_INFINITY)),
            "top": top.collect::<Map<String, Value>>(),
            "offset": offset,
        })
    }
}

impl Assemble for Reply {
    fn is_done(&self) -> bool {
        self.choices.iter().all(|choice| choice.finish.is_some())
    }

    fn completion_tokens(&self) -> usize {
        self.completion_tokens
    }

    fn event(&mut self, prompt: usize, event: BatchEvent) -> Result<Vec<Value>, ApiError> {
        let field = if matches!(self.kind, Kind::Chat(_)) { "messages" } else { "prompt" };
        match event {
            BatchEvent::Started { cached_tokens } => {
                self.cached_tokens += cached_tokens;
                Ok(Vec::new())
            }
            BatchEvent::Token { choice, token, text } => {
                self.completion_tokens += 1;
                let index = prompt * self.per_prompt + choice;
                let is_end = self.tokenizer.is_end_of_generation(token.id) && !self.ignore_end;
                if self.logprobs && !is_end {
                    let entry = match self.kind {
                        Kind::Chat(_) => chat_logprob(&self.tokenizer, &token),
                        Kind::Text(_) => self.text_logprob(&token, self.choices[index].offset),
                    };
                    self.choices[index].logprobs.push(entry);
                }
                self.choices[index].offset += text.chars().count();
                Ok(self.text(index, &text, None))
            }
            BatchEvent::Finished { choice, text, reason } => {
                let index = prompt * self.per_prompt + choice;
                Ok(self.text(index, &text, Some(reason)))
            }
            BatchEvent::Failed(error) => Err(ApiError::engine(&error, field)),
        }
    }

    /// The usage, where it is wanted.
    fn last_chunks(&mut self) -> Vec<Value> {
        if !self.include_usage {
            return Vec::new();
        }
        let mut chunk = self.frame(true);
        chunk.insert("choices".into(), json!([]));
        chunk.insert("usage".into(), self.usage());
        vec![Value::Object(chunk)]
    }

    fn error_chunks(&mut self, error: &ApiError) -> Vec<Value> {
        vec![error.body()]
    }

    fn names_events(&self) -> bool {
        false
    }

    fn whole(self: Box<Self>) -> Value {
        let mut body = self.frame(false);
        body.insert("usage".into(), self.usage());
        let logprobs = self.logprobs;
        let choices = self.choices.into_iter().enumerate().map(|(index, choice)| {
            if choice.splitter.is_none() {
                let logprobs = if logprobs { text_logprobs(&choice.logprobs) } else { Value::Null };
                return json!({
                    "index": index, "text": choice.content, "logprobs": logprobs,
                    "finish_reason": choice.finish,
                });
            }
            let mut message = Map::new();
            message.insert("role".into(), "assistant".into());
            let silent = choice.content.is_empty() && !choice.calls.is_empty();
            message.insert("content".into(), if silent { Value::Null } else { choice.content.into() });
            message.insert("refusal".into(), Value::Null);
            if !choice.reasoning.is_empty() {
                message.insert("reasoning_content".into(), choice.reasoning.into());
            }
            if !choice.calls.is_empty() {
                let calls = choice.calls.into_iter().map(|call| {
                    json!({
                        "id": call.id, "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments},
                    })
                });
                message.insert("tool_calls".into(), calls.collect());
            }
            let logprobs = if logprobs { chat_logprobs(&choice.logprobs) } else { Value::Null };
            json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": choice.finish})
        });
        body.insert("choices".into(), choices.collect());
        Value::Object(body)
    }
}

/// An entry of the log-probabilities of an answer in a conversation.
pub fn chat_logprob(tokenizer: &Tokenizer, token: &Token) -> Value {
    let entry = |id: u32, logprob: f64| {
        let bytes = tokenizer.token_bytes(id);
        json!({"token": token_text(tokenizer, id), "logprob": finite(logprob), "bytes": bytes})
    };
    let mut result = entry(token.id, token.logprob.unwrap_or(f64::NEG_INFINITY));
    result["top_logprobs"] = token.top.iter().map(|top| entry(top.id, top.log_prob)).collect();
    result
}

/// JSON has no infinity; this is what OpenAI's API has in its place.
fn finite(logprob: f64) -> f64 {
    logprob.max(-9999.0)
}

fn chat_logprobs(entries: &[Value]) -> Value {
    json!({"content": entries, "refusal": null})
}

fn text_logprobs(entries: &[Value]) -> Value {
    let column = |name: &str| entries.iter().map(|entry| entry[name].clone()).collect::<Value>();
    json!({
        "tokens": column("token"), "token_logprobs": column("logprob"),
        "top_logprobs": column("top"), "text_offset": column("offset"),
    })
}
