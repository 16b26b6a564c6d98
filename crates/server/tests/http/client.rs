//! An HTTP client of a few lines: what is sent and what comes back can be seen byte for byte.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A response, or what has come of it.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Response {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The JSON of each `data:` line but the last, which must be `[DONE]`.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        let mut data: Vec<&str> = self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.body);
        data.iter().map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

/// A connection with a request that was sent.
pub struct Pending {
    reader: BufReader<TcpStream>,
}

/// Sends bytes.
pub fn send(address: SocketAddr, bytes: &[u8]) -> Pending {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    stream.write_all(bytes).unwrap();
    Pending { reader: BufReader::new(stream) }
}

/// A POST of JSON, to be read whenever.
pub fn begin(address: SocketAddr, path: &str, body: &Value) -> Pending {
    send(address, &post_bytes(path, &body.to_string(), ""))
}

/// A POST of JSON.
pub fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    begin(address, path, body).read()
}

/// A GET.
pub fn get(address: SocketAddr, path: &str) -> Response {
    request(address, "GET", path, "")
}

/// A request without a body; `headers` end with line breaks.
pub fn request(address: SocketAddr, method: &str, path: &str, headers: &str) -> Response {
    let bytes = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n");
    send(address, bytes.as_bytes()).read()
}

/// The bytes of a POST of JSON; `headers` end with line breaks.
pub fn post_bytes(path: &str, body: &str, headers: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n{headers}\r\n{body}",
        body.len()
    )
    .into_bytes()
}

impl Pending {
    /// Reads to the end.
    pub fn read(mut self) -> Response {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut body = Vec::new();
        if headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked") {
            loop {
                let mut size = String::new();
                self.reader.read_line(&mut size).unwrap();
                let size = usize::from_str_radix(size.trim(), 16).expect("the size of a chunk");
                let mut chunk = vec![0; size + 2];
                self.reader.read_exact(&mut chunk).unwrap();
                if size == 0 {
                    break;
                }
                body.extend_from_slice(&chunk[..size]);
            }
        } else {
            self.reader.read_to_end(&mut body).unwrap();
        }
        Response { status, headers, body: String::from_utf8(body).unwrap() }
    }

    /// Reads until a line has come that holds `text`.
    pub fn wait_for(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(self.reader.read_line(&mut line).unwrap() > 0, "'{text}' did not come");
        }
    }
}
