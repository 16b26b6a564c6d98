//! The values of all nodes, as files: one array per node and forward, in NumPy's format.
//!
//! A node's result may be overwritten by a later node of the same split, so it is copied to memory of its own right
//! behind it, in the same command buffer, and written to a file once the device is done.

use crate::device::Buffer;
use crate::tensor::{Slice, Tensor};
use graph::{DType, Shape};
use std::io;
use std::path::{Path, PathBuf};

/// A copy that the device makes.
struct Capture<B> {
    /// The file's name, without the folder.
    file: String,
    copy: Slice<B>,
    shape: Shape,
    dtype: DType,
}

/// The captures of the current split.
pub(crate) struct Trace<B> {
    folder: PathBuf,
    captures: Vec<Capture<B>>,
}

impl<B: Buffer> Trace<B> {
    pub fn new(folder: &Path) -> Trace<B> {
        Trace { folder: folder.to_path_buf(), captures: Vec::new() }
    }

    /// Notes that the value of a node will be in `copy`.
    pub fn add(&mut self, epoch: u64, node: usize, label: &str, value: &Tensor<B>, copy: Slice<B>) {
        let label: String =
            label.chars().map(|c| if c.is_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect();
        let file = format!("{epoch:06}-{node:05}-{label}.npy");
        self.captures.push(Capture { file, copy, shape: value.shape, dtype: value.dtype });
    }

    /// Forgets the captures of a split that was not run.
    pub fn clear(&mut self) {
        self.captures.clear();
    }

    /// Writes the captures, once the device is done.
    pub fn drain(&mut self) -> io::Result<()> {
        if self.captures.is_empty() {
            return Ok(());
        }
        std::fs::create_dir_all(&self.folder)?;
        for capture in self.captures.drain(..) {
            let mut bytes = header(capture.shape, capture.dtype);
            let start = bytes.len();
            bytes.resize(start + capture.copy.length, 0);
            let buffer = capture.copy.memory.buffer();
            buffer.read(capture.copy.offset, &mut bytes[start..]).map_err(io::Error::other)?;
            std::fs::write(self.folder.join(&capture.file), bytes)?;
        }
        Ok(())
    }
}

/// The head of a `.npy` file, version 1.0: magic, length, and a Python dictionary padded to 64 bytes. Types that NumPy
/// lacks are written as bytes.
fn header(shape: Shape, dtype: DType) -> Vec<u8> {
    let cols = dtype.row_bytes(shape.cols).unwrap_or(0);
    let (descriptor, cols) = match dtype {
        DType::F32 => ("<f4", shape.cols),
        DType::F16 => ("<f2", shape.cols),
        DType::I32 => ("<i4", shape.cols),
        DType::BF16 | DType::Packed(_) => ("|u1", cols),
    };
    let mut text =
        format!("{{'descr': '{descriptor}', 'fortran_order': False, 'shape': ({}, {cols}), }}", shape.rows);
    let before = 10;
    let padded = (before + text.len() + 1).next_multiple_of(64) - before;
    while text.len() + 1 < padded {
        text.push(' ');
    }
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    // Two decimal numbers never make the text longer than 65535 bytes.
    bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_padded_and_name_type_and_shape() {
        let bytes = header(Shape::new(3, 5), DType::F32);
        assert_eq!(bytes.len() % 64, 0);
        assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
        assert_eq!(usize::from(u16::from_le_bytes([bytes[8], bytes[9]])), bytes.len() - 10);
        let text = std::str::from_utf8(&bytes[10..]).unwrap();
        assert!(text.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 5), }"), "{text}");
        assert!(text.ends_with('\n'));
        let packed = header(Shape::new(1, 32), DType::Packed(quant::Format::Q8_0));
        assert!(String::from_utf8_lossy(&packed).contains("'|u1', 'fortran_order': False, 'shape': (1, 34)"));
    }
}
