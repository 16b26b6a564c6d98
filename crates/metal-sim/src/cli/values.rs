//! Values of buffers as words.

use std::fs;

use super::options::number;

/// The most bytes of one buffer: no profile has larger ones.
const LARGEST: usize = 64 << 30;

/// The bytes that `@FILE`, `zero:BYTES` or `TYPE:VALUES` stand for.
pub fn content(text: &str) -> Result<Vec<u8>, String> {
    if let Some(path) = text.strip_prefix('@') {
        return fs::read(path).map_err(|error| format!("{path}: {error}"));
    }
    let (kind, values) = text.split_once(':').ok_or("expected @FILE, zero:BYTES or TYPE:VALUES")?;
    let mut bytes = Vec::new();
    if kind == "zero" {
        let length = number(values)?;
        reserve(&mut bytes, length)?;
        bytes.resize(length, 0);
        return Ok(bytes);
    }
    for value in values.split(',') {
        if let Some((first, last)) = value.split_once("..") {
            let (first, last) = (number::<i64>(first)?, number::<i64>(last)?);
            if first >= last {
                return Err(format!("'{value}' holds no value: it counts from {first} to below {last}"));
            }
            // One byte each at least.
            reserve(&mut bytes, usize::try_from(last.abs_diff(first)).unwrap_or(usize::MAX))?;
            for value in first..last {
                append(&mut bytes, kind, &value.to_string())?;
            }
        } else {
            append(&mut bytes, kind, value)?;
        }
    }
    Ok(bytes)
}

fn reserve(bytes: &mut Vec<u8>, length: usize) -> Result<(), String> {
    if length > LARGEST || bytes.try_reserve(length).is_err() {
        return Err(format!("{length} bytes are more than there can be"));
    }
    Ok(())
}

fn append(bytes: &mut Vec<u8>, kind: &str, value: &str) -> Result<(), String> {
    match kind {
        "f32" => bytes.extend(number::<f32>(value)?.to_ne_bytes()),
        "f16" => bytes.extend(half::f16::from_f32(number(value)?).to_ne_bytes()),
        "bf16" => bytes.extend(half::bf16::from_f32(number(value)?).to_ne_bytes()),
        "i8" => bytes.extend(number::<i8>(value)?.to_ne_bytes()),
        "u8" => bytes.extend(number::<u8>(value)?.to_ne_bytes()),
        "i16" => bytes.extend(number::<i16>(value)?.to_ne_bytes()),
        "u16" => bytes.extend(number::<u16>(value)?.to_ne_bytes()),
        "i32" => bytes.extend(number::<i32>(value)?.to_ne_bytes()),
        "u32" => bytes.extend(number::<u32>(value)?.to_ne_bytes()),
        "i64" => bytes.extend(number::<i64>(value)?.to_ne_bytes()),
        "u64" => bytes.extend(number::<u64>(value)?.to_ne_bytes()),
        _ => return Err(format!("unknown type '{kind}'")),
    }
    Ok(())
}

/// The values in some bytes; `kind` is `TYPE` or `TYPE:COUNT`.
pub fn show(bytes: &[u8], kind: &str) -> Result<String, String> {
    let (kind, count) = match kind.split_once(':') {
        Some((kind, count)) => (kind, number(count)?),
        None => (kind, usize::MAX),
    };
    macro_rules! values {
        ($type:ty) => {
            bytes
                .chunks_exact(size_of::<$type>())
                .take(count)
                .map(|chunk| {
                    let mut whole = [0; size_of::<$type>()];
                    whole.copy_from_slice(chunk);
                    <$type>::from_ne_bytes(whole).to_string()
                })
                .collect::<Vec<_>>()
        };
    }
    let values = match kind {
        "f32" => values!(f32),
        "f16" => values!(half::f16),
        "bf16" => values!(half::bf16),
        "i8" => values!(i8),
        "u8" => values!(u8),
        "i16" => values!(i16),
        "u16" => values!(u16),
        "i32" => values!(i32),
        "u32" => values!(u32),
        "i64" => values!(i64),
        "u64" => values!(u64),
        _ => return Err(format!("unknown type '{kind}'")),
    };
    Ok(values.join(" "))
}
