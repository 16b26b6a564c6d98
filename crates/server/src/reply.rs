//! From the engine's events to the JSON of an answer, whole or in chunks.

use crate::app::App;
use crate::chat::Reading;
use crate::error::ApiError;
use crate::http::{to_json, unique, unix_time};
use crate::logprobs::{ChatLogProbs, LogProbs, TextLogProbs};
use crate::memory::Account;
use crate::model::Model;
use crate::params::Params;
use crate::splitter::{Piece, Splitter};
use crate::tools::CallPart;
use engine::{BatchEvent, FinishReason};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use tokenizer::{Detokenizer, Tokenizer};

/// A part of a streamed answer.
#[derive(Debug)]
pub struct Chunk {
    /// Its type, where it is named beside it.
    pub name: Option<String>,
    /// Its JSON.
    pub json: String,
}

/// Puts the engine's events together to the body of a response.
pub trait Assemble: Send {
    /// Takes an event of a prompt: the chunks that it makes, where the answer is streamed.
    fn event(&mut self, prompt: usize, event: BatchEvent) -> Result<Vec<Chunk>, ApiError>;

    /// Whether all answers have ended.
    fn is_done(&self) -> bool;

    /// Tokens of the answers so far.
    fn completion_tokens(&self) -> usize;

    /// About as many bytes as the whole answer would have by now.
    fn weight(&self) -> usize;

    /// The chunks after all answers have ended.
    fn last_chunks(&mut self) -> Vec<Chunk>;

    /// The chunks that end a stream where it cannot go on.
    fn error_chunks(&mut self, error: &ApiError) -> Vec<Chunk>;

    /// Whether chunks have types that are named beside them. The others end with a line that says so.
    fn names_events(&self) -> bool;

    /// The answer as a whole, where it is not streamed, and its place in memory.
    fn whole(self: Box<Self>) -> (String, Account);
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
    streams: bool,
    include_usage: bool,
    logprobs: bool,
    ignore_end: bool,
    choices: Vec<Choice>,
    /// Answers to each prompt.
    per_prompt: usize,
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
    /// Of the log-probabilities.
    account: Account,
}

#[derive(Debug)]
struct Choice {
    /// For conversations.
    splitter: Option<Splitter>,
    /// What a stream has not told, or all.
    content: String,
    reasoning: String,
    calls: Vec<Call>,
    /// What a stream has not told, or all.
    logprobs: LogProbs,
    /// The text of the tokens, whether it is certain or not, and its characters, for the places of tokens in texts.
    detokenizer: Detokenizer,
    offset: usize,
    /// Characters of the text that is certain.
    chars: usize,
    begun: bool,
    finish: Option<&'static str>,
}

#[derive(Debug)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

/// What every object of an answer has.
#[derive(Serialize)]
struct Frame<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
    choices: C,
}

#[derive(Serialize)]
struct ChatChunk<'a> {
    index: usize,
    delta: Value,
    logprobs: Option<ChatLogProbs<'a>>,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
struct ChatChoice<'a> {
    index: usize,
    message: Map<String, Value>,
    logprobs: Option<ChatLogProbs<'a>>,
    finish_reason: Option<&'static str>,
}

#[derive(Serialize)]
struct TextChoice<'a> {
    index: usize,
    text: &'a str,
    logprobs: Option<TextLogProbs<'a>>,
    finish_reason: Option<&'static str>,
}

impl Reply {
    /// An answer to prompts that have so many tokens together.
    pub fn new(
        app: &App,
        kind: Kind,
        model: &Model,
        params: &Params,
        prompts: usize,
        prompt_tokens: usize,
    ) -> Reply {
        let choices = (0..prompts * params.choices).map(|index| {
            let (splitter, content) = match &kind {
                Kind::Chat(reading) => (Some(reading.splitter()), String::new()),
                Kind::Text(echoes) => (None, echoes[index / params.choices].clone()),
            };
            let chars = content.chars().count();
            Choice {
                splitter,
                content,
                reasoning: String::new(),
                calls: Vec::new(),
                logprobs: LogProbs::default(),
                detokenizer: Detokenizer::new(Arc::clone(model.tokenizer())),
                offset: chars,
                chars,
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
            streams: params.stream,
            include_usage: params.include_usage,
            logprobs: params.options.logprobs.is_some(),
            ignore_end: params.options.ignore_end,
            per_prompt: params.choices,
            prompt_tokens,
            cached_tokens: 0,
            completion_tokens: 0,
            account: app.memory.account(),
        }
    }

    /// Text of an answer, and whether it is the last.
    fn text(&mut self, index: usize, text: &str, finished: Option<FinishReason>) -> Vec<Chunk> {
        if self.choices[index].splitter.is_some() {
            return self.chat_text(index, text, finished);
        }
        let choice = &mut self.choices[index];
        choice.content.push_str(text);
        choice.chars += text.chars().count();
        choice.finish = finished.map(FinishReason::name);
        match finished {
            // A text that ends an answer is not part of it, and neither are its tokens.
            Some(FinishReason::Stop) => choice.logprobs.cut(choice.chars, &self.tokenizer),
            // What was cut off in the middle of a character is one.
            Some(_) => choice.chars = usize::MAX,
            None => {}
        }
        // What is given back comes with the first text.
        let tells = !choice.content.is_empty() || finished.is_some();
        if self.streams && tells { vec![self.text_chunk(index)] } else { Vec::new() }
    }

    fn chat_text(&mut self, index: usize, text: &str, finished: Option<FinishReason>) -> Vec<Chunk> {
        let choice = &mut self.choices[index];
        let Some(splitter) = &mut choice.splitter else { return Vec::new() };
        let mut pieces = splitter.push(text);
        if finished.is_some() {
            pieces.extend(splitter.finish());
        }
        let called = splitter.calls() > 0;
        let mut deltas = Vec::new();
        if !std::mem::replace(&mut choice.begun, true) {
            deltas.push(json!({"role": "assistant", "content": ""}));
        }
        deltas.extend(pieces.into_iter().map(|piece| choice.take(piece, self.streams)));
        if deltas.is_empty() && finished.is_none() && !choice.logprobs.is_empty() {
            deltas.push(json!({"content": ""}));
        }
        let mut chunks = Vec::new();
        if self.streams {
            chunks.extend(deltas.into_iter().map(|delta| self.chat_chunk(index, delta, None)));
        }
        if let Some(reason) = finished {
            let reason = if called && reason == FinishReason::Stop { "tool_calls" } else { reason.name() };
            self.choices[index].finish = Some(reason);
            if self.streams {
                chunks.push(self.chat_chunk(index, json!({}), Some(reason)));
            }
        }
        chunks
    }

    fn chat_chunk(&mut self, index: usize, delta: Value, finish_reason: Option<&'static str>) -> Chunk {
        let told = self.untold(index, usize::MAX);
        let logprobs = told.as_ref().map(|told| told.of_chat(&self.tokenizer));
        let chunk = self.frame(true, [ChatChunk { index, delta, logprobs, finish_reason }]);
        self.forget(told);
        chunk
    }

    fn text_chunk(&mut self, index: usize) -> Chunk {
        let text = std::mem::take(&mut self.choices[index].content);
        let told = self.untold(index, self.choices[index].chars);
        let logprobs = told.as_ref().map(|told| told.of_text(&self.tokenizer));
        let finish_reason = self.choices[index].finish;
        let chunk = self.frame(true, [TextChoice { index, text: &text, logprobs, finish_reason }]);
        self.forget(told);
        chunk
    }

    /// Log-probabilities of tokens that begin within so many characters and that no chunk has told yet.
    fn untold(&mut self, index: usize, chars: usize) -> Option<LogProbs> {
        Some(self.choices[index].logprobs.begun_within(chars)).filter(|told| !told.is_empty())
    }

    fn forget(&mut self, told: Option<LogProbs>) {
        if let Some(told) = told {
            told.forget(&self.tokenizer, &mut self.account);
        }
    }

    /// An object of the answer.
    fn frame(&self, chunk: bool, choices: impl Serialize) -> Chunk {
        let object = match (&self.kind, chunk) {
            (Kind::Chat(_), true) => "chat.completion.chunk",
            (Kind::Chat(_), false) => "chat.completion",
            (Kind::Text(_), _) => "text_completion",
        };
        let usage = if chunk { self.include_usage.then_some(Value::Null) } else { Some(self.usage()) };
        self.frame_of(object, usage, choices)
    }

    fn frame_of(&self, object: &'static str, usage: Option<Value>, choices: impl Serialize) -> Chunk {
        let json = to_json(&Frame {
            id: &self.id,
            object,
            created: self.created,
            model: &self.model,
            system_fingerprint: concat!("smelt-", env!("CARGO_PKG_VERSION")),
            usage,
            choices,
        });
        Chunk { name: None, json }
    }

    fn usage(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        })
    }
}

impl Choice {
    /// Takes a piece of an answer in a conversation: what a chunk tells of it. A stream keeps nothing but that.
    fn take(&mut self, piece: Piece, streams: bool) -> Value {
        match piece {
            Piece::Content(text) => {
                if !streams {
                    self.content.push_str(&text);
                }
                json!({"content": text})
            }
            Piece::Reasoning(text) => {
                if !streams {
                    self.reasoning.push_str(&text);
                }
                json!({"reasoning_content": text})
            }
            Piece::Call(number, CallPart::Name(name)) => {
                let id = unique("call_");
                if !streams {
                    self.calls.push(Call { id: id.clone(), name: name.clone(), arguments: String::new() });
                }
                json!({"tool_calls": [{
                    "index": number, "id": id, "type": "function",
                    "function": {"name": name, "arguments": ""},
                }]})
            }
            Piece::Call(number, CallPart::Arguments(text)) => {
                if let Some(call) = self.calls.get_mut(number) {
                    call.arguments.push_str(&text);
                }
                json!({"tool_calls": [{"index": number, "function": {"arguments": text}}]})
            }
        }
    }

    /// The message that it is, in a conversation.
    fn message(&mut self) -> Map<String, Value> {
        let mut message = Map::new();
        message.insert("role".into(), "assistant".into());
        let silent = self.content.is_empty() && !self.calls.is_empty();
        let content = std::mem::take(&mut self.content);
        message.insert("content".into(), if silent { Value::Null } else { content.into() });
        message.insert("refusal".into(), Value::Null);
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".into(), std::mem::take(&mut self.reasoning).into());
        }
        if !self.calls.is_empty() {
            let calls = self.calls.drain(..).map(|call| {
                json!({
                    "id": call.id, "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                })
            });
            message.insert("tool_calls".into(), calls.collect());
        }
        message
    }
}

impl Assemble for Reply {
    fn is_done(&self) -> bool {
        self.choices.iter().all(|choice| choice.finish.is_some())
    }

    fn completion_tokens(&self) -> usize {
        self.completion_tokens
    }

    fn weight(&self) -> usize {
        let texts = |choice: &Choice| choice.content.len() + choice.reasoning.len();
        self.account.bytes() + self.choices.iter().map(texts).sum::<usize>()
    }

    fn event(&mut self, prompt: usize, event: BatchEvent) -> Result<Vec<Chunk>, ApiError> {
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
                    let choice = &mut self.choices[index];
                    let (id, offset) = (token.id, choice.offset);
                    choice.logprobs.push(token, offset, &self.tokenizer, &mut self.account);
                    choice.offset += choice.detokenizer.push(id).chars().count();
                }
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
    fn last_chunks(&mut self) -> Vec<Chunk> {
        if !self.include_usage {
            return Vec::new();
        }
        let object =
            if matches!(self.kind, Kind::Chat(_)) { "chat.completion.chunk" } else { "text_completion" };
        vec![self.frame_of(object, Some(self.usage()), [(); 0])]
    }

    fn error_chunks(&mut self, error: &ApiError) -> Vec<Chunk> {
        vec![Chunk { name: None, json: error.body().to_string() }]
    }

    fn names_events(&self) -> bool {
        false
    }

    fn whole(mut self: Box<Self>) -> (String, Account) {
        let mut choices = std::mem::take(&mut self.choices);
        let (wanted, tokenizer) = (self.logprobs, &*self.tokenizer);
        let Chunk { json, .. } = if matches!(self.kind, Kind::Chat(_)) {
            let choices = choices.iter_mut().enumerate().map(|(index, choice)| ChatChoice {
                index,
                message: choice.message(),
                logprobs: wanted.then(|| choice.logprobs.of_chat(tokenizer)),
                finish_reason: choice.finish,
            });
            self.frame(false, choices.collect::<Vec<_>>())
        } else {
            let choices = choices.iter().enumerate().map(|(index, choice)| TextChoice {
                index,
                text: &choice.content,
                logprobs: wanted.then(|| choice.logprobs.of_text(tokenizer)),
                finish_reason: choice.finish,
            });
            self.frame(false, choices.collect::<Vec<_>>())
        };
        (json, self.account)
    }
}
