//! `POST /v1/responses`: from the request to a conversation.

mod reply;
mod store;

pub use reply::ResponseReply;
pub use store::Store;

use crate::chat::{self, Prompt};
use crate::error::ApiError;
use crate::fields::{Fields, wrong_type};
use crate::http::to_json;
use crate::memory::{Account, tree_bytes};
use crate::model::Model;
use crate::params::{IGNORED, MAX_TOP_LOGPROBS, Params};
use engine::Request;
use serde_json::{Map, Value, json};

type Result<T> = std::result::Result<T, ApiError>;

/// What of a request its response needs.
#[derive(Debug)]
pub struct Asked {
    /// Fields of the request that the response repeats.
    echo: Map<String, Value>,
    /// The conversation without instructions, a list as JSON, if the response is to be kept.
    store: Option<String>,
    logprobs: bool,
    stream: bool,
}

/// Most pairs of `metadata`, and the longest keys and values in characters, as in OpenAI's API.
const MAX_METADATA: usize = 16;
const MAX_METADATA_KEY: usize = 64;
const MAX_METADATA_VALUE: usize = 512;

/// Fields without an effect here beside those of all requests: what they allow is never done, or done anyway.
const WITHOUT_EFFECT: [&str; 2] = ["max_tool_calls", "prompt_cache_options"];

/// Reads a request. What it goes on from counts as part of it.
pub fn read(
    body: Value,
    model: &Model,
    account: &mut Account,
    store: &Store,
) -> Result<(Request, Params, Prompt, Asked)> {
    let mut echo = echo(&body);
    let mut fields = Fields::new(body, "")?;
    let mut params = Params::read(&mut fields, model)?;
    if params.choices != 1 {
        let message = "Invalid 'n': a response has one answer.";
        return Err(ApiError::field("n", "unsupported_value", message));
    }
    params.options.max_tokens = fields.count("max_output_tokens", 1..=u32::MAX)?;
    let logprobs = include(&mut fields)?;
    let top = fields.count("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
    params.options.logprobs = logprobs.then(|| top.unwrap_or(0));
    unsupported(&mut fields)?;
    metadata(&mut fields)?;
    // It is given back, too.
    fields.string("user")?;

    let mut messages = match fields.string("previous_response_id")? {
        None => Vec::new(),
        Some(id) => match store.messages(&id) {
            Some(messages) => {
                account.grow(messages.len() + tree_bytes(messages.as_bytes()))?;
                // It was written by this server.
                serde_json::from_str(&messages).unwrap_or_default()
            }
            None => {
                let message = format!("Previous response with id '{id}' not found.");
                return Err(ApiError::field("previous_response_id", "previous_response_not_found", message));
            }
        },
    };
    let input = fields.value("input");
    messages.extend(input_messages(fields.required("input", input)?)?);
    let instructions = fields.string("instructions")?.map(|text| json!({"role": "system", "content": text}));
    let keep = fields.bool("store")?.unwrap_or(true);
    echo.insert("store".into(), keep.into());

    let kept = keep.then(|| to_json(&messages));
    let all: Vec<Value> = instructions.into_iter().chain(messages).collect();
    let mut inner = Fields::new(chat_request(&mut fields, all)?, "")?;
    fields.finish(&[&IGNORED[..], &WITHOUT_EFFECT].concat())?;
    let prompt = chat::prompt(&mut inner, model).map_err(renamed)?;
    let request = chat::request(&prompt, &params, model);
    let asked = Asked { echo, store: kept, logprobs, stream: params.stream };
    Ok((request, params, prompt, asked))
}

/// The fields that a response repeats, as they came or as they are where they did not.
fn echo(body: &Value) -> Map<String, Value> {
    let defaults = json!({
        "instructions": null, "max_output_tokens": null, "metadata": {}, "parallel_tool_calls": true,
        "previous_response_id": null, "reasoning": {"effort": null, "summary": null}, "temperature": null,
        "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_p": null,
        "truncation": "disabled", "user": null, "background": false,
    });
    let Value::Object(mut echo) = defaults else { return Map::new() };
    for (name, value) in &mut echo {
        if let Some(given) = body.get(name).filter(|given| !given.is_null()) {
            value.clone_from(given);
        }
    }
    echo
}

/// Checks `metadata`, which is kept and given back, as OpenAI's API does.
fn metadata(fields: &mut Fields) -> Result<()> {
    let Some(metadata) = fields.object("metadata")? else { return Ok(()) };
    let Value::Object(pairs) = metadata.into_value() else { return Ok(()) };
    if pairs.len() > MAX_METADATA {
        let message =
            format!("Invalid 'metadata': expected at most {MAX_METADATA} pairs, but got {}.", pairs.len());
        return Err(ApiError::field("metadata", "object_above_max_properties", message));
    }
    for (key, value) in &pairs {
        let length = key.chars().count();
        if length > MAX_METADATA_KEY {
            let message = format!(
                "Invalid 'metadata': expected keys of at most {MAX_METADATA_KEY} characters, but got one of {length}."
            );
            return Err(ApiError::field("metadata", "string_above_max_length", message));
        }
        let name = format!("metadata.{key}");
        let Value::String(text) = value else { return Err(wrong_type(&name, "a string", value)) };
        let length = text.chars().count();
        if length > MAX_METADATA_VALUE {
            let message = format!(
                "Invalid '{name}': expected at most {MAX_METADATA_VALUE} characters, but got {length}."
            );
            return Err(ApiError::field(name, "string_above_max_length", message));
        }
    }
    Ok(())
}

/// Whether log-probabilities are to be told: the one thing to include that there is.
fn include(fields: &mut Fields) -> Result<bool> {
    let mut logprobs = false;
    for (index, item) in fields.array("include")?.unwrap_or_default().into_iter().enumerate() {
        match item.as_str() {
            Some("message.output_text.logprobs") => logprobs = true,
            // There is none: reasoning is given in plain text.
            Some("reasoning.encrypted_content") => {}
            _ => {
                let name = format!("include[{index}]");
                let message = format!(
                    "Invalid '{name}': expected 'message.output_text.logprobs' or 'reasoning.encrypted_content', but \
                     got {item}."
                );
                return Err(ApiError::field(name, "unsupported_value", message));
            }
        }
    }
    Ok(logprobs)
}

/// Refuses what would need what is not there.
fn unsupported(fields: &mut Fields) -> Result<()> {
    if fields.bool("background")?.unwrap_or(false) {
        let message = "Invalid 'background': responses are computed while the client waits.";
        return Err(ApiError::field("background", "unsupported_value", message));
    }
    if let Some(truncation) = fields.string("truncation")?
        && truncation != "disabled"
    {
        let message = format!("Invalid 'truncation': expected 'disabled', but got '{truncation}'.");
        return Err(ApiError::field("truncation", "unsupported_value", message));
    }
    for name in ["conversation", "prompt"] {
        if fields.value(name).is_some() {
            let message =
                format!("Invalid '{name}': there are none here; use 'previous_response_id' or 'input'.");
            return Err(ApiError::field(name, "unsupported_value", message));
        }
    }
    Ok(())
}

/// The fields of a chat request that make the same prompt.
fn chat_request(fields: &mut Fields, messages: Vec<Value>) -> Result<Value> {
    let mut request = Map::new();
    request.insert("messages".into(), messages.into());
    if let Some(tools) = fields.array("tools")? {
        let tools = tools.into_iter().enumerate().map(|(index, tool)| chat_tool(tool, index));
        request.insert("tools".into(), tools.collect::<Result<_>>()?);
    }
    if let Some(choice) = fields.value("tool_choice") {
        let choice = match choice.get("name") {
            Some(name) => json!({"type": "function", "function": {"name": name}}),
            None => choice,
        };
        request.insert("tool_choice".into(), choice);
    }
    if let Some(mut text) = fields.object("text")? {
        if let Some(format) = text.object("format")? {
            request.insert("response_format".into(), chat_format(format)?);
        }
        text.string("verbosity")?;
        text.finish(&[])?;
    }
    if let Some(mut reasoning) = fields.object("reasoning")? {
        if let Some(effort) = reasoning.string("effort")? {
            request.insert("reasoning_effort".into(), effort.into());
        }
        reasoning.finish(&["summary", "generate_summary"])?;
    }
    for name in ["parallel_tool_calls", "chat_template_kwargs"] {
        if let Some(value) = fields.value(name) {
            request.insert(name.into(), value);
        }
    }
    Ok(request.into())
}

fn chat_tool(tool: Value, index: usize) -> Result<Value> {
    let mut tool = Fields::new(tool, format!("tools[{index}]"))?;
    let kind = tool.string("type")?;
    let kind = tool.required("type", kind)?;
    if kind != "function" {
        let name = tool.name("type");
        let message = format!("Invalid '{name}': expected 'function', but got '{kind}'.");
        return Err(ApiError::field(name, "unsupported_value", message));
    }
    Ok(json!({"type": "function", "function": tool.into_value()}))
}

fn chat_format(mut format: Fields) -> Result<Value> {
    let kind = format.string("type")?;
    let kind = format.required("type", kind)?;
    let rest = format.into_value();
    Ok(if kind == "json_schema" {
        json!({"type": kind, "json_schema": rest})
    } else {
        let mut whole = rest;
        whole["type"] = kind.into();
        whole
    })
}

/// An error about a field of the chat request under the name that the field has here.
pub fn renamed(error: ApiError) -> ApiError {
    let Some(old) = &error.param else { return error };
    let new = old
        .replace("response_format.json_schema", "text.format")
        .replace("response_format", "text.format")
        .replace("].function", "]")
        .replace("reasoning_effort", "reasoning.effort");
    let new = new.strip_prefix("messages").map_or(new.clone(), |rest| {
        // Instructions and earlier turns were put before the input, so a place would mislead.
        rest.rsplit_once(']').map_or("input".to_owned(), |(_, field)| format!("input{field}"))
    });
    let message = error.message.replace(&format!("'{old}'"), &format!("'{new}'"));
    ApiError { param: Some(new), message, ..error }
}

/// The messages that the items of a conversation make.
fn input_messages(input: Value) -> Result<Vec<Value>> {
    let items = match input {
        Value::String(text) => return Ok(vec![json!({"role": "user", "content": text})]),
        Value::Array(items) if !items.is_empty() => items,
        Value::Array(_) => {
            let message = "Invalid 'input': expected at least one item, but got an empty array.";
            return Err(ApiError::field("input", "empty_array", message));
        }
        other => return Err(wrong_type("input", "a string or an array of items", &other)),
    };
    let mut messages = Vec::new();
    let mut reasoning = None;
    for (index, item) in items.into_iter().enumerate() {
        let mut item = Fields::new(item, format!("input[{index}]"))?;
        match item.string("type")?.as_deref().unwrap_or("message") {
            "message" => {
                let role = item.string("role")?;
                let role = item.required("role", role)?;
                if !["user", "assistant", "system", "developer"].contains(&&*role) {
                    let name = item.name("role");
                    let message = format!(
                        "Invalid '{name}': expected 'user', 'assistant', 'system' or 'developer', but got '{role}'."
                    );
                    return Err(ApiError::field(name, "invalid_value", message));
                }
                let content = chat::content(&mut item)?;
                let content = item.required("content", content)?;
                let mut message = json!({"role": role, "content": content});
                if role == "assistant"
                    && let Some(reasoning) = reasoning.take()
                {
                    message["reasoning_content"] = Value::String(reasoning);
                }
                messages.push(message);
                item.finish(&["id", "status", "phase"])?;
            }
            "function_call" => call(&mut item, &mut messages, reasoning.take())?,
            "function_call_output" => {
                let id = item.string("call_id")?;
                let id = item.required("call_id", id)?;
                let output = chat::text(&mut item, "output")?;
                let output = item.required("output", output)?;
                messages.push(json!({"role": "tool", "tool_call_id": id, "content": output}));
                item.finish(&["id", "status"])?;
            }
            "reasoning" => {
                let text = chat::text(&mut item, "content")?.unwrap_or_default();
                reasoning = Some(text).filter(|text| !text.is_empty());
                item.finish(&["id", "status", "summary", "encrypted_content"])?;
            }
            other => {
                let name = item.name("type");
                let message = format!(
                    "Invalid '{name}': expected 'message', 'function_call', 'function_call_output' or 'reasoning', but \
                     got '{other}'."
                );
                return Err(ApiError::field(name, "unsupported_value", message));
            }
        }
    }
    Ok(messages)
}

/// A call of a function: part of the assistant's message before it, if that is what comes before.
fn call(item: &mut Fields, messages: &mut Vec<Value>, reasoning: Option<String>) -> Result<()> {
    let id = item.string("call_id")?;
    let id = item.required("call_id", id)?;
    let name = item.string("name")?;
    let name = item.required("name", name)?;
    let arguments = item.string("arguments")?;
    let arguments = item.required("arguments", arguments)?;
    let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    match messages.last_mut().filter(|message| message["role"] == "assistant" && reasoning.is_none()) {
        Some(message) => match message.get_mut("tool_calls").and_then(Value::as_array_mut) {
            Some(calls) => calls.push(call),
            None => message["tool_calls"] = json!([call]),
        },
        None => {
            let mut message = json!({"role": "assistant", "content": "", "tool_calls": [call]});
            if let Some(reasoning) = reasoning {
                message["reasoning_content"] = reasoning.into();
            }
            messages.push(message);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_become_messages() {
        assert_eq!(input_messages(json!("Hi")).unwrap(), [json!({"role": "user", "content": "Hi"})]);
        let items = json!([
            {"role": "developer", "content": [{"type": "input_text", "text": "Be "}, {"type": "input_text", "text": "brief."}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
             "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{\"a\": 1}"},
            {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        ]);
        let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        assert_eq!(
            input_messages(items).unwrap(),
            [
                json!({"role": "developer", "content": "Be brief."}),
                json!({
                    "role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.",
                    "tool_calls": [call("c1", "f", "{\"a\": 1}"), call("c2", "g", "{}")],
                }),
                json!({"role": "tool", "tool_call_id": "c1", "content": "one"}),
                json!({"role": "tool", "tool_call_id": "c2", "content": "two"}),
            ]
        );
    }

    #[test]
    fn items_that_cannot_be_name_their_place() {
        for (input, param) in [
            (json!([]), "input"),
            (json!(1), "input"),
            (json!([1]), "input[0]"),
            (json!([{"role": "tool", "content": ""}]), "input[0].role"),
            (json!([{"role": "user"}]), "input[0].content"),
            (json!([{"type": "computer_call"}]), "input[0].type"),
            (json!([{"type": "item_reference", "id": "x"}]), "input[0].type"),
            (json!([{"type": "function_call", "name": "f", "arguments": ""}]), "input[0].call_id"),
            (json!([{"type": "function_call_output", "call_id": "c"}]), "input[0].output"),
            (json!([{"role": "user", "content": [{"type": "input_image"}]}]), "input[0].content[0].type"),
            (json!([{"role": "user", "content": "", "x": 1}]), "input[0].x"),
        ] {
            assert_eq!(input_messages(input.clone()).unwrap_err().param.as_deref(), Some(param), "{input}");
        }
    }

    #[test]
    fn metadata_is_short_texts() {
        let check = |value: Value| metadata(&mut Fields::new(json!({"metadata": value}), "").unwrap());
        let pairs = |count: usize| (0..count).map(|n| (n.to_string(), json!("x"))).collect::<Value>();
        for value in [json!(null), pairs(16), json!({"\u{e9}".repeat(64): "\u{e9}".repeat(512)})] {
            assert_eq!(check(value), Ok(()));
        }
        for (value, param) in [
            (json!([]), "metadata"),
            (pairs(17), "metadata"),
            (json!({"x".repeat(65): ""}), "metadata"),
            (json!({"a": "x".repeat(513)}), "metadata.a"),
            (json!({"a": {"b": [1]}}), "metadata.a"),
        ] {
            assert_eq!(check(value).unwrap_err().param.as_deref(), Some(param));
        }
    }

    #[test]
    fn errors_of_the_conversation_have_the_names_of_this_route() {
        let name = |param: &str| {
            let message = format!("Invalid '{param}': no.");
            let error = renamed(ApiError::field(param, "invalid_value", message));
            assert_eq!(error.message, format!("Invalid '{}': no.", error.param.as_deref().unwrap()));
            error.param.unwrap()
        };
        assert_eq!(name("messages"), "input");
        assert_eq!(name("messages[3].content"), "input.content");
        assert_eq!(name("response_format.json_schema.schema"), "text.format.schema");
        assert_eq!(name("response_format.type"), "text.format.type");
        assert_eq!(name("tools[1].function.name"), "tools[1].name");
        assert_eq!(name("tool_choice"), "tool_choice");
    }
}
