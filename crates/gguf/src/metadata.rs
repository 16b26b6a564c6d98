//! Metadata: keys and values in the order of the file, with typed access.

use crate::{Array, Error, ErrorKind, Value};
use std::collections::HashMap;

/// The keys and values of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

macro_rules! typed {
    ($(#[$doc:meta])* $name:ident, $require:ident, $type:ty) => {
        $(#[$doc])*
        /// `None` if the key is missing; an error if it is of another type.
        pub fn $name(&self, key: &str) -> Result<Option<$type>, Error>
        {
            match self.get(key) {
                None => Ok(None),
                Some(value) => convert::$name(value).map(Some).ok_or_else(|| wrong_type(key, value, stringify!($name))),
            }
        }

        /// The same; an error if the key is missing.
        pub fn $require(&self, key: &str) -> Result<$type, Error> {
            self.$name(key)?.ok_or_else(|| ErrorKind::MissingKey(key.into()).into())
        }
    };
}

impl Metadata {
    pub(crate) fn with_capacity(keys: usize) -> Metadata {
        Metadata { entries: Vec::with_capacity(keys), index: HashMap::with_capacity(keys) }
    }

    /// Adds a key; false, and nothing changed, if it is there already.
    pub(crate) fn insert(&mut self, key: String, value: Value) -> bool {
        if self.index.contains_key(&key) {
            return false;
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        true
    }

    /// A value.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    /// All keys and values, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    typed!(
        /// A string.
        str, require_str, &str
    );
    typed!(
        /// An integer of any type that fits.
        u64, require_u64, u64
    );
    typed!(
        /// An integer of any type that fits.
        u32, require_u32, u32
    );
    typed!(
        /// An integer of any type that fits.
        i32, require_i32, i32
    );
    typed!(
        /// A float of either width.
        f32, require_f32, f32
    );
    typed!(
        /// A flag.
        bool, require_bool, bool
    );
    typed!(
        /// An array of strings.
        strings, require_strings, &[String]
    );
    typed!(
        /// An array of single-precision floats.
        f32s, require_f32s, &[f32]
    );
    typed!(
        /// An array of integers of any type that fit in 32 bits, signed.
        i32s, require_i32s, Vec<i32>
    );
    typed!(
        /// An array of flags.
        bools, require_bools, &[bool]
    );
}

fn wrong_type(key: &str, value: &Value, getter: &str) -> Error {
    let expected = match getter {
        "str" => "a string",
        "u64" | "u32" => "an integer that is not negative and fits",
        "i32" => "a 32-bit integer",
        "f32" => "a float",
        "bool" => "a flag",
        "strings" => "an array of strings",
        "f32s" => "an array of f32",
        "i32s" => "an array of 32-bit integers",
        _ => "an array of flags",
    };
    ErrorKind::Type { key: key.into(), found: value.value_type(), expected }.into()
}

/// From a value to what a getter returns.
mod convert {
    use super::{Array, Value};

    pub fn str(value: &Value) -> Option<&str> {
        match value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    pub fn u64(value: &Value) -> Option<u64> {
        value.as_u64()
    }

    pub fn u32(value: &Value) -> Option<u32> {
        value.as_u64()?.try_into().ok()
    }

    pub fn i32(value: &Value) -> Option<i32> {
        match *value {
            Value::I8(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::I32(v) => Some(v),
            Value::I64(v) => v.try_into().ok(),
            _ => value.as_u64()?.try_into().ok(),
        }
    }

    pub fn f32(value: &Value) -> Option<f32> {
        match *value {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        }
    }

    pub fn bool(value: &Value) -> Option<bool> {
        match *value {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }

    pub fn strings(value: &Value) -> Option<&[String]> {
        match value {
            Value::Array(Array::String(v)) => Some(v),
            _ => None,
        }
    }

    pub fn f32s(value: &Value) -> Option<&[f32]> {
        match value {
            Value::Array(Array::F32(v)) => Some(v),
            _ => None,
        }
    }

    pub fn bools(value: &Value) -> Option<&[bool]> {
        match value {
            Value::Array(Array::Bool(v)) => Some(v),
            _ => None,
        }
    }

    pub fn i32s(value: &Value) -> Option<Vec<i32>> {
        let Value::Array(array) = value else { return None };
        match array {
            Array::U8(v) => Some(v.iter().map(|&n| n.into()).collect()),
            Array::I8(v) => Some(v.iter().map(|&n| n.into()).collect()),
            Array::U16(v) => Some(v.iter().map(|&n| n.into()).collect()),
            Array::I16(v) => Some(v.iter().map(|&n| n.into()).collect()),
            Array::I32(v) => Some(v.clone()),
            Array::U32(v) => v.iter().map(|&n| n.try_into().ok()).collect(),
            Array::U64(v) => v.iter().map(|&n| n.try_into().ok()).collect(),
            Array::I64(v) => v.iter().map(|&n| n.try_into().ok()).collect(),
            _ => None,
        }
    }
}
