//! Operands of kernels: ranges of device memory with a type and a shape.

use crate::device::Buffer;
use crate::tracker::Columns;
use graph::{DType, Shape};
use quant::Format;
use std::sync::atomic::{AtomicU64, Ordering};

/// A device buffer with an identity of its own, by which the dependency tracker knows it. A clone is another handle
/// on the same memory.
#[derive(Clone)]
pub struct Memory<B> {
    id: u64,
    buffer: B,
    constant: bool,
}

impl<B: Buffer> Memory<B> {
    /// Memory that kernels may write.
    pub fn new(buffer: B) -> Memory<B> {
        Memory { id: fresh_id(), buffer, constant: false }
    }

    /// Memory that no kernel writes, such as weights: no dispatch ever waits for it.
    pub fn constant(buffer: B) -> Memory<B> {
        Memory { id: fresh_id(), buffer, constant: true }
    }

    /// The buffer.
    pub fn buffer(&self) -> &B {
        &self.buffer
    }

    /// What tells this memory from all other.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether no kernel writes to it.
    pub fn is_constant(&self) -> bool {
        self.constant
    }

    /// All of it.
    pub fn whole(&self) -> Slice<B> {
        Slice { memory: self.clone(), offset: 0, length: self.buffer.length() }
    }

    /// `length` bytes from `offset` on; `None` past the end.
    pub fn slice(&self, offset: usize, length: usize) -> Option<Slice<B>> {
        let end = offset.checked_add(length)?;
        (end <= self.buffer.length()).then(|| Slice { memory: self.clone(), offset, length })
    }
}

fn fresh_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A range of bytes of a buffer.
#[derive(Clone)]
pub struct Slice<B> {
    /// The buffer.
    pub memory: Memory<B>,
    /// First byte.
    pub offset: usize,
    /// Number of bytes.
    pub length: usize,
}

impl<B: Buffer> Slice<B> {
    /// `length` bytes from the slice's byte `offset` on; `None` past its end.
    pub fn part(&self, offset: usize, length: usize) -> Option<Slice<B>> {
        let end = offset.checked_add(length)?;
        (end <= self.length).then(|| Slice {
            memory: self.memory.clone(),
            offset: self.offset + offset,
            length,
        })
    }
}

/// An activation or one part of a layer's state: a row-major matrix without gaps.
#[derive(Clone)]
pub struct Tensor<B> {
    /// Where it lies.
    pub slice: Slice<B>,
    /// Element type.
    pub dtype: DType,
    /// Rows and columns.
    pub shape: Shape,
}

/// A weight.
#[derive(Clone)]
pub struct Weight<B> {
    /// Where its rows lie.
    pub slice: Slice<B>,
    /// How its elements are stored.
    pub format: Format,
    /// Output features; 1 for a vector.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
}

impl<B: Buffer> Tensor<B> {
    /// Rows `first .. first + rows`; `None` past the end.
    pub fn rows(&self, first: usize, rows: usize) -> Option<Tensor<B>> {
        let row_bytes = self.dtype.row_bytes(self.shape.cols)?;
        let slice = self.slice.part(first.checked_mul(row_bytes)?, rows.checked_mul(row_bytes)?)?;
        Some(Tensor { slice, dtype: self.dtype, shape: Shape::new(rows, self.shape.cols) })
    }

    /// Columns `first .. first + cols` of every row; `None` past the end.
    pub fn columns(&self, first: usize, cols: usize) -> Option<Part<B>> {
        let bytes = |cols| self.dtype.row_bytes(cols);
        let (stride, start, end) = (bytes(self.shape.cols)?, bytes(first)?, bytes(first.checked_add(cols)?)?);
        let between = self.shape.rows.saturating_sub(1) * stride;
        let slice = match self.shape.rows {
            0 => self.slice.part(0, 0)?,
            _ => self.slice.part(start, (between + end).checked_sub(start)?)?,
        };
        let columns = Columns { matrix: self.slice.offset, stride, bytes: start..end };
        (end <= stride).then_some(Part { slice, columns, rows: self.shape.rows })
    }
}

/// Some columns of a matrix, from the first row's to the last row's.
#[derive(Clone)]
pub struct Part<B> {
    slice: Slice<B>,
    columns: Columns,
    rows: usize,
}

impl<B: Buffer> Weight<B> {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.slice.length.checked_div(self.rows).unwrap_or(0)
    }
}

/// What can be bound to a buffer slot.
pub trait Bindable<B> {
    /// The bytes that the kernel may touch through the binding.
    fn slice(&self) -> &Slice<B>;

    /// The columns that these bytes are, where the others between them are not meant.
    fn columns(&self) -> Option<&Columns> {
        None
    }

    /// How many bytes these are.
    fn bytes(&self) -> usize {
        self.slice().length
    }
}

impl<B> Bindable<B> for Part<B> {
    fn slice(&self) -> &Slice<B> {
        &self.slice
    }

    fn columns(&self) -> Option<&Columns> {
        Some(&self.columns)
    }

    fn bytes(&self) -> usize {
        self.columns.bytes.len() * self.rows
    }
}

impl<B> Bindable<B> for Slice<B> {
    fn slice(&self) -> &Slice<B> {
        self
    }
}

impl<B> Bindable<B> for Tensor<B> {
    fn slice(&self) -> &Slice<B> {
        &self.slice
    }
}

impl<B> Bindable<B> for Weight<B> {
    fn slice(&self) -> &Slice<B> {
        &self.slice
    }
}
