//! Recorded dispatches: what a kernel was given and what it made of it, so that another executor can be compared.

use std::fs;
use std::io;
use std::path::Path;

use metal::device::{ConstantValue, FunctionConstants, Size};

/// One dispatch on its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatch {
    /// The source's name.
    pub label: String,
    /// The MSL text.
    pub source: String,
    /// Whether the source was compiled without fast arithmetic.
    pub safe_math: bool,
    /// The kernel.
    pub kernel: String,
    /// Values of its function constants.
    pub constants: FunctionConstants,
    /// Slot and offset of each bound buffer, its content before and after.
    pub buffers: Vec<(usize, usize, Vec<u8>, Vec<u8>)>,
    /// Slot and content of inline bytes.
    pub bytes: Vec<(usize, Vec<u8>)>,
    /// Slot and length of dynamic threadgroup memory.
    pub threadgroup: Vec<(usize, usize)>,
    /// Threads or threadgroups of the grid.
    pub grid: Size,
    /// Threads of a threadgroup.
    pub threads: Size,
    /// Whether `grid` counts threads.
    pub counts_threads: bool,
}

const MAGIC: &[u8] = b"SIMCASE1";

impl Dispatch {
    /// Writes it to a file.
    ///
    /// # Errors
    /// Those of the file.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut out = MAGIC.to_vec();
        let mut bytes = |data: &[u8]| {
            out.extend((data.len() as u64).to_le_bytes());
            out.extend(data);
        };
        let number = |value: usize| (value as u64).to_le_bytes();
        for text in [&self.label, &self.source, &self.kernel] {
            bytes(text.as_bytes());
        }
        let mut numbers = vec![u64::from(self.safe_math), u64::from(self.counts_threads)];
        numbers.extend(self.grid.to_array().map(|count| count as u64));
        numbers.extend(self.threads.to_array().map(|count| count as u64));
        let counts =
            [self.constants.iter().count(), self.buffers.len(), self.bytes.len(), self.threadgroup.len()];
        numbers.extend(counts.map(|count| count as u64));
        bytes(&numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>());
        for (index, value) in self.constants.iter() {
            bytes(&index.to_le_bytes());
            bytes(value.type_name().as_bytes());
            bytes(&value.bits().to_le_bytes());
        }
        for (slot, offset, before, after) in &self.buffers {
            bytes(&number(*slot));
            bytes(&number(*offset));
            bytes(before);
            bytes(after);
        }
        for (slot, data) in &self.bytes {
            bytes(&number(*slot));
            bytes(data);
        }
        for (slot, length) in &self.threadgroup {
            bytes(&number(*slot));
            bytes(&number(*length));
        }
        fs::write(path, out)
    }

    /// Reads what [`Dispatch::write`] wrote.
    ///
    /// # Errors
    /// Those of the file, and [`io::ErrorKind::InvalidData`] for another file.
    pub fn read(path: &Path) -> io::Result<Self> {
        let data = fs::read(path)?;
        let invalid = || {
            io::Error::new(io::ErrorKind::InvalidData, format!("{}: no recorded dispatch", path.display()))
        };
        let mut reader = Reader { rest: data.strip_prefix(MAGIC).ok_or_else(invalid)? };
        reader.dispatch().ok_or_else(invalid)
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn bytes(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.rest.split_first_chunk()?;
        let (data, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        self.rest = rest;
        Some(data)
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    fn number(&mut self) -> Option<usize> {
        usize::try_from(u64::from_le_bytes(self.bytes()?.try_into().ok()?)).ok()
    }

    fn dispatch(&mut self) -> Option<Dispatch> {
        let (label, source, kernel) = (self.text()?, self.text()?, self.text()?);
        let numbers: Vec<usize> = self
            .bytes()?
            .chunks_exact(8)
            .map(|chunk| usize::try_from(u64::from_le_bytes(chunk.try_into().ok()?)).ok())
            .collect::<Option<_>>()?;
        let [safe_math, counts_threads, gx, gy, gz, tx, ty, tz, constants, buffers, inline, threadgroup] =
            numbers[..]
        else {
            return None;
        };
        let mut dispatch = Dispatch {
            label,
            source,
            kernel,
            safe_math: safe_math != 0,
            constants: FunctionConstants::new(),
            buffers: Vec::new(),
            bytes: Vec::new(),
            threadgroup: Vec::new(),
            grid: Size::new(gx, gy, gz),
            threads: Size::new(tx, ty, tz),
            counts_threads: counts_threads != 0,
        };
        for _ in 0..constants {
            let index = u32::from_le_bytes(self.bytes()?.try_into().ok()?);
            let kind = self.text()?;
            let bits = u64::from_le_bytes(self.bytes()?.try_into().ok()?);
            dispatch.constants = dispatch.constants.set(index, constant(&kind, bits)?);
        }
        for _ in 0..buffers {
            let (slot, offset) = (self.number()?, self.number()?);
            dispatch.buffers.push((slot, offset, self.bytes()?.to_vec(), self.bytes()?.to_vec()));
        }
        for _ in 0..inline {
            dispatch.bytes.push((self.number()?, self.bytes()?.to_vec()));
        }
        for _ in 0..threadgroup {
            dispatch.threadgroup.push((self.number()?, self.number()?));
        }
        self.rest.is_empty().then_some(dispatch)
    }
}

fn constant(kind: &str, bits: u64) -> Option<ConstantValue> {
    Some(match kind {
        "bool" => ConstantValue::Bool(bits != 0),
        "char" => ConstantValue::I8(bits as i8),
        "uchar" => ConstantValue::U8(bits as u8),
        "short" => ConstantValue::I16(bits as i16),
        "ushort" => ConstantValue::U16(bits as u16),
        "int" => ConstantValue::I32(bits as i32),
        "uint" => ConstantValue::U32(bits as u32),
        "long" => ConstantValue::I64(bits as i64),
        "ulong" => ConstantValue::U64(bits),
        "float" => ConstantValue::F32(f32::from_bits(bits as u32)),
        "half" => ConstantValue::F16(bits as u16),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dispatch_survives_its_file() {
        let dispatch = Dispatch {
            label: "k.metal".into(),
            source: "kernel void k() {}".into(),
            safe_math: true,
            kernel: "k".into(),
            constants: FunctionConstants::new()
                .set(3, ConstantValue::I16(-2))
                .set(600, ConstantValue::F32(0.5)),
            buffers: vec![(0, 16, vec![1, 2, 3], vec![4, 5, 6])],
            bytes: vec![(2, vec![7; 5])],
            threadgroup: vec![(1, 64)],
            grid: Size::new(5, 6, 7),
            threads: Size::width(32),
            counts_threads: true,
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        dispatch.write(file.path()).unwrap();
        assert_eq!(Dispatch::read(file.path()).unwrap(), dispatch);
        let text = fs::read(file.path()).unwrap();
        for length in [0, 8, 40, text.len() - 1] {
            fs::write(file.path(), &text[..length]).unwrap();
            let error = Dispatch::read(file.path()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{length}");
        }
    }
}
