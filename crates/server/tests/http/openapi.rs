//! The server's description of itself.

use crate::client::{get, post, request};
use crate::util::{merge, shared};
use serde_json::{Value, json};

fn document() -> Value {
    get(shared(), "/openapi.json").json()
}

#[test]
fn every_route_that_is_described_is_there_and_its_errors_are_described() {
    let document = document();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let response = match method.as_str() {
                "post" => post(shared(), path, &json!({})),
                _ => request(shared(), &method.to_uppercase(), &path.replace(['{', '}'], "x"), ""),
            };
            let place = format!("{method} {path}: {} {}", response.status, response.body);
            assert!(
                !["unknown_url", "method_not_allowed"].iter().any(|code| response.body.contains(code)),
                "{place}"
            );
            let mut described = &operation["responses"][response.status.to_string()];
            if let Some(reference) = described["$ref"].as_str() {
                described = document.pointer(&reference[1..]).unwrap();
            }
            let kind = response.header("content-type").unwrap().split(';').next().unwrap();
            assert!(described["content"][kind].is_object(), "{place}: {described}");
        }
    }
}

#[test]
fn every_field_that_is_described_is_known() {
    let document = document();
    for (path, required) in [
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1})),
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 1})),
        ("/v1/responses", json!({"input": "a", "max_output_tokens": 1})),
        ("/v1/embeddings", json!({"input": "a"})),
        ("/apply-template", json!({"messages": [{"role": "user", "content": "a"}]})),
        ("/tokenize", json!({"content": "a"})),
        ("/detokenize", json!({"tokens": [1]})),
    ] {
        let mut schema =
            &document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
        if let Some(reference) = schema["$ref"].as_str() {
            schema = document.pointer(&reference[1..]).unwrap();
        }
        assert_eq!(schema["additionalProperties"], false, "{path}");
        // A field of null is as good as none, where it is known.
        let fields = schema["properties"].as_object().unwrap();
        let mut body: Value = fields.keys().map(|name| (name.clone(), Value::Null)).collect();
        merge(&mut body, &required);
        let response = post(shared(), path, &body);
        assert_eq!(response.status, 200, "{path}: {}", response.body);
        body["nobody_knows_this"] = Value::Null;
        let refused = post(shared(), path, &body);
        assert_eq!(refused.json()["error"]["param"], "nobody_knows_this", "{path}: {}", refused.body);
    }
}
