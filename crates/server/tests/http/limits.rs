//! What happens where something is full, long, slow or late.

use crate::client::{begin, get, post, post_bytes, request, send};
use crate::util::{
    anywhere, ask, chat, content, is_idle, load, shared, start, start_with, start_with_template, wait_for,
};
use engine::BatchOptions;
use serde_json::json;
use server::{Error, ModelOptions, Server, ServerOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

#[test]
fn r15_a_prompt_longer_than_the_context_is_refused_and_one_that_fills_it_ends_with_length() {
    let server = start("smollm2", 256, BatchOptions::default(), anywhere());
    let complete = |tokens: usize, most: usize| {
        let prompt: Vec<u32> = (0..tokens as u32).map(|token| token % 97 + 300).collect();
        post(
            server.address(),
            "/v1/completions",
            &json!({"prompt": prompt, "max_tokens": most, "temperature": 0}),
        )
    };
    let refused = complete(300, 10);
    assert_eq!(refused.status, 400);
    let error = &refused.json()["error"];
    assert_eq!((&error["code"], &error["param"]), (&json!("context_length_exceeded"), &json!("prompt")));
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("300") && message.contains("256"), "{message}");
    for (tokens, generated) in [(256, 1), (255, 2), (250, 7)] {
        let body = complete(tokens, 10).json();
        assert_eq!(body["usage"]["completion_tokens"], generated, "{body}");
        assert_eq!(body["choices"][0]["finish_reason"], "length");
    }
    let long = "word ".repeat(400);
    let refused = chat(server.address(), &long, &json!({"stream": true}));
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("messages")));
    assert!(!content(&chat(server.address(), "Hi", &json!({}))).is_empty());
}

#[test]
fn a_full_queue_is_told_and_room_is_used() {
    let batch = BatchOptions { parallel: 1, queue: 1, ..BatchOptions::default() };
    let server = start("smollm2", 2048, batch, anywhere());
    let long =
        ask("Tell me a very long story.", &json!({"max_tokens": 2000, "ignore_eos": true, "stream": true}));
    let mut running = begin(server.address(), "/v1/chat/completions", &long);
    running.wait_for("content");
    let queued = begin(server.address(), "/v1/chat/completions", &long);
    wait_for(server.address(), "a queue", Duration::from_secs(10), |slots| slots["waiting"] == 1);
    for stream in [true, false] {
        let refused = chat(server.address(), "Hi", &json!({"stream": stream}));
        assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
        assert_eq!(refused.json()["error"]["code"], "overloaded");
    }
    drop((running, queued));
    wait_for(server.address(), "room", Duration::from_secs(10), is_idle);
    assert!(!content(&chat(server.address(), "Hi", &json!({}))).is_empty());
}

#[test]
fn a_reader_that_does_not_read_holds_nobody_up() {
    let server = start("smollm2", 2048, BatchOptions { parallel: 1, ..BatchOptions::default() }, anywhere());
    let request = ask("Tell me a story.", &json!({"max_tokens": 300, "ignore_eos": true, "stream": true}));
    let slow = begin(server.address(), "/v1/chat/completions", &request);
    // Its answer is computed, though nobody has read a byte.
    assert!(!content(&chat(server.address(), "Hi", &json!({}))).is_empty());
    let events = slow.read().events();
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
}

#[test]
fn a_reader_that_takes_nothing_for_long_is_let_go() {
    let options = ServerOptions { stall_timeout: Duration::from_millis(300), ..anywhere() };
    let server = start("smollm2", 256, BatchOptions::default(), options);
    // More than the system holds for a connection.
    let body = json!({"content": "a b ".repeat(300_000), "with_pieces": true}).to_string();
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(&post_bytes("/tokenize", &body, "")).unwrap();
    let mut read = vec![0; 1000];
    stream.read_exact(&mut read).unwrap();
    assert!(String::from_utf8_lossy(&read).starts_with("HTTP/1.1 200"));
    std::thread::sleep(Duration::from_secs(2));
    let _ = stream.read_to_end(&mut read);
    assert!(!read.ends_with(b"\r\n0\r\n\r\n"), "all of it came: {} bytes", read.len());
    assert_eq!(get(server.address(), "/health").status, 200);
}

#[test]
fn large_slow_and_late_requests_end() {
    let options = ServerOptions {
        max_request_bytes: 1000,
        body_timeout: Duration::from_millis(300),
        request_timeout: Duration::from_millis(400),
        ..anywhere()
    };
    let server = start("smollm2", 2048, BatchOptions::default(), options);
    let large = chat(server.address(), &"x".repeat(1000), &json!({}));
    assert_eq!((large.status, &large.json()["error"]["code"]), (413, &json!("request_too_large")));
    let chunked = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
        transfer-encoding: chunked\r\n\r\n5dc\r\n";
    let large = send(server.address(), &[chunked, &[b' '; 1500][..], b"\r\n0\r\n\r\n"].concat()).read();
    assert_eq!(large.status, 413);
    let whole = post_bytes("/tokenize", "{\"content\": \"abc\"}", "");
    let slow = send(server.address(), &whole[..whole.len() - 3]).read();
    assert_eq!((slow.status, &slow.json()["error"]["code"]), (408, &json!("request_timeout")));
    // Half a head: the connection is closed.
    let mut half = TcpStream::connect(server.address()).unwrap();
    half.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    half.write_all(b"GET /health HT").unwrap();
    let _ = half.read_to_end(&mut Vec::new());
    let more = json!({"max_tokens": 2000, "ignore_eos": true});
    let late = chat(server.address(), "Tell me a story.", &more);
    assert_eq!((late.status, &late.json()["error"]["code"]), (504, &json!("timeout")));
    let more = json!({"max_tokens": 2000, "ignore_eos": true, "stream": true});
    let late = chat(server.address(), "Tell me a story.", &more);
    assert_eq!(late.events().last().unwrap()["error"]["code"], "timeout");
    wait_for(server.address(), "an idle engine", Duration::from_secs(10), is_idle);
}

#[test]
fn connections_that_send_nothing_leave_soon_where_there_is_little_room() {
    let options = ServerOptions { max_connections: 8, ..anywhere() };
    let server = start("smollm2", 256, BatchOptions::default(), options);
    let silent: Vec<_> = (0..8).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    // Those that came last have three seconds, the others thirty.
    let start = Instant::now();
    assert_eq!(get(server.address(), "/health").status, 200);
    assert!(start.elapsed() < Duration::from_secs(25), "{:?}", start.elapsed());
    drop(silent);
}

#[test]
fn others_need_a_key_and_pages_an_origin() {
    let options = ServerOptions {
        api_key: Some("secret".into()),
        cors_origins: vec!["https://good.example".into()],
        ..anywhere()
    };
    let server = start("smollm2", 256, BatchOptions::default(), options);
    let models = |headers: &str| request(server.address(), "GET", "/v1/models", headers);
    let refused = models("");
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
    assert_eq!(refused.json()["error"]["type"], "authentication_error");
    assert_eq!(models("authorization: Bearer secre\r\n").status, 401);
    assert_eq!(models("authorization: Bearer secret\r\n").status, 200);
    assert_eq!(get(server.address(), "/health").status, 200);
    let allowed = models("authorization: Bearer secret\r\norigin: https://good.example\r\n");
    assert_eq!(allowed.header("access-control-allow-origin"), Some("https://good.example"));
    assert_eq!(allowed.header("access-control-expose-headers"), Some("x-request-id, retry-after"));
    let foreign = models("authorization: Bearer secret\r\norigin: https://evil.example\r\n");
    assert_eq!(foreign.header("access-control-allow-origin"), None);
    let preflight = "origin: https://good.example\r\naccess-control-request-method: POST\r\n";
    let preflight = request(server.address(), "OPTIONS", "/v1/chat/completions", preflight);
    assert_eq!((preflight.status, preflight.header("access-control-max-age")), (204, Some("600")));
    let allowed = preflight.header("access-control-allow-headers").unwrap();
    assert!(allowed.contains("authorization") && allowed.contains("content-type"), "{allowed}");
    // OpenAI's own package sends headers about itself.
    let names = "authorization,content-type,x-stainless-lang,x-stainless-retry-count";
    let preflight = format!("origin: https://good.example\r\naccess-control-request-headers: {names}\r\n");
    let preflight = request(server.address(), "OPTIONS", "/v1/chat/completions", &preflight);
    assert_eq!(preflight.header("access-control-allow-headers"), Some(names));
}

#[test]
fn a_page_elsewhere_cannot_make_a_browser_use_the_server() {
    // A name that was made to point here.
    let bytes = b"GET /v1/models HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    assert_eq!(send(shared(), bytes).read().status, 403);
    let bytes = b"GET http://evil.example/v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert_eq!(send(shared(), bytes).read().status, 403);
    for hosts in ["host: localhost\r\nhost: evil.example\r\n", "host: localh\u{f6}st\r\n"] {
        let bytes = format!("GET /v1/models HTTP/1.1\r\n{hosts}connection: close\r\n\r\n");
        assert_eq!(send(shared(), bytes.as_bytes()).read().status, 403, "{hosts}");
    }
    // What a page may send without being asked.
    let body = "{\"content\": \"a\"}";
    let bytes = format!(
        "POST /tokenize HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: text/plain\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    assert_eq!(send(shared(), bytes.as_bytes()).read().status, 415);
}

#[test]
fn data_that_grow_with_reading_are_told_and_take_no_more_than_their_room() {
    // Each sign is a value of a hundred bytes and more: twenty times the body.
    let body = format!("{{\"tokens\": [{}1]}}", "1,".repeat(2 << 20));
    let refused = send(shared(), &post_bytes("/detokenize", &body, "")).read();
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (413, &json!("request_too_large")));
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("takes too much memory") && message.contains("at most 256"), "{message}");
    // The same length as one text, and as tokens with their texts.
    let text = "1,".repeat(2 << 20);
    let told = post(shared(), "/tokenize", &json!({"content": text, "with_pieces": true}));
    assert_eq!(told.status, 200);
    let told = told.json();
    let count = told["count"].as_u64().unwrap() as usize;
    assert_eq!(told["tokens"].as_array().unwrap().len(), count);
    assert_eq!((told["tokens"][count - 1]["piece"].as_str().unwrap(), count > 1 << 20), (",", true));
}

#[test]
fn addresses_that_others_reach_need_a_word_about_keys() {
    let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let options = ServerOptions { address: everywhere, ..anywhere() };
    let error = Server::bind(options.clone()).unwrap_err();
    assert!(matches!(error, Error::Unprotected { .. }), "{error}");
    assert!(Server::bind(ServerOptions { no_auth: true, ..options.clone() }).is_ok());
    let error = Server::bind(ServerOptions { api_key: Some(" ".into()), ..options }).unwrap_err();
    assert!(matches!(error, Error::Option { name: "API key", .. }), "{error}");
    let taken = TcpStream::connect(shared()).unwrap().peer_addr().unwrap();
    let error = Server::bind(ServerOptions { address: taken, ..anywhere() }).unwrap_err();
    assert!(matches!(error, Error::Bind { .. }) && error.to_string().contains(&taken.to_string()), "{error}");
}

#[test]
fn a_request_that_is_on_its_way_when_the_server_ends_is_answered() {
    let mut server = start("smollm2", 512, BatchOptions::default(), anywhere());
    let address = server.address();
    let body = ask("Hi", &json!({})).to_string();
    let bytes = post_bytes("/v1/chat/completions", &body, "");
    let (head, tail) = bytes.split_at(bytes.len() - 5);
    let mut slow = TcpStream::connect(address).unwrap();
    slow.write_all(head).unwrap();
    // Taken by the system or by the server, but without a request yet.
    let mut silent = TcpStream::connect(address).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let stopping = std::thread::spawn(move || server.shut_down());
    // More than the answers themselves are given to end.
    std::thread::sleep(Duration::from_secs(4));
    let mut late = TcpStream::connect(address).unwrap();
    slow.write_all(tail).unwrap();
    let probe = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n";
    silent.write_all(probe).unwrap();
    late.write_all(&bytes).unwrap();
    for (mut stream, status) in [(slow, "503"), (silent, "200"), (late, "503")] {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    }
    stopping.join().unwrap();
}

/// Takes seconds for a message of `slow`: lists of which each holds the one before twice are compared, which no budget
/// counts.
const SLOW_TEMPLATE: &str = "{% if messages[0].content == 'slow' %}{% set ns = namespace(a=[1], b=[1]) %}\
    {% for i in range(22) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}\
    {{ ns.a == ns.b }}{% endif %}{{ messages[0].content }}";

#[test]
fn health_is_told_while_renderings_have_all_processors() {
    let server = start_with_template(SLOW_TEMPLATE);
    let address = server.address();
    let start = Instant::now();
    // As many as are rendered at a time.
    let renderings: Vec<_> = (0..std::thread::available_parallelism().unwrap().get())
        .map(|_| begin(address, "/apply-template", &ask("slow", &json!({}))))
        .collect();
    for path in ["/health", "/metrics", "/slots", "/v1/models"].repeat(5) {
        assert_eq!(get(address, path).status, 200, "{path}");
    }
    let told = start.elapsed();
    for rendering in renderings {
        let rendered = rendering.read();
        assert_eq!((rendered.status, &rendered.json()["prompt"]), (200, &json!("Trueslow")));
    }
    assert!(told < start.elapsed() / 2, "told after {told:?}, rendered after {:?}", start.elapsed());
}

#[test]
fn a_template_whose_renderings_do_not_end_is_told_until_they_do() {
    let options = ModelOptions {
        template: Some(SLOW_TEMPLATE.into()),
        template_patience: Some(Duration::from_millis(50)),
        ..ModelOptions::default()
    };
    let server = start_with(options);
    let address = server.address();
    assert_eq!(get(address, "/health").json()["status"], "ok");
    let health = (0..100).find_map(|_| {
        let late = chat(address, "slow", &json!({}));
        assert_eq!((late.status, late.header("retry-after")), (503, Some("10")), "{}", late.body);
        assert_eq!(late.json()["error"]["code"], "template_timeout");
        Some(get(address, "/health")).filter(|health| health.status == 503)
    });
    assert_eq!(health.expect("it is not told").json()["status"], "stuck");
    let start = Instant::now();
    while get(address, "/health").status == 503 || chat(address, "Hi", &json!({})).status == 503 {
        assert!(start.elapsed() < Duration::from_secs(100), "it stays stuck");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn answers_that_do_not_end_in_time_are_cut_off_with_a_word() {
    let options = ServerOptions { drain_timeout: Duration::from_millis(300), ..anywhere() };
    let mut server = start("smollm2", 2048, BatchOptions::default(), options);
    let request = |stream| ask("Hi", &json!({"max_tokens": 2000, "ignore_eos": true, "stream": stream}));
    let whole = begin(server.address(), "/v1/chat/completions", &request(false));
    let mut streamed = begin(server.address(), "/v1/chat/completions", &request(true));
    streamed.wait_for("content");
    wait_for(server.address(), "both", Duration::from_secs(30), |slots| {
        slots["slots"][1]["state"] == "decode"
    });
    server.shut_down();
    let whole = whole.read();
    assert_eq!((whole.status, whole.header("retry-after")), (503, Some("10")), "{}", whole.body);
    let last = streamed.read().events().pop().unwrap();
    for error in [&whole.json()["error"], &last["error"]] {
        assert_eq!(error["code"], "shutting_down", "{error}");
        assert!(
            error["message"].as_str().unwrap().contains("has not ended in the time left to it"),
            "{error}"
        );
    }
}

#[test]
fn health_is_told_while_loading_and_draining_and_answers_are_ended() {
    let mut server = Server::bind(anywhere()).unwrap();
    let address = server.address();
    let health = get(address, "/health");
    assert_eq!((health.status, health.json()["status"].as_str().unwrap()), (503, "loading"));
    let refused = chat(address, "Hi", &json!({}));
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    server.ready(load("smollm2", 512, BatchOptions::default()));
    assert_eq!(get(address, "/health").status, 200);
    let request = ask("Tell me a story.", &json!({"max_tokens": 100, "ignore_eos": true, "stream": true}));
    let mut running = begin(address, "/v1/chat/completions", &request);
    running.wait_for("content");
    let stopping = std::thread::spawn(move || {
        let start = Instant::now();
        server.shut_down();
        start.elapsed()
    });
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(5) {
        // Until the last answer has ended, the server says that it takes no more.
        if TcpStream::connect(address).is_err() {
            break;
        }
        let health = std::panic::catch_unwind(|| get(address, "/health").status);
        assert!(matches!(health, Err(_) | Ok(200 | 503 | 0)));
    }
    assert_eq!(running.read().events().last().unwrap()["choices"][0]["finish_reason"], "length");
    assert!(stopping.join().unwrap() < Duration::from_secs(25));
    assert!(TcpStream::connect(address).is_err());
}
