//! The cache folder: one folder per model, with the files, a record of them, and a lock.
//!
//! ```text
//! models/
//!   smollm2/
//!     SmolLM2-135M-Instruct.Q4_1.gguf
//!     verified.json      written last: spec, and path, size and SHA-256 of each file
//!     lock               held while a process fetches or verifies; gone where nothing came of it
//!     wheels/, tmp/      downloads on their way, removed at the end
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Alias, Error, Options, Progress, Spec};

const RECORD: &str = "verified.json";
const LOCK: &str = "lock";
/// Bytes read or written between two reports.
const CHUNK: usize = 1 << 20;
/// How often a waiting process looks whether the lock is free.
const LOCK_POLL: Duration = Duration::from_millis(100);

/// A model in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CachedModel {
    /// What a user types to get it.
    pub spec: String,
    /// The file, or the first shard.
    pub path: PathBuf,
    /// Bytes on disk, all shards together.
    pub size: u64,
}

/// What was verified, and when it last was as it should be.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    spec: String,
    files: Vec<StoredFile>,
}

/// A file that was hashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredFile {
    /// Relative to the model's folder, or absolute where another cache holds it.
    pub(crate) path: PathBuf,
    pub(crate) size: u64,
    pub(crate) sha256: String,
}

/// A model's folder in the cache.
pub(crate) struct Entry {
    pub(crate) dir: PathBuf,
    spec: String,
    alias: Option<&'static Alias>,
}

/// Released when dropped.
pub(crate) struct Lock {
    _file: File,
}

impl Entry {
    pub(crate) fn new(spec: &Spec, options: &Options) -> Result<Self, Error> {
        let alias = if let Spec::Alias(alias) = spec { Some(*alias) } else { None };
        Ok(Self { dir: options.models_dir()?.join(spec.key()), spec: spec.to_string(), alias })
    }

    /// The model's path if it is complete.
    pub(crate) fn ready(&self) -> Option<PathBuf> {
        self.record().map(|record| self.first_path(&record))
    }

    /// The record, if there is one and every file in it has the recorded size.
    pub(crate) fn record(&self) -> Option<Record> {
        let record = read_record(&self.dir)?;
        // Another version of this program may have had another file under this name.
        let current = self.alias.is_none_or(|a| record.files[0].sha256 == a.sha256);
        current.then_some(record)
    }

    pub(crate) fn first_path(&self, record: &Record) -> PathBuf {
        self.dir.join(&record.files[0].path)
    }

    /// What a user types to get this model.
    pub(crate) fn spec(&self) -> &str {
        &self.spec
    }

    /// Waits until no other process works on this model.
    pub(crate) fn lock(&self, progress: &mut dyn Progress) -> Result<Lock, Error> {
        let path = self.dir.join(LOCK);
        let mut told = false;
        loop {
            fs::create_dir_all(&self.dir).map_err(Error::io("create the folder", &self.dir))?;
            let file = match File::create(&path) {
                // Another process has just failed and removed the folder.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file.map_err(Error::io("create", &path))?,
            };
            match file.try_lock() {
                // The lock of a file that was removed meanwhile keeps nobody out.
                Ok(()) if !is_at(&file, &path) => {}
                Ok(()) => return Ok(Lock { _file: file }),
                Err(TryLockError::WouldBlock) => {
                    if !told {
                        progress
                            .message(&format!("another process is fetching {}; waiting for it", self.spec));
                        told = true;
                    }
                    thread::sleep(LOCK_POLL);
                }
                Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path)(error)),
            }
        }
    }

    /// Hashes every file again; the first that differs, as the error that says how.
    pub(crate) fn find_damage(
        &self,
        record: &Record,
        progress: &mut dyn Progress,
    ) -> Result<Option<Error>, Error> {
        for file in &record.files {
            let path = self.dir.join(&file.path);
            let found = hash_file(&path, progress)?;
            if found != file.sha256 {
                return Ok(Some(mismatch(&path, &file.sha256, &found)));
            }
        }
        Ok(None)
    }

    /// Removes the record and the files it lists.
    pub(crate) fn discard(&self, record: &Record) -> Result<(), Error> {
        remove_if_there(&self.dir.join(RECORD))?;
        for file in &record.files {
            let path = self.dir.join(&file.path);
            // In the Hugging Face cache the path is a link; the content would be found again behind it.
            if let Ok(target) = fs::canonicalize(&path) {
                remove_if_there(&target)?;
            }
            remove_if_there(&path)?;
        }
        Ok(())
    }

    /// Writes the record, so that the model counts as complete, and removes what is no longer needed.
    pub(crate) fn commit(&self, files: Vec<StoredFile>) -> Result<Record, Error> {
        let record = Record { spec: self.spec.clone(), files };
        let partial = self.dir.join(format!("{RECORD}.partial"));
        let text = serde_json::to_vec_pretty(&record)
            .map_err(|e| Error::io("write", &partial)(io::Error::other(e)))?;
        fs::write(&partial, text).map_err(Error::io("write", &partial))?;
        let path = self.dir.join(RECORD);
        fs::rename(&partial, &path).map_err(Error::io("write", &path))?;
        for dir in [self.wheels_dir(), self.tmp_dir()] {
            // Left-overs cost space, not correctness: the model is complete without them gone.
            let _ = fs::remove_dir_all(dir);
        }
        Ok(record)
    }

    /// Removes what a failed attempt leaves and the next one has no use for, the folder included if nothing else is in
    /// it. To be called with the lock.
    pub(crate) fn tidy(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for path in entries.flatten().map(|e| e.path()).filter(|p| p.extension() == Some("partial".as_ref()))
        {
            // Whatever cannot be removed is overwritten by the next attempt.
            let _ = fs::remove_file(path);
        }
        let _ = fs::remove_dir_all(self.tmp_dir());
        // Fails, as it should, where complete downloads wait in it.
        let _ = fs::remove_dir(self.wheels_dir());
        let names = fs::read_dir(&self.dir).map(|entries| entries.flatten().map(|entry| entry.file_name()));
        if cfg!(unix) && names.is_ok_and(|mut names| names.all(|name| name == LOCK)) {
            let _ = fs::remove_file(self.dir.join(LOCK));
            // Fails where another process has begun anew.
            let _ = fs::remove_dir(&self.dir);
        }
    }

    pub(crate) fn wheels_dir(&self) -> PathBuf {
        self.dir.join("wheels")
    }

    pub(crate) fn tmp_dir(&self) -> PathBuf {
        self.dir.join("tmp")
    }
}

/// Whether an open file is the one that has this path.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    let there = fs::metadata(path).map(identity).ok();
    there.is_some() && file.metadata().map(identity).ok() == there
}

/// Elsewhere [`Entry::tidy`] removes no lock.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}

/// Reads a folder's record; `None` unless it is valid and every file has its size.
fn read_record(dir: &Path) -> Option<Record> {
    let record: Record = serde_json::from_slice(&fs::read(dir.join(RECORD)).ok()?).ok()?;
    let complete = |f: &StoredFile| fs::metadata(dir.join(&f.path)).is_ok_and(|m| m.len() == f.size);
    (!record.files.is_empty() && record.files.iter().all(complete)).then_some(record)
}

/// Every complete model in the folder.
pub(crate) fn list(models_dir: &Path) -> Result<Vec<CachedModel>, Error> {
    let entries = match fs::read_dir(models_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("read the folder", models_dir)(error)),
    };
    let mut models = Vec::new();
    for entry in entries {
        let dir = entry.map_err(Error::io("read the folder", models_dir))?.path();
        if let Some(record) = read_record(&dir) {
            models.push(CachedModel {
                path: dir.join(&record.files[0].path),
                size: record.files.iter().map(|f| f.size).sum(),
                spec: record.spec,
            });
        }
    }
    models.sort_by(|a, b| a.spec.cmp(&b.spec));
    Ok(models)
}

pub(crate) fn remove_if_there(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
        _ => Ok(()),
    }
}

/// The error for a hash that differs.
pub(crate) fn mismatch(path: &Path, expected: &str, found: &str) -> Error {
    Error::Corrupt {
        path: path.to_path_buf(),
        expected: format!("SHA-256 {expected}"),
        found: found.to_owned(),
    }
}

/// SHA-256 of a file, in lower-case hexadecimal.
pub(crate) fn hash_file(path: &Path, progress: &mut dyn Progress) -> Result<String, Error> {
    let fail = |e| Error::io("read", path)(e);
    let mut file = File::open(path).map_err(fail)?;
    let total = file.metadata().map_err(fail)?.len();
    progress.message(&format!("checking {}", file_name(path)));
    let mut hash = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let mut done = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hex(hash)),
            Ok(n) => {
                hash.update(&buffer[..n]);
                done += n as u64;
                progress.bytes(done, Some(total));
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(fail(e)),
        }
    }
}

/// A file under construction, hashed on its way; it gets its name when it is complete.
pub(crate) struct NewFile {
    partial: PathBuf,
    file: File,
    hash: Sha256,
    size: u64,
    start: Vec<u8>,
}

impl NewFile {
    pub(crate) fn create(dir: &Path, name: &str) -> Result<Self, Error> {
        let partial = dir.join(format!("{name}.partial"));
        let file = File::create(&partial).map_err(Error::io("create", &partial))?;
        Ok(Self { partial, file, hash: Sha256::new(), size: 0, start: Vec::new() })
    }

    /// Appends all of `source`; an error in reading it is made by `read_error`.
    pub(crate) fn append(
        &mut self,
        source: &mut dyn Read,
        read_error: &dyn Fn(io::Error) -> Error,
        total: u64,
        progress: &mut dyn Progress,
    ) -> Result<(), Error> {
        let mut buffer = vec![0; CHUNK];
        loop {
            let n = match source.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(read_error(e)),
            };
            self.file.write_all(&buffer[..n]).map_err(Error::io("write", &self.partial))?;
            self.hash.update(&buffer[..n]);
            if self.start.len() < GGUF_MAGIC.len() {
                self.start.extend(buffer[..n].iter().take(GGUF_MAGIC.len() - self.start.len()));
            }
            self.size += n as u64;
            progress.bytes(self.size, Some(total));
        }
    }

    /// Checks size, hash and first bytes, then gives the file its name.
    pub(crate) fn finish(self, dir: &Path, name: &str, alias: Option<&Alias>) -> Result<StoredFile, Error> {
        let path = dir.join(name);
        let sha256 = hex(self.hash);
        let corrupt = |expected, found| Err(Error::Corrupt { path: path.clone(), expected, found });
        if let Some(alias) = alias {
            if self.size != alias.size {
                return corrupt(format!("{} bytes", alias.size), format!("{} bytes", self.size));
            }
            if sha256 != alias.sha256 {
                return Err(mismatch(&path, alias.sha256, &sha256));
            }
        }
        if self.start != GGUF_MAGIC {
            return corrupt(
                "a GGUF file".to_owned(),
                format!("one that begins with `{}`", self.start.escape_ascii()),
            );
        }
        self.file.sync_all().map_err(Error::io("write", &self.partial))?;
        fs::rename(&self.partial, &path).map_err(Error::io("write", &path))?;
        Ok(StoredFile { path: name.into(), size: self.size, sha256 })
    }
}

const GGUF_MAGIC: &[u8] = b"GGUF";

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The last part of a path, for messages.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn the_lock_of_a_removed_folder_keeps_nobody_out() {
        let root = tempfile::tempdir().unwrap();
        let options = Options { cache_dir: Some(root.path().join("models")), ..Options::default() };
        let entry = Entry::new(&Spec::Pip { requirement: "m".into() }, &options).unwrap();
        let path = entry.dir.join(LOCK);
        let first = entry.lock(&mut ()).unwrap();
        // Another process has opened it, and not yet asked for it.
        let other = File::open(&path).unwrap();
        assert!(is_at(&other, &path));
        entry.tidy();
        assert!(!entry.dir.exists(), "a folder with nothing but a lock is of no use");
        assert!(!is_at(&other, &path));
        drop(first);
        let _second = entry.lock(&mut ()).unwrap();
        other.try_lock().unwrap();
        assert!(!is_at(&other, &path), "the second lock counts");
    }
}
