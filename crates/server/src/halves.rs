//! A connection that is watched while it is used.

use std::future::{Future, poll_fn};
use std::io::{ErrorKind, IoSlice, Result};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{MissedTickBehavior, interval};

/// How often it is looked whether the other end has left.
const LOOK: Duration = Duration::from_millis(500);

/// Both directions of a connection.
#[derive(Debug)]
pub struct Halves {
    read: Arc<OwnedReadHalf>,
    write: OwnedWriteHalf,
}

impl Halves {
    pub fn new(stream: TcpStream) -> Halves {
        let (read, write) = stream.into_split();
        Halves { read: Arc::new(read), write }
    }

    /// Until the other end has left, or ended its side. Who reads the connection sees that only behind all that was sent
    /// before, and nobody reads on while a request is being answered and the next one is there already.
    pub fn gone(&self) -> impl Future<Output = ()> + Send + use<> {
        let read = Arc::clone(&self.read);
        async move {
            let mut ticks = interval(LOOK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            // The first tick comes at once.
            ticks.tick().await;
            loop {
                ticks.tick().await;
                let mut state = pin!(read.ready(Interest::READABLE));
                let state = poll_fn(|context| Poll::Ready(state.as_mut().poll(context))).await;
                if matches!(state, Poll::Ready(Ok(state)) if state.is_read_closed()) {
                    return;
                }
            }
        }
    }
}

impl AsyncRead for Halves {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let stream: &TcpStream = (*self.read).as_ref();
        loop {
            ready!(stream.poll_read_ready(context))?;
            match stream.try_read(buffer.initialize_unfilled()) {
                Ok(read) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Halves {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.write).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.write).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.write.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.write).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.write).poll_shutdown(context)
    }
}
