//! The file that packed weights are kept in from one start to the next: where it is, and which model it belongs to.

use cpu::{PackCache, PackCacheError, checksum};
use gguf::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Places of each file whose bytes are part of its identity, and how many bytes.
const SAMPLES: usize = 64;
const SAMPLE: usize = 64;

/// A clock of a file system stands still for so long at most: two changes may have the same time.
const TICK: Duration = Duration::from_millis(20);

/// A cache of packed weights while a model is loaded.
pub(crate) struct RepackCache {
    paths: Vec<PathBuf>,
    /// The file in use.
    opened: PathBuf,
    identity: [u8; 32],
    cache: Arc<PackCache>,
    notices: Vec<String>,
}

impl RepackCache {
    /// Opens the first of some files that can be used for this model.
    ///
    /// # Errors
    /// The system does not tell about the model's file, so that nothing can be said to belong to it.
    pub(crate) fn open(file: &File, paths: &[PathBuf]) -> io::Result<RepackCache> {
        let identity = identity(file)?;
        let mut notices = Vec::new();
        let (mut found, mut opened) = (None, PathBuf::new());
        for path in paths {
            match PackCache::open(path, identity) {
                Ok(cache) => {
                    (found, opened) = (Some(cache), path.clone());
                    break;
                }
                Err(PackCacheError::Io(error)) if is_absent(&error) => {}
                Err(error) => notices.push(ignored(path, &error)),
            }
        }
        let cache = Arc::new(found.unwrap_or_else(|| PackCache::empty(identity)));
        Ok(RepackCache { paths: paths.to_vec(), opened, identity, cache, notices })
    }

    /// What the backend takes packed weights from.
    pub(crate) fn cache(&self) -> Arc<PackCache> {
        Arc::clone(&self.cache)
    }

    /// After all weights were packed: writes what was new, where that is possible. Returns what a user should know.
    pub(crate) fn finish(mut self, file: &File) -> Vec<String> {
        if let Some(damage) = self.cache.damage() {
            self.notices.push(ignored(&self.opened, &damage));
        }
        if self.cache.is_stale()
            && let Err(message) = self.save(file)
        {
            self.notices.push(message);
        }
        self.notices
    }

    fn save(&self, file: &File) -> Result<(), String> {
        if !is_settled(file, self.identity) {
            return Err("packed weights are not kept: the model's file changed while it was loaded".into());
        }
        let mut failures = Vec::new();
        for path in &self.paths {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let made = folder.map_or(Ok(()), std::fs::create_dir_all);
            let error = match (self.cache.save(path), made) {
                (Ok(()), _) => return Ok(()),
                // Why there is no folder says more than that there is none.
                (Err(PackCacheError::Io(error)), Err(cause)) if error.kind() == io::ErrorKind::NotFound => {
                    cause.into()
                }
                (Err(error), _) => error,
            };
            failures.push(format!("{}: {error}", path.display()));
        }
        Err(format!("packed weights cannot be kept: {}", failures.join("; ")))
    }
}

/// Whether there is no such file.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn ignored(path: &Path, error: &PackCacheError) -> String {
    format!("{}: packed weights are not used: {error}", path.display())
}

/// Whether a model's file is still what it was, so that what was read in between belongs to this identity.
fn is_settled(file: &File, before: [u8; 32]) -> bool {
    let changed = file.parts().iter().filter_map(|part| Some(times(&part.stat().ok()?)[1]));
    let newest = changed.max().unwrap_or(0);
    let now = nanoseconds(SystemTime::now());
    if now.saturating_sub(newest) < TICK.as_nanos() as u64 {
        // A change from now on gets another time.
        std::thread::sleep(TICK);
    }
    identity(file).is_ok_and(|now| now == before)
}

/// What tells a model's file from any other and from its own past: its length, when it was last written, when anything
/// about it was last changed (which on Unix no program can set: any write, copy or move gives another), and a checksum
/// of its header and of samples of its data.
fn identity(file: &File) -> io::Result<[u8; 32]> {
    let (mut length, mut written, mut changed, mut content) = (0u64, Vec::new(), Vec::new(), Vec::new());
    for (index, part) in file.parts().iter().enumerate() {
        let stat = part.stat()?;
        let times = times(&stat);
        length = length.wrapping_add(stat.len());
        written.extend(times[0].to_le_bytes());
        changed.extend(times[1].to_le_bytes());
        let bytes = part.bytes();
        let tensors = file.tensors().iter().filter(|tensor| tensor.part == index);
        let header = tensors.map(|tensor| tensor.offset as usize).min().unwrap_or(bytes.len());
        content.extend(checksum(&bytes[..header.min(bytes.len())]).to_le_bytes());
        for sample in 0..SAMPLES {
            let start = (bytes.len() / SAMPLES * sample).min(bytes.len());
            content.extend(&bytes[start..(start + SAMPLE).min(bytes.len())]);
        }
    }
    let mut identity = [0; 32];
    let parts = [length, checksum(&written), checksum(&changed), checksum(&content)];
    for (to, part) in identity.chunks_exact_mut(8).zip(parts) {
        to.copy_from_slice(&part.to_le_bytes());
    }
    Ok(identity)
}

/// When a file was written, and when anything about it changed, in nanoseconds since 1970.
fn times(stat: &std::fs::Metadata) -> [u64; 2] {
    let written = stat.modified().map_or(0, nanoseconds);
    #[cfg(unix)]
    let changed = {
        use std::os::unix::fs::MetadataExt;
        (stat.ctime() as u64).wrapping_mul(1_000_000_000).wrapping_add(stat.ctime_nsec() as u64)
    };
    #[cfg(not(unix))]
    let changed = written;
    [written, changed]
}

fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
