//! Where compiled libraries are kept.

use std::env;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

/// `$SMELT_CACHE/metal-sim`, else the user's cache directory, else the one for temporary files.
pub(super) fn directory() -> PathBuf {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = set("SMELT_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|base| base.join("smelt")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/smelt")))
        .unwrap_or_else(|| env::temp_dir().join("smelt"));
    base.join("metal-sim")
}

/// A name that depends on every part and on where one part ends and the next begins.
pub(super) fn key(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    digits(hash)
}

/// A name for the content of a file, apart from the names that [`key`] gives.
pub(super) fn key_of_bytes(content: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(b"content");
    hash.update(content);
    digits(hash)
}

fn digits(hash: Sha256) -> String {
    hash.finalize().iter().take(20).map(|byte| format!("{byte:02x}")).collect()
}

/// A name beside `path` that no other process or thread uses.
pub(super) fn temporary(path: &Path) -> PathBuf {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    path.with_extension(format!("{}-{number}.part", process::id()))
}

#[cfg(test)]
mod tests {
    use super::key;

    #[test]
    fn keys_depend_on_the_border_between_parts() {
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
        assert_eq!(key(&["ab", "c"]), key(&["ab", "c"]));
    }
}
