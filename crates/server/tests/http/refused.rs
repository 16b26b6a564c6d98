//! Requests that are refused, with the field that is wrong.

use crate::client::{Response, get, post, post_bytes, request, send};
use crate::util::{ask, shared};
use serde_json::{Value, json};

#[track_caller]
fn refuses(path: &str, body: &Value, param: &str, code: &str) {
    let response = post(shared(), path, body);
    assert_eq!(response.status, 400, "{body}: {}", response.body);
    let error = &response.json()["error"];
    assert_eq!((&error["param"], &error["code"]), (&json!(param), &json!(code)), "{body}");
    assert_eq!(error["type"], "invalid_request_error");
    assert!(error["message"].as_str().unwrap().contains(param), "{error}");
}

#[test]
fn wrong_types_and_ranges_name_the_field() {
    for (field, value, code) in [
        ("temperature", json!("hot"), "invalid_type"),
        ("temperature", json!(2.5), "above_max_value"),
        ("temperature", json!(-0.1), "below_min_value"),
        ("top_p", json!(1.1), "above_max_value"),
        ("top_k", json!(1.5), "invalid_type"),
        ("n", json!(0), "below_min_value"),
        ("n", json!(1000), "above_max_value"),
        ("max_tokens", json!(0), "below_min_value"),
        ("max_tokens", json!(-1), "below_min_value"),
        ("max_completion_tokens", json!("many"), "invalid_type"),
        ("presence_penalty", json!(3), "above_max_value"),
        ("seed", json!("x"), "invalid_type"),
        ("seed", json!(1e20), "above_max_value"),
        ("modalities", json!(["text", "audio"]), "unsupported_value"),
        ("stream", json!("yes"), "invalid_type"),
        ("stream_options", json!({"include_usage": true}), "invalid_value"),
        ("stop", json!(5), "invalid_type"),
        ("stop[1]", json!(["a", 5]), "invalid_type"),
        ("stop[0]", json!([""]), "invalid_value"),
        ("logprobs", json!(5), "invalid_type"),
        ("top_logprobs", json!(5), "invalid_value"),
        ("logit_bias", json!([]), "invalid_type"),
        ("logit_bias", json!({"x": 1}), "invalid_value"),
        ("logit_bias", json!({"+5": 1}), "invalid_value"),
        ("logit_bias.5", json!({"5": 101}), "invalid_value"),
        ("messages", json!({}), "invalid_type"),
        ("messages", json!([]), "invalid_value"),
        ("messages[0]", json!([5]), "invalid_type"),
        ("messages[0].role", json!([{"content": "x"}]), "missing_required_parameter"),
        ("messages[0].role", json!([{"role": "king", "content": "x"}]), "invalid_value"),
        ("messages[0].content", json!([{"role": "user"}]), "missing_required_parameter"),
        ("messages[0].content", json!([{"role": "user", "content": 5}]), "invalid_type"),
        (
            "messages[0].content[0].type",
            json!([{"role": "user", "content": [{"type": "image_url"}]}]),
            "unsupported_value",
        ),
        ("messages[0].mood", json!([{"role": "user", "content": "x", "mood": "y"}]), "unknown_parameter"),
        ("response_format.type", json!({"type": "xml"}), "invalid_value"),
        ("response_format.json_schema", json!({"type": "json_schema"}), "missing_required_parameter"),
        (
            "response_format.json_schema.schema",
            json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}),
            "invalid_value",
        ),
        (
            "response_format.json_schema.schema",
            json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#"}}}),
            "invalid_value",
        ),
        ("tools", json!([{"type": "function", "function": {"name": "f"}}]), "unsupported_value"),
        ("tool_choice", json!("required"), "invalid_value"),
        ("chat_template_kwargs.messages", json!({"messages": []}), "invalid_value"),
        ("temprature", json!(1), "unknown_parameter"),
    ] {
        let mut body = ask("Hi", &json!({}));
        let name = field.split(['.', '[']).next().unwrap();
        body[name] = value;
        refuses("/v1/chat/completions", &body, field, code);
    }
    for (field, value, code) in [
        ("prompt", json!(null), "missing_required_parameter"),
        ("prompt", json!(5), "invalid_type"),
        ("prompt", json!(""), "invalid_value"),
        ("prompt", json!([]), "empty_array"),
        ("prompt[1]", json!([5, 100_000]), "invalid_value"),
        ("prompt[1]", json!(["a", 5]), "invalid_type"),
        ("logprobs", json!(100), "above_max_value"),
        ("best_of", json!(3), "unsupported_value"),
        ("suffix", json!("x"), "unsupported_value"),
        ("grammar", json!("start: %%"), "invalid_value"),
    ] {
        let mut body = json!({"prompt": "x", "max_tokens": 1});
        body[field.split('[').next().unwrap()] = value;
        refuses("/v1/completions", &body, field, code);
    }
    refuses("/tokenize", &json!({}), "content", "missing_required_parameter");
    refuses("/tokenize", &json!({"content": 5}), "content", "invalid_type");
    refuses("/detokenize", &json!({"tokens": [-1]}), "tokens[0]", "invalid_value");
    refuses("/apply-template", &json!({"messages": [], "x": 1}), "messages", "invalid_value");
}

#[test]
fn what_is_no_request_is_told() {
    let error = |response: Response| {
        let code = response.json()["error"]["code"].as_str().unwrap().to_owned();
        (response.status, code)
    };
    let raw = |body: &str| error(send(shared(), &post_bytes("/v1/chat/completions", body, "")).read());
    assert_eq!(raw("{"), (400, "invalid_json".into()));
    assert_eq!(raw("[]"), (400, "invalid_type".into()));
    assert_eq!(raw(&"[".repeat(100_000)), (400, "invalid_json".into()));
    assert_eq!(raw("{\"a\": 1e999}"), (400, "invalid_json".into()));
    let coded = post_bytes("/tokenize", "{}", "content-encoding: gzip\r\n");
    assert_eq!(error(send(shared(), &coded).read()), (415, "unsupported_media_type".into()));
    let broken = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
        transfer-encoding: chunked\r\n\r\nzz\r\n";
    assert_eq!(error(send(shared(), broken).read()), (400, "incomplete_request".into()));
    for path in ["/v1/models/%ff", "/v1/responses/%ff"] {
        assert_eq!(error(get(shared(), path)), (400, "invalid_url".into()));
    }
    assert_eq!(error(get(shared(), "/v1/nothing")), (404, "unknown_url".into()));
    assert_eq!(error(get(shared(), "/v1/chat/completions")), (405, "method_not_allowed".into()));
    assert_eq!(error(request(shared(), "DELETE", "/v1/models", "")), (405, "method_not_allowed".into()));
    let model = post(shared(), "/v1/chat/completions", &ask("Hi", &json!({"model": "gpt-4o"})));
    assert_eq!(error(model), (404, "model_not_found".into()));
}
