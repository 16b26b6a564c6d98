//! Small things about HTTP: bodies, ids, time.

use crate::error::ApiError;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use serde_json::Value;
use std::hash::{BuildHasher, RandomState};
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

/// The JSON of a request. It must say that it is JSON: browsers let any page send what does not.
pub async fn read_json(request: Request<Body>, limit: usize, time: Duration) -> Result<Value, ApiError> {
    if !is_json(request.headers()) {
        let message = "expected the header 'Content-Type: application/json'";
        return Err(ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Some("unsupported_media_type"),
            message,
        ));
    }
    let too_large = || {
        let message = format!("the request is too large: expected at most {limit} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, Some("request_too_large"), message)
    };
    let length =
        request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: usize| length > limit) {
        return Err(too_large());
    }
    let bytes = match tokio::time::timeout(time, to_bytes(request.into_body(), limit)).await {
        Err(_) => {
            let message = format!("the request did not come within {} seconds", time.as_secs());
            return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, Some("request_timeout"), message));
        }
        Ok(Err(_)) => return Err(too_large()),
        Ok(Ok(bytes)) => bytes,
    };
    // Megabytes of JSON take a while.
    blocking(move || serde_json::from_slice(&bytes)).await?.map_err(|error| {
        let message = format!("the request is not valid JSON: {error}");
        ApiError::new(StatusCode::BAD_REQUEST, Some("invalid_json"), message)
    })
}

/// Runs work that takes long on a thread where it holds nobody up.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        let message = format!("internal error: {error}");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, Some("internal_error"), message)
    })
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
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
