//! Routes that tell rather than answer: the model, health, slots, and what text is to the model.

use crate::app::App;
use crate::completions;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::model::Model;
use axum::http::StatusCode;
use chat_format::token_text;
use engine::Phase;
use serde_json::{Value, json};
use tokenizer::EncodeOptions;

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

/// `POST /tokenize`.
pub fn tokenize(body: Value, model: &Model) -> Result<Value> {
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
    let tokens: Value = if pieces {
        ids.iter().map(|&id| json!({"id": id, "piece": token_text(model.tokenizer(), id)})).collect()
    } else {
        json!(ids)
    };
    Ok(json!({"tokens": tokens, "count": ids.len()}))
}

/// `POST /detokenize`.
pub fn detokenize(body: Value, model: &Model) -> Result<Value> {
    let mut fields = Fields::new(body, "")?;
    crate::params::check_model(&mut fields, model)?;
    let tokens = fields.array("tokens")?;
    let tokens = fields.required("tokens", tokens)?;
    fields.finish(&[])?;
    let (_, ids) = completions::ids("tokens", &tokens, model)?;
    let text = String::from_utf8_lossy(&model.tokenizer().decode(&ids, true)).into_owned();
    Ok(json!({"content": text}))
}
