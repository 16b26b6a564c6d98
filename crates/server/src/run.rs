//! A request under way: events from the engine on one side, a response on the other.

use crate::app::{App, InFlight};
use crate::error::ApiError;
use crate::metrics::Timer;
use crate::reply::Assemble;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, StatusCode, header};
use engine::{BatchEngine, BatchEvent, Request, RequestHandle};
use futures_core::Stream;
use serde_json::Value;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Interval, MissedTickBehavior, Sleep, interval, sleep};

/// How often something is sent to who waits for the first token, so that nothing between takes the connection for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Most bytes that are put together before they are sent.
const CHUNK: usize = 16 << 10;

/// Requests to the engine whose answers make one response. Dropping it cancels them.
pub struct Run {
    // Events wait here for slow readers. There are no more of them than tokens, and the engine does not wait.
    receiver: UnboundedReceiver<(usize, BatchEvent)>,
    _handles: Vec<RequestHandle>,
    reply: Box<dyn Assemble>,
    deadline: Pin<Box<Sleep>>,
    limit: Duration,
    timer: Timer,
    _in_flight: InFlight,
}

impl Run {
    /// Hands requests to the engine: all of them, or none.
    pub fn start(
        app: &Arc<App>,
        engine: &BatchEngine,
        requests: Vec<Request>,
        reply: impl Assemble + 'static,
        field: &str,
    ) -> Result<Run, ApiError> {
        let (sender, receiver) = unbounded_channel();
        let handles = requests.into_iter().enumerate().map(|(prompt, request)| {
            let sender = sender.clone();
            let sink = move |event| match sender.send((prompt, event)) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            };
            engine.submit(request, Box::new(sink)).map_err(|error| ApiError::engine(&error, field))
        });
        let handles = handles.collect::<Result<Vec<_>, _>>()?;
        let limit = app.options.request_timeout;
        Ok(Run {
            receiver,
            _handles: handles,
            reply: Box::new(reply),
            deadline: Box::pin(sleep(limit)),
            limit,
            timer: Timer::start(Arc::clone(app)),
            _in_flight: InFlight::new(app),
        })
    }

    /// The response, whole.
    pub async fn whole(mut self) -> Result<Response<Body>, ApiError> {
        while !self.reply.is_done() {
            poll_fn(|context| self.poll_chunks(context)).await?;
        }
        Ok(crate::http::json(StatusCode::OK, &self.reply.whole()))
    }

    /// The response as server-sent events.
    pub fn stream(self) -> Response<Body> {
        let mut keep_alive = interval(KEEP_ALIVE);
        keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let body = Body::from_stream(Sse { run: Some(self), keep_alive });
        let mut response = crate::http::with_type(StatusCode::OK, "text/event-stream", body);
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // nginx would otherwise collect the tokens.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }

    /// Writes chunks as server-sent events.
    fn push(&self, out: &mut String, chunks: &[Value]) {
        for chunk in chunks {
            if self.reply.names_events()
                && let Some(name) = chunk["type"].as_str()
            {
                out.push_str("event: ");
                out.push_str(name);
                out.push('\n');
            }
            out.push_str("data: ");
            out.push_str(&chunk.to_string());
            out.push_str("\n\n");
        }
    }

    /// The chunks of the next event.
    fn poll_chunks(&mut self, context: &mut Context<'_>) -> Poll<Result<Vec<Value>, ApiError>> {
        match self.receiver.poll_recv(context) {
            Poll::Ready(Some((prompt, event))) => {
                if matches!(event, BatchEvent::Token { .. }) {
                    self.timer.token();
                }
                Poll::Ready(self.reply.event(prompt, event))
            }
            Poll::Ready(None) => {
                let error = engine::Error::Stopped { reason: "it ended before the answer did".into() };
                Poll::Ready(Err(ApiError::engine(&error, "")))
            }
            Poll::Pending => match self.deadline.as_mut().poll(context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(()) => {
                    let message = format!(
                        "the answer took longer than {} seconds, with {} tokens so far",
                        self.limit.as_secs(),
                        self.reply.completion_tokens()
                    );
                    let error = ApiError::new(StatusCode::GATEWAY_TIMEOUT, Some("timeout"), message);
                    Poll::Ready(Err(error))
                }
            },
        }
    }
}

/// Server-sent events.
struct Sse {
    /// None after the last event.
    run: Option<Run>,
    keep_alive: Interval,
}

impl Stream for Sse {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let Some(run) = &mut this.run else { return Poll::Ready(None) };
        let mut out = String::new();
        let mut last = false;
        while !last && out.len() < CHUNK {
            match run.poll_chunks(context) {
                Poll::Pending => break,
                Poll::Ready(Ok(chunks)) => {
                    run.push(&mut out, &chunks);
                    if run.reply.is_done() {
                        let chunks = run.reply.last_chunks();
                        run.push(&mut out, &chunks);
                        last = true;
                    }
                }
                Poll::Ready(Err(error)) => {
                    let chunks = run.reply.error_chunks(&error);
                    run.push(&mut out, &chunks);
                    last = true;
                }
            }
        }
        if last {
            if !run.reply.names_events() {
                out.push_str("data: [DONE]\n\n");
            }
            this.run = None;
        }
        if this.keep_alive.poll_tick(context).is_ready() && out.is_empty() {
            // The first tick comes at once: headers are sent before the first token.
            out.push_str(": waiting\n\n");
        }
        if out.is_empty() { Poll::Pending } else { Poll::Ready(Some(Ok(out.into()))) }
    }
}
