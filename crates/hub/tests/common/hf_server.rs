//! A local server that speaks as much of the Hugging Face hub as its client asks for: the list of files,
//! metadata by a one-byte range, a redirect to where the content is, and ranges of it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::sha256;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// How the server behaves; may be changed while it runs.
#[derive(Default)]
pub struct Behaviour {
    /// Files of the repository `owner/repo`.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Without this token the repository is refused.
    pub token: Option<String>,
    /// Break off the next so many transfers after this many bytes.
    pub cut: Option<(usize, usize)>,
    /// Flip a bit of the content.
    pub damage: bool,
    /// Answer a range with the whole content.
    pub ignore_ranges: bool,
    /// `PATH RANGE` of every request, in order.
    pub requests: Vec<String>,
}

pub struct HfServer {
    pub endpoint: String,
    pub state: Arc<Mutex<Behaviour>>,
}

impl HfServer {
    pub fn start(files: &[(&str, &[u8])]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let files = files.iter().map(|(n, d)| ((*n).to_owned(), d.to_vec())).collect();
        let state = Arc::new(Mutex::new(Behaviour { files, ..Behaviour::default() }));
        let (shared, base) = (Arc::clone(&state), endpoint.clone());
        // Ends with the test process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (shared, base) = (Arc::clone(&shared), base.clone());
                // A client that hangs up early is part of the tests.
                thread::spawn(move || answer(stream, &shared, &base).ok());
            }
        });
        Self { endpoint, state }
    }

    pub fn set(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.state.lock().unwrap());
    }

    /// The requests since the last call.
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }
}

fn answer(mut stream: TcpStream, state: &Mutex<Behaviour>, base: &str) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let path = lines.next().unwrap()?.split(' ').nth(1).unwrap_or("").to_owned();
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let mut state = state.lock().unwrap();
    let range = headers.get("range").cloned().unwrap_or_default();
    state.requests.push(format!("{path} {range}").trim_end().to_owned());

    let wanted = state.token.as_ref().map(|t| format!("Bearer {t}"));
    if wanted.is_some() && headers.get("authorization") != wanted.as_ref() && !path.starts_with("/cdn/") {
        return respond(&mut stream, "401 Unauthorized", &[], b"");
    }
    if path == "/api/models/owner/repo/revision/main" {
        let names: Vec<String> = state.files.keys().map(|n| format!("{{\"rfilename\":\"{n}\"}}")).collect();
        let body = format!("{{\"sha\":\"{COMMIT}\",\"siblings\":[{}]}}", names.join(","));
        return respond(&mut stream, "200 OK", &["content-type: application/json".into()], body.as_bytes());
    }
    if let Some(name) = path.strip_prefix("/owner/repo/resolve/main/")
        && let Some(data) = state.files.get(name)
    {
        let headers = [
            format!("location: {base}/cdn/{name}"),
            format!("x-linked-etag: \"{}\"", sha256(data)),
            "etag: \"not-this-one\"".to_owned(),
            format!("x-repo-commit: {COMMIT}"),
        ];
        return respond(&mut stream, "302 Found", &headers, b"");
    }
    let Some(data) = path.strip_prefix("/cdn/").and_then(|name| state.files.get(name)) else {
        return respond(&mut stream, "404 Not Found", &[], b"");
    };
    let mut data = data.clone();
    if state.damage {
        data[5] ^= 1;
    }
    let bounds = range.strip_prefix("bytes=").and_then(|r| r.split_once('-'));
    let (from, to) = match bounds {
        Some((from, to)) => (from.parse().unwrap(), to.parse().map_or(data.len(), |t: usize| t + 1)),
        None => (0, data.len()),
    };
    if from >= data.len() {
        return respond(&mut stream, "416 Range Not Satisfiable", &[], b"");
    }
    if state.ignore_ranges && to != 1 {
        return respond(&mut stream, "200 OK", &[], &data);
    }
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\ncontent-length: {}\r\ncontent-range: bytes {from}-{}/{}\r\n\
         connection: close\r\n\r\n",
        to - from,
        to - 1,
        data.len()
    );
    let mut body = &data[from..to];
    if to != 1
        && let Some((times, after)) = &mut state.cut
        && *times > 0
    {
        *times -= 1;
        body = &body[..body.len().min(*after)];
    }
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)
}

fn respond(stream: &mut TcpStream, status: &str, headers: &[String], body: &[u8]) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n", body.len());
    for header in headers {
        head += header;
        head += "\r\n";
    }
    stream.write_all((head + "\r\n").as_bytes())?;
    stream.write_all(body)
}
