//! Listening, and coming to an end.

use crate::app::{App, drained, router};
use crate::error::Error;
use crate::halves::Halves;
use crate::model::Model;
use crate::stall::Stalling;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// How long a connection without a request stays open at the end: one may be on its way, and gets an answer.
const LAST_REQUEST: Duration = Duration::from_millis(500);

/// How long the last answers may take to be sent at the end.
const LAST_ANSWERS: Duration = Duration::from_secs(2);

/// How the server behaves.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where it listens; port 0 takes any.
    pub address: SocketAddr,
    /// The key that clients must send.
    pub api_key: Option<String>,
    /// Nobody needs a key, though others can reach the address.
    pub no_auth: bool,
    /// Origins whose pages may call the server; `*` for all.
    pub cors_origins: Vec<String>,
    /// Largest body of a request.
    pub max_request_bytes: usize,
    /// Longest time for the head of a request, and for its body; for the head a tenth of it on connections that came when
    /// half of all were taken.
    pub body_timeout: Duration,
    /// Longest time that a client may take to read the next bytes of its answer, once the system holds no more for it.
    pub stall_timeout: Duration,
    /// Longest time to compile a grammar or a schema; those that take more work are refused before.
    pub compile_timeout: Duration,
    /// Longest time for an answer.
    pub request_timeout: Duration,
    /// Longest time for running answers to end after a signal.
    pub drain_timeout: Duration,
    /// Most connections.
    pub max_connections: usize,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080),
            api_key: None,
            no_auth: false,
            cors_origins: Vec::new(),
            max_request_bytes: 16 << 20,
            body_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(60),
            compile_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(3600),
            drain_timeout: Duration::from_secs(30),
            max_connections: 1024,
        }
    }
}

/// A server that listens.
pub struct Server {
    runtime: Option<Runtime>,
    app: Arc<App>,
    address: SocketAddr,
    /// Told when no more connections are to be taken.
    closing: watch::Sender<bool>,
    accepting: Option<tokio::task::JoinHandle<()>>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Server {
    /// Begins to listen. Until there is a model, requests for one are answered with 503.
    ///
    /// # Errors
    /// [`Error::Bind`], [`Error::Runtime`], [`Error::Unprotected`] for an address that others can reach without a word
    /// about keys, and [`Error::Option`].
    pub fn bind(options: ServerOptions) -> Result<Server, Error> {
        let address = options.address;
        let protected = options.api_key.is_some() || options.no_auth;
        if !address.ip().is_loopback() && !protected {
            return Err(Error::Unprotected { address });
        }
        if options.api_key.as_ref().is_some_and(|key| key.trim().is_empty() || key.trim() != key) {
            let message = "expected a key, found blanks".to_owned();
            return Err(Error::Option { name: "API key", message });
        }
        if options.max_connections == 0 {
            let message = "expected at least 1, found 0".to_owned();
            return Err(Error::Option { name: "connections", message });
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(64)
            .thread_name("http")
            .enable_all()
            .build()
            .map_err(Error::Runtime)?;
        let listener = runtime.block_on(TcpListener::bind(address));
        let listener = listener.map_err(|source| Error::Bind { address, source })?;
        let address = listener.local_addr().map_err(|source| Error::Bind { address, source })?;
        let max_connections = options.max_connections;
        let app = Arc::new(App::new(options, !protected));
        let (closing, closed) = watch::channel(false);
        let connections = Connections::new(&app, closed, max_connections);
        let accepting = runtime.spawn(connections.accept(listener));
        tracing::info!(address = %format_args!("http://{address}"), "listening");
        Ok(Server { runtime: Some(runtime), app, address, closing, accepting: Some(accepting) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes a model into service. Only the first one is.
    pub fn ready(&self, model: Model) {
        let (name, device, line) = (model.name.clone(), model.device.clone(), model.cache_line());
        if model.format(false).is_none() {
            tracing::warn!(
                model = name,
                "the model has no chat template: only /v1/completions and /v1/embeddings are answered; --template \
                 FILE gives it one"
            );
        }
        self.app.set_model(model);
        tracing::info!(model = name, device, "{line}");
        tracing::info!("ready: a page to chat at http://{}/, the API at http://{0}/v1", self.address);
    }

    /// Serves until SIGTERM or SIGINT; then ends the answers that were begun.
    ///
    /// # Errors
    /// [`Error::Runtime`] if signals cannot be waited for.
    pub fn wait(mut self) -> Result<(), Error> {
        let Some(runtime) = &self.runtime else { return Ok(()) };
        runtime.block_on(signal()).map_err(Error::Runtime)?;
        self.shut_down();
        Ok(())
    }

    /// Ends the answers that were begun, and then the server. Nothing new is answered meanwhile.
    pub fn shut_down(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        self.app.drain();
        tracing::info!(in_flight = self.app.in_flight(), "draining");
        let limit = self.app.options.drain_timeout;
        runtime.block_on(drained(&self.app, limit));
        let cut_off = self.app.in_flight();
        self.app.cut_off();
        // Nobody listens after a panic there, which was reported where it happened.
        let _ = self.closing.send(true);
        if let Some(accepting) = self.accepting.take() {
            let _ = runtime.block_on(accepting);
        }
        tracing::info!(cut_off, "stopped");
        // Those that still do not end are dropped with the runtime.
        runtime.shutdown_timeout(Duration::from_secs(2));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// Takes connections.
struct Connections {
    app: Arc<App>,
    service: TowerToHyperService<axum::Router>,
    closed: watch::Receiver<bool>,
    room: Arc<Semaphore>,
    most: usize,
}

impl Connections {
    fn new(app: &Arc<App>, closed: watch::Receiver<bool>, most: usize) -> Connections {
        let most = most.min(Semaphore::MAX_PERMITS).min(u32::MAX as usize);
        Connections {
            app: Arc::clone(app),
            service: TowerToHyperService::new(router(app)),
            closed,
            room: Arc::new(Semaphore::new(most)),
            most,
        }
    }

    /// Takes connections until it is told to stop, then waits a little for those that are open.
    async fn accept(mut self, listener: TcpListener) {
        loop {
            let connection = async {
                let permit = Arc::clone(&self.room).acquire_owned().await.ok();
                (listener.accept().await, permit)
            };
            let (accepted, permit) = tokio::select! {
                connection = connection => connection,
                _ = self.closed.changed() => break,
            };
            match accepted {
                Ok((stream, _)) => self.serve(stream, permit),
                Err(error) => {
                    // Too many open files, or a client that left at once: others may come.
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        // Those that the system has taken already would be broken off with the listener.
        while let Poll::Ready(Ok((stream, _))) =
            poll_fn(|context| Poll::Ready(listener.poll_accept(context))).await
            && let Ok(permit) = Arc::clone(&self.room).try_acquire_owned()
        {
            self.serve(stream, Some(permit));
        }
        drop(listener);
        let all = self.room.acquire_many(self.most as u32);
        let _ = tokio::time::timeout(LAST_REQUEST + LAST_ANSWERS, all).await;
    }

    /// Answers the requests of a connection.
    fn serve(&self, stream: TcpStream, permit: Option<OwnedSemaphorePermit>) {
        // Tokens are small and must not wait for each other.
        let _ = stream.set_nodelay(true);
        // Who takes places without sending requests gets less time where there are few left.
        let is_crowded = self.room.available_permits() < self.most / 2;
        let options = &self.app.options;
        let head_timeout = options.body_timeout / if is_crowded { 10 } else { 1 };
        let stream = Halves::new(stream);
        let gone = stream.gone();
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(head_timeout)
            .serve_connection(
                TokioIo::new(Stalling::new(stream, options.stall_timeout)),
                self.service.clone(),
            );
        let mut closed = self.closed.clone();
        tokio::spawn(async move {
            let _permit = permit;
            let mut connection = pin!(connection);
            let closing = async {
                // Its sender lives as long as the runtime does.
                let _ = closed.wait_for(|closed| *closed).await;
                tokio::time::sleep(LAST_REQUEST).await;
            };
            let result = tokio::select! {
                result = connection.as_mut() => result,
                () = gone => return tracing::debug!("the client has left"),
                () = closing => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = result {
                tracing::debug!(%error, "connection");
            }
        });
    }
}

/// Waits for a signal to end.
#[cfg(unix)]
async fn signal() -> std::io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Waits for Ctrl-C.
#[cfg(not(unix))]
async fn signal() -> std::io::Result<()> {
    tokio::signal::ctrl_c().await
}
