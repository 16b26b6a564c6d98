//! Texts as vectors.

use crate::client::{Response, begin, get, post};
use crate::util::{anywhere, ask, chat, is_idle, shared, start, wait_for};
use engine::BatchOptions;
use serde_json::{Value, json};
use std::time::Duration;

fn embed(request: &Value) -> Response {
    post(shared(), "/v1/embeddings", request)
}

#[track_caller]
fn vectors(request: &Value) -> Vec<Vec<f64>> {
    let response = embed(request);
    assert_eq!(response.status, 200, "{}", response.body);
    let body = response.json();
    let data = body["data"].as_array().unwrap().iter().enumerate();
    data.map(|(index, item)| {
        assert_eq!((&item["object"], &item["index"]), (&json!("embedding"), &json!(index)));
        serde_json::from_value(item["embedding"].clone()).unwrap()
    })
    .collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn texts_that_mean_the_same_are_near_and_all_have_length_1() {
    let texts =
        ["The cat sleeps on the sofa.", "A kitten is napping on the couch.", "Interest rates rose again."];
    let found = vectors(&json!({"input": texts, "model": "smollm2"}));
    for vector in &found {
        assert_eq!(vector.len(), 576);
        assert!((dot(vector, vector) - 1.0).abs() < 1e-5);
    }
    let (near, far) = (dot(&found[0], &found[1]), dot(&found[0], &found[2]));
    assert!(near > far, "{near} {far}");
    // One at a time and as ids, it is the same.
    assert_eq!(vectors(&json!({"input": texts[1]})), found[1..2]);
    let ids: Vec<Value> = texts
        .iter()
        .map(|text| {
            let request = json!({"content": text, "add_special": true});
            post(shared(), "/tokenize", &request).json()["tokens"].clone()
        })
        .collect();
    assert_eq!(vectors(&json!({"input": ids})), found);
    assert_eq!(vectors(&json!({"input": ids[0]})), found[..1]);
    let usage = embed(&json!({"input": texts})).json()["usage"].clone();
    let tokens: usize = ids.iter().map(|ids| ids.as_array().unwrap().len()).sum();
    assert_eq!(usage, json!({"prompt_tokens": tokens, "total_tokens": tokens}));
}

#[test]
fn dimensions_and_encodings_are_as_asked_for() {
    let whole = &vectors(&json!({"input": "The sea."}))[0];
    let short = &vectors(&json!({"input": "The sea.", "dimensions": 64, "encoding_format": "float"}))[0];
    assert_eq!(short.len(), 64);
    assert!((dot(short, short) - 1.0).abs() < 1e-5);
    let length = dot(&whole[..64], &whole[..64]).sqrt();
    assert!(short.iter().zip(whole).all(|(a, b)| (a - b / length).abs() < 1e-6));
    let encoded = embed(&json!({"input": "The sea.", "encoding_format": "base64"})).json();
    let text = encoded["data"][0]["embedding"].as_str().unwrap().to_owned();
    assert_eq!(text.len(), 576 * 4 / 3 * 4);
    let digit = |c: u8| {
        let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        digits.iter().position(|&digit| digit == c).unwrap() as u32
    };
    let bytes: Vec<u8> = text
        .as_bytes()
        .chunks(4)
        .flat_map(|group| {
            let number = group.iter().fold(0, |number, &c| number << 6 | digit(c));
            number.to_be_bytes()[1..].to_vec()
        })
        .collect();
    let decoded: Vec<f64> =
        bytes.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()).into()).collect();
    assert!(decoded.iter().zip(whole).all(|(a, b)| (a - b).abs() < 1e-7), "{decoded:?}");
}

#[test]
fn what_cannot_be_embedded_names_its_field() {
    for (request, param) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": {}}), "input"),
        (json!({"input": ""}), "input"),
        (json!({"input": ["a", ""]}), "input[1]"),
        (json!({"input": ["a", 1]}), "input[1]"),
        (json!({"input": [[1], [-1]]}), "input[1][0]"),
        (json!({"input": ["a", "word ".repeat(3000)]}), "input[1]"),
        (json!({"input": vec!["a"; 2049]}), "input"),
        (json!({"input": "a", "dimensions": 0}), "dimensions"),
        (json!({"input": "a", "dimensions": 577}), "dimensions"),
        (json!({"input": "a", "encoding_format": "hex"}), "encoding_format"),
        (json!({"input": "a", "stream": true}), "stream"),
    ] {
        let response = embed(&request);
        let error = &response.json()["error"];
        assert_eq!((response.status, &error["param"]), (400, &json!(param)), "{error}");
    }
    assert_eq!(embed(&json!({"input": "a", "model": "other"})).status, 404);
}

#[test]
fn r21_a_list_that_nobody_waits_for_ends_and_answers_go_on_beside_it() {
    let server =
        start("smollm2", 512, BatchOptions { batch_tokens: 32, ..BatchOptions::default() }, anywhere());
    let address = server.address();
    let texts: Vec<String> = (0..500).map(|n| format!("{n} {}", "word ".repeat(400))).collect();
    let pending = begin(address, "/v1/embeddings", &json!({"input": texts}));
    wait_for(address, "a text", Duration::from_secs(20), |slots| slots["slots"][0]["state"] == "embed");
    let answer = post(address, "/v1/chat/completions", &ask("Hi", &json!({"max_tokens": 4})));
    assert_eq!(answer.status, 200, "{}", answer.body);
    drop(pending);
    wait_for(address, "an idle engine", Duration::from_secs(20), is_idle);
    assert_eq!(chat(address, "Hi", &json!({"max_tokens": 1})).status, 200);
    assert!(
        get(address, "/metrics").body.contains("smelt_requests_cancelled_total{model_name=\"smollm2\"} 1")
    );
}
