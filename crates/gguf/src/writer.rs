//! Writing version 3 files.

use crate::header::Header;
use crate::validate::DEFAULT_ALIGNMENT;
use crate::{Array, Error, Value};
use quant::Format;
use std::io::Write;

/// Collects metadata and tensors, and writes them as a file.
#[derive(Debug, Default)]
pub struct Writer {
    metadata: Vec<(String, Value)>,
    tensors: Vec<(String, Vec<u64>, Format, Vec<u8>)>,
}

impl Writer {
    /// Nothing yet.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Adds a key. `general.alignment` sets the file's alignment.
    pub fn metadata(&mut self, key: &str, value: Value) -> &mut Writer {
        self.metadata.push((key.into(), value));
        self
    }

    /// Adds a tensor; `shape` has the contiguous dimension first.
    pub fn tensor(&mut self, name: &str, shape: &[u64], format: Format, data: Vec<u8>) -> &mut Writer {
        self.tensors.push((name.into(), shape.to_vec(), format, data));
        self
    }

    /// The whole file. An error if it would not be read back: wrong lengths, duplicates, broken rows.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let alignment = self.metadata.iter().rev().find(|(key, _)| key == "general.alignment");
        let alignment =
            alignment.and_then(|(_, value)| value.as_u64()).unwrap_or(DEFAULT_ALIGNMENT).max(1) as usize;
        let mut out = Vec::new();
        out.extend_from_slice(b"GGUF");
        out.extend_from_slice(&3u32.to_le_bytes());
        out.extend_from_slice(&(self.tensors.len() as u64).to_le_bytes());
        out.extend_from_slice(&(self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            write_string(&mut out, key);
            out.extend_from_slice(&(value.value_type() as u32).to_le_bytes());
            write_value(&mut out, value);
        }
        let mut offset = 0u64;
        for (name, shape, format, data) in &self.tensors {
            write_string(&mut out, name);
            out.extend_from_slice(&(shape.len() as u32).to_le_bytes());
            shape.iter().for_each(|d| out.extend_from_slice(&d.to_le_bytes()));
            out.extend_from_slice(&format.id().to_le_bytes());
            out.extend_from_slice(&offset.to_le_bytes());
            offset += data.len().next_multiple_of(alignment) as u64;
        }
        for (_, _, _, data) in &self.tensors {
            out.resize(out.len().next_multiple_of(alignment), 0);
            out.extend_from_slice(data);
        }
        out.resize(out.len().next_multiple_of(alignment), 0);
        let header = Header::parse(&out)?;
        for (info, (name, _, _, data)) in header.tensors().iter().zip(&self.tensors) {
            if info.len != data.len() as u64 {
                let found = format!("{} bytes of data for the shape {:?}", data.len(), info.shape);
                return Err(crate::ErrorKind::Dimensions { tensor: name.clone(), found }.into());
            }
        }
        Ok(out)
    }

    /// Writes the file.
    pub fn write(&self, mut to: impl Write) -> Result<(), Error> {
        let bytes = self.to_bytes()?;
        to.write_all(&bytes).map_err(|error| crate::ErrorKind::Io(error).into())
    }
}

fn write_string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn write_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.push(*v),
        Value::I8(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::String(v) => write_string(out, v),
        Value::Array(v) => write_array(out, v),
        Value::U64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F64(v) => out.extend_from_slice(&v.to_le_bytes()),
    }
}

fn write_array(out: &mut Vec<u8>, array: &Array) {
    out.extend_from_slice(&(array.element_type() as u32).to_le_bytes());
    out.extend_from_slice(&(array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => out.extend_from_slice(v),
        Array::I8(v) => v.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes())),
        Array::U16(v) => v.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes())),
        Array::I16(v) => v.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes())),
        Array::U32(v) => v.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes())),
        Array::I32(v) => v.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes())),
        Array::F32(v) => v.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes())),
        Array::Bool(v) => v.iter().for_each(|&b| out.push(u8::from(b))),
        Array::String(v) => v.iter().for_each(|text| write_string(out, text)),
        Array::Array(v) => v.iter().for_each(|inner| write_array(out, inner)),
        Array::U64(v) => v.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes())),
        Array::I64(v) => v.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes())),
        Array::F64(v) => v.iter().for_each(|n| out.extend_from_slice(&n.to_le_bytes())),
    }
}
