//! `POST /v1/embeddings`: texts as vectors.

use crate::completions::ids;
use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::http::to_json;
use crate::memory::Account;
use crate::model::Model;
use crate::params::check_model;
use axum::http::StatusCode;
use engine::{BatchEngine, EmbedRequest};
use serde_json::{Value, json};
use std::iter::once;
use std::time::Duration;
use tokenizer::EncodeOptions;
use tokio::sync::oneshot;

type Result<T> = std::result::Result<T, ApiError>;

/// Most texts of a request, as in OpenAI's API.
const MAX_INPUTS: usize = 2048;

/// How vectors are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    Float,
    /// The bytes of little-endian `f32`s.
    Base64,
}

/// What a request asks for, beside its texts.
#[derive(Debug)]
pub struct Wanted {
    encoding: Encoding,
    dimensions: Option<usize>,
    tokens: usize,
}

/// Reads a request. The vectors count as part of it.
pub fn read(body: Value, model: &Model, account: &mut Account) -> Result<(EmbedRequest, Wanted)> {
    let mut fields = Fields::new(body, "")?;
    check_model(&mut fields, model)?;
    let pooling = model.pooling.as_ref().map_err(|message| {
        let message = format!("This model makes no embeddings: {message}.");
        ApiError::new(StatusCode::BAD_REQUEST, Some("unsupported_model"), message)
    })?;
    let encoding = match fields.string("encoding_format")?.as_deref() {
        None | Some("float") => Encoding::Float,
        Some("base64") => Encoding::Base64,
        Some(other) => {
            let message =
                format!("Invalid 'encoding_format': expected 'float' or 'base64', but got '{other}'.");
            return Err(ApiError::field("encoding_format", "invalid_value", message));
        }
    };
    let columns = u32::try_from(model.embedding_size).unwrap_or(u32::MAX);
    let dimensions = fields.count("dimensions", 1..=columns)?;
    let input = fields.value("input");
    let inputs = inputs(fields.required("input", input)?, model)?;
    fields.finish(&["user"])?;
    account.grow(inputs.len().saturating_mul(model.embedding_size * size_of::<f32>()))?;
    let tokens = inputs.iter().map(Vec::len).sum();
    let request = EmbedRequest { name: String::new(), inputs, pooling: *pooling };
    Ok((request, Wanted { encoding, dimensions, tokens }))
}

/// A text, ids, or a list of either.
fn inputs(value: Value, model: &Model) -> Result<Vec<Vec<u32>>> {
    let inputs = match value {
        Value::Array(items) if items.is_empty() => {
            let message = "Invalid 'input': expected at least one text or token, but got an empty array.";
            return Err(ApiError::field("input", "empty_array", message));
        }
        Value::Array(items) if items.iter().all(Value::is_number) => {
            vec![("input".to_owned(), ids("input", &items, model)?)]
        }
        Value::Array(items) if items.len() > MAX_INPUTS => {
            let message =
                format!("Invalid 'input': expected at most {MAX_INPUTS} texts, but got {}.", items.len());
            return Err(ApiError::field("input", "array_above_max_length", message));
        }
        Value::Array(items) => {
            let items = items.into_iter().enumerate().map(|(index, item)| {
                let name = format!("input[{index}]");
                let ids = input(&name, item, model)?;
                Ok((name, ids))
            });
            items.collect::<Result<_>>()?
        }
        other => vec![("input".to_owned(), input("input", other, model)?)],
    };
    let context = model.engine.context();
    for (name, ids) in &inputs {
        if ids.len() > context {
            let error = engine::Error::ContextExceeded { tokens: ids.len(), context };
            return Err(ApiError::engine(&error, name));
        }
    }
    Ok(inputs.into_iter().map(|(_, ids)| ids).collect())
}

fn input(name: &str, value: Value, model: &Model) -> Result<Vec<u32>> {
    let ids = match value {
        // What a text says never becomes a control token.
        Value::String(text) => {
            model.tokenizer().encode(&text, EncodeOptions { add_special: true, parse_special: false })
        }
        Value::Array(items) => ids(name, &items, model)?,
        other => return Err(wrong_type(name, "a string or an array of token ids", &other)),
    };
    if ids.is_empty() {
        let message = format!("Invalid '{name}': it is empty.");
        return Err(ApiError::field(name, "invalid_value", message));
    }
    Ok(ids)
}

/// Waits for the vectors. Dropping the future cancels the request.
pub async fn compute(engine: &BatchEngine, request: EmbedRequest, limit: Duration) -> Result<Vec<Vec<f32>>> {
    let (sender, receiver) = oneshot::channel();
    let sink = Box::new(move |result| {
        // Whoever asked may have left.
        let _ = sender.send(result);
    });
    let error = |error: engine::Error| ApiError::engine(&error, "input");
    let _handle = engine.embed(request, sink).map_err(error)?;
    match tokio::time::timeout(limit, receiver).await {
        Ok(Ok(result)) => result.map_err(error),
        Ok(Err(_)) => {
            let reason = "it ended before the request did".into();
            Err(error(engine::Error::Stopped { reason }))
        }
        Err(_) => {
            let message = format!("the embeddings took longer than {} seconds", limit.as_secs());
            Err(ApiError::new(StatusCode::GATEWAY_TIMEOUT, Some("timeout"), message))
        }
    }
}

/// The answer as text, a vector at a time.
pub fn answer(
    vectors: Vec<Vec<f32>>,
    wanted: Wanted,
    model: &Model,
) -> impl Iterator<Item = String> + Send + Unpin + use<> {
    let end = json!({
        "object": "list",
        "model": model.name,
        "usage": {"prompt_tokens": wanted.tokens, "total_tokens": wanted.tokens},
    });
    // What follows the list's end is another field.
    let end = end.to_string().replacen('{', "],", 1);
    let (encoding, dimensions) = (wanted.encoding, wanted.dimensions);
    let data = vectors.into_iter().enumerate().map(move |(index, mut vector)| {
        vector.truncate(dimensions.unwrap_or(usize::MAX));
        normalise(&mut vector);
        let embedding = match encoding {
            Encoding::Float => to_json(&vector),
            Encoding::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
                format!("\"{}\"", base64(&bytes))
            }
        };
        let comma = if index == 0 { "" } else { "," };
        format!("{comma}{{\"object\":\"embedding\",\"index\":{index},\"embedding\":{embedding}}}")
    });
    once("{\"data\":[".to_owned()).chain(data).chain(once(end))
}

/// Makes a vector's length 1. One of length 0 has no direction and stays.
fn normalise(vector: &mut [f32]) {
    let length = vector.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
}

/// Base64 with padding (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let number =
            (0..3).fold(0, |number, at| number << 8 | u32::from(group.get(at).copied().unwrap_or(0)));
        for digit in 0..4 {
            let value = number >> (18 - 6 * digit) & 63;
            text.push(if digit <= group.len() { char::from(DIGITS[value as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_as_the_rfc_has_them() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn vectors_get_the_length_1_and_nothing_stays_nothing() {
        let mut vector = [3.0, -4.0];
        normalise(&mut vector);
        assert_eq!(vector, [0.6, -0.8]);
        let mut nothing = [0.0, 0.0];
        normalise(&mut nothing);
        assert_eq!(nothing, [0.0, 0.0]);
        // The squares are no `f32`s.
        let mut huge = [0.0, -1e30];
        normalise(&mut huge);
        assert_eq!(huge, [0.0, -1.0]);
    }
}
