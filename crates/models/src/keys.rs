//! Hyper-parameters: metadata keys with the architecture's prefix, checked as they are read.

use crate::Error;
use gguf::{Array, Metadata, Value};

/// Largest count that a hyper-parameter may have: far above any model, and small enough that products of three of
/// them fit in 64 bits.
const MAX_COUNT: u64 = 1 << 21;

/// Longest context that a file may claim, in tokens.
const MAX_LENGTH: u64 = 1 << 31;

/// Reads keys such as `llama.block_count`.
pub(crate) struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'static str,
}

impl<'a> Keys<'a> {
    pub fn new(metadata: &'a Metadata, architecture: &'static str) -> Keys<'a> {
        Keys { metadata, architecture }
    }

    /// Whether a key is there.
    pub fn has(&self, name: &str) -> bool {
        self.metadata.get(&self.key(name)).is_some()
    }

    /// The whole key.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// A count that must be there and be at least 1.
    pub fn count(&self, name: &str) -> Result<usize, Error> {
        let key = self.key(name);
        let value = self.metadata.require_u64(&key)?;
        self.checked(&key, value)
    }

    /// A count that may be missing.
    pub fn count_or(&self, name: &str, default: usize) -> Result<usize, Error> {
        Ok(self.optional_count(name)?.unwrap_or(default))
    }

    /// A length in tokens that must be there: no tensor's shape depends on it, so it may be longer than a count.
    pub fn length(&self, name: &str) -> Result<usize, Error> {
        let value = self.metadata.require_u64(&self.key(name))?;
        if (1..=MAX_LENGTH).contains(&value) {
            return Ok(value as usize);
        }
        Err(self.value(name, value.to_string(), format!("a length of 1 to {MAX_LENGTH}")))
    }

    /// A count that may be missing; 0 counts as missing.
    pub fn optional_count(&self, name: &str) -> Result<Option<usize>, Error> {
        let key = self.key(name);
        match self.metadata.u64(&key)? {
            None | Some(0) => Ok(None),
            Some(value) => self.checked(&key, value).map(Some),
        }
    }

    /// A count per layer: one number for all, or an array with one for each.
    pub fn counts(&self, name: &str, layers: usize) -> Result<Option<Vec<usize>>, Error> {
        let key = self.key(name);
        let numbers = match (self.integers(name), self.metadata.get(&key)) {
            (Some(numbers), _) => numbers,
            (None, Some(_)) => return Ok(Some(vec![self.count(name)?; layers])),
            (None, None) => return Ok(None),
        };
        if numbers.len() != layers {
            return Err(self.value(
                name,
                format!("{} entries", numbers.len()),
                format!("{layers}, one per layer"),
            ));
        }
        let counts = numbers.into_iter().map(|n| match u64::try_from(n) {
            Ok(n) => self.checked(&key, n),
            Err(_) => Err(self.value(name, n.to_string(), "a count".into())),
        });
        counts.collect::<Result<Vec<_>, _>>().map(Some)
    }

    /// A finite number that must be there.
    pub fn number(&self, name: &str) -> Result<f32, Error> {
        let value = self.metadata.require_f32(&self.key(name))?;
        self.finite(name, value)
    }

    /// A finite number that may be missing.
    pub fn optional_number(&self, name: &str) -> Result<Option<f32>, Error> {
        match self.metadata.f32(&self.key(name))? {
            Some(value) => self.finite(name, value).map(Some),
            None => Ok(None),
        }
    }

    /// A text that may be missing.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>, Error> {
        Ok(self.metadata.str(&self.key(name))?)
    }

    /// Which layers have a sliding window: an array of flags, or a period `n` of which the last layer has none.
    pub fn window_pattern(&self, default_period: usize, layers: usize) -> Result<Vec<bool>, Error> {
        let name = "attention.sliding_window_pattern";
        let flags = match self.metadata.get(&self.key(name)) {
            Some(Value::Array(Array::Bool(flags))) => flags.to_vec(),
            Some(Value::Array(_)) => match self.integers(name) {
                Some(numbers) => numbers.into_iter().map(|n| n != 0).collect(),
                None => return Err(self.value(name, "an array of another type".into(), "flags".into())),
            },
            _ => {
                let period = self.count_or(name, default_period)?;
                (0..layers).map(|layer| layer % period < period - 1).collect()
            }
        };
        if flags.len() != layers {
            return Err(self.value(
                name,
                format!("{} entries", flags.len()),
                format!("{layers}, one per layer"),
            ));
        }
        Ok(flags)
    }

    /// An error about a key's value.
    pub fn value(&self, name: &str, found: String, expected: String) -> Error {
        Error::Value { key: self.key(name), found, expected }
    }

    /// The elements of an array of 32-bit integers.
    fn integers(&self, name: &str) -> Option<Vec<i64>> {
        match self.metadata.get(&self.key(name))? {
            Value::Array(Array::U32(values)) => Some(values.iter().map(|&v| i64::from(v)).collect()),
            Value::Array(Array::I32(values)) => Some(values.iter().map(|&v| i64::from(v)).collect()),
            _ => None,
        }
    }

    fn checked(&self, key: &str, value: u64) -> Result<usize, Error> {
        if (1..=MAX_COUNT).contains(&value) {
            Ok(value as usize)
        } else {
            Err(Error::Value {
                key: key.into(),
                found: value.to_string(),
                expected: format!("a count of 1 to {MAX_COUNT}"),
            })
        }
    }

    fn finite(&self, name: &str, value: f32) -> Result<f32, Error> {
        if value.is_finite() {
            Ok(value)
        } else {
            Err(self.value(name, value.to_string(), "a finite number".into()))
        }
    }
}
