//! Broken files, through the cheapest command and through a run. The numbers are those of the reports that the
//! regression tests answer.

use crate::tiny;
use crate::util::Dir;

/// A GGUF file, piece by piece and with any mistake.
#[derive(Clone)]
struct Raw(Vec<u8>);

impl Raw {
    fn header(tensors: u64, keys: u64) -> Raw {
        Raw(b"GGUF".to_vec()).u32(3).u64(tensors).u64(keys)
    }

    /// A header with one good key.
    fn with_architecture(tensors: u64) -> Raw {
        Raw::header(tensors, 1).string("general.architecture").u32(8).string("llama")
    }

    fn bytes(mut self, bytes: &[u8]) -> Raw {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u32(self, n: u32) -> Raw {
        self.bytes(&n.to_le_bytes())
    }

    fn u64(self, n: u64) -> Raw {
        self.bytes(&n.to_le_bytes())
    }

    fn string(self, text: &str) -> Raw {
        self.u64(text.len() as u64).bytes(text.as_bytes())
    }

    /// A tensor of f32.
    fn tensor(self, name: &str, shape: &[u64], offset: u64) -> Raw {
        let raw = self.string(name).u32(shape.len() as u32);
        shape.iter().fold(raw, |raw, &dim| raw.u64(dim)).u32(0).u64(offset)
    }

    fn data(mut self, len: usize) -> Raw {
        self.0.resize(self.0.len().next_multiple_of(32) + len, 0);
        self
    }
}

/// Both commands refuse the file in one line with the file's name and these words.
#[track_caller]
fn refused(content: &[u8], words: &[&str]) {
    let dir = Dir::new();
    dir.file("bad.gguf", content);
    for args in [vec!["inspect", "bad.gguf"], vec!["run", "bad.gguf", "hello"]] {
        let message = dir.smelt(&args).fails(1);
        assert_eq!(message.lines().count(), 1, "{args:?}: {message}");
        for word in ["bad.gguf"].iter().chain(words) {
            assert!(message.contains(word), "{args:?}: '{word}' is not in {message}");
        }
    }
}

#[test]
fn r01_sizes_that_wrap_are_refused_with_the_tensor() {
    let wraps = [4, (1 << 30) - 1, (1 << 30) + 1, 1];
    let first = Raw::with_architecture(2).tensor("token_embd.weight", &[4, 4], 0);
    refused(&first.tensor("w", &wraps, 64).data(64).0, &["'w'"]);
    for (shape, offset) in [([1 << 62, 4], 0), ([1 << 63, 1], 0), ([4, 4], u64::MAX - 31)] {
        refused(&Raw::with_architecture(1).tensor("w", &shape, offset).data(64).0, &["'w'"]);
    }
}

#[test]
fn r03_counts_beyond_the_file_are_refused_before_anything_is_allocated() {
    refused(&Raw::header(0, 1 << 63).string("general.architecture").u32(8).string("llama").0, &["keys"]);
    refused(&Raw::with_architecture(1 << 60).0, &["tensors"]);
    refused(&Raw::header(0, 1).u64(1 << 40).bytes(b"x").u32(4).u32(1).0, &["key 0"]);
    refused(&Raw::header(0, 1).string("a").u32(9).u32(0).u64(1 << 60).0, &["'a'"]);
    refused(&Raw::header(0, 1).string("a").u32(9).u32(8).u64(1 << 60).string("x").0, &["'a'"]);
}

#[test]
fn r03_arrays_in_arrays_end_somewhere() {
    let raw = Raw::header(0, 1).string("a").u32(9);
    let nested = (0..200_000).fold(raw, |raw, _| raw.u32(9).u64(1));
    refused(&nested.0, &["'a'"]);
}

#[test]
fn r05_a_file_cut_short_says_what_is_missing() {
    let whole = tiny::random();
    refused(&whole[..whole.len() / 2], &["bytes are missing", "download incomplete"]);
    // Data ends on a multiple of the alignment, and the last tensor's do, too.
    refused(&whole[..whole.len() - 1], &["1 byte is missing"]);
    refused(&whole[..40], &["download incomplete"]);
    refused(b"GGUF", &["download incomplete"]);
    refused(b"", &["not a GGUF file"]);
}

#[test]
fn r05_other_kinds_of_files_get_their_own_message() {
    refused(&Raw(b"GGUF".to_vec()).bytes(&3u32.to_be_bytes()).bytes(&[0; 16]).0, &["big-endian"]);
    refused(&Raw(b"GGUF".to_vec()).u32(1).u64(0).u64(0).0, &["version 1"]);
    refused(&Raw(b"FUGG".to_vec()).u32(3).u64(0).u64(0).0, &["not a GGUF file"]);
}

#[test]
fn r05_a_good_file_with_trailing_bytes_loads() {
    let dir = Dir::new();
    let mut content = tiny::random();
    content.resize(content.len() + 4096, 0);
    dir.file("tail.gguf", content);
    dir.smelt(&["inspect", "tail.gguf"]).ok();
    dir.smelt(&["run", "tail.gguf", "hello", "-n", "1"]).ok();
}
