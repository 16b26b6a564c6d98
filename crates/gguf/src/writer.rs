//! Writing version 3 files, whole or split.

use crate::split::{self, ShardName};
use crate::validate::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, check_alignment, tensor_bytes};
use crate::{Array, Error, Header, Value};
use quant::Format;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Collects metadata and tensors, and writes them in the order in which they came.
///
/// Nothing is written that the reader would refuse: the same checks run before the first byte goes out.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    metadata: Vec<(String, Value)>,
    tensors: Vec<Tensor>,
}

#[derive(Clone, Debug)]
struct Tensor {
    name: String,
    shape: Vec<u64>,
    format: Format,
    data: Vec<u8>,
}

impl Writer {
    /// A writer of an empty file.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Adds a key. (`general.alignment` sets the alignment of the file, wherever it is added.)
    pub fn metadata(&mut self, key: &str, value: impl Into<Value>) -> &mut Writer {
        self.metadata.push((key.into(), value.into()));
        self
    }

    /// Adds a tensor; `shape` has the contiguous dimension first, as in [`TensorInfo`](crate::TensorInfo).
    pub fn tensor(&mut self, name: &str, shape: &[u64], format: Format, data: Vec<u8>) -> &mut Writer {
        self.tensors.push(Tensor { name: name.into(), shape: shape.into(), format, data });
        self
    }

    /// The bytes of the file.
    ///
    /// # Errors
    /// [`Error::DataLength`] if a tensor's data is not of the size that its shape takes, and whatever the reader
    /// would find wrong with the file.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        self.write(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes the file. A file on disk should be wrapped in a [`BufWriter`](std::io::BufWriter), unless
    /// [`write_file`](Writer::write_file) does what is needed.
    ///
    /// # Errors
    /// As [`to_bytes`](Writer::to_bytes), and [`Error::Io`].
    pub fn write(&self, to: impl Write) -> Result<(), Error> {
        write_part(&self.metadata.iter().collect::<Vec<_>>(), &self.tensors, to)
    }

    /// Writes the file to a path.
    ///
    /// # Errors
    /// As [`write`](Writer::write), inside an [`Error::InFile`].
    pub fn write_file(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        write_part_file(&self.metadata.iter().collect::<Vec<_>>(), &self.tensors, path.as_ref())
    }

    /// Writes a split model of at most `tensors_per_shard` tensors in each file: for the path `dir/NAME.gguf`, the
    /// files `dir/NAME-00001-of-00003.gguf` and so on, whose paths are returned. The metadata goes into the first.
    ///
    /// # Errors
    /// As [`write_file`](Writer::write_file). [`Error::OutOfRange`] if the shards or the tensors are too many for
    /// their keys.
    pub fn write_split(
        &self,
        path: impl AsRef<Path>,
        tensors_per_shard: std::num::NonZeroUsize,
    ) -> Result<Vec<PathBuf>, Error> {
        let path = path.as_ref();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let shards: Vec<&[Tensor]> = match self.tensors.as_slice() {
            [] => vec![&[]],
            tensors => tensors.chunks(tensors_per_shard.get()).collect(),
        };
        let too_many = |key: &str, found: usize, expected| Error::OutOfRange {
            key: key.into(),
            found: found as i128,
            expected,
        };
        let count =
            u16::try_from(shards.len()).map_err(|_| too_many(split::COUNT_KEY, shards.len(), "u16"))?;
        let tensors = i32::try_from(self.tensors.len())
            .map_err(|_| too_many(split::TENSORS_KEY, self.tensors.len(), "i32"))?;
        let mut paths = Vec::with_capacity(shards.len());
        for (index, shard) in (0..count).zip(shards) {
            let split_keys = split::metadata(index, count, tensors);
            // Each file is aligned by its own key.
            let own = self.metadata.iter().filter(|(key, _)| index == 0 || key == ALIGNMENT_KEY);
            let metadata: Vec<_> = own.chain(&split_keys).collect();
            let path = ShardName::path(path, &stem, index.into(), count.into());
            write_part_file(&metadata, shard, &path)?;
            paths.push(path);
        }
        Ok(paths)
    }
}

fn write_part_file(metadata: &[&(String, Value)], tensors: &[Tensor], path: &Path) -> Result<(), Error> {
    let write = || -> Result<(), Error> {
        let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
        write_part(metadata, tensors, &mut file)?;
        Ok(file.flush()?)
    };
    write().map_err(|error| error.in_file(path))
}

fn write_part(metadata: &[&(String, Value)], tensors: &[Tensor], mut to: impl Write) -> Result<(), Error> {
    for Tensor { name, shape, format, data } in tensors {
        let (found, expected) = (data.len() as u64, tensor_bytes(name, shape, *format)?);
        if found != expected {
            return Err(Error::DataLength { tensor: name.clone(), found, expected });
        }
    }
    let alignment = metadata.iter().find(|(key, _)| key == ALIGNMENT_KEY);
    let alignment = alignment.map_or(Ok(DEFAULT_ALIGNMENT), |(_, value)| check_alignment(value))?;
    // The alignment is bounded, so that it fits, and lengths are those of vectors in memory.
    let padding = |len: usize| vec![0; len.next_multiple_of(alignment as usize) - len];

    let mut header = Vec::new();
    header.extend(MAGIC);
    header.extend(3u32.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        put_string(&mut header, key.as_bytes());
        header.extend(value.value_type().id().to_le_bytes());
        put_value(&mut header, value);
    }
    let mut data_len = 0u64;
    for tensor in tensors {
        put_string(&mut header, tensor.name.as_bytes());
        header.extend((tensor.shape.len() as u32).to_le_bytes());
        put_numbers(&mut header, &tensor.shape, u64::to_le_bytes);
        header.extend(tensor.format.id().to_le_bytes());
        header.extend(data_len.to_le_bytes());
        data_len += (tensor.data.len() as u64).next_multiple_of(alignment);
    }
    header.extend(padding(header.len()));
    Header::parse_prefix(&header, header.len() as u64 + data_len)?;

    to.write_all(&header)?;
    for tensor in tensors {
        to.write_all(&tensor.data)?;
        to.write_all(&padding(tensor.data.len()))?;
    }
    Ok(())
}

fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

fn put_numbers<T: Copy, const N: usize>(out: &mut Vec<u8>, numbers: &[T], bytes: fn(T) -> [u8; N]) {
    numbers.iter().for_each(|&number| out.extend(bytes(number)));
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.push(*v),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push((*v).into()),
        Value::String(v) => put_string(out, v.as_bytes()),
        Value::Array(v) => put_array(out, v),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    out.extend(array.element_type().id().to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => out.extend(v),
        Array::I8(v) => put_numbers(out, v, i8::to_le_bytes),
        Array::U16(v) => put_numbers(out, v, u16::to_le_bytes),
        Array::I16(v) => put_numbers(out, v, i16::to_le_bytes),
        Array::U32(v) => put_numbers(out, v, u32::to_le_bytes),
        Array::I32(v) => put_numbers(out, v, i32::to_le_bytes),
        Array::F32(v) => put_numbers(out, v, f32::to_le_bytes),
        Array::Bool(v) => out.extend(v.iter().map(|&flag| u8::from(flag))),
        Array::String(v) => v.iter().for_each(|text| put_string(out, text.as_bytes())),
        Array::Array(v) => v.iter().for_each(|inner| put_array(out, inner)),
        Array::U64(v) => put_numbers(out, v, u64::to_le_bytes),
        Array::I64(v) => put_numbers(out, v, i64::to_le_bytes),
        Array::F64(v) => put_numbers(out, v, f64::to_le_bytes),
    }
}
