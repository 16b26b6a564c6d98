//! Answers that must have a form.

use crate::client::post;
use crate::util::{ask, chat, content, merge, shared};
use serde_json::{Value, json};

fn json_of(text: &str, more: &Value) -> Value {
    let response = chat(shared(), text, more);
    let text = content(&response);
    assert_eq!(response.json()["choices"][0]["finish_reason"], "stop", "{}", response.body);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn schema(schema: &Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "answer", "strict": true, "schema": schema}})
}

#[test]
fn answers_follow_a_schema() {
    let person = json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": false,
    });
    for n in 0..3 {
        let more =
            json!({"response_format": schema(&person), "max_tokens": 200, "seed": n, "temperature": 1});
        let person = json_of("Describe somebody.", &more);
        assert!(person["name"].is_string() && person["age"].as_u64().unwrap() <= 150, "{person}");
        assert!(person["tags"].as_array().unwrap().len() <= 2 && person.as_object().unwrap().len() == 3);
    }
}

#[test]
fn a_streamed_json_object_parses() {
    let more = json!({"response_format": {"type": "json_object"}, "max_tokens": 400, "temperature": 0, "stream": true});
    let response =
        post(shared(), "/v1/chat/completions", &ask("Reply with a JSON object {\"ok\": true}.", &more));
    let (text, reason) = crate::util::streamed(&response);
    assert!(text.starts_with('{'), "{text}");
    if reason == "stop" {
        assert!(serde_json::from_str::<Value>(&text).unwrap().is_object(), "{text}");
    }
}

#[test]
fn answers_follow_a_regular_expression() {
    let more = json!({"response_format": {"type": "regex", "regex": "[0-9]{4}-[0-9]{2}"}, "max_tokens": 20});
    let text = content(&chat(shared(), "When?", &more));
    assert!(text.len() == 7 && text.as_bytes()[4] == b'-', "{text}");
}

#[test]
fn r23_white_space_has_an_end() {
    let blanks: serde_json::Map<String, Value> = ["\n", " ", "\n\n", "  ", "   ", "\t"]
        .iter()
        .flat_map(|text| {
            let tokens = post(shared(), "/tokenize", &json!({"content": text})).json()["tokens"].clone();
            tokens.as_array().unwrap().iter().map(|id| (id.to_string(), json!(100))).collect::<Vec<_>>()
        })
        .collect();
    let answer = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]});
    for text in ["Say something.", "Give me JSON."] {
        let more = json!({
            "response_format": schema(&answer), "logit_bias": blanks, "max_tokens": 200, "temperature": 0,
            "logprobs": true,
        });
        let mut request = ask(text, &json!({}));
        merge(&mut request, &more);
        let body = post(shared(), "/v1/chat/completions", &request).json();
        let choice = &body["choices"][0];
        let mut row = 0;
        for entry in choice["logprobs"]["content"].as_array().unwrap() {
            let blank = entry["token"].as_str().unwrap().trim().is_empty();
            row = if blank { row + 1 } else { 0 };
            assert!(row <= 4, "{body}");
        }
        let text = choice["message"]["content"].as_str().unwrap();
        assert_eq!(choice["finish_reason"], "stop", "{text}");
        assert!(serde_json::from_str::<Value>(text).unwrap()["a"].is_string(), "{text}");
    }
}

/// Schemas and grammars that took the process with them, or a processor for a minute.
#[test]
fn grammars_that_take_too_much_are_refused_and_the_server_goes_on() {
    let properties: Value = (0..8000).map(|at| (format!("p{at}"), json!({}))).collect();
    let rules: String = (0..8000).map(|at| format!("r{at}: r{}\n", at + 1)).collect();
    let schema =
        |schema: Value| json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    for (format, param) in [
        (schema(json!({"properties": properties})), "response_format.json_schema.schema"),
        (schema(json!({"required": vec!["a"; 20_000]})), "response_format.json_schema.schema"),
        (schema(json!({"type": "integer", "multipleOf": 1_000_003})), "response_format.json_schema.schema"),
        (schema(json!({"pattern": "a*".repeat(50_000)})), "response_format.json_schema.schema"),
        (
            json!({"type": "grammar", "grammar": format!("start: r0\n{rules}r8000: \"x\"")}),
            "response_format.grammar",
        ),
        (json!({"type": "regex", "regex": "a*".repeat(50_000)}), "response_format.regex"),
        (json!({"type": "regex", "regex": "a*".repeat(8000)}), "response_format.regex"),
        (
            schema(
                json!({"allOf": (0..30).map(|n| json!({"pattern": format!("[a-z]{{{n}}}.*x")})).collect::<Vec<_>>()}),
            ),
            "response_format.json_schema.schema",
        ),
    ] {
        let refused = chat(shared(), "Hi", &json!({"response_format": format}));
        assert_eq!(
            (refused.status, &refused.json()["error"]["param"]),
            (400, &json!(param)),
            "{}",
            refused.body
        );
    }
    assert!(!content(&chat(shared(), "Hi", &json!({}))).is_empty());
}

#[test]
fn a_grammar_that_takes_long_to_compile_holds_nobody_up() {
    let properties: Value = (0..2000).map(|at| (format!("p{at}"), json!({"type": "integer"}))).collect();
    let large = schema(&json!({"type": "object", "properties": properties, "additionalProperties": false}));
    let large = ask("Hi", &json!({"response_format": large, "max_tokens": 1}));
    let compiled = std::thread::spawn(move || {
        let response = post(shared(), "/v1/chat/completions", &large);
        (response.status, std::time::Instant::now())
    });
    // It is on its way.
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(!content(&chat(shared(), "Hi", &json!({"max_tokens": 1}))).is_empty());
    let more = json!({"response_format": {"type": "regex", "regex": "[ab]"}, "max_tokens": 2});
    assert!(["a", "b"].contains(&&*content(&chat(shared(), "Hi", &more))));
    let others = std::time::Instant::now();
    let (status, large) = compiled.join().unwrap();
    assert_eq!(status, 200);
    assert!(others < large, "the others waited");
}
