//! The list of formats, their ids in a GGUF file, and the size of a block of each.

use std::fmt;

/// How the elements of a tensor are stored. The discriminant is the type id in a GGUF tensor table
/// (`ggml_type` in the format's description).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
#[allow(non_camel_case_types, reason = "the names are the field's own")]
pub enum Format {
    /// IEEE single precision.
    F32 = 0,
    /// IEEE half precision.
    F16 = 1,
    /// 32 elements: half scale, 4-bit quants around 8.
    Q4_0 = 2,
    /// 32 elements: half scale and minimum, 4-bit quants.
    Q4_1 = 3,
    /// 32 elements: half scale, 5-bit quants around 16.
    Q5_0 = 6,
    /// 32 elements: half scale and minimum, 5-bit quants.
    Q5_1 = 7,
    /// 32 elements: half scale, signed 8-bit quants.
    Q8_0 = 8,
    /// 256 elements: 2-bit quants, 16 sub-blocks with 4-bit scales and minimums.
    Q2_K = 10,
    /// 256 elements: 3-bit quants, 16 sub-blocks with 6-bit scales.
    Q3_K = 11,
    /// 256 elements: 4-bit quants, 8 sub-blocks with 6-bit scales and minimums.
    Q4_K = 12,
    /// 256 elements: 5-bit quants, 8 sub-blocks with 6-bit scales and minimums.
    Q5_K = 13,
    /// 256 elements: 6-bit quants, 16 sub-blocks with 8-bit scales.
    Q6_K = 14,
    /// 256 elements: single-precision scale, signed 8-bit quants and their sums by 16. An activation format.
    Q8_K = 15,
    /// 32 elements: half scale, 4-bit indices into a non-linear table.
    IQ4_NL = 20,
    /// 256 elements: half scale, 8 sub-blocks with 6-bit scales, 4-bit indices into a non-linear table.
    IQ4_XS = 23,
    /// bfloat16.
    BF16 = 30,
    /// 32 elements: E8M0 scale, 4-bit E2M1 floats (OCP microscaling).
    MXFP4 = 39,
}

impl Format {
    /// Every format, in the order of the type ids.
    pub const ALL: [Format; 17] = [
        Format::F32,
        Format::F16,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q8_0,
        Format::Q2_K,
        Format::Q3_K,
        Format::Q4_K,
        Format::Q5_K,
        Format::Q6_K,
        Format::Q8_K,
        Format::IQ4_NL,
        Format::IQ4_XS,
        Format::BF16,
        Format::MXFP4,
    ];

    /// The format with this id in a GGUF tensor table, if it is one that we read.
    pub fn from_id(id: u32) -> Option<Format> {
        Format::ALL.into_iter().find(|f| f.id() == id)
    }

    /// The id in a GGUF tensor table.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// Elements in one block (1 for the float formats).
    pub const fn block_len(self) -> usize {
        use Format::*;
        match self {
            F32 | F16 | BF16 => 1,
            Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | IQ4_NL | MXFP4 => 32,
            Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | Q8_K | IQ4_XS => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        use Format::*;
        match self {
            F32 => 4,
            F16 | BF16 => 2,
            Q4_0 | IQ4_NL => 18,
            Q4_1 => 20,
            Q5_0 => 22,
            Q5_1 => 24,
            Q8_0 => 34,
            Q2_K => 84,
            Q3_K => 110,
            Q4_K => 144,
            Q5_K => 176,
            Q6_K => 210,
            Q8_K => 292,
            IQ4_XS => 136,
            MXFP4 => 17,
        }
    }

    /// Bytes of a row of `elements` elements; `None` if the row is not a whole number of blocks or the size
    /// does not fit in a `usize`.
    pub const fn row_bytes(self, elements: usize) -> Option<usize> {
        if !elements.is_multiple_of(self.block_len()) {
            return None;
        }
        (elements / self.block_len()).checked_mul(self.block_bytes())
    }

    /// The field's name of the format, as in `Q4_K`.
    pub const fn name(self) -> &'static str {
        use Format::*;
        match self {
            F32 => "F32",
            F16 => "F16",
            BF16 => "BF16",
            Q4_0 => "Q4_0",
            Q4_1 => "Q4_1",
            Q5_0 => "Q5_0",
            Q5_1 => "Q5_1",
            Q8_0 => "Q8_0",
            Q2_K => "Q2_K",
            Q3_K => "Q3_K",
            Q4_K => "Q4_K",
            Q5_K => "Q5_K",
            Q6_K => "Q6_K",
            Q8_K => "Q8_K",
            IQ4_NL => "IQ4_NL",
            IQ4_XS => "IQ4_XS",
            MXFP4 => "MXFP4",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
