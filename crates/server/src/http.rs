//! Small things about HTTP: bodies, ids, time.

use crate::error::ApiError;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use futures_core::Stream;
use serde_json::Value;
use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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

/// Bytes of a request's body that need no room of their own: what many clients send at once stays small without a count.
const SMALL_BODY: usize = 64 << 10;

/// Bytes that all larger bodies have together.
const BODY_ROOM: usize = 256 << 20;

/// What a unit of [`BodyRoom`] stands for.
const ROOM_UNIT: usize = 1 << 10;

/// Memory for the bodies of requests, from their first bytes until they have been read.
#[derive(Debug)]
pub struct BodyRoom {
    units: Arc<Semaphore>,
    /// Most bytes of one body.
    limit: usize,
}

/// A body, and its place in memory.
#[derive(Debug)]
pub struct RequestBody {
    bytes: Vec<u8>,
    room: Option<OwnedSemaphorePermit>,
}

impl BodyRoom {
    /// Room for bodies of at most `limit` bytes each.
    pub fn new(limit: usize) -> BodyRoom {
        let units = BODY_ROOM.max(limit).div_ceil(ROOM_UNIT).min(Semaphore::MAX_PERMITS);
        BodyRoom { units: Arc::new(Semaphore::new(units)), limit }
    }

    /// Reads the body of a request. It must say that it is JSON: browsers let any page send what does not.
    pub async fn read(&self, request: Request<Body>, time: Duration) -> Result<RequestBody, ApiError> {
        check_kind(request.headers())?;
        let length = request.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        if length.is_some_and(|length| length > self.limit) {
            return Err(self.too_large());
        }
        tokio::time::timeout(time, self.collect(request.into_body())).await.unwrap_or_else(|_| {
            let message = format!("the request did not come within {} seconds", time.as_secs());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, Some("request_timeout"), message))
        })
    }

    async fn collect(&self, body: Body) -> Result<RequestBody, ApiError> {
        let mut stream = body.into_data_stream();
        let mut body = RequestBody { bytes: Vec::new(), room: None };
        while let Some(piece) = poll_fn(|context| Pin::new(&mut stream).poll_next(context)).await {
            let piece = piece.map_err(|error| {
                let message = format!("the request broke off: {error}");
                ApiError::new(StatusCode::BAD_REQUEST, Some("incomplete_request"), message)
            })?;
            if piece.len() > self.limit - body.bytes.len() {
                return Err(self.too_large());
            }
            self.make_room(&mut body, piece.len())?;
            body.bytes.extend_from_slice(&piece);
        }
        Ok(body)
    }

    /// Takes the room for so many more bytes.
    fn make_room(&self, body: &mut RequestBody, more: usize) -> Result<(), ApiError> {
        let wanted = (body.bytes.len() + more).saturating_sub(SMALL_BODY).div_ceil(ROOM_UNIT);
        let held = body.room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        if wanted <= held {
            return Ok(());
        }
        let units = u32::try_from(wanted - held).ok();
        let units = units.and_then(|units| Arc::clone(&self.units).try_acquire_many_owned(units).ok());
        let Some(units) = units else {
            let message = "too many large requests are on their way";
            return Err(ApiError::unavailable("overloaded", message, 1));
        };
        match &mut body.room {
            Some(room) => room.merge(units),
            None => body.room = Some(units),
        }
        Ok(())
    }

    fn too_large(&self) -> ApiError {
        let message = format!("the request is too large: expected at most {} bytes", self.limit);
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, Some("request_too_large"), message)
    }
}

impl RequestBody {
    /// The body as JSON. Megabytes of it take a while.
    pub fn json(self) -> Result<Value, ApiError> {
        serde_json::from_slice(&self.bytes).map_err(|error| {
            let message = format!("the request is not valid JSON: {error}");
            ApiError::new(StatusCode::BAD_REQUEST, Some("invalid_json"), message)
        })
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

    #[test]
    fn large_bodies_share_their_room_and_small_ones_need_none() {
        let room = BodyRoom { units: Arc::new(Semaphore::new(3)), limit: 1 << 20 };
        let body = |len: usize| {
            let mut body = RequestBody { bytes: Vec::new(), room: None };
            let pieces = [len / 2, len - len / 2];
            pieces.into_iter().try_for_each(|piece| {
                room.make_room(&mut body, piece)?;
                body.bytes.resize(body.bytes.len() + piece, b' ');
                Ok(())
            })?;
            Ok(body)
        };
        let _small: Vec<_> = (0..100).map(|_| body(SMALL_BODY).unwrap()).collect();
        let large = body(SMALL_BODY + 2 * ROOM_UNIT + 1).unwrap();
        let refused: ApiError = body(SMALL_BODY + 1).map(drop).unwrap_err();
        assert_eq!((refused.status, refused.retry_after), (StatusCode::SERVICE_UNAVAILABLE, Some(1)));
        // Read, though it is no JSON, and gone.
        assert_eq!(large.json().unwrap_err().code, Some("invalid_json"));
        assert!(body(SMALL_BODY + 1).is_ok());
    }
}
