//! The fields that both kinds of completion have.

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::memory::Account;
use crate::model::Model;
use engine::{Constraint, GenerateOptions, SamplerParams};
use grammar::{Grammar, Rule};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

type Result<T> = std::result::Result<T, ApiError>;

/// Most `top_logprobs`, as in OpenAI's API.
pub const MAX_TOP_LOGPROBS: u32 = 20;

/// Fields of OpenAI's API that have no effect here: they are about accounts, or allow what is done anyway.
pub const IGNORED: [&str; 9] = [
    "user",
    "store",
    "metadata",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "verbosity",
    "prediction",
];

/// Most texts of `stop`, and their longest.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;

/// What a request asks for, beside its prompt.
#[derive(Debug)]
pub struct Params {
    pub options: GenerateOptions,
    pub choices: usize,
    pub stream: bool,
    pub include_usage: bool,
}

impl Params {
    /// Reads the common fields. Log-probabilities are for the caller.
    pub fn read(fields: &mut Fields, model: &Model) -> Result<Params> {
        check_model(fields, model)?;
        let default = SamplerParams::default();
        let sampler = SamplerParams {
            temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(default.temperature),
            top_k: top_k(fields)?.unwrap_or(default.top_k),
            top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(default.top_p),
            min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(default.min_p),
            typical_p: fields.number("typical_p", 0.0..=1.0)?.unwrap_or(default.typical_p),
            repeat_penalty: repeat_penalty(fields)?.unwrap_or(default.repeat_penalty),
            repeat_last_n: fields.count("repeat_last_n", 0..=u32::MAX)?.unwrap_or(usize::MAX),
            presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0),
            frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0),
            logit_bias: logit_bias(fields, model)?,
            seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64),
        };
        let stream = fields.bool("stream")?.unwrap_or(false);
        let stream_options = fields.object("stream_options")?;
        let include_usage = match stream_options {
            Some(_) if !stream => {
                let message = "The 'stream_options' parameter is only allowed when 'stream' is enabled.";
                return Err(ApiError::field("stream_options", "invalid_value", message));
            }
            Some(mut options) => {
                let include = options.bool("include_usage")?.unwrap_or(false);
                options.finish(&["include_obfuscation"])?;
                include
            }
            None => false,
        };
        if let Some(other) = fields.strings("modalities")?.iter().find(|&modality| modality != "text") {
            let message =
                format!("Invalid 'modalities': this model answers in text alone, but got '{other}'.");
            return Err(ApiError::field("modalities", "unsupported_value", message));
        }
        let most = u32::try_from(model.engine.options().parallel).unwrap_or(u32::MAX).min(128);
        Ok(Params {
            choices: fields.count("n", 1..=most)?.unwrap_or(1),
            options: GenerateOptions {
                sampler,
                stop: stop(fields)?,
                ignore_end: fields.bool("ignore_eos")?.unwrap_or(false),
                ..GenerateOptions::default()
            },
            stream,
            include_usage,
        })
    }
}

/// The `model` field: none, or a name of the model that is there.
pub fn check_model(fields: &mut Fields, model: &Model) -> Result<()> {
    match fields.string("model")? {
        Some(name) if !model.is_called(&name) => Err(no_such_model(&name, model)),
        _ => Ok(()),
    }
}

/// No model of this name is there.
pub fn no_such_model(name: &str, model: &Model) -> ApiError {
    let message = format!("The model '{name}' does not exist; this server has '{}'.", model.name);
    let error = ApiError::field("model", "model_not_found", message);
    ApiError { status: axum::http::StatusCode::NOT_FOUND, ..error }
}

/// `top_k`; -1 is off, as vLLM has it, and so is 0.
fn top_k(fields: &mut Fields) -> Result<Option<usize>> {
    Ok(fields.integer("top_k", -1..=i64::from(u32::MAX))?.map(|k| usize::try_from(k).unwrap_or(0)))
}

/// Under llama.cpp's name or vLLM's.
fn repeat_penalty(fields: &mut Fields) -> Result<Option<f32>> {
    let range = 0.01..=100.0;
    let first = fields.number("repeat_penalty", range.clone())?;
    Ok(fields.number("repetition_penalty", range)?.or(first))
}

fn logit_bias(fields: &mut Fields, model: &Model) -> Result<Vec<(u32, f32)>> {
    let Some(value) = fields.value("logit_bias") else { return Ok(Vec::new()) };
    let Value::Object(map) = value else { return Err(wrong_type("logit_bias", "an object", &value)) };
    let vocabulary = model.tokenizer().vocab_size();
    let entry = |(key, value): (String, Value)| {
        let name = format!("logit_bias.{key}");
        // The parser would take a sign.
        let digits = Some(&key).filter(|key| key.bytes().all(|byte| byte.is_ascii_digit()));
        let id = digits.and_then(|key| key.parse::<u32>().ok()).filter(|&id| (id as usize) < vocabulary);
        let id = id.ok_or_else(|| {
            let message = format!(
                "Invalid key in 'logit_bias': expected a token id below {vocabulary}, but got '{key}'."
            );
            ApiError::field("logit_bias", "invalid_value", message)
        })?;
        let bias = value.as_f64().ok_or_else(|| wrong_type(&name, "a number", &value))?;
        if !(-100.0..=100.0).contains(&bias) {
            let message =
                format!("Invalid '{name}': expected a value from -100 to 100, but got {bias} instead.");
            return Err(ApiError::field(name, "invalid_value", message));
        }
        // The ends are meant as a ban and as a choice.
        Ok((id, if bias <= -100.0 { f32::NEG_INFINITY } else { bias as f32 }))
    };
    map.into_iter().map(entry).collect()
}

fn stop(fields: &mut Fields) -> Result<Vec<String>> {
    let stop = fields.strings("stop")?;
    if stop.len() > MAX_STOPS {
        let message = format!("Invalid 'stop': expected at most {MAX_STOPS} texts, but got {}.", stop.len());
        return Err(ApiError::field("stop", "array_above_max_length", message));
    }
    for (index, text) in stop.iter().enumerate() {
        if text.is_empty() || text.len() > MAX_STOP_BYTES {
            let name = format!("stop[{index}]");
            let message =
                format!("Invalid '{name}': expected 1 to {MAX_STOP_BYTES} bytes, but got {}.", text.len());
            return Err(ApiError::field(name, "invalid_value", message));
        }
    }
    Ok(stop)
}

/// A grammar as the engine asks it, and its room in memory, which it shares with its copies.
#[derive(Debug)]
struct GrammarConstraint(Grammar, Arc<Account>);

impl Constraint for GrammarConstraint {
    fn mask(&mut self, logits: &mut [f32]) -> std::result::Result<(), String> {
        self.0.mask(logits).map_err(|error| error.to_string())
    }

    fn accept(&mut self, token: u32) -> std::result::Result<bool, String> {
        self.0.accept(token).map_err(|error| error.to_string())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(GrammarConstraint(self.0.fork(), Arc::clone(&self.1)))
    }
}

/// A rule and the field that it came from.
#[derive(Debug, PartialEq)]
pub struct Form {
    pub rule: Rule,
    pub field: &'static str,
}

/// What a compiled rule is counted as, and each copy of it beyond the first: some bytes, and some for each of its source.
/// Measured on schemas of up to 90 KB, which took 190 bytes for each of theirs, and up to 3 MiB more in an answer.
const COMPILED: (usize, usize) = (3 << 20, 256);
const COPIED: (usize, usize) = (1 << 20, 32);

impl Form {
    /// Bytes that the rule is counted as in so many answers.
    pub fn memory(&self, answers: usize) -> usize {
        let source = match &self.rule {
            Rule::Json(schema) | Rule::JsonBetween(_, schema, _) => schema.to_string().len(),
            Rule::Lark(source) | Rule::Regex(source) => source.len(),
        };
        let of = |(base, each): (usize, usize)| source.saturating_mul(each).saturating_add(base);
        of(COPIED).saturating_mul(answers.saturating_sub(1)).saturating_add(of(COMPILED))
    }

    /// The rule as the engine takes it, with its room in memory. This can take a second; it ends soon after `stop` has
    /// become true.
    pub fn compile(&self, model: &Model, account: Account, stop: &AtomicBool) -> Result<Box<dyn Constraint>> {
        let grammar = model.grammars().and_then(|grammars| grammars.compile(&self.rule, stop));
        match grammar {
            Ok(grammar) => Ok(Box::new(GrammarConstraint(grammar, Arc::new(account)))),
            Err(error) => Err(not_compiled(&error, self.field)),
        }
    }
}

/// Why a grammar cannot be used: mostly because of what it is.
fn not_compiled(error: &grammar::Error, field: &str) -> ApiError {
    match error {
        grammar::Error::NoThread(_) => ApiError::unavailable("overloaded", error.to_string(), 1),
        _ => ApiError::field(field, "invalid_value", format!("Invalid '{field}': {error}.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;

    #[test]
    fn a_rule_is_counted_by_its_source_and_its_answers() {
        let memory = |length: usize, answers| {
            let rule = Rule::Regex("a".repeat(length));
            Form { rule, field: "response_format.regex" }.memory(answers) >> 10
        };
        assert_eq!((memory(0, 1), memory(1 << 10, 1)), (3072, 3072 + 256));
        assert_eq!((memory(0, 3), memory(1 << 10, 3)), (3072 + 2048, 3072 + 256 + 2 * (1024 + 32)));
    }

    #[test]
    fn a_lack_of_threads_is_not_the_clients_fault() {
        let error = not_compiled(&grammar::Error::NoThread("none left".into()), "response_format");
        assert_eq!((error.status, error.retry_after), (StatusCode::SERVICE_UNAVAILABLE, Some(1)));
        let error = not_compiled(&grammar::Error::Invalid("?".into()), "response_format");
        assert_eq!(
            (error.status, error.param.as_deref()),
            (StatusCode::BAD_REQUEST, Some("response_format"))
        );
    }
}
