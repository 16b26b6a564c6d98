//! Servers for tests.

use crate::client::{Response, get, post};
use engine::{BatchOptions, Engine, LoadOptions};
use serde_json::{Value, json};
use server::{Model, ModelOptions, Server, ServerOptions};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The file of a model, fetched if it is not there: a test that needs it fails where it cannot be had.
fn model_file(alias: &str) -> PathBuf {
    hub::resolve(alias, &hub::Options::from_env(), &mut ()).unwrap_or_else(|e| panic!("{alias}: {e}"))
}

/// Where a test's own server listens.
pub fn anywhere() -> ServerOptions {
    ServerOptions { address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), ..ServerOptions::default() }
}

/// A server of its own for a test.
pub fn start(alias: &str, context: usize, batch: BatchOptions, options: ServerOptions) -> Server {
    let server = Server::bind(options).unwrap();
    server.ready(load(alias, context, batch));
    server
}

/// A server of its own whose SmolLM2 has another chat template.
pub fn start_with_template(template: &str) -> Server {
    start_with(ModelOptions { template: Some(template.to_owned()), ..ModelOptions::default() })
}

/// A server of its own with a SmolLM2 that is served so.
pub fn start_with(options: ModelOptions) -> Server {
    let server = Server::bind(anywhere()).unwrap();
    server.ready(load_with("smollm2", 1024, options));
    server
}

/// A model that is ready.
pub fn load(alias: &str, context: usize, batch: BatchOptions) -> Model {
    load_with(alias, context, ModelOptions { batch, ..ModelOptions::default() })
}

fn load_with(alias: &str, context: usize, model: ModelOptions) -> Model {
    let options = LoadOptions {
        context: Some(context),
        cache_tokens: Some(4 * context),
        threads: Some(2),
        ..LoadOptions::default()
    };
    let engine = Engine::load(&model_file(alias), &options, &mut |_, _| {}).unwrap();
    Model::new(engine, ModelOptions { name: alias.into(), ..model }).unwrap()
}

/// The server that tests share which ask for nothing special: SmolLM2 with a context of 2048.
pub fn shared() -> SocketAddr {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| start("smollm2", 2048, BatchOptions::default(), anywhere())).address()
}

/// A request for an answer to a user's message, with more fields.
pub fn ask(text: &str, more: &Value) -> Value {
    let mut request = json!({"messages": [{"role": "user", "content": text}], "max_tokens": 16});
    merge(&mut request, more);
    request
}

/// Sets the fields of `more`.
pub fn merge(request: &mut Value, more: &Value) {
    for (name, value) in more.as_object().unwrap() {
        request[name] = value.clone();
    }
}

pub fn chat(address: SocketAddr, text: &str, more: &Value) -> Response {
    post(address, "/v1/chat/completions", &ask(text, more))
}

/// The text of a whole answer.
#[track_caller]
pub fn content(response: &Response) -> String {
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

/// The text of a streamed answer, and its last reason to end.
#[track_caller]
pub fn streamed(response: &Response) -> (String, String) {
    assert_eq!(response.status, 200, "{}", response.body);
    let (mut text, mut reason) = (String::new(), String::new());
    for event in response.events() {
        assert!(event.get("error").is_none(), "{event}");
        for choice in event["choices"].as_array().unwrap() {
            text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
            reason = choice["finish_reason"].as_str().unwrap_or(&reason).to_owned();
        }
    }
    (text, reason)
}

pub fn slots(address: SocketAddr) -> Value {
    get(address, "/slots").json()
}

/// Waits until `/slots` is so.
#[track_caller]
pub fn wait_for(address: SocketAddr, what: &str, limit: Duration, is: impl Fn(&Value) -> bool) {
    let start = Instant::now();
    loop {
        let slots = slots(address);
        if is(&slots) {
            return;
        }
        assert!(start.elapsed() < limit, "{what} did not come: {slots}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn is_idle(slots: &Value) -> bool {
    slots["slots"].as_array().unwrap().is_empty() && slots["waiting"] == 0 && slots["pages"]["running"] == 0
}
