//! Element types of graph buffers.

use quant::Format;
use std::fmt;

/// The element type of a graph buffer or of a cache. Integers are integers: nothing is smuggled as float bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision: every activation.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    BF16,
    /// Signed 32-bit integers: token ids, positions, cache rows, page numbers.
    I32,
    /// Blocks of a quantised format, for instance a `Q8_0` cache.
    Packed(Format),
}

impl DType {
    /// Bytes of a row of `cols` elements; `None` if the row is no whole number of blocks or overflows.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        match self {
            DType::F32 | DType::I32 => cols.checked_mul(4),
            DType::F16 | DType::BF16 => cols.checked_mul(2),
            DType::Packed(format) => format.row_bytes(cols),
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DType::F32 => f.write_str("f32"),
            DType::F16 => f.write_str("f16"),
            DType::BF16 => f.write_str("bf16"),
            DType::I32 => f.write_str("i32"),
            DType::Packed(format) => write!(f, "{}", format.name().to_lowercase()),
        }
    }
}
