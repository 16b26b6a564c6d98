//! From the bytes of a validated metadata value to a [`Value`].
//!
//! [`validate`](crate::validate) has walked these bytes before, so nothing here can come up short; reads are checked
//! all the same, and lead to the same errors.

use crate::cursor::{Cursor, Short};
use crate::validate::{Entry, reading_value, value_type};
use crate::{Array, Error, Value, ValueType};

/// A decoded value.
pub(crate) struct Decoded {
    pub value: Value,
    /// The bytes of the string, or of the array's strings, if at least one of them is not UTF-8.
    pub exact: Option<Vec<Vec<u8>>>,
}

/// Decodes one entry.
pub(crate) fn value(entry: &Entry) -> Result<Decoded, Error> {
    let Entry { key, kind, value: bytes, offset } = *entry;
    let mut decoder = Decoder { cursor: Cursor::new(bytes, offset), key, lossy: false };
    let value = match kind {
        ValueType::Array => Value::Array(decoder.array()?),
        scalar => decoder.scalar(scalar).map_err(|short| reading_value(short, key))?,
    };
    let exact = match &value {
        // The strings begin after a type and a count.
        Value::Array(Array::String(texts)) if decoder.lossy => Some(exact_strings(&bytes[12..], texts.len())),
        Value::String(_) if decoder.lossy => Some(exact_strings(bytes, 1)),
        _ => None,
    };
    Ok(Decoded { value, exact })
}

/// The bytes of `count` strings that were decoded before.
fn exact_strings(bytes: &[u8], count: usize) -> Vec<Vec<u8>> {
    let mut cursor = Cursor::new(bytes, 0);
    std::iter::from_fn(|| cursor.string().ok().map(<[u8]>::to_vec)).take(count).collect()
}

struct Decoder<'a> {
    cursor: Cursor<'a>,
    key: &'a str,
    /// Whether a string was not UTF-8.
    lossy: bool,
}

impl Decoder<'_> {
    fn scalar(&mut self, kind: ValueType) -> Result<Value, Short> {
        let cursor = &mut self.cursor;
        Ok(match kind {
            ValueType::U8 => Value::U8(u8::from_le_bytes(cursor.array()?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(cursor.array()?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(cursor.array()?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(cursor.array()?)),
            ValueType::U32 => Value::U32(u32::from_le_bytes(cursor.array()?)),
            ValueType::I32 => Value::I32(i32::from_le_bytes(cursor.array()?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(cursor.array()?)),
            ValueType::U64 => Value::U64(u64::from_le_bytes(cursor.array()?)),
            ValueType::I64 => Value::I64(i64::from_le_bytes(cursor.array()?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(cursor.array()?)),
            ValueType::Bool => Value::Bool(cursor.array()? != [0]),
            // (`value` sends arrays elsewhere.)
            ValueType::String | ValueType::Array => Value::String(self.string()?),
        })
    }

    fn string(&mut self) -> Result<String, Short> {
        // Copied before it is checked: see the map in `file`.
        let bytes = self.cursor.string()?.to_vec();
        Ok(String::from_utf8(bytes).unwrap_or_else(|error| {
            self.lossy = true;
            String::from_utf8_lossy(error.as_bytes()).into_owned()
        }))
    }

    fn array(&mut self) -> Result<Array, Error> {
        let element = value_type(&mut self.cursor, self.key)?;
        let count = self.cursor.u64().map_err(|short| reading_value(short, self.key))?;
        if element == ValueType::Array {
            return (0..count).map(|_| self.array()).collect::<Result<_, _>>().map(Array::Array);
        }
        self.elements(element, count).map_err(|short| reading_value(short, self.key))
    }

    fn elements(&mut self, element: ValueType, count: u64) -> Result<Array, Short> {
        // (`array` handles arrays of arrays.)
        if let ValueType::String | ValueType::Array = element {
            // `validate` compared the count with the bytes left, eight for each.
            let mut texts = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
            for _ in 0..count {
                texts.push(self.string()?);
            }
            return Ok(Array::String(texts));
        }
        let bytes = self.cursor.take(count.saturating_mul(element.least_bytes()))?;
        Ok(match element {
            ValueType::U8 | ValueType::String | ValueType::Array => Array::U8(bytes.into()),
            ValueType::I8 => Array::I8(numbers(bytes, i8::from_le_bytes)),
            ValueType::U16 => Array::U16(numbers(bytes, u16::from_le_bytes)),
            ValueType::I16 => Array::I16(numbers(bytes, i16::from_le_bytes)),
            ValueType::U32 => Array::U32(numbers(bytes, u32::from_le_bytes)),
            ValueType::I32 => Array::I32(numbers(bytes, i32::from_le_bytes)),
            ValueType::F32 => Array::F32(numbers(bytes, f32::from_le_bytes)),
            ValueType::U64 => Array::U64(numbers(bytes, u64::from_le_bytes)),
            ValueType::I64 => Array::I64(numbers(bytes, i64::from_le_bytes)),
            ValueType::F64 => Array::F64(numbers(bytes, f64::from_le_bytes)),
            ValueType::Bool => Array::Bool(bytes.iter().map(|&byte| byte != 0).collect()),
        })
    }
}

fn numbers<T, const N: usize>(bytes: &[u8], from: fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|&chunk| from(chunk)).collect()
}
