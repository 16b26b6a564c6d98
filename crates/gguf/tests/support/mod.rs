//! Builds the bytes of files by hand, well-formed or not. Nothing here uses the crate's writer, so that the two check
//! each other.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod promises;

use gguf::{Error, ValueType};

/// A length and bytes.
pub fn string(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// A length that may be a lie, and bytes.
pub fn string_claiming(len: u64, text: &str) -> Vec<u8> {
    [&len.to_le_bytes(), text.as_bytes()].concat()
}

/// A metadata entry of any type id, with the bytes of its value.
pub fn entry(key: impl AsRef<[u8]>, type_id: u32, value: &[u8]) -> Vec<u8> {
    [&string(key), &type_id.to_le_bytes()[..], value].concat()
}

/// A metadata entry that is a string.
pub fn text_entry(key: &str, text: &str) -> Vec<u8> {
    entry(key, ValueType::String.id(), &string(text))
}

/// A metadata entry that is a `u32`.
pub fn u32_entry(key: &str, value: u32) -> Vec<u8> {
    entry(key, ValueType::U32.id(), &value.to_le_bytes())
}

/// The value of an array: element type, a count that may be a lie, and the elements' bytes.
pub fn array(element_id: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&element_id.to_le_bytes()[..], &count.to_le_bytes(), elements].concat()
}

/// A metadata entry that is an array.
pub fn array_entry(key: &str, element_id: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    entry(key, ValueType::Array.id(), &array(element_id, count, elements))
}

/// A tensor's table entry.
pub fn tensor(name: impl AsRef<[u8]>, shape: &[u64], type_id: u32, offset: u64) -> Vec<u8> {
    let mut out = string(name);
    out.extend((shape.len() as u32).to_le_bytes());
    shape.iter().for_each(|dimension| out.extend(dimension.to_le_bytes()));
    out.extend(type_id.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out
}

/// A file; every field may be set to what it should not be.
#[derive(Clone)]
pub struct Crafted {
    pub magic: [u8; 4],
    pub version: u32,
    pub entries: Vec<Vec<u8>>,
    pub tensors: Vec<Vec<u8>>,
    /// Instead of the number of `entries`.
    pub entry_count: Option<u64>,
    /// Instead of the number of `tensors`.
    pub tensor_count: Option<u64>,
    /// What the header is padded to.
    pub alignment: usize,
    pub data: Vec<u8>,
}

impl Default for Crafted {
    fn default() -> Crafted {
        Crafted {
            magic: *b"GGUF",
            version: 3,
            entries: vec![text_entry("general.architecture", "llama")],
            tensors: Vec::new(),
            entry_count: None,
            tensor_count: None,
            alignment: 32,
            data: Vec::new(),
        }
    }
}

impl Crafted {
    /// A file with one tensor, `token_embd.weight`, of 4 x 4 zeros.
    pub fn one_tensor() -> Crafted {
        let tensors = vec![tensor("token_embd.weight", &[4, 4], 0, 0)];
        Crafted { tensors, data: vec![0; 64], ..Crafted::default() }
    }

    /// A file of these entries and no tensors.
    pub fn of_entries(entries: Vec<Vec<u8>>) -> Crafted {
        Crafted { entries, ..Crafted::default() }
    }

    /// A file with these tensors and so many bytes of data.
    pub fn of_tensors(tensors: Vec<Vec<u8>>, data: usize) -> Crafted {
        Crafted { tensors, data: vec![0; data], ..Crafted::default() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.entry_count.unwrap_or(self.entries.len() as u64).to_le_bytes());
        out.extend(self.entries.concat());
        out.extend(self.tensors.concat());
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(&self.data);
        out
    }
}

/// The error of a file of these bytes. Checks on the way that its message is one line of printable text.
pub fn refused(bytes: &[u8]) -> Error {
    let error = gguf::Header::parse(bytes).expect_err("the file should be refused");
    let message = error.to_string();
    assert!(!message.is_empty() && !message.chars().any(char::is_control), "{message:?}");
    error
}
