//! The header of one file: version, metadata and tensor table.

use crate::cursor::Cursor;
use crate::{Array, Error, ErrorKind, Metadata, Value, ValueType, validate};
use quant::Format;

/// Arrays in arrays are read to this depth. Real files have none; the bound keeps a crafted one from exhausting the
/// stack.
const MAX_NESTING: usize = 4;

/// Longest key or tensor name, in bytes: the format's description says 65535.
const MAX_NAME: usize = 65_535;

/// A tensor's entry in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Its dimensions, the contiguous one first; one to four, each at least 1.
    pub shape: Vec<u64>,
    /// How its elements are stored.
    pub format: Format,
    /// The file part that holds it.
    pub part: usize,
    /// Its first byte, from the beginning of the part's file.
    pub offset: u64,
    /// Its bytes.
    pub len: u64,
}

impl TensorInfo {
    /// Its elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// Everything before the data of one file, checked.
#[derive(Clone, Debug)]
pub struct Header {
    version: u32,
    alignment: u64,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
}

/// A table entry as the file has it.
pub(crate) struct RawTensor {
    pub name: String,
    pub shape: Vec<u64>,
    pub format: u32,
    pub offset: u64,
}

impl Header {
    /// Reads the header of a file, given all of its bytes, and checks that every tensor lies inside.
    pub fn parse(bytes: &[u8]) -> Result<Header, Error> {
        let mut cursor = Cursor::new(bytes);
        let magic = &bytes[..bytes.len().min(9)];
        if !magic.starts_with(b"GGUF") {
            return Err(ErrorKind::Magic { found: magic.to_vec() }.into());
        }
        cursor.take(4, "magic")?;
        let version = cursor.u32("version")?;
        match version {
            2 | 3 => {}
            _ if (2..=3).contains(&version.swap_bytes()) => return Err(ErrorKind::BigEndian.into()),
            _ => return Err(ErrorKind::Version(version).into()),
        }
        let tensor_count = cursor.u64("number of tensors")?;
        let key_count = cursor.u64("number of keys")?;
        // A key takes a length, a type and at least one byte of value; a tensor a length, dimensions, type, offset.
        cursor.expect(key_count, 13, &format!("metadata of {key_count} keys"))?;
        let metadata = read_metadata(&mut cursor, key_count)?;
        cursor.expect(tensor_count, 32, &format!("table of {tensor_count} tensors"))?;
        let mut raw = Vec::with_capacity(tensor_count as usize);
        for index in 0..tensor_count {
            raw.push(read_tensor(&mut cursor, index)?);
        }
        let alignment = validate::alignment(&metadata)?;
        let tensors = validate::validate(raw, cursor.offset(), alignment, bytes.len() as u64)?;
        Ok(Header { version, alignment, metadata, tensors })
    }

    /// The format's version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// What tensor offsets are multiples of.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensor table, in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    pub(crate) fn into_parts(self) -> (u32, Metadata, Vec<TensorInfo>) {
        (self.version, self.metadata, self.tensors)
    }
}

fn read_metadata(cursor: &mut Cursor<'_>, count: u64) -> Result<Metadata, Error> {
    let mut metadata = Metadata::with_capacity(count as usize);
    for index in 0..count {
        let key = read_name(cursor, &format!("key {index}"))?;
        let type_id = cursor.u32(&format!("type of key '{key}'"))?;
        let value = match value_type(&key, type_id)? {
            ValueType::Array => Value::Array(read_array(cursor, &key, 1)?),
            scalar => read_scalar(cursor, &key, scalar)?,
        };
        if !metadata.insert(key.clone(), value) {
            return Err(ErrorKind::DuplicateKey(key).into());
        }
    }
    Ok(metadata)
}

fn value_type(key: &str, id: u32) -> Result<ValueType, Error> {
    ValueType::from_id(id).ok_or_else(|| ErrorKind::ValueType { key: key.into(), found: id }.into())
}

fn read_scalar(cursor: &mut Cursor<'_>, key: &str, kind: ValueType) -> Result<Value, Error> {
    let what = || format!("value of key '{key}'");
    if kind == ValueType::String {
        return Ok(Value::String(text(cursor.string(&what())?)));
    }
    let bytes = cursor.take(kind.least_bytes(), &what())?;
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(word);
    Ok(match kind {
        ValueType::U8 => Value::U8(bits as u8),
        ValueType::I8 => Value::I8(bits as i8),
        ValueType::U16 => Value::U16(bits as u16),
        ValueType::I16 => Value::I16(bits as i16),
        ValueType::U32 => Value::U32(bits as u32),
        ValueType::I32 => Value::I32(bits as i32),
        ValueType::F32 => Value::F32(f32::from_bits(bits as u32)),
        ValueType::U64 => Value::U64(bits),
        ValueType::I64 => Value::I64(bits as i64),
        ValueType::F64 => Value::F64(f64::from_bits(bits)),
        ValueType::Bool | ValueType::String | ValueType::Array => Value::Bool(bits != 0),
    })
}

fn read_array(cursor: &mut Cursor<'_>, key: &str, depth: usize) -> Result<Array, Error> {
    if depth > MAX_NESTING {
        return Err(ErrorKind::Nesting { key: key.into(), limit: MAX_NESTING }.into());
    }
    let what = format!("array of key '{key}'");
    let kind = value_type(key, cursor.u32(&what)?)?;
    let count = cursor.u64(&what)?;
    cursor.expect(count, kind.least_bytes(), &format!("{what} ({count} elements)"))?;
    if kind == ValueType::String {
        let mut strings = Vec::with_capacity(count as usize);
        for _ in 0..count {
            strings.push(text(cursor.string(&what)?));
        }
        return Ok(Array::String(strings));
    }
    if kind == ValueType::Array {
        let mut arrays = Vec::with_capacity(count as usize);
        for _ in 0..count {
            arrays.push(read_array(cursor, key, depth + 1)?);
        }
        return Ok(Array::Array(arrays));
    }
    let bytes = cursor.take(count * kind.least_bytes(), &what)?;
    Ok(match kind {
        ValueType::U8 => Array::U8(bytes.to_vec()),
        ValueType::I8 => Array::I8(bytes.iter().map(|&b| b as i8).collect()),
        ValueType::U16 => Array::U16(numbers(bytes, u16::from_le_bytes)),
        ValueType::I16 => Array::I16(numbers(bytes, i16::from_le_bytes)),
        ValueType::U32 => Array::U32(numbers(bytes, u32::from_le_bytes)),
        ValueType::I32 => Array::I32(numbers(bytes, i32::from_le_bytes)),
        ValueType::F32 => Array::F32(numbers(bytes, f32::from_le_bytes)),
        ValueType::U64 => Array::U64(numbers(bytes, u64::from_le_bytes)),
        ValueType::I64 => Array::I64(numbers(bytes, i64::from_le_bytes)),
        ValueType::F64 => Array::F64(numbers(bytes, f64::from_le_bytes)),
        ValueType::Bool | ValueType::String | ValueType::Array => {
            Array::Bool(bytes.iter().map(|&b| b != 0).collect())
        }
    })
}

fn numbers<T, const N: usize>(bytes: &[u8], from: fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|&chunk| from(chunk)).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read_name(cursor: &mut Cursor<'_>, what: &str) -> Result<String, Error> {
    let offset = cursor.offset();
    let bytes = cursor.string(what)?;
    let bad = |message: String| Error::from(ErrorKind::Name { offset, message });
    if bytes.len() > MAX_NAME {
        return Err(bad(format!("expected at most {MAX_NAME} bytes, found {}", bytes.len())));
    }
    match std::str::from_utf8(bytes) {
        Ok(name) => Ok(name.to_string()),
        Err(_) => Err(bad(format!("expected UTF-8, found '{}'", bytes.escape_ascii()))),
    }
}

fn read_tensor(cursor: &mut Cursor<'_>, index: u64) -> Result<RawTensor, Error> {
    let name = read_name(cursor, &format!("name of tensor {index}"))?;
    let what = format!("entry of tensor '{name}'");
    let dimensions = cursor.u32(&what)?;
    if !(1..=4).contains(&dimensions) {
        return Err(ErrorKind::Dimensions { tensor: name, found: format!("{dimensions} dimensions") }.into());
    }
    let mut shape = Vec::with_capacity(4);
    for _ in 0..dimensions {
        shape.push(cursor.u64(&what)?);
    }
    let format = cursor.u32(&what)?;
    let offset = cursor.u64(&what)?;
    Ok(RawTensor { name, shape, format, offset })
}
