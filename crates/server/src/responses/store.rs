//! Responses that can be asked for again or gone on from.

use axum::body::Bytes;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most responses kept.
const MOST: usize = 1024;

/// Most bytes of them.
const MOST_BYTES: usize = 64 << 20;

/// A response, and the conversation that it ends: as JSON, which takes a tenth of what its tree would.
#[derive(Debug)]
struct Entry {
    id: String,
    messages: Arc<str>,
    response: Bytes,
}

impl Entry {
    fn bytes(&self) -> usize {
        size_of::<Entry>() + self.id.len() + self.messages.len() + self.response.len()
    }
}

/// The latest responses, in memory alone: the oldest goes where there are too many, and all go with the server.
#[derive(Debug, Default)]
pub struct Store(Mutex<VecDeque<Entry>>);

impl Store {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a response, and the list of the messages of its conversation as templates take them, the answer among them.
    pub fn insert(&self, id: &str, messages: String, response: String) {
        let entry = Entry { id: id.to_owned(), messages: messages.into(), response: response.into() };
        let mut entries = self.lock();
        entries.push_back(entry);
        let mut sum: usize = entries.iter().map(Entry::bytes).sum();
        while entries.len() > MOST || sum > MOST_BYTES {
            let Some(oldest) = entries.pop_front() else { return };
            sum -= oldest.bytes();
        }
    }

    /// The conversation that a response ends: a list of messages.
    pub fn messages(&self, id: &str) -> Option<Arc<str>> {
        self.lock().iter().find(|entry| entry.id == id).map(|entry| Arc::clone(&entry.messages))
    }

    /// A response.
    pub fn response(&self, id: &str) -> Option<Bytes> {
        self.lock().iter().find(|entry| entry.id == id).map(|entry| entry.response.clone())
    }

    /// Forgets a response; whether it was there.
    pub fn remove(&self, id: &str) -> bool {
        let mut entries = self.lock();
        let at = entries.iter().position(|entry| entry.id == id);
        at.and_then(|at| entries.remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_where_there_are_too_many_or_too_long_ones() {
        let store = Store::default();
        for n in 0..=MOST {
            store.insert(&n.to_string(), format!("[{n}]"), n.to_string());
        }
        assert_eq!(store.response("0"), None);
        assert_eq!(store.response("1").as_deref(), Some(&b"1"[..]));
        assert_eq!(store.messages("2").as_deref(), Some("[2]"));
        assert!(store.remove("2") && !store.remove("2"));
        let long = || "x".repeat(MOST_BYTES / 2);
        store.insert("a", String::new(), long());
        assert!(store.response("a").is_some());
        store.insert("b", long(), String::new());
        assert!(store.response("a").is_none() && store.response("1024").is_none());
        assert!(store.response("b").is_some());
        let kept: usize = store.lock().iter().map(Entry::bytes).sum();
        assert!(kept <= MOST_BYTES, "{kept}");
        // One that is too long by itself is not kept, nor is anything else.
        store.insert("c", long(), long());
        assert!(store.response("b").is_none() && store.response("c").is_none());
    }
}
