//! Continuations of texts.

use crate::client::post;
use crate::util::shared;
use serde_json::{Value, json};

const PROMPT: &str = "The capital of France is";

fn complete(more: &Value) -> Value {
    let mut request = json!({"prompt": PROMPT, "temperature": 0, "max_tokens": 3});
    crate::util::merge(&mut request, more);
    let response = post(shared(), "/v1/completions", &request);
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

#[test]
fn texts_and_tokens_are_continued() {
    let body = complete(&json!({}));
    assert_eq!(
        (&body["object"], &body["choices"][0]["text"]),
        (&json!("text_completion"), &json!(" Paris.\n"))
    );
    assert_eq!(body["choices"][0]["finish_reason"], "length");
    let tokens = post(shared(), "/tokenize", &json!({"content": PROMPT})).json()["tokens"].clone();
    for prompt in [tokens.clone(), json!([tokens]), json!([PROMPT])] {
        assert_eq!(complete(&json!({"prompt": prompt}))["choices"][0]["text"], " Paris.\n");
    }
}

#[test]
fn several_prompts_are_answered_in_order() {
    let body = complete(&json!({"prompt": [PROMPT, "One, two, three,"], "n": 2}));
    let texts: Vec<_> = body["choices"].as_array().unwrap().iter().map(|choice| &choice["text"]).collect();
    assert_eq!((texts.len(), texts[0], texts[0]), (4, texts[1], &json!(" Paris.\n")));
    assert!(texts[2].as_str().unwrap().contains("four") && texts[2] == texts[3], "{texts:?}");
    assert_eq!(body["choices"][3]["index"], 3);
}

#[test]
fn the_prompt_can_be_given_back() {
    let body = complete(&json!({"echo": true}));
    assert_eq!(body["choices"][0]["text"], format!("{PROMPT} Paris.\n"));
    let body = complete(&json!({"echo": true, "max_tokens": 0}));
    assert_eq!(body["choices"][0]["text"], PROMPT);
    let request = json!({"prompt": PROMPT, "temperature": 0, "max_tokens": 3, "echo": true, "stream": true});
    let events = post(shared(), "/v1/completions", &request).events();
    let text: String = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(text, format!("{PROMPT} Paris.\n"));
}

#[test]
fn logprobs_have_offsets() {
    let logprobs = &complete(&json!({"logprobs": 2}))["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!([" Paris", ".", "\n"]));
    assert_eq!(logprobs["text_offset"], json!([0, 6, 7]));
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
    assert_eq!(logprobs["token_logprobs"].as_array().unwrap().len(), 3);
}

#[test]
fn offsets_count_the_characters_of_the_text_that_is_given_back() {
    let emoji = "\u{1F9A9}";
    let grammar = format!("start: \"a\u{e9}{emoji}b STOP c\"");
    let fields = json!({
        "prompt": "x", "grammar": grammar, "max_tokens": 40, "temperature": 0, "logprobs": 0, "stop": [" STOP"],
    });
    let whole = complete(&fields);
    let choice = &whole["choices"][0];
    assert_eq!(choice["text"], format!("a\u{e9}{emoji}b"));
    // The parts of a character begin where it does, and the text that ends the answer has no tokens.
    let (tokens, offsets) =
        (choice["logprobs"]["tokens"].as_array().unwrap(), &choice["logprobs"]["text_offset"]);
    let offsets: Vec<u64> = serde_json::from_value(offsets.clone()).unwrap();
    assert_eq!((offsets.len(), offsets.first(), offsets.last()), (tokens.len(), Some(&0), Some(&3)));
    assert!(offsets.is_sorted() && offsets.iter().filter(|&&offset| offset == 2).count() > 1, "{offsets:?}");
    assert!(!tokens.iter().any(|token| token.as_str().unwrap().contains("ST")), "{tokens:?}");
    // A stream tells the same, each token with its text or before it.
    let mut streaming = json!({"stream": true});
    crate::util::merge(&mut streaming, &fields);
    let events = post(shared(), "/v1/completions", &streaming).events();
    let told = events.iter().flat_map(|event| {
        let offsets = event["choices"][0]["logprobs"]["text_offset"].as_array();
        offsets.cloned().unwrap_or_default()
    });
    assert_eq!(json!(told.collect::<Vec<_>>()), choice["logprobs"]["text_offset"]);
}

#[test]
fn r13_characters_that_are_spread_over_tokens_come_whole() {
    let emoji = "\u{1F9A9}";
    let tokens = post(shared(), "/tokenize", &json!({"content": emoji})).json()["count"].as_u64().unwrap();
    assert!(tokens >= 2, "a character of one token proves nothing");
    let request = |most: u64, stream: bool| {
        let grammar = format!("start: /({emoji}){{5}}/");
        json!({"prompt": "x", "grammar": grammar, "max_tokens": most, "stream": stream, "temperature": 0})
    };
    let events = post(shared(), "/v1/completions", &request(40, true)).events();
    let text: String = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(text, emoji.repeat(5));
    assert!(!events.iter().any(|event| event.to_string().contains('\u{FFFD}')));
    // Cut in the middle of a character: the fragment is one replacement.
    let cut = post(shared(), "/v1/completions", &request(1, false)).json();
    assert_eq!(cut["choices"][0]["text"], "\u{FFFD}");
    let events = post(shared(), "/v1/completions", &request(1, true)).events();
    let text: String = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(text, "\u{FFFD}");
}
