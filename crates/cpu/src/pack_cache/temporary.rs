//! Files that are being written, beside the one that they will replace.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{io, process};

/// Names of files that are being written: that of the file, between these two.
pub(super) struct Temporary {
    start: OsString,
}

impl Temporary {
    const END: &str = ".tmp";

    /// Its writer holds a lock on a temporary file. One that is younger than this may be waiting for it still.
    pub(super) const ABANDONED: Duration = Duration::from_secs(60);

    pub(super) fn of(name: &OsStr) -> Temporary {
        let mut start = OsString::from(".");
        start.push(name);
        start.push(".");
        Temporary { start }
    }

    /// A new file beside `path`, locked for as long as it is open. No other process, thread or container has it, and
    /// it is no link to elsewhere.
    pub(super) fn create(&self, path: &Path) -> io::Result<(PathBuf, File)> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        loop {
            let mut name = self.start.clone();
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            name.push(format!("{}-{number}{}", process::id(), Temporary::END));
            let temporary = path.with_file_name(name);
            match File::options().write(true).create_new(true).open(&temporary) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                file => {
                    let file = file?;
                    // Where files cannot be locked, none is ever found abandoned.
                    let _ = file.try_lock();
                    return Ok((temporary, file));
                }
            }
        }
    }

    /// Removes what writers left that were ended before they were done. A hint: what cannot be removed stays.
    pub(super) fn remove_abandoned(&self, path: &Path) {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let Ok(entries) = std::fs::read_dir(folder.unwrap_or(Path::new("."))) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.as_encoded_bytes();
            let ours = name.starts_with(self.start.as_encoded_bytes())
                && name.ends_with(Temporary::END.as_bytes())
                && entry.file_type().is_ok_and(|kind| kind.is_file());
            if ours && is_abandoned(&entry.path()).unwrap_or(false) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

fn is_abandoned(temporary: &Path) -> io::Result<bool> {
    let file = File::open(temporary)?;
    let age = file.metadata()?.modified()?.elapsed().unwrap_or_default();
    Ok(age > Temporary::ABANDONED && file.try_lock().is_ok())
}
