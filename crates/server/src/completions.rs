//! `POST /v1/completions`: from the request to prompts.

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::model::Model;
use crate::params::{Form, IGNORED, MAX_TOP_LOGPROBS, Params};
use chat_format::token_text;
use engine::Request;
use grammar::Rule;
use serde_json::Value;
use tokenizer::EncodeOptions;

type Result<T> = std::result::Result<T, ApiError>;

/// Most answers to all prompts of a request together.
const MAX_ANSWERS: usize = 128;

/// Tokens of an answer where the request does not say, as in OpenAI's API.
const DEFAULT_MAX_TOKENS: usize = 16;

/// What a request asks for.
#[derive(Debug)]
pub struct Completion {
    /// For each prompt, the request to the engine, without what the answers must be.
    pub requests: Vec<Request>,
    /// The texts to begin the answers with.
    pub echoes: Vec<String>,
    /// What the answers must be.
    pub form: Option<Form>,
}

/// Reads a request.
pub fn read(body: Value, model: &Model) -> Result<(Params, Completion)> {
    let mut fields = Fields::new(body, "")?;
    let mut params = Params::read(&mut fields, model)?;
    let prompt = fields.value("prompt");
    let prompt = fields.required("prompt", prompt)?;
    let echo = fields.bool("echo")?.unwrap_or(false);
    let prompts = prompts(prompt, echo, model)?;
    // Nothing can be asked for only where there is something to give back.
    params.options.max_tokens =
        Some(fields.count("max_tokens", u32::from(!echo)..=u32::MAX)?.unwrap_or(DEFAULT_MAX_TOKENS));
    params.options.logprobs = fields.count("logprobs", 0..=MAX_TOP_LOGPROBS)?;
    if echo && params.options.logprobs.is_some() {
        let message = "'logprobs' cannot be combined with 'echo': those of the prompt are not available.";
        return Err(ApiError::field("logprobs", "unsupported_value", message));
    }
    if let Some(best_of) = fields.count("best_of", 1..=128)?
        && best_of != params.choices
    {
        let message = "Invalid 'best_of': expected the same value as 'n'; answers are not ranked.";
        return Err(ApiError::field("best_of", "unsupported_value", message));
    }
    if fields.string("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        let message = "Invalid 'suffix': text cannot be inserted, only continued.";
        return Err(ApiError::field("suffix", "unsupported_value", message));
    }
    let grammar = fields.string("grammar")?;
    fields.finish(&IGNORED)?;
    if prompts.len() * params.choices > MAX_ANSWERS {
        let message = format!(
            "Invalid 'prompt': expected at most {MAX_ANSWERS} answers, but got {} prompts with {} each.",
            prompts.len(),
            params.choices
        );
        return Err(ApiError::field("prompt", "array_above_max_length", message));
    }
    let requests = prompts.into_iter().map(|(text, ids)| {
        let mut request = Request::new(ids, params.options.clone());
        request.choices = params.choices;
        (request, text)
    });
    let (requests, echoes) = requests.unzip();
    let form = grammar.map(|source| Form { rule: Rule::Lark(source), field: "grammar" });
    Ok((params, Completion { requests, echoes, form }))
}

/// A text, ids, or a list of either; with their texts, if these are to be given back.
fn prompts(value: Value, echo: bool, model: &Model) -> Result<Vec<(String, Vec<u32>)>> {
    match value {
        Value::Array(items) if items.is_empty() => {
            let message = "Invalid 'prompt': expected at least one prompt or token, but got an empty array.";
            Err(ApiError::field("prompt", "empty_array", message))
        }
        Value::Array(items) if items.iter().all(Value::is_number) => {
            Ok(vec![prompt_of_ids("prompt", &items, echo, model)?])
        }
        Value::Array(items) => items
            .into_iter()
            .enumerate()
            .map(|(index, item)| prompt(&format!("prompt[{index}]"), item, echo, model))
            .collect(),
        other => Ok(vec![prompt("prompt", other, echo, model)?]),
    }
}

fn prompt(name: &str, value: Value, echo: bool, model: &Model) -> Result<(String, Vec<u32>)> {
    match value {
        Value::String(text) => {
            let options = EncodeOptions { add_special: true, parse_special: true };
            let ids = model.tokenizer().encode(&text, options);
            if ids.is_empty() {
                let message = format!("Invalid '{name}': it is empty, there is nothing to continue.");
                return Err(ApiError::field(name, "invalid_value", message));
            }
            Ok((if echo { text } else { String::new() }, ids))
        }
        Value::Array(items) if !items.is_empty() => prompt_of_ids(name, &items, echo, model),
        other => Err(wrong_type(name, "a string or an array of token ids", &other)),
    }
}

fn prompt_of_ids(name: &str, items: &[Value], echo: bool, model: &Model) -> Result<(String, Vec<u32>)> {
    let ids = ids(name, items, model)?;
    // Longer ones are refused, and their texts could be a hundred times as long.
    let echo = echo && ids.len() <= model.engine.context();
    Ok((if echo { text_of(&ids, model) } else { String::new() }, ids))
}

/// Token ids, checked.
pub fn ids(name: &str, items: &[Value], model: &Model) -> Result<Vec<u32>> {
    let limit = model.tokenizer().vocab_size();
    let id = |(index, item): (usize, &Value)| {
        let id = item.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < limit);
        id.ok_or_else(|| {
            let name = format!("{name}[{index}]");
            let message = format!("Invalid '{name}': expected a token id below {limit}, but got {item}.");
            ApiError::field(name, "invalid_value", message)
        })
    };
    items.iter().enumerate().map(id).collect()
}

/// The text of token ids; that of a control token alone too.
pub fn text_of(ids: &[u32], model: &Model) -> String {
    match *ids {
        [id] => token_text(model.tokenizer(), id),
        _ => String::from_utf8_lossy(&model.tokenizer().decode(ids, true)).into_owned(),
    }
}
