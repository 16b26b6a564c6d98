//! Metadata: keys and values in the order of the file, with typed access.

use crate::decode::Decoded;
use crate::{Array, Error, Value};
use std::collections::HashMap;

/// The keys and values of a file.
///
/// The typed getters return `Ok(None)` if the key is missing and an error, which names the key and both types, if its
/// value is of a type that they cannot use. Integers may be stored in any integer type in which they fit. The
/// `require_` getters return [`Error::MissingKey`] if the key is missing.
///
/// Keys are always UTF-8; string values need not be. Where one is not, its [`Value`] has U+FFFD in the place of each
/// ill-formed part, so that one odd token spoils no vocabulary, and [`byte_strings`](Metadata::byte_strings) returns
/// the exact bytes. (Of strings in nested arrays only the text is kept.)
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    /// Positions in `entries`.
    index: HashMap<String, usize>,
    /// The strings of the keys of which at least one is not UTF-8.
    exact: HashMap<String, Vec<Vec<u8>>>,
}

impl Metadata {
    /// Adds a key that is not there yet.
    pub(crate) fn insert(&mut self, key: &str, Decoded { value, exact }: Decoded) {
        self.index.insert(key.into(), self.entries.len());
        self.entries.push((key.into(), value));
        if let Some(exact) = exact {
            self.exact.insert(key.into(), exact);
        }
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&position| &self.entries[position].1)
    }

    /// All keys and values, in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A string.
    pub fn str(&self, key: &str) -> Result<Option<&str>, Error> {
        self.typed(key, "a string", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// An integer.
    pub fn u32(&self, key: &str) -> Result<Option<u32>, Error> {
        self.integer(key, "u32")
    }

    /// An integer.
    pub fn u64(&self, key: &str) -> Result<Option<u64>, Error> {
        self.integer(key, "u64")
    }

    /// An integer.
    pub fn i32(&self, key: &str) -> Result<Option<i32>, Error> {
        self.integer(key, "i32")
    }

    /// An integer.
    pub fn i64(&self, key: &str) -> Result<Option<i64>, Error> {
        self.integer(key, "i64")
    }

    /// A float; one of double precision is rounded.
    pub fn f32(&self, key: &str) -> Result<Option<f32>, Error> {
        self.typed(key, "a float", |value| match *value {
            Value::F32(number) => Some(number),
            Value::F64(number) => Some(number as f32),
            _ => None,
        })
    }

    /// A flag.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "a bool", |value| match *value {
            Value::Bool(flag) => Some(flag),
            _ => None,
        })
    }

    /// An array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>, Error> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Array(Array::String(texts)) => Some(texts.as_slice()),
            _ => None,
        })
    }

    /// An array of strings, or a single one, in the file's exact bytes, UTF-8 or not.
    pub fn byte_strings(&self, key: &str) -> Result<Option<Vec<&[u8]>>, Error> {
        if let Some(exact) = self.exact.get(key) {
            return Ok(Some(exact.iter().map(Vec::as_slice).collect()));
        }
        self.typed(key, "an array of strings", |value| match value {
            Value::String(text) => Some(vec![text.as_bytes()]),
            Value::Array(Array::String(texts)) => Some(texts.iter().map(String::as_bytes).collect()),
            _ => None,
        })
    }

    /// An array of single-precision floats.
    pub fn f32s(&self, key: &str) -> Result<Option<&[f32]>, Error> {
        self.typed(key, "an array of f32", |value| match value {
            Value::Array(Array::F32(numbers)) => Some(numbers.as_slice()),
            _ => None,
        })
    }

    /// An array of integers.
    pub fn i32s(&self, key: &str) -> Result<Option<Vec<i32>>, Error> {
        self.integers(key, "i32")
    }

    /// An array of integers.
    pub fn u32s(&self, key: &str) -> Result<Option<Vec<u32>>, Error> {
        self.integers(key, "u32")
    }

    /// An array of flags.
    pub fn bools(&self, key: &str) -> Result<Option<&[bool]>, Error> {
        self.typed(key, "an array of bool", |value| match value {
            Value::Array(Array::Bool(flags)) => Some(flags.as_slice()),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        get: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        get(value).map(Some).ok_or_else(|| Error::WrongType {
            key: key.into(),
            found: value.describe(),
            expected,
        })
    }

    fn integer<T: TryFrom<i128>>(&self, key: &str, expected: &'static str) -> Result<Option<T>, Error> {
        let integer = self.typed(key, "an integer", Value::as_integer)?;
        integer.map(|integer| narrow(key, integer, expected)).transpose()
    }

    fn integers<T: TryFrom<i128>>(&self, key: &str, expected: &'static str) -> Result<Option<Vec<T>>, Error> {
        let integers = self.typed(key, "an array of integers", |value| match value {
            Value::Array(array) => array.as_integers(),
            _ => None,
        })?;
        let narrowed = integers
            .map(|integers| integers.into_iter().map(|integer| narrow(key, integer, expected)).collect());
        narrowed.transpose()
    }
}

fn narrow<T: TryFrom<i128>>(key: &str, integer: i128, expected: &'static str) -> Result<T, Error> {
    T::try_from(integer).map_err(|_| Error::OutOfRange { key: key.into(), found: integer, expected })
}

/// The `require_` getters.
macro_rules! require {
    ($($require:ident: $get:ident -> $type:ty;)*) => {
        impl Metadata {$(
            #[doc = concat!("As [`", stringify!($get), "`](Metadata::", stringify!($get),
                "), but the key must be there.")]
            pub fn $require(&self, key: &str) -> Result<$type, Error> {
                self.$get(key)?.ok_or_else(|| Error::MissingKey(key.into()))
            }
        )*}
    };
}

require! {
    require_str: str -> &str;
    require_u32: u32 -> u32;
    require_u64: u64 -> u64;
    require_i32: i32 -> i32;
    require_i64: i64 -> i64;
    require_f32: f32 -> f32;
    require_bool: bool -> bool;
    require_strings: strings -> &[String];
    require_byte_strings: byte_strings -> Vec<&[u8]>;
    require_f32s: f32s -> &[f32];
    require_i32s: i32s -> Vec<i32>;
    require_u32s: u32s -> Vec<u32>;
    require_bools: bools -> &[bool];
}
