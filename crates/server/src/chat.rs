//! `POST /v1/chat/completions`: from the request to a prompt.

use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::model::Model;
use crate::params::{Form, IGNORED, MAX_TOP_LOGPROBS, Params};
use crate::splitter::{END_THINK, Splitter, THINK};
use crate::tools::{ToolSyntax, Tools};
use chat::{Conversation, Rendered};
use engine::{AfterText, Request};
use grammar::Rule;
use serde_json::{Map, Value, json};

type Result<T> = std::result::Result<T, ApiError>;

const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Most messages of a request.
const MAX_MESSAGES: usize = 4096;

/// A conversation as a prompt.
#[derive(Debug)]
pub struct Prompt {
    pub rendered: Rendered,
    /// How an answer to it is read.
    pub reading: Reading,
    /// What an answer must be.
    pub form: Option<Form>,
    has_tools: bool,
}

/// How an answer is told apart into its parts.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    thinks: bool,
    thinking: bool,
    syntax: Option<ToolSyntax>,
    parallel: bool,
}

impl Reading {
    /// A splitter for one answer.
    pub fn splitter(self) -> Splitter {
        Splitter::new(self.thinks, self.thinking, self.syntax, self.parallel)
    }

    /// Lets what requests' answers must be begin after the reasoning that the prompt has begun, if it has.
    pub fn after_reasoning(self, requests: &mut [Request], model: &Model) {
        for request in requests.iter_mut().filter(|_| self.thinking) {
            let rule = request.constraint.take();
            request.constraint =
                rule.map(|rule| Box::new(AfterText::new(rule, END_THINK, model.tokenizer())) as _);
        }
    }
}

/// Reads a request that is to be answered.
pub fn read(body: Value, model: &Model) -> Result<(Request, Params, Prompt)> {
    let mut fields = Fields::new(body, "")?;
    let mut params = Params::read(&mut fields, model)?;
    params.options.max_tokens = max_tokens(&mut fields)?;
    params.options.logprobs = logprobs(&mut fields)?;
    let prompt = prompt(&mut fields, model)?;
    fields.finish(&IGNORED)?;
    Ok((request(&prompt, &params, model), params, prompt))
}

/// The request to the engine, without what the answer must be.
pub fn request(prompt: &Prompt, params: &Params, model: &Model) -> Request {
    let ids = model.format(prompt.has_tools).map(|format| format.encode(&prompt.rendered));
    let mut request = Request::new(ids.unwrap_or_default(), params.options.clone());
    request.choices = params.choices;
    request
}

/// Fields that say how a prompt is answered: without effect where it is only rendered.
const OF_ANSWERS: [&str; 21] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "repeat_penalty",
    "repetition_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "stream",
    "stream_options",
    "n",
    "stop",
    "ignore_eos",
    "max_tokens",
    "max_completion_tokens",
    "logprobs",
    "top_logprobs",
];

/// Reads a request that is only to be rendered.
pub fn render(body: Value, model: &Model) -> Result<Rendered> {
    let mut fields = Fields::new(body, "")?;
    crate::params::check_model(&mut fields, model)?;
    let prompt = prompt(&mut fields, model)?;
    fields.finish(&[&IGNORED[..], &OF_ANSWERS, &["modalities"]].concat())?;
    Ok(prompt.rendered)
}

/// The newer name comes first.
fn max_tokens(fields: &mut Fields) -> Result<Option<usize>> {
    let newer = fields.count("max_completion_tokens", 1..=u32::MAX)?;
    let older = fields.count("max_tokens", 1..=u32::MAX)?;
    Ok(newer.or(older))
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>> {
    let wanted = fields.bool("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
    if top.is_some_and(|top| top > 0) && !wanted {
        let message = "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.";
        return Err(ApiError::field("top_logprobs", "invalid_value", message));
    }
    Ok(wanted.then(|| top.unwrap_or(0)))
}

/// Reads the fields that make the prompt, and renders it.
pub fn prompt(fields: &mut Fields, model: &Model) -> Result<Prompt> {
    let messages = fields.array("messages")?;
    let messages = fields.required("messages", messages)?;
    if messages.is_empty() || messages.len() > MAX_MESSAGES {
        let message =
            format!("Invalid 'messages': expected 1 to {MAX_MESSAGES} messages, but got {}.", messages.len());
        return Err(ApiError::field("messages", "invalid_value", message));
    }
    let tools = Tools::read(fields, model.tool_syntax())?;
    let format = response_format(fields)?;
    let Some(template) = model.format(tools.definitions.is_some()) else {
        let message = "This model has no chat template: use /v1/completions, or start the server with one (--template).";
        return Err(ApiError::field("messages", "unsupported_value", message));
    };
    let developer = template.source().contains("developer");
    let messages = messages.into_iter().enumerate();
    let messages = messages.map(|(index, message)| message_of(message, index, developer));
    let messages = messages.collect::<Result<Vec<_>>>()?;

    let mut options = template.options();
    options.add_generation_prompt = fields.bool("add_generation_prompt")?.unwrap_or(true);
    options.extra = extra(fields)?;
    let constrained = tools.rule.is_some() || format.is_some();
    if constrained && model.thinks() && !options.extra.contains_key("enable_thinking") {
        // A grammar is for the answer. Templates that begin reasoning all the same get it after that.
        options.extra.insert("enable_thinking".into(), Value::Bool(false));
    }
    if tools.rule.is_some() && format.is_some() {
        let message = "A 'response_format' cannot be combined with a 'tool_choice' that requires a call.";
        return Err(ApiError::field("response_format", "invalid_value", message));
    }
    let has_tools = tools.definitions.is_some();
    let conversation = Conversation { messages, tools: tools.definitions };
    let rendered = template.render(&conversation, &options).map_err(|error| not_rendered(&error))?;
    let reading = Reading {
        thinks: model.thinks(),
        thinking: model.thinks() && rendered.text.trim_end().ends_with(THINK),
        syntax: tools.syntax,
        parallel: tools.parallel,
    };
    let form = tools.rule.map(|rule| Form { rule, field: "tools" }).or(format);
    Ok(Prompt { rendered, reading, form, has_tools })
}

/// Why there is no prompt: mostly because of the conversation.
fn not_rendered(error: &chat::Error) -> ApiError {
    match error {
        chat::Error::TooSlow { .. } | chat::Error::Stuck { .. } => {
            ApiError::unavailable("template_timeout", error.to_string(), 10)
        }
        _ => ApiError::field("messages", "invalid_value", format!("Invalid 'messages': {error}.")),
    }
}

fn response_format(fields: &mut Fields) -> Result<Option<Form>> {
    let Some(mut format) = fields.object("response_format")? else { return Ok(None) };
    let kind = format.string("type")?;
    let kind = format.required("type", kind)?;
    let form = match &*kind {
        "text" => None,
        "json_object" => Some(match format.value("schema") {
            Some(schema) => Form { rule: Rule::Json(schema), field: "response_format.schema" },
            None => Form { rule: Rule::Json(json!({"type": "object"})), field: "response_format" },
        }),
        "json_schema" => {
            let inner = format.object("json_schema")?;
            let mut inner = format.required("json_schema", inner)?;
            let schema = inner.object("schema")?;
            let schema = inner.required("schema", schema)?.into_value();
            inner.string("name")?;
            inner.string("description")?;
            inner.bool("strict")?;
            inner.finish(&[])?;
            Some(Form { rule: Rule::Json(schema), field: "response_format.json_schema.schema" })
        }
        "grammar" => {
            let grammar = format.string("grammar")?;
            let rule = Rule::Lark(format.required("grammar", grammar)?);
            Some(Form { rule, field: "response_format.grammar" })
        }
        "regex" => {
            let regex = format.string("regex")?;
            let rule = Rule::Regex(format.required("regex", regex)?);
            Some(Form { rule, field: "response_format.regex" })
        }
        other => {
            let message = format!(
                "Invalid 'response_format.type': expected 'text', 'json_object', 'json_schema', 'grammar' or 'regex', \
                 but got '{other}'."
            );
            return Err(ApiError::field("response_format.type", "invalid_value", message));
        }
    };
    format.finish(&[])?;
    Ok(form)
}

/// Variables for the template: `chat_template_kwargs`, and the effort of reasoning.
fn extra(fields: &mut Fields) -> Result<Map<String, Value>> {
    let mut extra = Map::new();
    if let Some(effort) = fields.string("reasoning_effort")? {
        if effort == "none" {
            extra.insert("enable_thinking".into(), Value::Bool(false));
        }
        extra.insert("reasoning_effort".into(), Value::String(effort));
    }
    if let Some(more) = fields.object("chat_template_kwargs")? {
        let Value::Object(more) = more.into_value() else { return Ok(extra) };
        for (name, value) in more {
            if ["messages", "tools", "add_generation_prompt"].contains(&&*name) || name.ends_with("_token") {
                let name = format!("chat_template_kwargs.{name}");
                let message = format!("Invalid '{name}': the variable cannot be set.");
                return Err(ApiError::field(name, "invalid_value", message));
            }
            extra.insert(name, value);
        }
    }
    Ok(extra)
}

/// A message as templates take it. `developer` tells that the template knows this role.
fn message_of(message: Value, index: usize, developer: bool) -> Result<Value> {
    let mut fields = Fields::new(message, format!("messages[{index}]"))?;
    let role = fields.string("role")?;
    let mut role = fields.required("role", role)?;
    if !ROLES.contains(&&*role) {
        let name = fields.name("role");
        let message = format!("Invalid '{name}': expected one of {}, but got '{role}'.", ROLES.join(", "));
        return Err(ApiError::field(name, "invalid_value", message));
    }
    if role == "developer" && !developer {
        "system".clone_into(&mut role);
    }
    let calls = tool_calls(&mut fields)?;
    let content = content(&mut fields)?;
    if content.is_none() && calls.is_none() && role != "assistant" {
        return fields.required("content", None);
    }
    let mut result = Map::new();
    result.insert("role".into(), role.into());
    // An assistant that only called tools has said nothing.
    result.insert("content".into(), content.unwrap_or_default().into());
    for name in ["name", "tool_call_id"] {
        if let Some(text) = fields.string(name)? {
            result.insert(name.into(), text.into());
        }
    }
    for name in ["reasoning_content", "reasoning"] {
        if let Some(text) = fields.string(name)? {
            result.insert("reasoning_content".into(), text.into());
        }
    }
    if let Some(calls) = calls {
        result.insert("tool_calls".into(), calls.into());
    }
    fields.finish(&["refusal", "annotations", "audio", "function_call"])?;
    Ok(Value::Object(result))
}

/// What a message says.
pub fn content(fields: &mut Fields) -> Result<Option<String>> {
    text(fields, "content")
}

/// A text, or the texts of a list of parts.
pub fn text(fields: &mut Fields, field: &str) -> Result<Option<String>> {
    let name = fields.name(field);
    match fields.value(field) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Array(parts)) => {
            let mut text = String::new();
            for (index, part) in parts.into_iter().enumerate() {
                let mut part = Fields::new(part, format!("{name}[{index}]"))?;
                let kind = part.string("type")?;
                let kind = part.required("type", kind)?;
                let field = match &*kind {
                    "text" | "input_text" | "output_text" | "reasoning_text" => "text",
                    // What a model said that would not answer.
                    "refusal" => "refusal",
                    _ => {
                        let message = format!(
                            "Invalid '{name}[{index}].type': this model takes text alone, but got '{kind}'."
                        );
                        return Err(ApiError::field(part.name("type"), "unsupported_value", message));
                    }
                };
                let piece = part.string(field)?;
                text.push_str(&part.required(field, piece)?);
            }
            Ok(Some(text))
        }
        Some(other) => Err(wrong_type(&name, "a string or an array of parts", &other)),
    }
}

/// The calls of an assistant's message. Templates take the arguments as an object, clients send its JSON.
fn tool_calls(fields: &mut Fields) -> Result<Option<Vec<Value>>> {
    let path = fields.name("tool_calls");
    let Some(calls) = fields.array("tool_calls")? else { return Ok(None) };
    let call = |(index, call): (usize, Value)| {
        let mut call = Fields::new(call, format!("{path}[{index}]"))?;
        let id = call.string("id")?.unwrap_or_default();
        let function = call.object("function")?;
        let mut function = call.required("function", function)?;
        let name = function.string("name")?;
        let name = function.required("name", name)?;
        let arguments = match function.value("arguments") {
            None => json!({}),
            Some(Value::String(text)) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
            Some(value) => value,
        };
        Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
    };
    calls.into_iter().enumerate().map(call).collect::<Result<_>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_that_takes_too_long_is_not_the_clients_fault() {
        for error in [chat::Error::TooSlow { seconds: 60 }, chat::Error::Stuck { renderings: 4 }] {
            let error = not_rendered(&error);
            assert_eq!((error.status.as_u16(), error.retry_after), (503, Some(10)));
        }
        let error = not_rendered(&chat::Error::Raised("no".into()));
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("messages")));
    }
}
