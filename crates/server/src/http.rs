//! Small things about HTTP: bodies, ids, time.

use crate::error::ApiError;
use crate::memory::{Account, tree_bytes};
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use futures_core::Stream;
use serde::Serialize;
use serde_json::Value;
use std::convert::Infallible;
use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A response of JSON.
pub fn json(status: StatusCode, body: &Value) -> Response<Body> {
    with_type(status, "application/json", body.to_string())
}

/// A response of some type.
pub fn with_type(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A response whose body is there, and has room in memory until it is sent.
pub fn held(status: StatusCode, kind: &'static str, text: String, account: Account) -> Response<Body> {
    with_type(status, kind, Bytes::from_owner(Held { text, _account: account }))
}

struct Held {
    text: String,
    _account: Account,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

/// A response of JSON that is written piece by piece, as fast as it is read: at no time is it there as a whole.
pub fn pieces(
    parts: impl Iterator<Item = String> + Send + Unpin + 'static,
    account: Account,
) -> Response<Body> {
    with_type(StatusCode::OK, "application/json", Body::from_stream(Pieces { parts, _account: account }))
}

struct Pieces<I> {
    parts: I,
    /// Of what the pieces are made from.
    _account: Account,
}

impl<I: Iterator<Item = String> + Unpin> Stream for Pieces<I> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let part = self.parts.find(|part| !part.is_empty());
        Poll::Ready(part.map(|part| Ok(part.into())))
    }
}

/// JSON as text.
pub fn to_json(value: &(impl Serialize + ?Sized)) -> String {
    // Writing to memory does not fail, nor do values whose names are texts.
    serde_json::to_string(value).unwrap_or_default()
}

/// A body, and its place in memory.
#[derive(Debug)]
pub struct RequestBody {
    bytes: Vec<u8>,
    account: Account,
}

/// Reads the body of a request. It must say that it is JSON: browsers let any page send what does not.
pub async fn read_body(
    request: Request<Body>,
    limit: usize,
    time: Duration,
    account: Account,
) -> Result<RequestBody, ApiError> {
    check_kind(request.headers())?;
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > limit) {
        return Err(too_large(limit));
    }
    tokio::time::timeout(time, collect(request.into_body(), limit, account)).await.unwrap_or_else(|_| {
        let message = format!("the request did not come within {} seconds", time.as_secs());
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, Some("request_timeout"), message))
    })
}

async fn collect(body: Body, limit: usize, account: Account) -> Result<RequestBody, ApiError> {
    let mut stream = body.into_data_stream();
    let mut body = RequestBody { bytes: Vec::new(), account };
    while let Some(piece) = poll_fn(|context| Pin::new(&mut stream).poll_next(context)).await {
        let piece = piece.map_err(|error| {
            let message = format!("the request broke off: {error}");
            ApiError::new(StatusCode::BAD_REQUEST, Some("incomplete_request"), message)
        })?;
        if piece.len() > limit - body.bytes.len() {
            return Err(too_large(limit));
        }
        body.account.grow(piece.len())?;
        body.bytes.extend_from_slice(&piece);
    }
    Ok(body)
}

fn too_large(limit: usize) -> ApiError {
    let message = format!("the request is too large: expected at most {limit} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, Some("request_too_large"), message)
}

impl RequestBody {
    /// The body as JSON, and its place in memory: as many bytes as it has, and those of the tree. Megabytes of it take a
    /// while.
    pub fn json(self) -> Result<(Value, Account), ApiError> {
        let RequestBody { bytes, mut account } = self;
        account.grow(tree_bytes(&bytes))?;
        let value = serde_json::from_slice(&bytes).map_err(|error| {
            let message = format!("the request is not valid JSON: {error}");
            ApiError::new(StatusCode::BAD_REQUEST, Some("invalid_json"), message)
        })?;
        Ok((value, account))
    }
}

/// Runs work that takes long on a thread where it holds nobody up.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        let message = format!("internal error: {error}");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, Some("internal_error"), message)
    })
}

/// Whether a body is plain JSON, as far as the headers tell.
fn check_kind(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name| {
        headers.get(name).map_or(Ok(""), HeaderValue::to_str).unwrap_or("?").trim().to_ascii_lowercase()
    };
    let (kind, coding) = (text(header::CONTENT_TYPE), text(header::CONTENT_ENCODING));
    let kind = kind.split(';').next().unwrap_or_default().trim_end();
    let message =
        if kind != "application/json" && !(kind.starts_with("application/") && kind.ends_with("+json")) {
            "expected the header 'Content-Type: application/json'".to_owned()
        } else if !matches!(&*coding, "" | "identity") {
            format!("expected a body without a content encoding, but got '{coding}'")
        } else {
            return Ok(());
        };
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, Some("unsupported_media_type"), message))
}

/// A name that no other request has.
pub fn unique(prefix: &str) -> String {
    // Each state is keyed anew from the system's random source.
    let half = || RandomState::new().hash_one(SystemTime::now());
    format!("{prefix}{:016x}{:08x}", half(), half() >> 32)
}

/// Seconds since 1970.
pub fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Memory, SMALL};

    #[test]
    fn a_body_keeps_its_room_until_its_work_is_done_and_an_answer_until_it_is_sent() {
        let memory = Memory::new(1);
        let available = || {
            let mut rest = memory.account();
            (rest.grow(SMALL + (255 << 20)).is_ok(), rest.grow(1 << 20).is_ok())
        };
        let mut account = memory.account();
        let bytes = format!("[\"{}\"]", "x".repeat(SMALL)).into_bytes();
        account.grow(bytes.len()).unwrap();
        let (value, account) = RequestBody { bytes, account }.json().unwrap();
        assert_eq!(available(), (true, false));
        assert!(value.is_array());
        let response = held(StatusCode::OK, "text/plain", "x".into(), account);
        assert_eq!(available(), (true, false));
        drop(response);
        assert_eq!(available(), (true, true));
    }

    #[test]
    fn what_is_no_json_is_refused_and_so_is_what_makes_too_large_a_tree() {
        let read = |text: String| {
            let mut account = Memory::new(1).account();
            account.grow(text.len()).unwrap();
            RequestBody { bytes: text.into_bytes(), account }.json().map(drop).map_err(|error| error.code)
        };
        assert_eq!(read("[1, 2]".into()), Ok(()));
        assert_eq!(read("[1, 2".into()), Err(Some("invalid_json")));
        assert_eq!(read(format!("[{}1]", "1,".repeat(2 << 20))), Err(Some("request_too_large")));
    }
}
