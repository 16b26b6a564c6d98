//! The one place that judges a header. [`validate`] walks it from end to end and checks every count, length, type,
//! name, size, range and overlap; it copies nothing of the file before the claim about its size was compared with
//! the bytes that are there. What passes is trusted by the rest of the crate.

use crate::cursor::{Cursor, Short};
use crate::decode;
use crate::error::Shown;
use crate::{Error, TensorInfo, Value, ValueType};
use quant::Format;
use std::collections::HashSet;

/// The first four bytes of a file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";

/// The key of the alignment of tensor data.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";

/// The alignment of files that do not give one.
pub(crate) const DEFAULT_ALIGNMENT: u64 = 32;

/// The format asks for a multiple of 8, its readers for a power of two.
const LEAST_ALIGNMENT: u64 = 8;

/// More than any device's page; a bound keeps the padding of a file within reason.
const MOST_ALIGNMENT: u64 = 1 << 20;

/// Arrays may be nested this deep. Real files do not nest them; without a bound a crafted file could exhaust the
/// stack.
const MAX_NESTING: usize = 4;

/// Longest key or tensor name in bytes: the format's limit for keys. (Its limit for tensor names, 64, is not kept by
/// all writers, and nothing here depends on it.)
const MAX_NAME_BYTES: u64 = 65_535;

/// Most dimensions of a tensor.
const MAX_DIMENSIONS: u32 = 4;

/// Fewest bytes of a metadata entry: key length, type, one byte of value.
const LEAST_ENTRY_BYTES: u64 = 8 + 4 + 1;

/// Fewest bytes of a tensor's table entry: name length, number of dimensions, one dimension, type, offset.
const LEAST_TENSOR_BYTES: u64 = 8 + 4 + 8 + 4 + 8;

/// A valid header, not decoded yet.
pub(crate) struct Layout<'a> {
    pub version: u32,
    pub alignment: u64,
    /// Where in the file the data of tensors begins.
    pub data_start: u64,
    pub entries: Vec<Entry<'a>>,
    pub tensors: Vec<TensorInfo>,
}

/// A metadata entry.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub key: &'a str,
    pub kind: ValueType,
    /// Exactly the bytes of the value.
    pub value: &'a [u8],
    /// Where in the file they are.
    pub offset: u64,
}

/// Checks the header at the beginning of `bytes`, of a file of `file_len` bytes.
pub(crate) fn validate(bytes: &[u8], file_len: u64) -> Result<Layout<'_>, Error> {
    let mut cursor = Cursor::new(bytes, 0);
    let version = version(&mut cursor)?;
    let tensor_count = cursor.u64().map_err(|short| short.reading("number of tensors"))?;
    let entry_count = cursor.u64().map_err(|short| short.reading("number of metadata keys"))?;
    check_count(&cursor, || "metadata keys".into(), entry_count, LEAST_ENTRY_BYTES)?;
    check_count(&cursor, || "tensors".into(), tensor_count, LEAST_TENSOR_BYTES)?;
    let entries = entries(&mut cursor, entry_count)?;
    // The metadata may have left less than it looked like above.
    check_count(&cursor, || "tensors".into(), tensor_count, LEAST_TENSOR_BYTES)?;
    let alignment = alignment(&entries)?;
    let raw = raw_tensors(&mut cursor, tensor_count)?;
    // The header is in memory and the alignment is bounded: this is far from 2^64.
    let data_start = cursor.offset().next_multiple_of(alignment);
    let tensors = tensors(raw, data_start, alignment, file_len)?;
    Ok(Layout { version, alignment, data_start, entries, tensors })
}

/// Compares a claimed `count` of things of at least `least` bytes each with the bytes that are left.
fn check_count(cursor: &Cursor, what: impl Fn() -> String, count: u64, least: u64) -> Result<(), Error> {
    match count.checked_mul(least) {
        Some(needed) if needed <= cursor.left() => Ok(()),
        _ => Err(Error::Count { what: what(), count, least, offset: cursor.offset(), left: cursor.left() }),
    }
}

/// The magic and the version.
fn version(cursor: &mut Cursor) -> Result<u32, Error> {
    let start = cursor.rest();
    if start.is_empty() {
        return Err(Error::Empty);
    }
    let found = &start[..start.len().min(MAGIC.len())];
    if !MAGIC.starts_with(found) {
        return Err(Error::Magic { found: found.into(), looks_like: looks_like(start) });
    }
    cursor.array::<4>().map_err(|short| short.reading("magic 'GGUF'"))?;
    let version = cursor.u32().map_err(|short| short.reading("version"))?;
    match version {
        2 | 3 => Ok(version),
        // A small number only when the bytes are turned around.
        _ if version & 0xffff == 0 && version != 0 => Err(Error::BigEndian { found: version.to_le_bytes() }),
        _ => Err(Error::Version(version)),
    }
}

/// What a file that is not GGUF seems to be, by its first bytes.
fn looks_like(start: &[u8]) -> Option<&'static str> {
    let text = start.trim_ascii_start();
    Some(match start {
        [b'F', b'U', b'G', b'G', ..] => "a GGUF file with its magic reversed",
        [b'P', b'K', ..] => "a zip archive, as PyTorch checkpoints are",
        [0x1f, 0x8b, ..] => "a gzip archive",
        [b'l', b'm', b'g', b'g', ..] | [b't', b'j', b'g', b'g', ..] | [b'f', b'm', b'g', b'g', ..] => {
            "a GGML model, the format before GGUF"
        }
        [_, _, _, _, _, _, _, _, b'{', ..] => "a safetensors file",
        _ if start.starts_with(b"version https://git-lfs") => {
            "a Git LFS pointer: fetch the file that it points to"
        }
        _ if text.starts_with(b"<") => "a web page: was the download refused?",
        _ if text.starts_with(b"{") => "a JSON file: was the download refused?",
        _ if start.iter().take(512).all(|&byte| byte == 0) => "a file that was reserved but never downloaded",
        _ => return None,
    })
}

/// Walks all metadata entries.
fn entries<'a>(cursor: &mut Cursor<'a>, count: u64) -> Result<Vec<Entry<'a>>, Error> {
    let mut entries = Vec::new();
    let mut keys = HashSet::new();
    for index in 0..count {
        let key = name(cursor, || format!("key {index}"))?;
        let kind = value_type(cursor, key)?;
        let offset = cursor.offset();
        let from = cursor.rest();
        walk_value(cursor, key, kind)?;
        let value = &from[..from.len() - cursor.rest().len()];
        if !keys.insert(key) {
            return Err(Error::DuplicateKey(key.into()));
        }
        entries.push(Entry { key, kind, value, offset });
    }
    Ok(entries)
}

/// A key or a tensor's name.
fn name<'a>(cursor: &mut Cursor<'a>, what: impl Fn() -> String) -> Result<&'a str, Error> {
    let offset = cursor.offset();
    let bytes = cursor.string().map_err(|short| short.reading(what()))?;
    let len = bytes.len() as u64;
    if len > MAX_NAME_BYTES {
        return Err(Error::NameTooLong { what: what(), offset, len, limit: MAX_NAME_BYTES });
    }
    std::str::from_utf8(bytes).map_err(|_| Error::NameNotUtf8 {
        what: what(),
        offset,
        lossy: String::from_utf8_lossy(bytes).into_owned(),
    })
}

/// The type of the value, or of the array's elements, that follows.
pub(crate) fn value_type(cursor: &mut Cursor, key: &str) -> Result<ValueType, Error> {
    let offset = cursor.offset();
    let id = cursor.u32().map_err(|short| reading_value(short, key))?;
    ValueType::from_id(id).ok_or_else(|| Error::ValueType { key: key.into(), offset, id })
}

/// The error of a read inside a key's value.
pub(crate) fn reading_value(short: Short, key: &str) -> Error {
    short.reading(format_args!("key {}", Shown(key)))
}

/// Walks one value that is not an element of an array.
fn walk_value(cursor: &mut Cursor, key: &str, kind: ValueType) -> Result<(), Error> {
    match kind {
        ValueType::Array => walk_array(cursor, key, 1),
        scalar => walk_elements(cursor, key, scalar, 1),
    }
}

/// Walks an array, `depth` levels deep.
fn walk_array(cursor: &mut Cursor, key: &str, depth: usize) -> Result<(), Error> {
    if depth > MAX_NESTING {
        return Err(Error::Nesting { key: key.into(), offset: cursor.offset(), limit: MAX_NESTING });
    }
    let element = value_type(cursor, key)?;
    let count = cursor.u64().map_err(|short| reading_value(short, key))?;
    check_count(cursor, || format!("key {}: array of {element}", Shown(key)), count, element.least_bytes())?;
    if element == ValueType::Array {
        return (0..count).try_for_each(|_| walk_array(cursor, key, depth + 1));
    }
    walk_elements(cursor, key, element, count)
}

/// Walks `count` values of a type that is not an array.
fn walk_elements(cursor: &mut Cursor, key: &str, kind: ValueType, count: u64) -> Result<(), Error> {
    let offset = cursor.offset();
    if kind == ValueType::String {
        let walked = (0..count).try_for_each(|_| cursor.string().map(|_| ()));
        return walked.map_err(|short| reading_value(short, key));
    }
    // A product that overflows cannot have passed `check_count`; saturated, it is short of bytes as well.
    let len = count.saturating_mul(kind.least_bytes());
    let bytes = cursor.take(len).map_err(|short| reading_value(short, key))?;
    if kind == ValueType::Bool
        && let Some(index) = bytes.iter().position(|&byte| byte > 1)
    {
        return Err(Error::Bool { key: key.into(), offset: offset + index as u64, found: bytes[index] });
    }
    Ok(())
}

/// The value of `general.alignment`.
fn alignment(entries: &[Entry]) -> Result<u64, Error> {
    let Some(entry) = entries.iter().find(|entry| entry.key == ALIGNMENT_KEY) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    check_alignment(&decode::value(entry)?.value)
}

/// The alignment that a value of `general.alignment` gives.
pub(crate) fn check_alignment(value: &Value) -> Result<u64, Error> {
    let Some(integer) = value.as_integer() else {
        let expected = "an integer";
        return Err(Error::WrongType { key: ALIGNMENT_KEY.into(), found: value.describe(), expected });
    };
    match u64::try_from(integer) {
        Ok(found) if found.is_power_of_two() && (LEAST_ALIGNMENT..=MOST_ALIGNMENT).contains(&found) => {
            Ok(found)
        }
        _ => Err(Error::Alignment { found: integer, least: LEAST_ALIGNMENT, most: MOST_ALIGNMENT }),
    }
}

/// A tensor's table entry as the file has it.
struct RawTensor<'a> {
    name: &'a str,
    shape: Vec<u64>,
    type_id: u32,
    /// From the beginning of the data.
    offset: u64,
}

/// Walks the tensor table.
fn raw_tensors<'a>(cursor: &mut Cursor<'a>, count: u64) -> Result<Vec<RawTensor<'a>>, Error> {
    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for index in 0..count {
        let name = name(cursor, || format!("name of tensor {index}"))?;
        let reading = |short: Short| short.reading(format_args!("table entry of tensor {}", Shown(name)));
        let dimensions = cursor.u32().map_err(reading)?;
        check_dimensions(name, dimensions.into())?;
        let shape = (0..dimensions).map(|_| cursor.u64()).collect::<Result<_, _>>().map_err(reading)?;
        let type_id = cursor.u32().map_err(reading)?;
        let offset = cursor.u64().map_err(reading)?;
        if !names.insert(name) {
            return Err(Error::DuplicateTensor(name.into()));
        }
        tensors.push(RawTensor { name, shape, type_id, offset });
    }
    Ok(tensors)
}

fn check_dimensions(tensor: &str, found: u64) -> Result<(), Error> {
    if (1..=u64::from(MAX_DIMENSIONS)).contains(&found) {
        return Ok(());
    }
    Err(Error::Dimensions { tensor: tensor.into(), found })
}

/// Checks every tensor alone, then that the file is long enough for all of them and that none overlap.
fn tensors(
    raw: Vec<RawTensor>,
    data_start: u64,
    alignment: u64,
    file_len: u64,
) -> Result<Vec<TensorInfo>, Error> {
    let mut tensors = Vec::with_capacity(raw.len());
    for tensor in raw {
        tensors.push(check_tensor(tensor, data_start, alignment)?);
    }
    // `check_tensor` made sure that these sums do not overflow.
    let end = |tensor: &TensorInfo| tensor.offset + tensor.len;
    if let Some(last) = tensors.iter().max_by_key(|tensor| end(tensor))
        && end(last) > file_len
    {
        return Err(Error::Incomplete { tensor: last.name.clone(), end: end(last), len: file_len });
    }
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_by_key(|tensor| tensor.offset);
    // No tensor is empty, so neighbours suffice: if a tensor reaches past a later one, it overlaps the next, too.
    for pair in by_offset.windows(2) {
        if end(pair[0]) > pair[1].offset {
            return Err(Error::Overlap {
                first: pair[0].name.clone(),
                first_end: end(pair[0]),
                second: pair[1].name.clone(),
                second_start: pair[1].offset,
            });
        }
    }
    Ok(tensors)
}

/// Checks one tensor's shape, type, size and offset.
fn check_tensor(raw: RawTensor, data_start: u64, alignment: u64) -> Result<TensorInfo, Error> {
    let RawTensor { name, shape, type_id, offset } = raw;
    // Q8_K holds activations inside an engine; no file has it.
    let Some(format) = Format::from_id(type_id).filter(|&format| format != Format::Q8_K) else {
        let tensor = name.into();
        return Err(Error::TensorType { tensor, id: type_id, name: unsupported_type(type_id) });
    };
    let len = tensor_bytes(name, &shape, format)?;
    if !offset.is_multiple_of(alignment) {
        return Err(Error::Misaligned { tensor: name.into(), offset, alignment });
    }
    let start = data_start.checked_add(offset);
    let Some(start) = start.filter(|start| start.checked_add(len).is_some()) else {
        let what = format!("{len} bytes at the data offset {offset}");
        return Err(Error::Overflow { tensor: name.into(), what });
    };
    Ok(TensorInfo { name: name.into(), shape, format, part: 0, offset: start, len })
}

/// Bytes of a tensor's data, once its shape is found valid.
pub(crate) fn tensor_bytes(name: &str, shape: &[u64], format: Format) -> Result<u64, Error> {
    check_dimensions(name, shape.len() as u64)?;
    if shape.contains(&0) {
        return Err(Error::ZeroDimension { tensor: name.into(), shape: shape.into() });
    }
    let (block_len, block_bytes) = (format.block_len() as u64, format.block_bytes() as u64);
    let row = shape[0];
    if !row.is_multiple_of(block_len) {
        return Err(Error::PartialBlock { tensor: name.into(), row, format });
    }
    // The elements are counted as well as the bytes: they can overflow when the bytes do not.
    let elements = shape.iter().try_fold(1u64, |product, &dimension| product.checked_mul(dimension));
    elements.and_then(|elements| (elements / block_len).checked_mul(block_bytes)).ok_or_else(|| {
        Error::Overflow { tensor: name.into(), what: format!("dimensions {shape:?} of {format}") }
    })
}

/// The names of tensor types that files have, or once had, and that are not read.
fn unsupported_type(id: u32) -> Option<&'static str> {
    Some(match id {
        4 => "Q4_2",
        5 => "Q4_3",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        40 => "NVFP4",
        41 => "Q1_0",
        42 => "Q2_0",
        _ => return None,
    })
}
