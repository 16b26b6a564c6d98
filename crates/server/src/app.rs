//! The routes, and what stands before all of them.

use crate::error::{ApiError, Reason};
use crate::http::{blocking, held, json, pieces, read_body, unique, with_type};
use crate::memory::{Account, Memory};
use crate::metrics::Metrics;
use crate::model::Model;
use crate::params::Form;
use crate::reply::{Kind, Reply};
use crate::responses::{ResponseReply, Store};
use crate::run::Run;
use crate::{chat, completions, embeddings, inspect, origin, responses};
use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Extension, Router};
use hyper::body::{Frame, SizeHint};
use serde_json::{Value, json};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore, watch};

/// Grammars that are compiled at a time.
const COMPILERS: usize = 2;

/// Bytes that all grammars have together, by what each is counted as.
const GRAMMAR_ROOM: usize = 1 << 30;

/// Routes that are asked all the time. Nobody waits for their answers at the end.
const PROBES: [&str; 3] = ["/health", "/metrics", "/slots"];

/// Longest time to wait until a request is read, beside those that are being read.
const PREPARE_WAIT: Duration = Duration::from_secs(10);

type Result = std::result::Result<Response<Body>, ApiError>;
type PathResult = std::result::Result<Path<String>, PathRejection>;

/// How the server behaves; see the fields of [`ServerOptions`](crate::ServerOptions).
#[derive(Debug)]
pub struct App {
    pub options: crate::ServerOptions,
    pub metrics: Arc<Metrics>,
    /// Whether requests are checked for coming from this machine's own programs.
    pub guard_host: bool,
    model: OnceLock<Model>,
    draining: AtomicBool,
    in_flight: AtomicUsize,
    /// Told when the last request has ended.
    pub idle: Notify,
    /// Whether what still runs has to end, since the server does.
    over: watch::Sender<bool>,
    /// Turning text into tokens takes processors from everything else: so many at a time.
    preparing: Arc<Semaphore>,
    /// So are grammars.
    compiling: Arc<Semaphore>,
    /// What requests take of it.
    pub memory: Memory,
    /// What grammars take of it.
    grammars: Memory,
    /// The latest responses.
    pub responses: Store,
}

/// Counts a request from its first line until its response has been sent.
#[derive(Debug)]
struct InFlight(Arc<App>);

impl InFlight {
    fn new(app: &Arc<App>) -> InFlight {
        app.in_flight.fetch_add(1, Ordering::SeqCst);
        InFlight(Arc::clone(app))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.0.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}

/// The body of a response, which counts its request until it has been sent.
struct Counted {
    body: Body,
    _in_flight: InFlight,
}

impl axum::body::HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The name of a request in logs.
#[derive(Clone, Debug)]
struct RequestId(String);

impl App {
    pub fn new(options: crate::ServerOptions, guard_host: bool) -> App {
        App {
            memory: Memory::new(options.max_request_bytes),
            grammars: Memory::of_bytes(GRAMMAR_ROOM, "grammars and schemas"),
            options,
            guard_host,
            metrics: Arc::default(),
            model: OnceLock::new(),
            draining: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            idle: Notify::new(),
            over: watch::Sender::new(false),
            preparing: Arc::new(Semaphore::new(std::thread::available_parallelism().map_or(1, usize::from))),
            compiling: Arc::new(Semaphore::new(COMPILERS)),
            responses: Store::default(),
        }
    }

    /// Takes a model into service. The first one stays.
    pub fn set_model(&self, model: Model) {
        let _ = self.model.set(model);
    }

    /// From now on nothing new is answered.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// From now on nothing is answered to its end.
    pub fn cut_off(&self) {
        self.over.send_replace(true);
    }

    /// Ends when answers have to.
    pub fn over(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut over = self.over.subscribe();
        async move {
            // Its sender lives as long as there is anybody to answer.
            let _ = over.wait_for(|over| *over).await;
        }
    }

    /// Requests that are being answered.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// The model, once it is loaded.
    pub fn loaded(&self) -> Option<&Model> {
        self.model.get()
    }

    /// The model, or that it is being loaded.
    pub fn model(&self) -> std::result::Result<&Model, ApiError> {
        self.loaded().ok_or_else(|| ApiError::unavailable("model_loading", "the model is being loaded", 1))
    }

    /// The model for something new.
    fn accepting(&self) -> std::result::Result<&Model, ApiError> {
        if self.is_draining() {
            return Err(ApiError::unavailable("shutting_down", "the server is shutting down", 10));
        }
        self.model()
    }
}

/// All routes.
pub fn router(app: &Arc<App>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/openapi.json", get(openapi))
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/completions", post(text_completions))
        .route("/v1/embeddings", post(embeddings))
        .route("/v1/responses", post(create_response))
        .route("/v1/responses/{id}", get(response).delete(delete_response))
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/slots", get(slots))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/apply-template", post(apply_template))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(app), gate))
        .with_state(Arc::clone(app))
}

async fn chat_completions(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result {
    let work = |body, model: &Model, _: &mut Account| chat::read(body, model);
    let ((request, params, prompt), account) = prepare(&app, request, work).await?;
    let request = engine::Request { name: id.0, ..request };
    let tokens = request.prompt.len();
    let mut requests = constrain(&app, prompt.form, vec![request]).await?;
    // What is left of the request is its tokens and its rule.
    drop((prompt.rendered, account));
    let model = app.accepting()?;
    prompt.reading.after_reasoning(&mut requests, model);
    let reply = Reply::new(&app, Kind::Chat(prompt.reading), model, &params, 1, tokens);
    let run = Run::start(&app, requests, reply, "messages").await?;
    if params.stream { Ok(run.stream()) } else { run.whole().await }
}

async fn text_completions(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result {
    let work = |body, model: &Model, _: &mut Account| completions::read(body, model);
    let ((params, asked), account) = prepare(&app, request, work).await?;
    let (mut requests, echoes) = (asked.requests, asked.echoes);
    for request in &mut requests {
        request.name.clone_from(&id.0);
    }
    let requests = constrain(&app, asked.form, requests).await?;
    drop(account);
    let model = app.accepting()?;
    let tokens = requests.iter().map(|request| request.prompt.len()).sum();
    let reply = Reply::new(&app, Kind::Text(echoes), model, &params, requests.len(), tokens);
    let run = Run::start(&app, requests, reply, "prompt").await?;
    if params.stream { Ok(run.stream()) } else { run.whole().await }
}

async fn create_response(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result {
    let shared = Arc::clone(&app);
    let read = move |body, model: &Model, account: &mut Account| {
        responses::read(body, model, account, &shared.responses)
    };
    let ((request, params, prompt, asked), account) = prepare(&app, request, read).await?;
    let request = engine::Request { name: id.0, ..request };
    let tokens = request.prompt.len();
    let mut requests = constrain(&app, prompt.form, vec![request]).await.map_err(responses::renamed)?;
    let model = app.accepting()?;
    prompt.reading.after_reasoning(&mut requests, model);
    let reply = ResponseReply::new(&app, asked, account, prompt.reading, model, tokens);
    let run = Run::start(&app, requests, reply, "input").await?;
    if params.stream { Ok(run.stream()) } else { run.whole().await }
}

async fn response(State(app): State<Arc<App>>, path: PathResult) -> Result {
    let id = segment(path)?;
    match app.responses.response(&id) {
        Some(response) => Ok(with_type(StatusCode::OK, "application/json", response)),
        None => Err(no_such_response(&id)),
    }
}

async fn delete_response(State(app): State<Arc<App>>, path: PathResult) -> Result {
    let id = segment(path)?;
    if !app.responses.remove(&id) {
        return Err(no_such_response(&id));
    }
    Ok(json(StatusCode::OK, &json!({"id": id, "object": "response", "deleted": true})))
}

/// The part of the path that names something.
fn segment(path: PathResult) -> std::result::Result<String, ApiError> {
    path.map(|Path(name)| name).map_err(|error| {
        let message = format!("Invalid request URL: {}.", error.body_text());
        ApiError::new(StatusCode::BAD_REQUEST, Some("invalid_url"), message)
    })
}

fn no_such_response(id: &str) -> ApiError {
    let message = format!("Response with id '{id}' not found.");
    ApiError::new(StatusCode::NOT_FOUND, Some("response_not_found"), message)
}

async fn embeddings(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result {
    let ((request, wanted), account) = prepare(&app, request, embeddings::read).await?;
    let model = app.accepting()?;
    let request = engine::EmbedRequest { name: id.0, ..request };
    let vectors = embeddings::compute(&model.engine, request, app.options.request_timeout).await?;
    Ok(pieces(embeddings::answer(vectors, wanted, model), account))
}

/// Compiles what the answers to requests must be. That can take a second, so a few at a time; answers without wait for
/// none. Dropping the future gives up.
async fn constrain(
    app: &Arc<App>,
    form: Option<Form>,
    mut requests: Vec<engine::Request>,
) -> std::result::Result<Vec<engine::Request>, ApiError> {
    let Some(form) = form else { return Ok(requests) };
    let turn = Arc::clone(&app.compiling).acquire_owned();
    let turn = tokio::time::timeout(app.options.request_timeout, turn).await.map_err(|_| {
        ApiError::unavailable("overloaded", "too many grammars are waiting to be compiled", 1)
    })?;
    let shared = Arc::clone(app);
    let field = form.field;
    let stop = StopOnDrop::default();
    let stopped = Arc::clone(&stop.0);
    let work = blocking(move || {
        // As for `prepare`.
        let _turn = turn;
        let mut account = shared.grammars.account();
        account.grow(form.memory(requests.iter().map(|request| request.choices).sum()))?;
        let constraint = form.compile(shared.model()?, account, &stopped)?;
        // Copies take a while too.
        if let Some((last, others)) = requests.split_last_mut() {
            others.iter_mut().for_each(|request| request.constraint = Some(constraint.fork()));
            last.constraint = Some(constraint);
        }
        Ok(requests)
    });
    let limit = app.options.compile_timeout;
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        let message =
            format!("Invalid '{field}': compiling it takes longer than {} seconds.", limit.as_secs_f32());
        Err(ApiError::field(field, "invalid_value", message))
    })?
}

/// Tells work on another thread that nobody waits for it.
#[derive(Debug, Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reads a request's body and makes of it what takes long. What it takes of memory is counted in the account, which lives
/// as long as what was made.
async fn prepare<T: Send + 'static>(
    app: &Arc<App>,
    request: Request,
    work: impl FnOnce(Value, &Model, &mut Account) -> std::result::Result<T, ApiError> + Send + 'static,
) -> std::result::Result<(T, Account), ApiError> {
    app.accepting()?;
    let options = &app.options;
    let body = read_body(request, options.max_request_bytes, options.body_timeout, app.memory.account());
    let body = body.await?;
    let turn = Arc::clone(&app.preparing).acquire_owned();
    let turn = tokio::time::timeout(PREPARE_WAIT, turn)
        .await
        .map_err(|_| ApiError::unavailable("overloaded", "too many requests are being read", 1))?;
    let shared = Arc::clone(app);
    blocking(move || {
        // Kept to the end of the work, though the client may have left: work that nobody waits for takes processors too.
        let _turn = turn;
        let (value, mut account) = body.json()?;
        let made = work(value, shared.model()?, &mut account)?;
        Ok((made, account))
    })
    .await?
}

async fn models(State(app): State<Arc<App>>) -> Result {
    Ok(json(StatusCode::OK, &json!({"object": "list", "data": [inspect::model(app.model()?)]})))
}

async fn model(State(app): State<Arc<App>>, path: PathResult) -> Result {
    let name = segment(path)?;
    let model = app.model()?;
    if !model.is_called(&name) {
        return Err(crate::params::no_such_model(&name, model));
    }
    Ok(json(StatusCode::OK, &inspect::model(model)))
}

/// The page: one file, which asks nothing of anybody but this server.
async fn page() -> Response<Body> {
    let mut response = with_type(StatusCode::OK, "text/html; charset=utf-8", include_str!("page.html"));
    let policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
                  img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    response
}

async fn openapi() -> Response<Body> {
    with_type(StatusCode::OK, "application/json", include_str!("openapi.json"))
}

async fn health(State(app): State<Arc<App>>) -> Response<Body> {
    let (status, body) = inspect::health(&app);
    json(status, &body)
}

async fn metrics(State(app): State<Arc<App>>) -> Response<Body> {
    with_type(StatusCode::OK, "text/plain; version=0.0.4", app.metrics.render(app.loaded()))
}

async fn slots(State(app): State<Arc<App>>) -> Result {
    Ok(json(StatusCode::OK, &inspect::slots(app.model()?)))
}

async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Result {
    let (tokens, account) = prepare(&app, request, inspect::tokenize).await?;
    Ok(pieces(tokens.write(Arc::clone(app.model()?.tokenizer())), account))
}

async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Result {
    let (text, account) = prepare(&app, request, inspect::detokenize).await?;
    Ok(held(StatusCode::OK, "application/json", text, account))
}

async fn apply_template(State(app): State<Arc<App>>, request: Request) -> Result {
    let (text, account) = prepare(&app, request, inspect::apply_template).await?;
    Ok(held(StatusCode::OK, "application/json", text, account))
}

async fn unknown(method: Method, request: Request) -> ApiError {
    let message = format!("Unknown request URL: {method} {}.", request.uri().path());
    ApiError::new(StatusCode::NOT_FOUND, Some("unknown_url"), message)
}

async fn wrong_method(method: Method, request: Request) -> ApiError {
    let message = format!("Method {method} is not allowed for {}.", request.uri().path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, Some("method_not_allowed"), message)
}

/// What every request passes: its name, who may send it, and what is written down about it.
async fn gate(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response<Body> {
    let start = Instant::now();
    let id = request_id(request.headers());
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let is_probe = PROBES.contains(&&*path);
    // Before anybody asks whether the server is draining: who ends it sees either this or what it led to.
    let in_flight = (!is_probe).then(|| InFlight::new(&app));
    let trace = request.headers().get("traceparent").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let origin = origin::allowed(&app.options.cors_origins, request.headers());
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = match origin::check(&app, &request) {
        Err(error) => error.into_response(),
        Ok(()) if origin.is_some() && method == Method::OPTIONS => origin::preflight(request.headers()),
        Ok(()) => next.run(request).await,
    };
    let headers = response.headers_mut();
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
        let exposed = HeaderValue::from_static("x-request-id, retry-after");
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(value) = HeaderValue::from_str(&id) {
        headers.insert(HeaderName::from_static("x-request-id"), value);
    }
    if app.is_draining() {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let status = response.status();
    // What a client sent may be part of it, and as long.
    let reason = response.extensions().get::<Reason>().map(|Reason(reason)| limited(reason));
    app.metrics.response(&path, status);
    let seconds = start.elapsed().as_secs_f64();
    // Probes come every few seconds and would drown everything else.
    if is_probe {
        tracing::debug!(request_id = id, %method, path, status = status.as_u16(), seconds, "request");
    } else {
        tracing::info!(
            request_id = id,
            traceparent = trace,
            %method,
            path,
            status = status.as_u16(),
            // Until the headers, where the answer is streamed.
            seconds,
            reason,
            "request"
        );
    }
    match in_flight {
        Some(in_flight) => response.map(|body| Body::new(Counted { body, _in_flight: in_flight })),
        None => response,
    }
}

/// The beginning of a text.
fn limited(text: &str) -> &str {
    text.char_indices().nth(300).map_or(text, |(end, _)| &text[..end])
}

/// The name that the client or a router has given it, or else one of ours.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get("x-request-id").and_then(|value| value.to_str().ok());
    let sane = |id: &&str| (1..=128).contains(&id.len()) && id.chars().all(|c| c.is_ascii_graphic());
    given.filter(sane).map_or_else(|| unique("req-"), str::to_owned)
}

/// Waits until no request is being answered, or the time is over. What comes meanwhile is refused, so it is enough that
/// there is none for a moment.
pub async fn drained(app: &App, limit: Duration) {
    let idle = app.idle.notified();
    if app.in_flight() > 0 {
        // What is left then is cut off.
        let _ = tokio::time::timeout(limit, idle).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grammar::Rule;

    #[test]
    fn grammars_take_no_more_than_their_room() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let app = Arc::new(App::new(crate::ServerOptions::default(), false));
        let compile_for = |choices| {
            let form = Form { rule: Rule::Regex("a".into()), field: "response_format.regex" };
            let request = engine::Request::new(vec![1], engine::GenerateOptions::default());
            let request = engine::Request { choices, ..request };
            runtime.block_on(constrain(&app, Some(form), vec![request])).map(|_| ()).unwrap_err()
        };
        let compile = || compile_for(1);
        // There is room, but no model.
        assert_eq!((compile().code, compile_for(1000).code), (Some("model_loading"), Some("model_loading")));
        assert_eq!(compile_for(1100).status, StatusCode::PAYLOAD_TOO_LARGE);
        let mut others = app.grammars.account();
        others.grow(GRAMMAR_ROOM - (1 << 20)).unwrap();
        let refused = compile();
        assert_eq!((refused.status, refused.code), (StatusCode::SERVICE_UNAVAILABLE, Some("overloaded")));
        assert!(refused.message.contains("grammars and schemas"), "{}", refused.message);
        drop(others);
        assert_eq!(compile().code, Some("model_loading"));
    }

    #[test]
    fn who_needs_no_grammar_waits_for_none_and_others_not_for_ever() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let request_timeout = Duration::from_millis(20);
        let options = crate::ServerOptions { request_timeout, ..crate::ServerOptions::default() };
        let app = Arc::new(App::new(options, false));
        // Others' grammars are being compiled, all the while.
        let _turns = app.compiling.try_acquire_many(COMPILERS as u32).unwrap();
        runtime.block_on(async {
            assert!(constrain(&app, None, Vec::new()).await.unwrap().is_empty());
            let form = Form { rule: Rule::Regex("a".into()), field: "response_format.regex" };
            let refused = constrain(&app, Some(form), Vec::new()).await.map(|_| ()).unwrap_err();
            assert_eq!((refused.status, refused.retry_after), (StatusCode::SERVICE_UNAVAILABLE, Some(1)));
        });
    }
}
