//! Models from the Hugging Face hub, through its own client and the cache that its clients share.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use hf_hub::Cache;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};

use crate::select::choose;
use crate::store::{StoredFile, hash_file, mismatch, remove_if_there};
use crate::{Error, Options, Progress};

/// A transfer that breaks off is taken up again this many times in a row without a byte gained.
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(300);

/// Downloads the model files of a repository that are not in the shared cache, and checks all of them.
pub(crate) fn fetch(
    repo: &str,
    quant: Option<&str>,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<Vec<StoredFile>, Error> {
    let hub = Hub::open(repo, options)?;
    progress.message(&format!("asking for the files of {repo}"));
    let info = hub.api.info().map_err(|e| hub.error("listing its files", e))?;
    let names: Vec<String> = info.siblings.into_iter().map(|s| s.rfilename).collect();
    let chosen = choose(&names, quant, repo)?;
    let mut files = Vec::new();
    for (index, name) in chosen.iter().enumerate() {
        let path = match hub.cache.model(repo.to_owned()).get(name) {
            Some(path) => path,
            None => {
                let part = match chosen.len() {
                    1 => String::new(),
                    n => format!(" (shard {} of {n})", index + 1),
                };
                progress.message(&format!("downloading {name}{part}"));
                hub.download(name, progress)?
            }
        };
        files.push(check(&path, progress)?);
    }
    Ok(files)
}

struct Hub<'a> {
    repo: String,
    options: &'a Options,
    cache: Cache,
    api: ApiRepo,
}

impl<'a> Hub<'a> {
    fn open(repo: &str, options: &'a Options) -> Result<Self, Error> {
        check_settings(options)?;
        let cache = match &options.hf_home {
            Some(home) => Cache::new(home.join("hub")),
            // The client's default is in the home folder and it panics without one.
            None if std::env::home_dir().is_none() => return Err(Error::NoCacheDir),
            None => Cache::default(),
        };
        // The client's own retries start an appended file from its beginning; ours are in download().
        let mut builder = ApiBuilder::from_cache(cache.clone()).with_progress(false).with_retries(0);
        if let Some(endpoint) = &options.hf_endpoint {
            builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
        }
        if let Some(token) = &options.hf_token {
            builder = builder.with_token(Some(token.clone()));
        }
        let api: Api = builder.build().map_err(|e| hub_error(repo, options, "starting the client", &e))?;
        Ok(Self { repo: repo.to_owned(), options, cache, api: api.model(repo.to_owned()) })
    }

    fn error(&self, action: &str, error: ApiError) -> Error {
        hub_error(&self.repo, self.options, action, &error)
    }

    /// Downloads one file, going on from what an earlier attempt left.
    fn download(&self, name: &str, progress: &mut dyn Progress) -> Result<PathBuf, Error> {
        let mut failures = 0;
        let mut best = 0;
        loop {
            let mut counter = Counter { progress, done: 0, total: None };
            let error = match self.api.download_with_progress(name, &mut counter) {
                Ok(path) => return Ok(path),
                Err(error) => error,
            };
            if counter.done > best {
                best = counter.done;
                failures = 0;
            }
            failures += 1;
            match status_of(&error) {
                // The rest of a complete partial file was asked for, or it is longer than the file:
                // either way it is of no use.
                Some(416) => self.remove_partial_files()?,
                Some(400..=499) => return Err(self.error(&format!("downloading {name}"), error)),
                _ if matches!(error, ApiError::InvalidResume) => self.remove_partial_files()?,
                _ if is_disk_full(&error) => return Err(Error::DiskFull { path: self.cache.path().clone() }),
                _ => {}
            }
            if failures >= ATTEMPTS {
                return Err(self.error(&format!("downloading {name}"), error));
            }
            progress.message(&format!("the transfer of {name} broke off, going on"));
            thread::sleep(PAUSE * failures);
        }
    }

    /// Removes partial downloads of this repository; the caller holds the lock of the model.
    fn remove_partial_files(&self) -> Result<(), Error> {
        let blobs = self.cache.model(self.repo.clone()).blob_path("");
        let Ok(entries) = fs::read_dir(&blobs) else { return Ok(()) };
        for path in entries.flatten().map(|e| e.path()) {
            if path.extension().is_some_and(|e| e == "part") {
                remove_if_there(&path)?;
            }
        }
        Ok(())
    }
}

/// Hashes a file of the shared cache. Large files are stored there under their SHA-256; one that differs
/// is removed, so that the next attempt fetches it again.
fn check(path: &Path, progress: &mut dyn Progress) -> Result<StoredFile, Error> {
    // Absolute, since the record is read from another folder; not through the link, whose name has the
    // `-00001-of-00003` that leads to the other shards.
    let path = std::path::absolute(path).map_err(Error::io("find", path))?;
    let blob = fs::canonicalize(&path).map_err(Error::io("find", &path))?;
    let sha256 = hash_file(&path, progress)?;
    let name = blob.file_name().unwrap_or_default().to_string_lossy();
    let name_is_hash = name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit());
    if name_is_hash && !name.eq_ignore_ascii_case(&sha256) {
        remove_if_there(&blob)?;
        remove_if_there(&path)?;
        return Err(mismatch(&path, &name, &sha256));
    }
    let size = fs::metadata(&path).map_err(Error::io("read", &path))?.len();
    Ok(StoredFile { path, size, sha256 })
}

/// The client's progress as ours.
struct Counter<'a> {
    progress: &'a mut dyn Progress,
    done: u64,
    total: Option<u64>,
}

impl hf_hub::api::Progress for &mut Counter<'_> {
    fn init(&mut self, size: usize, _name: &str) {
        self.done = 0;
        self.total = Some(size as u64);
    }

    fn update(&mut self, size: usize) {
        self.done += size as u64;
        self.progress.bytes(self.done, self.total);
    }

    fn finish(&mut self) {}
}

/// The HTTP status behind an error, if that is what it is.
fn status_of(error: &ApiError) -> Option<u16> {
    // The client does not re-export its HTTP library's error, so its text is all there is:
    // "request error: http status: 404".
    let text = error.to_string();
    let (_, status) = text.split_once("http status: ")?;
    status.trim().parse().ok()
}

/// Why there is no connection, if that is what an error says; known by its text, as a status is.
fn no_connection(text: &str) -> Option<&str> {
    const KINDS: [&str; 5] =
        ["io: ", "timeout: ", "host not found", "connection failed", "CONNECT proxy failed"];
    let cause = text.strip_prefix("request error: ")?;
    KINDS.iter().any(|kind| cause.starts_with(kind)).then(|| cause.strip_prefix("io: ").unwrap_or(cause))
}

fn is_disk_full(error: &ApiError) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error, ApiError::IoError(e) if matches!(e.kind(), StorageFull | QuotaExceeded))
}

/// What the client would only fail on later, in words that do not lead to the setting.
fn check_settings(options: &Options) -> Result<(), Error> {
    if let Some(endpoint) = &options.hf_endpoint {
        let host = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
        if !host.is_some_and(|host| host.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '['))
            || !endpoint.bytes().all(|byte| byte.is_ascii_graphic())
        {
            let message = format!("expected an address such as https://huggingface.co, found `{endpoint}`");
            return Err(Error::Setting { variable: "HF_ENDPOINT", message });
        }
    }
    // It becomes a line of the request.
    if let Some(token) = &options.hf_token
        && let Some(at) = token.bytes().position(|byte| !byte.is_ascii_graphic())
    {
        let message = format!("expected visible ASCII characters, found another at byte {at}");
        return Err(Error::Setting { variable: "HF_TOKEN", message });
    }
    Ok(())
}

fn hub_error(repo: &str, options: &Options, action: &str, error: &ApiError) -> Error {
    let (repo, endpoint) = (repo.to_owned(), options.hf_endpoint.clone());
    match status_of(error) {
        Some(404) => return Error::RepoNotFound { repo },
        Some(401 | 403) => return Error::AccessDenied { repo, token: options.hf_token.is_some() },
        _ => {}
    }
    let detail = error.to_string();
    match no_connection(&detail) {
        Some(cause) => Error::HfUnreachable { repo, cause: cause.to_owned(), endpoint },
        None => Error::Hf { repo, action: action.to_owned(), detail, endpoint },
    }
}

#[cfg(test)]
mod tests {
    use super::no_connection;

    #[test]
    fn a_hub_that_is_not_there_is_told_from_one_that_refuses() {
        assert_eq!(no_connection("request error: io: Connection refused"), Some("Connection refused"));
        for kind in ["timeout: connect", "host not found", "connection failed", "CONNECT proxy failed: 502"] {
            assert_eq!(no_connection(&format!("request error: {kind}")), Some(kind));
        }
        for other in
            ["request error: http status: 500", "request error: too many redirects", "Header ETag is missing"]
        {
            assert_eq!(no_connection(other), None);
        }
    }
}
