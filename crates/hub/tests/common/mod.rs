//! A cache folder, a fake Python, and packages for it to serve.
#![allow(dead_code, reason = "each test file uses a part of this")]

pub mod hf_server;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use hub::{Options, Progress};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use zip::write::SimpleFileOptions;

/// Everything of one test, in a folder that goes away with it.
pub struct World {
    pub root: TempDir,
    pub options: Options,
}

impl World {
    pub fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("store")).unwrap();
        let python = root.path().join("python3");
        #[cfg(unix)]
        std::os::unix::fs::symlink(
            concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/fake-python.sh"),
            &python,
        )
        .unwrap();
        let options = Options {
            cache_dir: Some(root.path().join("models")),
            hf_home: Some(root.path().join("hf")),
            python: Some(python),
            ..Options::default()
        };
        Self { root, options }
    }

    /// Puts a package into the store. Deflated, as real wheels are.
    pub fn package(&self, wheel: &str, members: &[(&str, &[u8])]) {
        write_wheel(&self.root.path().join("store").join(wheel), members);
    }

    pub fn resolve(&self, spec: &str) -> Result<PathBuf, hub::Error> {
        hub::resolve(spec, &self.options, &mut ())
    }

    /// Makes every download fail with this on stderr.
    pub fn pip_fails(&self, stderr: &str) {
        fs::write(self.root.path().join("fail"), stderr).unwrap();
    }

    pub fn pip_recovers(&self) {
        fs::remove_file(self.root.path().join("fail")).unwrap();
    }

    /// The packages that pip was asked for, in order.
    pub fn pip_calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.root.path().join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub fn models(&self) -> PathBuf {
        self.options.cache_dir.clone().unwrap()
    }
}

pub fn write_wheel(path: &Path, members: &[(&str, &[u8])]) {
    let mut zip = zip::ZipWriter::new(File::create(path).unwrap());
    let options = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    for (name, data) in members {
        zip.start_file(*name, options).unwrap();
        zip.write_all(data).unwrap();
    }
    zip.finish().unwrap();
}

/// Bytes that pass for a GGUF file: the magic, then a pattern that differs for each `seed`.
pub fn gguf(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let noise = std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    b"GGUF".iter().copied().chain(noise).take(len).collect()
}

pub fn sha256(data: &[u8]) -> String {
    Sha256::digest(data).iter().map(|b| format!("{b:02x}")).collect()
}

/// Remembers what was reported.
#[derive(Default)]
pub struct Heard {
    pub messages: Vec<String>,
    pub bytes: Vec<(u64, Option<u64>)>,
}

impl Progress for Heard {
    fn message(&mut self, text: &str) {
        self.messages.push(text.to_owned());
    }

    fn bytes(&mut self, done: u64, total: Option<u64>) {
        self.bytes.push((done, total));
    }
}
