//! Responses that can be asked for again or gone on from.

use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most responses kept.
const MOST: usize = 1024;

/// Most bytes of them, as JSON.
const MOST_BYTES: usize = 64 << 20;

/// A response, and the conversation that it ends.
#[derive(Debug)]
struct Entry {
    id: String,
    messages: Arc<Vec<Value>>,
    response: Value,
    bytes: usize,
}

/// The latest responses, in memory alone: the oldest goes where there are too many, and all go with the server.
#[derive(Debug, Default)]
pub struct Store(Mutex<VecDeque<Entry>>);

impl Store {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a response, and the messages of its conversation as templates take them, the answer among them.
    pub fn insert(&self, id: &str, messages: Vec<Value>, response: Value) {
        let length = |value: &Value| value.to_string().len();
        let bytes = length(&response) + messages.iter().map(length).sum::<usize>();
        let entry = Entry { id: id.to_owned(), messages: Arc::new(messages), response, bytes };
        let mut entries = self.lock();
        entries.push_back(entry);
        let mut sum: usize = entries.iter().map(|entry| entry.bytes).sum();
        while entries.len() > MOST || sum > MOST_BYTES {
            let Some(oldest) = entries.pop_front() else { return };
            sum -= oldest.bytes;
        }
    }

    /// The conversation that a response ends.
    pub fn messages(&self, id: &str) -> Option<Arc<Vec<Value>>> {
        self.lock().iter().find(|entry| entry.id == id).map(|entry| Arc::clone(&entry.messages))
    }

    /// A response.
    pub fn response(&self, id: &str) -> Option<Value> {
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
    use serde_json::json;

    #[test]
    fn the_oldest_go_where_there_are_too_many_or_too_long_ones() {
        let store = Store::default();
        for n in 0..=MOST {
            store.insert(&n.to_string(), vec![json!({"n": n})], json!(n));
        }
        assert_eq!(store.response("0"), None);
        assert_eq!(store.response("1"), Some(json!(1)));
        assert_eq!(store.messages("2").unwrap()[..], [json!({"n": 2})]);
        assert!(store.remove("2") && !store.remove("2"));
        let long = "x".repeat(MOST_BYTES / 2);
        store.insert("a", Vec::new(), long.clone().into());
        assert!(store.response("a").is_some());
        store.insert("b", Vec::new(), long.into());
        assert!(store.response("a").is_none() && store.response("1024").is_none());
        assert!(store.response("b").is_some());
    }
}
