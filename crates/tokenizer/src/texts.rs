//! Many short byte strings in one allocation: a vocabulary has hundreds of thousands.

use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// Byte strings by index.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Arena {
    pub fn push(&mut self, item: &[u8]) {
        self.bytes.extend_from_slice(item);
        self.ends.push(self.bytes.len());
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn get(&self, index: u32) -> Option<&[u8]> {
        let index = index as usize;
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Some(&self.bytes[start..end])
    }
}

/// The texts of all tokens, by id and the other way round. Of equal texts the first is found.
#[derive(Debug)]
pub(crate) struct Texts {
    arena: Arena,
    ids: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Texts {
    /// At most 2^32 texts.
    pub fn new(texts: &[String]) -> Texts {
        let mut all = Texts {
            arena: Arena { bytes: Vec::new(), ends: Vec::with_capacity(texts.len()) },
            ids: HashTable::with_capacity(texts.len()),
            hasher: DefaultHashBuilder::default(),
        };
        for (id, text) in (0u32..).zip(texts) {
            all.arena.push(text.as_bytes());
            let Texts { arena, ids, hasher } = &mut all;
            let rehash = |&id: &u32| hasher.hash_one(arena.get(id));
            // Hashed as an option, as `get` returns it.
            let text = Some(text.as_bytes());
            ids.entry(hasher.hash_one(text), |&other| arena.get(other) == text, rehash).or_insert(id);
        }
        all
    }

    pub fn len(&self) -> usize {
        self.arena.len()
    }

    pub fn get(&self, id: u32) -> Option<&str> {
        std::str::from_utf8(self.arena.get(id)?).ok()
    }

    pub fn id_of(&self, text: &str) -> Option<u32> {
        let text = Some(text.as_bytes());
        self.ids.find(self.hasher.hash_one(text), |&id| self.arena.get(id) == text).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &str)> {
        (0..self.len() as u32).filter_map(|id| Some((id, self.get(id)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_both_ways() {
        let texts = Texts::new(&["", "a", "bc", "a", "中"].map(String::from));
        assert_eq!(texts.len(), 5);
        assert_eq!(texts.get(0), Some(""));
        assert_eq!(texts.get(2), Some("bc"));
        assert_eq!(texts.get(5), None);
        assert_eq!(texts.id_of("a"), Some(1));
        assert_eq!(texts.id_of("中"), Some(4));
        assert_eq!(texts.id_of("b"), None);
        assert_eq!(texts.iter().map(|(_, text)| text).collect::<Vec<_>>(), ["", "a", "bc", "a", "中"]);
    }
}
