//! What can go wrong: while the server starts, and in a request.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use serde_json::{Value, json};
use std::fmt;
use std::net::SocketAddr;

/// The server cannot start, or go on.
#[derive(Debug)]
pub enum Error {
    /// The address cannot be listened at.
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// No threads, or no signals.
    Runtime(std::io::Error),
    /// An address that others can reach needs an API key, or to be told that none is wanted.
    Unprotected {
        /// The address.
        address: SocketAddr,
    },
    /// The model's chat template cannot be used.
    Template(chat_format::Error),
    /// The batching engine cannot start.
    Engine(engine::Error),
    /// A grammar for the vocabulary cannot be made.
    Grammar(grammar::Error),
    /// An option makes no sense.
    Option {
        /// Its name.
        name: &'static str,
        /// What was found and expected.
        message: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Bind { address, source } => {
                write!(f, "cannot listen at {address}: {source} (another port: --port)")
            }
            Error::Runtime(source) => write!(f, "cannot start the server: {source}"),
            Error::Unprotected { address } => write!(
                f,
                "{address} can be reached from other machines: give a key (--api-key), or say that none is wanted \
                 (--no-auth)"
            ),
            Error::Template(error) => error.fmt(f),
            Error::Engine(error) => error.fmt(f),
            Error::Grammar(error) => error.fmt(f),
            Error::Option { name, message } => write!(f, "{name}: {message}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Bind { source, .. } | Error::Runtime(source) => Some(source),
            Error::Template(error) => Some(error),
            Error::Engine(error) => Some(error),
            Error::Grammar(error) => Some(error),
            Error::Unprotected { .. } | Error::Option { .. } => None,
        }
    }
}

/// An answer that is an error, in the form of OpenAI's API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// The status.
    pub status: StatusCode,
    /// For people.
    pub message: String,
    /// The field that is wrong.
    pub param: Option<String>,
    /// For programs.
    pub code: Option<&'static str>,
    /// Seconds after which to try again.
    pub retry_after: Option<u32>,
}

impl ApiError {
    /// An error without a field.
    pub fn new(status: StatusCode, code: Option<&'static str>, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), param: None, code, retry_after: None }
    }

    /// A field has a value that cannot be.
    pub fn field(param: impl Into<String>, code: &'static str, message: impl Into<String>) -> ApiError {
        let error = ApiError::new(StatusCode::BAD_REQUEST, Some(code), message);
        ApiError { param: Some(param.into()), ..error }
    }

    /// The server cannot do it now, but may soon.
    pub fn unavailable(code: &'static str, message: impl Into<String>, retry_after: u32) -> ApiError {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Some(code), message);
        ApiError { retry_after: Some(retry_after), ..error }
    }

    /// What the engine refused, or could not go on with. `prompt` is the field that the prompt came from.
    pub fn engine(error: &engine::Error, prompt: &str) -> ApiError {
        let message = error.to_string();
        match error {
            engine::Error::ContextExceeded { tokens, context } => ApiError::field(
                prompt,
                "context_length_exceeded",
                format!(
                    "This model's maximum context length is {context} tokens. However, your prompt has {tokens} \
                     tokens. Please reduce the length of the prompt."
                ),
            ),
            engine::Error::EmptyPrompt => ApiError::field(prompt, "invalid_value", message),
            engine::Error::Option { name: "choices", .. } => ApiError::field("n", "invalid_value", message),
            // A grammar and a bias can leave nothing to choose from; both came with the request.
            engine::Error::Option { .. } | engine::Error::Sampling(_) | engine::Error::Constraint(_) => {
                ApiError::new(StatusCode::BAD_REQUEST, Some("invalid_value"), message)
            }
            engine::Error::Busy { .. } => ApiError::unavailable("overloaded", message, 1),
            engine::Error::Stopped { .. } => ApiError::unavailable("engine_stopped", message, 30),
            _ => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, Some("engine_error"), message),
        }
    }

    /// The body.
    pub fn body(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            status if status.is_client_error() => "invalid_request_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            _ => "server_error",
        };
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})
    }
}

/// Why a response is an error: for the log.
#[derive(Clone, Debug)]
pub struct Reason(pub String);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let mut response = crate::http::json(self.status, &self.body());
        response.extensions_mut().insert(Reason(self.message));
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
