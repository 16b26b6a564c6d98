//! From the bytes of a validated metadata value to a [`Value`].
//!
//! [`validate`](crate::validate) has walked these bytes before, so nothing here can come up short; reads are checked
//! all the same, and lead to the same errors.

use crate::cursor::{Cursor, Short};
use crate::validate::{Entry, reading_value, value_type};
use crate::{Array, Error, Value, ValueType};

/// Decodes one entry.
pub(crate) fn value(entry: &Entry) -> Result<Value, Error> {
    let Entry { key, kind, value, offset } = *entry;
    let mut cursor = Cursor::new(value, offset);
    match kind {
        ValueType::Array => array(&mut cursor, key).map(Value::Array),
        scalar => self::scalar(&mut cursor, scalar).map_err(|short| reading_value(short, key)),
    }
}

fn scalar(cursor: &mut Cursor, kind: ValueType) -> Result<Value, Short> {
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
        // `value` sends arrays elsewhere; the bytes of one are kept rather than guessed at.
        ValueType::Array => Value::Bytes(cursor.rest().into()),
        ValueType::String => match String::from_utf8(cursor.string()?.into()) {
            Ok(text) => Value::String(text),
            Err(error) => Value::Bytes(error.into_bytes()),
        },
    })
}

fn array(cursor: &mut Cursor, key: &str) -> Result<Array, Error> {
    let element = value_type(cursor, key)?;
    let count = cursor.u64().map_err(|short| reading_value(short, key))?;
    if element == ValueType::Array {
        return (0..count).map(|_| array(cursor, key)).collect::<Result<_, _>>().map(Array::Nested);
    }
    elements(cursor, element, count).map_err(|short| reading_value(short, key))
}

fn elements(cursor: &mut Cursor, element: ValueType, count: u64) -> Result<Array, Short> {
    if element == ValueType::String {
        return strings(cursor, count);
    }
    let bytes = cursor.take(count.saturating_mul(element.least_bytes()))?;
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

fn numbers<T, const N: usize>(bytes: &[u8], from: fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|&chunk| from(chunk)).collect()
}

/// Strings, or bytes if one of them is not UTF-8.
fn strings(cursor: &mut Cursor, count: u64) -> Result<Array, Short> {
    let start = cursor.clone();
    // `validate` compared the count with the bytes left, eight for each.
    let mut texts = Vec::with_capacity(usize::try_from(count).unwrap_or(0));
    for _ in 0..count {
        match String::from_utf8(cursor.string()?.to_vec()) {
            Ok(text) => texts.push(text),
            Err(_) => {
                *cursor = start;
                let all: Result<_, _> = (0..count).map(|_| cursor.string().map(<[u8]>::to_vec)).collect();
                return all.map(Array::Bytes);
            }
        }
    }
    Ok(Array::String(texts))
}
