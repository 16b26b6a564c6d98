//! Routes that tell rather than answer: the model, health, slots, and what text is to the model.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::http::to_json;
use crate::memory::Account;
use crate::model::Model;
use crate::{chat, completions};
use axum::http::StatusCode;
use chat_format::token_text;
use engine::Phase;
use serde_json::{Value, json};
use std::fmt::Write;
use std::iter::once;
use std::sync::Arc;
use tokenizer::{EncodeOptions, Tokenizer};

type Result<T> = std::result::Result<T, ApiError>;

/// An entry of `/v1/models`.
pub fn model(model: &Model) -> Value {
    json!({
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "smelt",
        "max_model_len": model.engine.context(),
        "meta": {
            "architecture": model.architecture,
            "device": model.device,
            "vocabulary": model.tokenizer().vocab_size(),
            "trained_context": model.trained_context,
            "aliases": model.aliases,
            "embedding_size": model.embedding_size,
            "pooling": model.pooling.as_ref().ok().map(|pooling| pooling.name()),
        },
    })
}

/// Whether requests are answered.
pub fn health(app: &App) -> (StatusCode, Value) {
    let stopped = app.loaded().and_then(|model| model.engine.stopped());
    let (status, state) = match (&stopped, app.loaded()) {
        (Some(_), _) => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
        _ if app.is_draining() => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        (None, Some(model)) if model.is_stuck() => (StatusCode::SERVICE_UNAVAILABLE, "stuck"),
        (None, None) => (StatusCode::SERVICE_UNAVAILABLE, "loading"),
        (None, Some(_)) => (StatusCode::OK, "ok"),
    };
    let mut body = json!({"status": state});
    if let Some(reason) = stopped {
        body["reason"] = reason.into();
    }
    (status, body)
}

/// What is being computed.
pub fn slots(model: &Model) -> Value {
    let stats = model.engine.stats();
    let slots = stats.slots.iter().map(|slot| {
        json!({
            "request": slot.name,
            "choice": slot.choice,
            "state": match slot.phase {
                Phase::Prefill => "prefill",
                Phase::Decode => "decode",
                Phase::Embed => "embed",
            },
            "prompt_tokens": slot.prompt_tokens,
            "cached_tokens": slot.cached_tokens,
            "generated_tokens": slot.generated_tokens,
        })
    });
    json!({
        "slots": slots.collect::<Vec<_>>(),
        "parallel": model.engine.options().parallel,
        "waiting": stats.waiting,
        "pages": {"running": stats.pages_running, "cached": stats.pages_cached, "total": stats.pages_total},
    })
}

/// Tokens that are written down at a time.
const PIECE: usize = 2048;

/// A text's tokens.
#[derive(Debug)]
pub struct Tokens {
    ids: Vec<u32>,
    /// With their texts.
    pieces: bool,
}

/// `POST /tokenize`.
pub fn tokenize(body: Value, model: &Model, account: &mut Account) -> Result<Tokens> {
    let mut fields = Fields::new(body, "")?;
    crate::params::check_model(&mut fields, model)?;
    let content = fields.string("content")?;
    let content = fields.required("content", content)?;
    let options = EncodeOptions {
        add_special: fields.bool("add_special")?.unwrap_or(false),
        parse_special: fields.bool("parse_special")?.unwrap_or(true),
    };
    let pieces = fields.bool("with_pieces")?.unwrap_or(false);
    fields.finish(&[])?;
    let ids = model.tokenizer().encode(&content, options);
    account.grow(size_of_val(&*ids))?;
    Ok(Tokens { ids, pieces })
}

impl Tokens {
    /// The answer as text, some thousand tokens at a time: with pieces, a text's tokens take many times its length.
    pub fn write(self, tokenizer: Arc<Tokenizer>) -> impl Iterator<Item = String> + Send + Unpin {
        let count = self.ids.len();
        let parts = (0..count).step_by(PIECE).map(move |start| {
            let ids = &self.ids[start..count.min(start + PIECE)];
            let mut text = String::new();
            for (at, &id) in (start..).zip(ids) {
                text.push_str(if at == 0 { "" } else { "," });
                if self.pieces {
                    let _ =
                        write!(text, "{{\"id\":{id},\"piece\":{}}}", to_json(&token_text(&tokenizer, id)));
                } else {
                    let _ = write!(text, "{id}");
                }
            }
            text
        });
        once("{\"tokens\":[".to_owned()).chain(parts).chain(once(format!("],\"count\":{count}}}")))
    }
}

/// `POST /detokenize`: the answer as JSON.
pub fn detokenize(body: Value, model: &Model, account: &mut Account) -> Result<String> {
    let mut fields = Fields::new(body, "")?;
    crate::params::check_model(&mut fields, model)?;
    let tokens = fields.array("tokens")?;
    let tokens = fields.required("tokens", tokens)?;
    fields.finish(&[])?;
    let ids = completions::ids("tokens", &tokens, model)?;
    // A token can stand for a hundred bytes, and a byte for six of JSON.
    let bytes: usize = ids.iter().map(|&id| model.tokenizer().token_bytes(id).len()).sum();
    account.grow(bytes.saturating_mul(8))?;
    let text = model.tokenizer().decode(&ids, true);
    Ok(to_json(&json!({"content": String::from_utf8_lossy(&text)})))
}

/// `POST /apply-template`: the answer as JSON.
pub fn apply_template(body: Value, model: &Model, account: &mut Account) -> Result<String> {
    let rendered = chat::render(body, model)?;
    let text = to_json(&json!({"prompt": rendered.text}));
    account.grow(text.len())?;
    Ok(text)
}
