//! A request under way: events from the engine on one side, a response on the other.

use crate::app::App;
use crate::error::ApiError;
use crate::http::{blocking, held};
use crate::memory::{Account, SharedAccount};
use crate::metrics::{TokenTimes, WholeTime};
use crate::reply::{Assemble, Chunk};
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, StatusCode, header};
use engine::{BatchEvent, Request, RequestHandle, Sink, TokenLogProb};
use futures_core::Stream;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Interval, MissedTickBehavior, Sleep, interval, sleep};

/// How often something is sent to who waits for the first token, so that nothing between takes the connection for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Most bytes that are put together before they are sent.
const CHUNK: usize = 16 << 10;

/// Bytes of an answer that are not written down on a thread that serves others too.
const HEAVY: usize = 64 << 10;

/// Requests to the engine whose answers make one response. Dropping it cancels them.
pub struct Run {
    // Events wait here for slow readers, and the engine does not wait.
    receiver: UnboundedReceiver<(usize, BatchEvent)>,
    backlog: Arc<Backlog>,
    _handles: Vec<RequestHandle>,
    reply: Box<dyn Assemble>,
    deadline: Pin<Box<Sleep>>,
    limit: Duration,
    /// Ends when the server does.
    over: Pin<Box<dyn Future<Output = ()> + Send>>,
    _time: WholeTime,
}

/// The memory of the events that wait.
struct Backlog {
    account: SharedAccount,
    /// There was no room for one, so that the request was cancelled.
    is_over: AtomicBool,
}

impl Backlog {
    fn new(account: Account) -> Backlog {
        Backlog { account: SharedAccount::new(account), is_over: AtomicBool::new(false) }
    }

    /// Counts an event in; false where there is no room.
    fn add(&self, event: &BatchEvent) -> bool {
        let has_room = self.account.lock().grow(bytes(event)).is_ok();
        if !has_room {
            self.is_over.store(true, Ordering::SeqCst);
        }
        has_room
    }

    fn remove(&self, event: &BatchEvent) {
        self.account.lock().shrink(bytes(event));
    }
}

/// Bytes that an event takes.
fn bytes(event: &BatchEvent) -> usize {
    let more = match event {
        BatchEvent::Token { token, text, .. } => text.len() + token.top.len() * size_of::<TokenLogProb>(),
        BatchEvent::Finished { text, .. } => text.len(),
        BatchEvent::Started { .. } | BatchEvent::Failed(_) => 0,
    };
    size_of::<(usize, BatchEvent)>() + more
}

/// Writes down what may be long. The other work of the thread goes on elsewhere meanwhile.
fn write<T>(weight: usize, work: impl FnOnce() -> T) -> T {
    if weight > HEAVY { tokio::task::block_in_place(work) } else { work() }
}

impl Run {
    /// Hands requests to the engine: all of them, or none.
    pub async fn start(
        app: &Arc<App>,
        requests: Vec<Request>,
        reply: impl Assemble + 'static,
        field: &'static str,
    ) -> Result<Run, ApiError> {
        let (sender, receiver) = unbounded_channel();
        let backlog = Arc::new(Backlog::new(app.memory.account()));
        let time = WholeTime::start(&app.metrics);
        let sinks: Vec<Sink> = (0..requests.len())
            .map(|prompt| {
                let (sender, backlog) = (sender.clone(), Arc::clone(&backlog));
                let mut times = TokenTimes::start(&app.metrics);
                let sink = move |event| {
                    // Here, since this is when it was made: whoever sends it may be late.
                    if let BatchEvent::Token { choice, .. } = &event {
                        times.token(*choice);
                    }
                    match backlog.add(&event) && sender.send((prompt, event)).is_ok() {
                        true => ControlFlow::Continue(()),
                        false => ControlFlow::Break(()),
                    }
                };
                Box::new(sink) as Sink
            })
            .collect();
        drop(sender);
        let shared = Arc::clone(app);
        // What many answers need takes a while to make.
        let handles = blocking(move || {
            let engine = &shared.model()?.engine;
            let requests = requests.into_iter().zip(sinks);
            let handles = requests.map(|(request, sink)| {
                engine.submit(request, sink).map_err(|error| ApiError::engine(&error, field))
            });
            handles.collect::<Result<Vec<_>, _>>()
        });
        let limit = app.options.request_timeout;
        Ok(Run {
            receiver,
            backlog,
            _handles: handles.await??,
            reply: Box::new(reply),
            deadline: Box::pin(sleep(limit)),
            limit,
            over: Box::pin(app.over()),
            _time: time,
        })
    }

    /// The response, whole.
    pub async fn whole(mut self) -> Result<Response<Body>, ApiError> {
        while !self.reply.is_done() {
            poll_fn(|context| self.poll_chunks(context)).await?;
        }
        let (text, account) = write(self.reply.weight(), || self.reply.whole());
        Ok(held(StatusCode::OK, "application/json", text, account))
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
    fn push(out: &mut String, chunks: &[Chunk]) {
        for Chunk { name, json } in chunks {
            if let Some(name) = name {
                out.push_str("event: ");
                out.push_str(name);
                out.push('\n');
            }
            out.push_str("data: ");
            out.push_str(json);
            out.push_str("\n\n");
        }
    }

    /// The chunks of the next event.
    fn poll_chunks(&mut self, context: &mut Context<'_>) -> Poll<Result<Vec<Chunk>, ApiError>> {
        match self.receiver.poll_recv(context) {
            Poll::Ready(Some((prompt, event))) => {
                self.backlog.remove(&event);
                // A token is told by itself; before and after all of them there can be more to tell.
                let is_token = matches!(event, BatchEvent::Token { .. });
                let weight = if is_token { 0 } else { self.reply.weight() };
                Poll::Ready(write(weight, || self.reply.event(prompt, event)))
            }
            Poll::Ready(None) if self.backlog.is_over.load(Ordering::SeqCst) => {
                let message = "the answer was read so slowly that there is no memory left for it";
                Poll::Ready(Err(ApiError::unavailable("overloaded", message, 1)))
            }
            Poll::Ready(None) => {
                let error = engine::Error::Stopped { reason: "it ended before the answer did".into() };
                Poll::Ready(Err(ApiError::engine(&error, "")))
            }
            Poll::Pending if self.over.as_mut().poll(context).is_ready() => {
                let message = format!(
                    "the server is shutting down, and the answer has not ended in the time left to it, with {} tokens so far",
                    self.reply.completion_tokens()
                );
                Poll::Ready(Err(ApiError::unavailable("shutting_down", message, 10)))
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
                    Run::push(&mut out, &chunks);
                    if run.reply.is_done() {
                        let chunks = write(run.reply.weight(), || run.reply.last_chunks());
                        Run::push(&mut out, &chunks);
                        last = true;
                    }
                }
                Poll::Ready(Err(error)) => {
                    let chunks = run.reply.error_chunks(&error);
                    Run::push(&mut out, &chunks);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    #[test]
    fn events_that_nobody_reads_take_no_more_than_their_room() {
        let backlog = Backlog::new(Memory::new(1).account());
        let event = || BatchEvent::Finished {
            choice: 0,
            text: "x".repeat(1 << 20),
            reason: engine::FinishReason::Stop,
        };
        let most = (0..1000).take_while(|_| backlog.add(&event())).count();
        assert!((250..=256).contains(&most), "{most}");
        assert!(backlog.is_over.load(Ordering::SeqCst));
        // What is read makes room.
        backlog.remove(&event());
        assert!(backlog.add(&event()));
    }
}
