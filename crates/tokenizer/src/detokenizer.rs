//! From ids to text as they come.

use crate::Tokenizer;
use std::sync::Arc;

/// Turns ids into text one by one. A character that is spread over tokens comes out whole, with the last of them;
/// bytes that can never become one come out as U+FFFD, as Rust's and Python's decoders have it. Joined, the pieces
/// equal the lossy text of all bytes together.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    /// The beginning of a character: at most three bytes, between calls.
    held: Vec<u8>,
    /// A blank that the tokenizer put before the first word is still to be dropped.
    drop_blank: bool,
}

impl Detokenizer {
    /// A detokenizer that begins in the middle of a text: what a model generates after a prompt.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Detokenizer {
        Detokenizer { tokenizer, held: Vec::new(), drop_blank: false }
    }

    /// A detokenizer for a whole text: a blank that encoding put first is dropped again.
    pub fn from_start(tokenizer: Arc<Tokenizer>) -> Detokenizer {
        let drop_blank = tokenizer.adds_space_prefix();
        Detokenizer { tokenizer, held: Vec::new(), drop_blank }
    }

    /// The text that is certain with this token: possibly none. Control tokens have no text.
    pub fn push(&mut self, id: u32) -> String {
        let mut bytes = self.tokenizer.text_bytes(id);
        if self.drop_blank && !bytes.is_empty() {
            self.drop_blank = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.held.extend_from_slice(bytes);
        let certain = self.held.len() - incomplete_tail(&self.held);
        let text = String::from_utf8_lossy(&self.held[..certain]).into_owned();
        self.held.drain(..certain);
        text
    }

    /// What is left at the end: U+FFFD for a character that was never completed, or nothing.
    pub fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        String::from_utf8_lossy(&held).into_owned()
    }
}

/// Bytes at the end that begin a character and could still become one.
fn incomplete_tail(bytes: &[u8]) -> usize {
    // Lossy decoding starts afresh after each invalid sequence, so only the last chunk can be incomplete.
    bytes.utf8_chunks().last().map_or(0, |chunk| match std::str::from_utf8(chunk.invalid()) {
        Err(error) if error.error_len().is_none() => chunk.invalid().len(),
        _ => 0,
    })
}

#[cfg(test)]
mod tests {
    use super::incomplete_tail;

    #[test]
    fn r13_only_the_beginning_of_a_character_is_held() {
        assert_eq!(incomplete_tail(b""), 0);
        assert_eq!(incomplete_tail(b"abc"), 0);
        assert_eq!(incomplete_tail(b"a\xf0\x9f\x98"), 3);
        assert_eq!(incomplete_tail(b"\xe4\xbd"), 2);
        assert_eq!(incomplete_tail(b"\xff"), 0);
        assert_eq!(incomplete_tail(b"\xff\xc3"), 1);
        assert_eq!(incomplete_tail(b"\xe4\xbd\xe4\xbd"), 2);
        assert_eq!(incomplete_tail(b"\xf5"), 0);
        assert_eq!(incomplete_tail("é".as_bytes()), 0);
    }
}
