//! Third-party files that tests compare with. They are fetched once into a cache folder outside the
//! repository, by the pip of this machine, and checked against a hash.
//!
//! For tests only: it panics where a library would return an error, because a test that cannot get its
//! data has to fail and say so.
//!
//! ```no_run
//! let templates = testdata::llama_cpp_models_dir().join("templates");
//! assert!(templates.join("Qwen-Qwen3-0.6B.jinja").is_file());
//! ```

use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};

/// A source package on the Python package index, and the folder in it that tests want.
struct Source {
    package: &'static str,
    version: &'static str,
    archive: &'static str,
    sha256: &'static str,
    /// Path in the archive, below its single top folder.
    folder: &'static str,
}

/// Carries llama.cpp, and with it vocabulary files and chat templates.
const LLAMA_CPP: Source = Source {
    package: "llama-cpp-python",
    version: "0.3.36",
    archive: "llama_cpp_python-0.3.36.tar.gz",
    sha256: "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    folder: "vendor/llama.cpp/models",
};

/// llama.cpp's `models` folder: `ggml-vocab-NAME.gguf` with its `.inp` and `.out`, and
/// `templates/NAME.jinja`.
///
/// The first call downloads a source package of about 70 MB into `test-data` in the folder that `SMELT_CACHE`
/// names, or else into `smelt/test-data` in the user's cache folder. It needs a Python with pip.
///
/// # Panics
/// If the files are not there and cannot be fetched; the message says why and what to do.
pub fn llama_cpp_models_dir() -> PathBuf {
    let fetched = cache_dir().and_then(|cache| fetch(&LLAMA_CPP, &cache, download));
    match fetched {
        Ok(dir) => dir,
        Err(error) => panic!(
            "cannot get the test data of {} {}: {error}\n\
             It needs python3 with pip and a package index. Without a network, put {} into the folder {} yourself.",
            LLAMA_CPP.package,
            LLAMA_CPP.version,
            LLAMA_CPP.archive,
            cache_dir().map_or_else(|_| "$SMELT_CACHE/test-data".to_owned(), |d| d.display().to_string()),
        ),
    }
}

fn cache_dir() -> Result<PathBuf, Box<dyn Error>> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = set("SMELT_CACHE") {
        return Ok(dir.join("test-data"));
    }
    let base = if cfg!(windows) {
        set("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        env::home_dir().map(|home| home.join("Library/Caches"))
    } else {
        // The XDG base directory specification has relative paths ignored.
        let xdg = set("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        xdg.or_else(|| env::home_dir().map(|home| home.join(".cache")))
    };
    Ok(base.ok_or("no cache folder: set SMELT_CACHE")?.join("smelt").join("test-data"))
}

/// The unpacked folder. It gets its final name only once it is complete, so its presence is the proof.
fn fetch(
    source: &Source,
    cache: &Path,
    download: impl Fn(&Source, &Path) -> Result<(), Box<dyn Error>>,
) -> Result<PathBuf, Box<dyn Error>> {
    // The start of the hash is part of the name: another archive under the same version gets its own folder.
    let name = format!("{}-{}-{}", source.package, source.version, &source.sha256[..8]);
    let ready = cache.join(&name);
    if ready.is_dir() {
        return Ok(ready);
    }
    fs::create_dir_all(cache).map_err(|e| format!("cannot create {}: {e}", cache.display()))?;
    // Test binaries run at the same time; one of them fetches. Released when dropped.
    let lock = File::create(cache.join(format!("{name}.lock")))?;
    lock.lock()?;
    if ready.is_dir() {
        return Ok(ready);
    }
    let archive = cache.join(source.archive);
    if !archive.is_file() {
        download(source, cache)?;
    }
    let found = hash(&archive).map_err(|e| format!("cannot read {}: {e}", archive.display()))?;
    if found != source.sha256 {
        // Kept, it would be used again and fail again.
        fs::remove_file(&archive)?;
        return Err(format!(
            "{} has SHA-256 {found}, expected {}; it was removed",
            archive.display(),
            source.sha256
        )
        .into());
    }
    let partial = cache.join(format!("{name}.partial"));
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    unpack(&archive, source.folder, &partial)?;
    fs::rename(&partial, &ready)?;
    fs::remove_file(&archive)?;
    Ok(ready)
}

/// Downloads the archive with the first Python that answers.
fn download(source: &Source, dir: &Path) -> Result<(), Box<dyn Error>> {
    let works = |python: &&str| {
        let mut command = Command::new(python);
        command.args(["-m", "pip", "--version"]).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let python = ["python3", "python"].into_iter().find(works).ok_or("neither python3 nor python has pip")?;
    let output = Command::new(python)
        .args(["-m", "pip", "download", "--no-deps", "--no-input", "--disable-pip-version-check"])
        .args(["--no-binary", source.package, "--dest"])
        .arg(dir)
        .arg(format!("{}=={}", source.package, source.version))
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("pip download ended with {}: {}", output.status, stderr.trim()).into())
}

fn hash(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    io::copy(&mut file, &mut hasher)?;
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Unpacks the files of one folder of a `.tar.gz` into `target`.
fn unpack(archive: &Path, folder: &str, target: &Path) -> Result<(), Box<dyn Error>> {
    let mut tar = tar::Archive::new(GzDecoder::new(File::open(archive)?));
    let mut count = 0;
    for entry in tar.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        // The top folder carries the package's name and version.
        let below_top: PathBuf = path.components().skip(1).collect();
        let Ok(relative) = below_top.strip_prefix(folder) else { continue };
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let plain = relative.components().all(|c| matches!(c, std::path::Component::Normal(_)));
        if !plain {
            return Err(format!("the archive holds the path {}", path.display()).into());
        }
        let file = target.join(relative);
        fs::create_dir_all(file.parent().unwrap_or(target))?;
        let mut data = Vec::new();
        entry.read_to_end(&mut data)?;
        fs::write(&file, data)?;
        count += 1;
    }
    if count == 0 {
        return Err(format!("{} holds no folder {folder}", archive.display()).into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a `.tar.gz` with three files.
    fn archive() -> Vec<u8> {
        let mut tar = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), Default::default()));
        for (path, data) in [("p-1/models/a/b.txt", "b"), ("p-1/models/c.txt", "c"), ("p-1/other", "x")] {
            let mut header = tar::Header::new_gnu();
            header.set_size(data.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, path, data.as_bytes()).unwrap();
        }
        tar.into_inner().unwrap().finish().unwrap()
    }

    fn source(data: &[u8]) -> Source {
        let digest: String = Sha256::digest(data).iter().map(|b| format!("{b:02x}")).collect();
        Source { package: "p", version: "1", archive: "p-1.tar.gz", sha256: digest.leak(), folder: "models" }
    }

    #[test]
    fn one_folder_is_unpacked_and_the_second_call_downloads_nothing() {
        let (cache, data) = (tempfile::tempdir().unwrap(), archive());
        let source = source(&data);
        let first =
            fetch(&source, cache.path(), |s, dir| Ok(fs::write(dir.join(s.archive), &data)?)).unwrap();
        assert_eq!(fs::read_to_string(first.join("a/b.txt")).unwrap(), "b");
        assert_eq!(fs::read_to_string(first.join("c.txt")).unwrap(), "c");
        assert_eq!(fs::read_dir(&first).unwrap().count(), 2);
        let second = fetch(&source, cache.path(), |_, _| Err("a second download".into())).unwrap();
        assert_eq!(first, second);
    }

    #[test]
    fn a_wrong_archive_is_refused_and_removed() {
        let cache = tempfile::tempdir().unwrap();
        let source = source(&archive());
        let error = fetch(&source, cache.path(), |s, dir| Ok(fs::write(dir.join(s.archive), "junk")?));
        let text = error.unwrap_err().to_string();
        assert!(text.contains("p-1.tar.gz has SHA-256") && text.contains(source.sha256), "{text}");
        assert!(!cache.path().join("p-1.tar.gz").exists());
    }

    #[test]
    fn a_failed_download_is_told() {
        let cache = tempfile::tempdir().unwrap();
        let error = fetch(&source(&archive()), cache.path(), |_, _| Err("no network".into())).unwrap_err();
        assert_eq!(error.to_string(), "no network");
    }

    #[test]
    fn llama_cpp_has_vocabularies_and_templates() {
        let dir = llama_cpp_models_dir();
        for name in ["ggml-vocab-gpt-2.gguf", "ggml-vocab-gpt-2.gguf.inp", "templates/Qwen-Qwen3-0.6B.jinja"]
        {
            assert!(dir.join(name).is_file(), "{name} is not in {}", dir.display());
        }
    }
}
