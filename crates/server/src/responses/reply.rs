//! From the engine's events to a response, whole or as the events of its own.

use super::Asked;
use crate::app::App;
use crate::chat::Reading;
use crate::error::ApiError;
use crate::http::{unique, unix_time};
use crate::model::Model;
use crate::reply::{Assemble, chat_logprob};
use crate::splitter::{Piece, Splitter};
use crate::tools::CallPart;
use engine::{BatchEvent, FinishReason, Token};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use tokenizer::Tokenizer;

/// A response that is being put together.
#[derive(Debug)]
pub struct ResponseReply {
    app: Arc<App>,
    asked: Asked,
    id: String,
    created: u64,
    model: String,
    tokenizer: Arc<Tokenizer>,
    splitter: Splitter,
    items: Vec<Item>,
    /// Log-probabilities of tokens whose text is not told yet.
    logprobs: Vec<Value>,
    /// The number of the next event.
    sequence: u64,
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
    reasoning_tokens: usize,
    finish: Option<FinishReason>,
}

/// A part of the answer.
#[derive(Debug)]
struct Item {
    kind: Kind,
    id: String,
    text: String,
    logprobs: Vec<Value>,
    status: &'static str,
}

#[derive(Debug, PartialEq)]
enum Kind {
    Reasoning,
    Message,
    Call { id: String, name: String },
}

impl Item {
    fn new(kind: Kind) -> Item {
        let prefix = match kind {
            Kind::Reasoning => "rs_",
            Kind::Message => "msg_",
            Kind::Call { .. } => "fc_",
        };
        Item { id: unique(prefix), kind, text: String::new(), logprobs: Vec::new(), status: "in_progress" }
    }

    /// The one part of its content, where it has any.
    fn part(&self) -> Option<Value> {
        match self.kind {
            Kind::Reasoning => Some(json!({"type": "reasoning_text", "text": self.text})),
            Kind::Message => Some(json!({
                "type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs,
            })),
            Kind::Call { .. } => None,
        }
    }

    /// The item as JSON, with as much of it as there is; `begun` tells that its content has been announced.
    fn json(&self, begun: bool) -> Value {
        let content: Vec<Value> = self.part().into_iter().filter(|_| begun).collect();
        match &self.kind {
            Kind::Reasoning => json!({
                "type": "reasoning", "id": self.id, "summary": [], "content": content, "status": self.status,
            }),
            Kind::Message => json!({
                "type": "message", "id": self.id, "role": "assistant", "content": content, "status": self.status,
            }),
            Kind::Call { id, name } => json!({
                "type": "function_call", "id": self.id, "call_id": id, "name": name, "arguments": self.text,
                "status": self.status,
            }),
        }
    }
}

impl ResponseReply {
    /// A response to a prompt of so many tokens.
    pub fn new(app: &Arc<App>, asked: Asked, reading: Reading, model: &Model, prompt_tokens: usize) -> Self {
        ResponseReply {
            app: Arc::clone(app),
            asked,
            id: unique("resp_"),
            created: unix_time(),
            model: model.name.clone(),
            tokenizer: Arc::clone(model.tokenizer()),
            splitter: reading.splitter(),
            items: Vec::new(),
            logprobs: Vec::new(),
            sequence: 0,
            prompt_tokens,
            cached_tokens: 0,
            completion_tokens: 0,
            reasoning_tokens: 0,
            finish: None,
        }
    }

    /// An event of a stream, numbered.
    fn tell(&mut self, chunks: &mut Vec<Value>, kind: &str, fields: Value) {
        let mut event = Map::new();
        event.insert("type".into(), kind.into());
        event.insert("sequence_number".into(), self.sequence.into());
        if let Value::Object(fields) = fields {
            event.extend(fields);
        }
        self.sequence += 1;
        chunks.push(event.into());
    }

    /// An event about the last item.
    fn tell_item(&mut self, chunks: &mut Vec<Value>, kind: &str, fields: Value) {
        let Some(item) = self.items.last() else { return };
        let mut event = json!({"item_id": item.id, "output_index": self.items.len() - 1});
        if item.part().is_some() {
            event["content_index"] = json!(0);
        }
        if let (Some(event), Value::Object(fields)) = (event.as_object_mut(), fields) {
            event.extend(fields);
        }
        self.tell(chunks, kind, event);
    }

    fn begin_item(&mut self, chunks: &mut Vec<Value>, kind: Kind) {
        self.end_item(chunks, "completed");
        self.items.push(Item::new(kind));
        let index = self.items.len() - 1;
        let (item, part) = (self.items[index].json(false), self.items[index].part());
        self.tell(chunks, "response.output_item.added", json!({"output_index": index, "item": item}));
        if let Some(part) = part {
            self.tell_item(chunks, "response.content_part.added", json!({"part": part}));
        }
    }

    /// Ends the last item, unless it has ended.
    fn end_item(&mut self, chunks: &mut Vec<Value>, status: &'static str) {
        let Some(item) = self.items.last_mut().filter(|item| item.status == "in_progress") else { return };
        item.status = status;
        let (part, text) = (item.part(), item.text.clone());
        let (kind, done) = match &item.kind {
            Kind::Reasoning => ("response.reasoning_text.done", json!({"text": text})),
            Kind::Message => ("response.output_text.done", json!({"text": text, "logprobs": item.logprobs})),
            Kind::Call { name, .. } => {
                ("response.function_call_arguments.done", json!({"name": name, "arguments": text}))
            }
        };
        let item = item.json(true);
        self.tell_item(chunks, kind, done);
        if let Some(part) = part {
            self.tell_item(chunks, "response.content_part.done", json!({"part": part}));
        }
        let index = self.items.len() - 1;
        self.tell(chunks, "response.output_item.done", json!({"output_index": index, "item": item}));
    }

    /// Takes a piece of the answer.
    fn piece(&mut self, chunks: &mut Vec<Value>, piece: Piece) {
        let (kind, text) = match piece {
            Piece::Call(_, CallPart::Name(name)) => {
                return self.begin_item(chunks, Kind::Call { id: unique("call_"), name });
            }
            Piece::Call(_, CallPart::Arguments(text)) => (None, text),
            Piece::Content(text) => (Some(Kind::Message), text),
            Piece::Reasoning(text) => (Some(Kind::Reasoning), text),
        };
        if let Some(kind) = kind
            && self.items.last().is_none_or(|item| item.kind != kind)
        {
            self.begin_item(chunks, kind);
        }
        let logprobs = std::mem::take(&mut self.logprobs);
        let Some(item) = self.items.last_mut() else { return };
        item.text.push_str(&text);
        let (event, fields) = match item.kind {
            Kind::Message => {
                item.logprobs.extend_from_slice(&logprobs);
                ("response.output_text.delta", json!({"delta": text, "logprobs": logprobs}))
            }
            Kind::Reasoning => ("response.reasoning_text.delta", json!({"delta": text})),
            Kind::Call { .. } => ("response.function_call_arguments.delta", json!({"delta": text})),
        };
        self.tell_item(chunks, event, fields);
    }

    fn token(&mut self, chunks: &mut Vec<Value>, token: &Token, text: &str) {
        self.completion_tokens += 1;
        let pieces = self.splitter.push(text);
        if self.splitter.is_reasoning() {
            self.reasoning_tokens += 1;
        } else if self.asked.logprobs && !self.tokenizer.is_end_of_generation(token.id) {
            self.logprobs.push(chat_logprob(&self.tokenizer, token));
        }
        pieces.into_iter().for_each(|piece| self.piece(chunks, piece));
    }

    fn finish(&mut self, chunks: &mut Vec<Value>, text: &str, reason: FinishReason) {
        let mut pieces = self.splitter.push(text);
        pieces.extend(self.splitter.finish());
        pieces.into_iter().for_each(|piece| self.piece(chunks, piece));
        if self.items.is_empty() {
            // An answer of nothing is a message all the same.
            self.begin_item(chunks, Kind::Message);
        }
        if let Some(item) = self.items.last_mut().filter(|item| item.kind == Kind::Message) {
            // Of tokens without a text of their own.
            item.logprobs.append(&mut self.logprobs);
        }
        let cut = reason != FinishReason::Stop;
        self.end_item(chunks, if cut { "incomplete" } else { "completed" });
        self.finish = Some(reason);
        if self.asked.store {
            let mut messages = std::mem::take(&mut self.asked.messages);
            messages.push(self.message());
            self.app.responses.insert(&self.id, messages, self.json());
        }
    }

    /// The answer as a message of the conversation that may go on.
    fn message(&self) -> Value {
        let text = |wanted: &Kind| -> String {
            self.items.iter().filter(|item| item.kind == *wanted).map(|item| item.text.as_str()).collect()
        };
        let mut message = json!({"role": "assistant", "content": text(&Kind::Message)});
        let reasoning = text(&Kind::Reasoning);
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        let calls = self.items.iter().filter_map(|item| match &item.kind {
            Kind::Call { id, name } => Some(json!({
                "id": id, "type": "function", "function": {"name": name, "arguments": item.text},
            })),
            Kind::Reasoning | Kind::Message => None,
        });
        let calls: Vec<Value> = calls.collect();
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        message
    }

    fn status(&self) -> &'static str {
        match self.finish {
            None => "in_progress",
            Some(FinishReason::Stop) => "completed",
            Some(_) => "incomplete",
        }
    }

    /// The response as far as it has come.
    fn json(&self) -> Value {
        let mut response = Map::new();
        response.insert("id".into(), self.id.clone().into());
        response.insert("object".into(), "response".into());
        response.insert("created_at".into(), self.created.into());
        response.insert("status".into(), self.status().into());
        response.insert("error".into(), Value::Null);
        let cut = self.finish.is_some_and(|reason| reason != FinishReason::Stop);
        let details = if cut { json!({"reason": "max_output_tokens"}) } else { Value::Null };
        response.insert("incomplete_details".into(), details);
        response.insert("model".into(), self.model.clone().into());
        response.insert("output".into(), self.items.iter().map(|item| item.json(true)).collect());
        response.extend(self.asked.echo.clone());
        let usage = self.finish.map_or(Value::Null, |_| {
            json!({
                "input_tokens": self.prompt_tokens,
                "input_tokens_details": {"cached_tokens": self.cached_tokens},
                "output_tokens": self.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
                "total_tokens": self.prompt_tokens + self.completion_tokens,
            })
        });
        response.insert("usage".into(), usage);
        response.into()
    }
}

impl Assemble for ResponseReply {
    fn event(&mut self, _prompt: usize, event: BatchEvent) -> Result<Vec<Value>, ApiError> {
        let mut chunks = Vec::new();
        match event {
            BatchEvent::Started { cached_tokens } => {
                self.cached_tokens = cached_tokens;
                for kind in ["response.created", "response.in_progress"] {
                    let response = self.json();
                    self.tell(&mut chunks, kind, json!({"response": response}));
                }
            }
            BatchEvent::Token { token, text, .. } => self.token(&mut chunks, &token, &text),
            BatchEvent::Finished { text, reason, .. } => self.finish(&mut chunks, &text, reason),
            BatchEvent::Failed(error) => return Err(ApiError::engine(&error, "input")),
        }
        Ok(chunks)
    }

    fn is_done(&self) -> bool {
        self.finish.is_some()
    }

    fn completion_tokens(&self) -> usize {
        self.completion_tokens
    }

    fn last_chunks(&mut self) -> Vec<Value> {
        let mut chunks = Vec::new();
        let (kind, response) = (format!("response.{}", self.status()), self.json());
        self.tell(&mut chunks, &kind, json!({"response": response}));
        chunks
    }

    fn error_chunks(&mut self, error: &ApiError) -> Vec<Value> {
        let mut chunks = Vec::new();
        let mut response = self.json();
        response["status"] = "failed".into();
        response["error"] = json!({"code": error.code.unwrap_or("server_error"), "message": error.message});
        self.tell(&mut chunks, "response.failed", json!({"response": response}));
        chunks
    }

    fn names_events(&self) -> bool {
        true
    }

    fn whole(self: Box<Self>) -> Value {
        self.json()
    }
}
