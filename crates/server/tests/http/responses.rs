//! `/v1/responses`.

use crate::client::{Response, get, post, request};
use crate::util::{content, merge, shared};
use serde_json::{Value, json};

fn respond(body: &Value) -> Response {
    post(shared(), "/v1/responses", body)
}

/// The text of a whole response.
#[track_caller]
fn text(response: &Value) -> &str {
    let item = response["output"].as_array().unwrap().last().unwrap();
    assert_eq!((&item["type"], &item["role"]), (&json!("message"), &json!("assistant")), "{response}");
    item["content"][0]["text"].as_str().unwrap()
}

#[test]
fn a_response_says_what_an_answer_in_a_conversation_does() {
    let question = "What is the capital of France?";
    let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]);
    let chat = json!({"messages": messages, "max_tokens": 12, "temperature": 0});
    let chat = post(shared(), "/v1/chat/completions", &chat);
    let fields = json!({
        "model": "smollm2", "instructions": "Be brief.", "max_output_tokens": 12, "temperature": 0,
        "metadata": {"a": "b"}, "user": "me",
    });
    for input in
        [json!(question), json!([{"role": "user", "content": [{"type": "input_text", "text": question}]}])]
    {
        let mut request = json!({"input": input});
        merge(&mut request, &fields);
        let response = respond(&request).json();
        assert_eq!(text(&response), content(&chat));
        let usage = &chat.json()["usage"];
        assert_eq!(response["usage"]["input_tokens"], usage["prompt_tokens"]);
        assert_eq!(response["usage"]["output_tokens"], usage["completion_tokens"]);
        assert_eq!((&response["object"], &response["model"]), (&json!("response"), &json!("smollm2")));
        assert_eq!(
            (&response["metadata"]["a"], &response["instructions"]),
            (&json!("b"), &json!("Be brief."))
        );
    }
}

#[test]
fn a_streamed_response_has_its_events_in_order() {
    let body = json!({
        "input": "Tell me about the sea.", "max_output_tokens": 6, "temperature": 0, "top_logprobs": 1,
        "include": ["message.output_text.logprobs"],
    });
    let whole = respond(&body).json();
    assert_eq!(
        (&whole["status"], &whole["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(whole["output"][0]["content"][0]["logprobs"].as_array().unwrap().len(), 6);
    let mut streaming = body;
    merge(&mut streaming, &json!({"stream": true}));
    let stream = respond(&streaming).body;
    let mut lines = stream.lines().filter(|line| !line.is_empty() && !line.starts_with(':'));
    let mut events: Vec<Value> = Vec::new();
    while let Some(name) = lines.next() {
        let event: Value =
            serde_json::from_str(lines.next().unwrap().strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name, format!("event: {}", event["type"].as_str().unwrap()));
        assert_eq!(event["sequence_number"], json!(events.len()));
        events.push(event);
    }
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ];
    assert_eq!(kinds, expected);
    let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
    let deltas = of("response.output_text.delta");
    let told: String = deltas.iter().map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(told, text(&whole));
    let logprobs = deltas.iter().flat_map(|event| event["logprobs"].as_array().unwrap().clone());
    assert_eq!(json!(logprobs.collect::<Vec<_>>()), whole["output"][0]["content"][0]["logprobs"]);
    let last = &events.last().unwrap()["response"];
    assert_eq!((text(last), &last["usage"]["output_tokens"]), (text(&whole), &json!(6)));
    // It is kept as it was told.
    let id = last["id"].as_str().unwrap();
    assert_eq!(get(shared(), &format!("/v1/responses/{id}")).json(), *last);
}

#[test]
fn a_conversation_goes_on_from_a_response_as_long_as_it_is_kept() {
    let settings = json!({"max_output_tokens": 8, "temperature": 0});
    let ask = |more: Value| {
        let mut request = settings.clone();
        merge(&mut request, &more);
        respond(&request)
    };
    let first = ask(json!({"input": "My name is Ann."})).json();
    let second = ask(json!({"input": "What is my name?", "previous_response_id": first["id"]})).json();
    let whole = ask(json!({"input": [
        {"role": "user", "content": "My name is Ann."}, first["output"][0],
        {"role": "user", "content": "What is my name?"},
    ]}));
    let whole = whole.json();
    assert_eq!(
        (text(&second), &second["usage"]["input_tokens"]),
        (text(&whole), &whole["usage"]["input_tokens"])
    );
    assert!(second["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0);

    let path = format!("/v1/responses/{}", first["id"].as_str().unwrap());
    assert_eq!(get(shared(), &path).json(), first);
    assert_eq!(request(shared(), "DELETE", &path, "").json()["deleted"], true);
    assert_eq!(get(shared(), &path).status, 404);
    let gone = ask(json!({"input": "x", "previous_response_id": first["id"]}));
    assert_eq!((gone.status, &gone.json()["error"]["code"]), (400, &json!("previous_response_not_found")));
    let unkept = ask(json!({"input": "x", "store": false})).json();
    assert_eq!(get(shared(), &format!("/v1/responses/{}", unkept["id"].as_str().unwrap())).status, 404);
}

#[test]
fn a_response_follows_a_schema() {
    let schema = json!({
        "type": "object", "properties": {"city": {"type": "string", "maxLength": 10}}, "required": ["city"],
        "additionalProperties": false,
    });
    let format = json!({"type": "json_schema", "name": "answer", "schema": schema, "strict": true});
    let body =
        json!({"input": "A city?", "text": {"format": format}, "max_output_tokens": 60, "temperature": 0});
    let response = respond(&body).json();
    let answer: Value = serde_json::from_str(text(&response)).unwrap();
    assert!(answer["city"].is_string(), "{answer}");
    assert_eq!(response["text"]["format"]["name"], "answer");
}

#[test]
fn what_makes_no_response_names_its_field() {
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": "x", "max_output_tokens": 0}), "max_output_tokens"),
        (json!({"input": "x", "max_tokens": 5}), "max_tokens"),
        (json!({"input": "x", "messages": []}), "messages"),
        (json!({"input": "x", "n": 2}), "n"),
        (json!({"input": "x", "background": true}), "background"),
        (json!({"input": "x", "truncation": "auto"}), "truncation"),
        (json!({"input": "x", "conversation": "c"}), "conversation"),
        (json!({"input": "x", "include": ["file_search_call.results"]}), "include[0]"),
        (json!({"input": "x", "reasoning": {"effort": 1}}), "reasoning.effort"),
        (json!({"input": "x", "text": {"format": {"type": "xml"}}}), "text.format.type"),
        (
            json!({"input": "x", "text": {"format": {"type": "json_schema", "name": "a"}}}),
            "text.format.schema",
        ),
        (json!({"input": "word ".repeat(3000)}), "input"),
    ] {
        let response = respond(&body);
        let error = &response.json()["error"];
        assert_eq!((response.status, &error["param"]), (400, &json!(param)), "{error}");
    }
}
