//! From the engine's events to a response, whole or as the events of its own.

use super::Asked;
use crate::app::App;
use crate::chat::Reading;
use crate::error::ApiError;
use crate::http::{to_json, unique, unix_time};
use crate::logprobs::{List, LogProbs, is_zero};
use crate::memory::Account;
use crate::model::Model;
use crate::reply::{Assemble, Chunk};
use crate::splitter::{Piece, Splitter};
use crate::tools::CallPart;
use engine::{BatchEvent, FinishReason, Token};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
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
    logprobs: LogProbs,
    /// Room for what was asked, and for the log-probabilities.
    account: Account,
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
    logprobs: LogProbs,
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
        Item {
            id: unique(prefix),
            kind,
            text: String::new(),
            logprobs: LogProbs::default(),
            status: "in_progress",
        }
    }

    /// Whether it has content, which is of one part then.
    fn has_part(&self) -> bool {
        !matches!(self.kind, Kind::Call { .. })
    }

    /// The one part of its content.
    fn part<'a>(&'a self, tokenizer: &'a Tokenizer) -> Part<'a> {
        Part { item: self, tokenizer }
    }

    /// The item as JSON, with as much of it as there is; `begun` tells that its content has been announced.
    fn whole<'a>(&'a self, begun: bool, tokenizer: &'a Tokenizer) -> Whole<'a> {
        Whole { item: self, begun, tokenizer }
    }
}

struct Part<'a> {
    item: &'a Item,
    tokenizer: &'a Tokenizer,
}

impl Serialize for Part<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        let is_message = self.item.kind == Kind::Message;
        fields.serialize_entry("type", if is_message { "output_text" } else { "reasoning_text" })?;
        fields.serialize_entry("text", &self.item.text)?;
        if is_message {
            fields.serialize_entry("annotations", &[(); 0])?;
            fields.serialize_entry("logprobs", &self.item.logprobs.list(self.tokenizer))?;
            if self.item.logprobs.dropped() > 0 {
                fields.serialize_entry("logprobs_dropped", &self.item.logprobs.dropped())?;
            }
        }
        fields.end()
    }
}

struct Whole<'a> {
    item: &'a Item,
    begun: bool,
    tokenizer: &'a Tokenizer,
}

impl Serialize for Whole<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        let item = self.item;
        let content = self.begun.then(|| item.part(self.tokenizer));
        let content = content.as_slice();
        match &item.kind {
            Kind::Reasoning => {
                fields.serialize_entry("type", "reasoning")?;
                fields.serialize_entry("id", &item.id)?;
                fields.serialize_entry("summary", &[(); 0])?;
                fields.serialize_entry("content", content)?;
            }
            Kind::Message => {
                fields.serialize_entry("type", "message")?;
                fields.serialize_entry("id", &item.id)?;
                fields.serialize_entry("role", "assistant")?;
                fields.serialize_entry("content", content)?;
            }
            Kind::Call { id, name } => {
                fields.serialize_entry("type", "function_call")?;
                fields.serialize_entry("id", &item.id)?;
                fields.serialize_entry("call_id", id)?;
                fields.serialize_entry("name", name)?;
                fields.serialize_entry("arguments", &item.text)?;
            }
        }
        fields.serialize_entry("status", item.status)?;
        fields.end()
    }
}

/// An event of a stream.
#[derive(Serialize)]
struct Event<'a, F> {
    r#type: &'a str,
    sequence_number: u64,
    #[serde(flatten)]
    fields: F,
}

/// What an event about an item has.
#[derive(Serialize)]
struct OfItem<'a, F> {
    item_id: &'a str,
    output_index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<usize>,
    #[serde(flatten)]
    fields: F,
}

#[derive(Serialize)]
struct PartField<'a> {
    part: Part<'a>,
}

#[derive(Serialize)]
struct ItemField<'a> {
    output_index: usize,
    item: Whole<'a>,
}

/// A text, or what is new of it.
#[derive(Serialize)]
struct TextField<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<List<'a>>,
    #[serde(skip_serializing_if = "is_zero")]
    logprobs_dropped: usize,
}

#[derive(Serialize)]
struct ResponseField<'a> {
    response: Response<'a>,
}

#[derive(Serialize)]
struct Response<'a> {
    id: &'a str,
    object: &'static str,
    created_at: u64,
    status: &'static str,
    error: Option<Value>,
    incomplete_details: Option<Value>,
    model: &'a str,
    output: Vec<Whole<'a>>,
    #[serde(flatten)]
    echo: &'a Map<String, Value>,
    usage: Option<Value>,
}

impl ResponseReply {
    /// A response to a prompt of so many tokens. What was asked has its room in the account.
    pub fn new(
        app: &Arc<App>,
        asked: Asked,
        account: Account,
        reading: Reading,
        model: &Model,
        prompt_tokens: usize,
    ) -> Self {
        ResponseReply {
            app: Arc::clone(app),
            asked,
            account,
            id: unique("resp_"),
            created: unix_time(),
            model: model.name.clone(),
            tokenizer: Arc::clone(model.tokenizer()),
            splitter: reading.splitter(),
            items: Vec::new(),
            logprobs: LogProbs::default(),
            sequence: 0,
            prompt_tokens,
            cached_tokens: 0,
            completion_tokens: 0,
            reasoning_tokens: 0,
            finish: None,
        }
    }

    /// An event of a stream, numbered.
    fn tell(&self, chunks: &mut Vec<Chunk>, kind: &str, fields: impl Serialize) {
        if self.asked.stream {
            let sequence_number = self.sequence + chunks.len() as u64;
            let json = to_json(&Event { r#type: kind, sequence_number, fields });
            chunks.push(Chunk { name: Some(kind.to_owned()), json });
        }
    }

    /// An event about the last item.
    fn tell_item(&self, chunks: &mut Vec<Chunk>, kind: &str, fields: impl Serialize) {
        let Some(item) = self.items.last() else { return };
        let content_index = item.has_part().then_some(0);
        let output_index = self.items.len() - 1;
        self.tell(chunks, kind, OfItem { item_id: &item.id, output_index, content_index, fields });
    }

    /// Events that were told; the next number follows them.
    fn numbered(&mut self, chunks: Vec<Chunk>) -> Vec<Chunk> {
        self.sequence += chunks.len() as u64;
        chunks
    }

    fn begin_item(&mut self, chunks: &mut Vec<Chunk>, kind: Kind) {
        self.end_item(chunks, "completed");
        self.items.push(Item::new(kind));
        let Some(item) = self.items.last() else { return };
        let output_index = self.items.len() - 1;
        let whole = ItemField { output_index, item: item.whole(false, &self.tokenizer) };
        self.tell(chunks, "response.output_item.added", whole);
        if item.has_part() {
            let part = PartField { part: item.part(&self.tokenizer) };
            self.tell_item(chunks, "response.content_part.added", part);
        }
    }

    /// Ends the last item, unless it has ended.
    fn end_item(&mut self, chunks: &mut Vec<Chunk>, status: &'static str) {
        let Some(item) = self.items.last_mut().filter(|item| item.status == "in_progress") else { return };
        item.status = status;
        let Some(item) = self.items.last() else { return };
        let text = TextField {
            delta: None,
            text: Some(&item.text),
            logprobs: (item.kind == Kind::Message).then(|| item.logprobs.list(&self.tokenizer)),
            logprobs_dropped: item.logprobs.dropped(),
        };
        match &item.kind {
            Kind::Reasoning => self.tell_item(chunks, "response.reasoning_text.done", text),
            Kind::Message => self.tell_item(chunks, "response.output_text.done", text),
            Kind::Call { name, .. } => {
                let fields = json!({"name": name, "arguments": item.text});
                self.tell_item(chunks, "response.function_call_arguments.done", fields);
            }
        }
        if item.has_part() {
            let part = PartField { part: item.part(&self.tokenizer) };
            self.tell_item(chunks, "response.content_part.done", part);
        }
        let output_index = self.items.len() - 1;
        let whole = ItemField { output_index, item: item.whole(true, &self.tokenizer) };
        self.tell(chunks, "response.output_item.done", whole);
    }

    /// Takes a piece of the answer.
    fn piece(&mut self, chunks: &mut Vec<Chunk>, piece: Piece) {
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
        let mut logprobs = std::mem::take(&mut self.logprobs);
        let Some(item) = self.items.last() else { return };
        let is_message = item.kind == Kind::Message;
        let delta = TextField {
            delta: Some(&text),
            text: None,
            logprobs: is_message.then(|| logprobs.list(&self.tokenizer)),
            logprobs_dropped: if is_message { logprobs.dropped() } else { 0 },
        };
        let event = match item.kind {
            Kind::Message => "response.output_text.delta",
            Kind::Reasoning => "response.reasoning_text.delta",
            Kind::Call { .. } => "response.function_call_arguments.delta",
        };
        self.tell_item(chunks, event, delta);
        let Some(item) = self.items.last_mut() else { return };
        item.text.push_str(&text);
        if is_message {
            item.logprobs.append(&mut logprobs);
        } else {
            logprobs.forget(&self.tokenizer, &mut self.account);
        }
    }

    fn token(&mut self, chunks: &mut Vec<Chunk>, token: Token, text: &str) {
        self.completion_tokens += 1;
        let pieces = self.splitter.push(text);
        if self.splitter.is_reasoning() {
            self.reasoning_tokens += 1;
        } else if self.asked.logprobs && !self.tokenizer.is_end_of_generation(token.id) {
            self.logprobs.push(token, 0, &self.tokenizer, &mut self.account);
        }
        pieces.into_iter().for_each(|piece| self.piece(chunks, piece));
    }

    fn finish(&mut self, chunks: &mut Vec<Chunk>, text: &str, reason: FinishReason) {
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
        if let Some(mut messages) = self.asked.store.take() {
            // The list goes on.
            let begun = messages.pop().is_some() && messages.len() > 1;
            messages.push_str(if begun { "," } else { "" });
            messages.push_str(&self.message().to_string());
            messages.push(']');
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
    fn response(&self) -> Response<'_> {
        let cut = self.finish.is_some_and(|reason| reason != FinishReason::Stop);
        let usage = self.finish.map(|_| {
            json!({
                "input_tokens": self.prompt_tokens,
                "input_tokens_details": {"cached_tokens": self.cached_tokens},
                "output_tokens": self.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
                "total_tokens": self.prompt_tokens + self.completion_tokens,
            })
        });
        Response {
            id: &self.id,
            object: "response",
            created_at: self.created,
            status: self.status(),
            error: None,
            incomplete_details: cut.then(|| json!({"reason": "max_output_tokens"})),
            model: &self.model,
            output: self.items.iter().map(|item| item.whole(true, &self.tokenizer)).collect(),
            echo: &self.asked.echo,
            usage,
        }
    }

    fn json(&self) -> String {
        to_json(&self.response())
    }
}

impl Assemble for ResponseReply {
    fn event(&mut self, _prompt: usize, event: BatchEvent) -> Result<Vec<Chunk>, ApiError> {
        let mut chunks = Vec::new();
        match event {
            BatchEvent::Started { cached_tokens } => {
                self.cached_tokens = cached_tokens;
                for kind in ["response.created", "response.in_progress"] {
                    self.tell(&mut chunks, kind, ResponseField { response: self.response() });
                }
            }
            BatchEvent::Token { token, text, .. } => self.token(&mut chunks, token, &text),
            BatchEvent::Finished { text, reason, .. } => self.finish(&mut chunks, &text, reason),
            BatchEvent::Failed(error) => return Err(ApiError::engine(&error, "input")),
        }
        Ok(self.numbered(chunks))
    }

    fn is_done(&self) -> bool {
        self.finish.is_some()
    }

    fn completion_tokens(&self) -> usize {
        self.completion_tokens
    }

    fn weight(&self) -> usize {
        self.account.bytes() + self.items.iter().map(|item| item.text.len()).sum::<usize>()
    }

    fn last_chunks(&mut self) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        let kind = format!("response.{}", self.status());
        self.tell(&mut chunks, &kind, ResponseField { response: self.response() });
        self.numbered(chunks)
    }

    fn error_chunks(&mut self, error: &ApiError) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        let mut response = self.response();
        response.status = "failed";
        let code = error.code.unwrap_or("server_error");
        response.error = Some(json!({"code": code, "message": error.message}));
        self.tell(&mut chunks, "response.failed", ResponseField { response });
        self.numbered(chunks)
    }

    fn names_events(&self) -> bool {
        true
    }

    fn whole(self: Box<Self>) -> (String, Account) {
        (self.json(), self.account)
    }
}
