//! Clients that leave.

use crate::client::{begin, post_bytes, send};
use crate::util::{anywhere, ask, chat, content, is_idle, slots, start, wait_for};
use engine::BatchOptions;
use serde_json::json;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

#[test]
fn r21_a_client_that_leaves_frees_its_place_in_every_phase() {
    let batch = BatchOptions { parallel: 1, batch_tokens: 8, ..BatchOptions::default() };
    let server = start("smollm2", 4096, batch, anywhere());
    let address = server.address();
    let long = |stream: bool| {
        ask("Tell me a story.", &json!({"max_tokens": 4000, "ignore_eos": true, "stream": stream}))
    };
    let path = "/v1/chat/completions";
    let state = |wanted: &'static str| move |slots: &serde_json::Value| slots["slots"][0]["state"] == wanted;
    for stream in [true, false] {
        for round in 0..2 {
            // Decoding, with one behind it.
            let first = begin(address, path, &long(stream));
            wait_for(address, "an answer", SOON, state("decode"));
            let second = begin(address, path, &long(stream));
            wait_for(address, "a queue", SOON, |slots| slots["waiting"] == 1);
            // In the queue.
            drop(second);
            wait_for(address, "an empty queue", SOON, |slots| slots["waiting"] == 0);
            let third = begin(address, path, &long(stream));
            wait_for(address, "a queue", SOON, |slots| slots["waiting"] == 1);
            let before = slots(address)["slots"][0]["request"].clone();
            drop(first);
            wait_for(address, "the next one", SOON, |slots| {
                slots["waiting"] == 0 && slots["slots"][0]["request"] != before
            });
            drop(third);
            wait_for(address, "an idle engine", SOON, is_idle);
            // In the middle of a prompt.
            let text = format!("{round} {stream} {}", "word ".repeat(3000));
            let prefill = begin(address, path, &ask(&text, &json!({"stream": stream})));
            wait_for(address, "a prompt", SOON, state("prefill"));
            drop(prefill);
            wait_for(address, "an idle engine", SOON, is_idle);
        }
    }
    assert!(!content(&chat(address, "Hi", &json!({}))).is_empty());
}

#[test]
fn r21_a_client_that_leaves_behind_another_request_is_seen_to_leave() {
    let batch = BatchOptions { parallel: 1, ..BatchOptions::default() };
    let server = start("smollm2", 4096, batch, anywhere());
    for stream in [true, false] {
        let long =
            ask("Tell me a story.", &json!({"max_tokens": 4000, "ignore_eos": true, "stream": stream}));
        let first = post_bytes("/v1/chat/completions", &long.to_string(), "");
        // The head of the next one, which nobody reads until the first is answered.
        let both = [&first, &b"GET /health HTTP/1.1\r\nhost: localhost\r\n"[..]].concat();
        let pending = send(server.address(), &both);
        wait_for(server.address(), "an answer", SOON, |slots| slots["slots"][0]["state"] == "decode");
        drop(pending);
        wait_for(server.address(), "an idle engine", SOON, is_idle);
    }
}
