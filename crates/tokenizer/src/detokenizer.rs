//! From ids to text as they come.

use crate::Tokenizer;
use std::sync::Arc;

/// Turns ids into text one by one. A character that is spread over tokens comes out whole, with the last of them;
/// bytes that can never become one come out as U+FFFD, as Rust's and Python's decoders have it. Joined, the pieces
/// equal the lossy text of all bytes together.
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    /// The beginning of a character.
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
        self.push_bytes(&bytes.to_vec())
    }

    /// The same for bytes.
    fn push_bytes(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let keep = incomplete_tail(&self.held);
        let rest = self.held.split_off(self.held.len() - keep);
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held = rest;
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
    let mut valid = bytes;
    loop {
        match std::str::from_utf8(valid) {
            Ok(_) => return 0,
            Err(error) => match error.error_len() {
                None => return valid.len() - error.valid_up_to(),
                Some(len) => valid = &valid[error.valid_up_to() + len..],
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::incomplete_tail;

    #[test]
    fn r13_only_the_beginning_of_a_character_is_held() {
        assert_eq!(incomplete_tail(b"abc"), 0);
        assert_eq!(incomplete_tail(b"a\xf0\x9f\x98"), 3);
        assert_eq!(incomplete_tail(b"\xe4\xbd"), 2);
        assert_eq!(incomplete_tail(b"\xff"), 0);
        assert_eq!(incomplete_tail(b"\xff\xc3"), 1);
        assert_eq!(incomplete_tail("é".as_bytes()), 0);
    }
}
