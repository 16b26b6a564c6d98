//! Text and tokens.

use crate::client::{begin, get, post};
use crate::util::{anywhere, is_idle, shared, slots, start, wait_for};
use engine::BatchOptions;
use serde_json::json;
use std::time::{Duration, Instant};

#[test]
fn text_becomes_tokens_and_text_again() {
    let text = "Hello wörld, 你好 \u{1F980}!\n";
    let tokens = post(shared(), "/tokenize", &json!({"content": text})).json()["tokens"].clone();
    assert_eq!(post(shared(), "/detokenize", &json!({"tokens": tokens})).json()["content"], text);
    let pieces = post(shared(), "/tokenize", &json!({"content": "Hello w", "with_pieces": true})).json();
    assert_eq!(pieces["tokens"][0]["piece"], "Hello");
}

#[test]
fn r09_long_text_without_blanks_takes_no_time_and_holds_nobody_up() {
    // The server loads its model before time is taken.
    assert_eq!(get(shared(), "/health").status, 200);
    let mut slowest = Vec::new();
    for text in ["x", "\u{4E2D}", " ", "ab"] {
        let time = |len: usize| {
            let body = json!({"content": text.repeat(len / text.len())});
            let start = Instant::now();
            let pending = begin(shared(), "/tokenize", &body);
            let health = (0..5).map(|_| {
                let asked = Instant::now();
                assert_eq!(get(shared(), "/health").status, 200);
                asked.elapsed()
            });
            let health = health.max().unwrap();
            assert_eq!(pending.read().status, 200);
            (start.elapsed(), health)
        };
        // Fifty times as long takes a hundred times as long at most: what was quadratic took 2,500 times.
        let ((short, _), (long, health)) = (time(5 << 10), time(256 << 10));
        assert!(long < 100 * short.max(Duration::from_millis(20)), "{text:?}: {short:?} {long:?}");
        slowest.push(health);
    }
    slowest.sort();
    // The machine may be busy with other tests for a moment.
    assert!(slowest[2] < Duration::from_secs(1), "{slowest:?}");
}

#[test]
fn r09_health_is_told_at_once_while_long_prompts_are_read() {
    let prompt = json!({"prompt": "the sea and a ship ".repeat(350), "max_tokens": 1});
    // The cache must not have it.
    let server =
        start("smollm2", 2048, BatchOptions { prefix_cache: false, ..BatchOptions::default() }, anywhere());
    let address = server.address();
    let pending: Vec<_> = (0..3).map(|_| begin(address, "/v1/completions", &prompt)).collect();
    wait_for(address, "a prompt", Duration::from_secs(60), |slots| slots["slots"][0]["state"] == "prefill");
    let mut times: Vec<_> = (0..15)
        .map(|_| {
            let asked = Instant::now();
            assert_eq!(get(address, "/health").status, 200);
            asked.elapsed()
        })
        .collect();
    assert!(!is_idle(&slots(address)), "the prompts were read before health was asked");
    times.sort();
    // The machine may be busy with other tests for a moment.
    assert!(times[7] < Duration::from_millis(100), "{times:?}");
    pending.into_iter().for_each(|pending| assert_eq!(pending.read().status, 200));
}
