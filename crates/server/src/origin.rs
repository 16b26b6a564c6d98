//! Who may send requests: keys, hosts, and pages of other origins.

use crate::app::App;
use crate::error::ApiError;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};

/// Routes that need no key: probes cannot be given one, and the page asks for it.
const OPEN: [&str; 4] = ["/", "/health", "/metrics", "/openapi.json"];

/// Refuses a request without the key, or one that a page of somebody else's has sent here by way of the browser.
pub fn check(app: &App, request: &Request) -> Result<(), ApiError> {
    if app.guard_host {
        // A whole address in the place of the path goes before the header (RFC 9112, section 3.2.2).
        let is_ours = match request.uri().host() {
            Some(host) => is_local(host),
            None => {
                request.headers().get_all(header::HOST).iter().all(|host| host.to_str().is_ok_and(is_local))
            }
        };
        if !is_ours {
            let message = "this server listens for this machine alone, but was called by another name: start it with \
                           an API key, or with --no-auth, to allow that";
            return Err(ApiError::new(StatusCode::FORBIDDEN, Some("foreign_host"), message));
        }
    }
    let Some(key) = &app.options.api_key else { return Ok(()) };
    if OPEN.contains(&request.uri().path()) || request.method() == Method::OPTIONS {
        return Ok(());
    }
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.split_once(' '));
    match given {
        Some((scheme, given)) if scheme.eq_ignore_ascii_case("bearer") && equal(given.trim(), key) => Ok(()),
        Some(_) => Err(ApiError::new(
            StatusCode::UNAUTHORIZED,
            Some("invalid_api_key"),
            "Incorrect API key provided.",
        )),
        None => {
            let message = "You didn't provide an API key: expected the header 'Authorization: Bearer KEY'.";
            Err(ApiError::new(StatusCode::UNAUTHORIZED, Some("missing_api_key"), message))
        }
    }
}

/// Compares without telling by the time it takes how much was right.
fn equal(a: &str, b: &str) -> bool {
    let differ = a.bytes().zip(b.bytes()).fold(0, |differ, (a, b)| differ | (a ^ b));
    a.len() == b.len() && differ == 0
}

/// Whether a `Host` header names this machine from within: any other name was made to point here.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase();
    let address = name.parse::<std::net::IpAddr>();
    name == "localhost" || name.ends_with(".localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// The origin to allow, if a page of an allowed one asks.
pub fn allowed(origins: &[String], headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let text = origin.to_str().ok()?;
    origins.iter().any(|allowed| allowed == "*" || allowed == text).then(|| origin.clone())
}

/// The answer to a browser that asks before it sends a page's request. Any header may be sent: clients have their own
/// (`x-stainless-...`), and what an allowed origin sends needs no other protection.
pub fn preflight(asked: &HeaderMap) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    let allow = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let allow = allow.unwrap_or(HeaderValue::from_static("authorization, content-type, x-request-id"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allow);
    headers
        .insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE, OPTIONS"));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine_are_told_from_others() {
        for host in [
            "localhost",
            "localhost:8080",
            "127.0.0.1:80",
            "127.3.2.1",
            "[::1]:8080",
            "LOCALHOST.",
            "a.localhost",
        ] {
            assert!(is_local(host), "{host}");
        }
        for host in [
            "example.com",
            "example.com:8080",
            "10.0.0.1",
            "localhost.evil.com",
            "127.0.0.1.evil.com",
            "[::2]",
            "",
        ] {
            assert!(!is_local(host), "{host}");
        }
    }

    #[test]
    fn keys_are_compared_whole() {
        assert!(equal("secret", "secret"));
        assert!(!equal("secre", "secret") && !equal("secret", "secreT") && !equal("", "secret"));
    }
}
