//! The memory layout of a block of every format, defined once.
//!
//! A block is a fixed number of consecutive elements of a row, stored as small integers with the scales that
//! turn them back into floats. The structures are the bytes of a GGUF tensor, so that mapped file bytes are
//! used in place ([`cast_blocks`]); the GPU headers are generated from the same definitions
//! ([`c_header`](crate::c_header)).
//!
//! # Alignment
//!
//! The offset of a tensor in a GGUF file is a multiple of 8 at least (32 by default), but blocks follow each
//! other without padding: one of 18, 34, 110 or 210 bytes is only 2-aligned, one of 17 bytes only 1-aligned. The
//! structures ask for no more than that: 2 for those with half-precision fields, 1 for [`BlockMXFP4`], and 4 for
//! [`BlockQ8_K`], whose 292 bytes are a multiple of 4. Wider loads in kernels have to be unaligned loads.
//!
//! # Source
//!
//! Fields, names and bit order are those of the GGUF format's block description. All values are little-endian.

#![allow(non_camel_case_types, reason = "the names are the field's own")]

use std::mem::offset_of;

use bytemuck::{Pod, PodCastError, Zeroable};
use half::f16;

use crate::layout::{Field, FieldType, Layout};
use crate::{Error, Format};

#[cfg(target_endian = "big")]
compile_error!("GGUF blocks are little-endian and are used in place: big-endian machines are not supported");

/// A block structure: plain bytes with a known format.
pub trait Block: Pod {
    /// The format that the block belongs to.
    const FORMAT: Format;
    /// The fields of the structure, in order.
    const LAYOUT: Layout;
}

/// Defines a block structure and, from the same text, its [`Layout`].
macro_rules! block {
    (
        $(#[$meta:meta])*
        $name:ident: $format:ident {
            $( $(#[$field_meta:meta])* $field:ident: $ty:ty, )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
        #[repr(C)]
        pub struct $name {
            $( $(#[$field_meta])* pub $field: $ty, )+
        }

        impl Block for $name {
            const FORMAT: Format = Format::$format;
            const LAYOUT: Layout = Layout {
                format: Format::$format,
                name: stringify!($name),
                size: size_of::<$name>(),
                fields: &[$(
                    Field {
                        name: stringify!($field),
                        element: <$ty as FieldType>::ELEMENT,
                        count: <$ty as FieldType>::COUNT,
                        offset: offset_of!($name, $field),
                    },
                )+],
            };
        }

        const _: () = assert!(size_of::<$name>() == Format::$format.block_bytes());
    };
}

block! {
    /// 32 elements `d * (q - 8)`, `q` of 4 bits.
    BlockQ4_0: Q4_0 {
        /// Scale.
        d: f16,
        /// Byte `i` holds element `i` in its low and element `16 + i` in its high nibble.
        qs: [u8; 16],
    }
}

block! {
    /// 32 elements `d * q + m`, `q` of 4 bits.
    BlockQ4_1: Q4_1 {
        /// Scale.
        d: f16,
        /// Minimum: the value of `q = 0`.
        m: f16,
        /// Byte `i` holds element `i` in its low and element `16 + i` in its high nibble.
        qs: [u8; 16],
    }
}

block! {
    /// 32 elements `d * (q - 16)`, `q` of 5 bits.
    BlockQ5_0: Q5_0 {
        /// Scale.
        d: f16,
        /// The fifth bits: bit `i` of the four bytes read as a little-endian word belongs to element `i`.
        qh: [u8; 4],
        /// The low four bits, placed as in [`BlockQ4_0`].
        qs: [u8; 16],
    }
}

block! {
    /// 32 elements `d * q + m`, `q` of 5 bits.
    BlockQ5_1: Q5_1 {
        /// Scale.
        d: f16,
        /// Minimum: the value of `q = 0`.
        m: f16,
        /// The fifth bits: bit `i` of the four bytes read as a little-endian word belongs to element `i`.
        qh: [u8; 4],
        /// The low four bits, placed as in [`BlockQ4_0`].
        qs: [u8; 16],
    }
}

block! {
    /// 32 elements `d * q`.
    BlockQ8_0: Q8_0 {
        /// Scale.
        d: f16,
        /// One element each.
        qs: [i8; 32],
    }
}

block! {
    /// 256 elements in 16 sub-blocks of 16: `d * scale * q - dmin * min`, `q` of 2 bits.
    BlockQ2_K: Q2_K {
        /// Per sub-block: scale in the low, minimum in the high nibble.
        scales: [u8; 16],
        /// Byte `i` of each run of 32 bytes holds elements `i`, `32 + i`, `64 + i` and `96 + i` of the 128 that
        /// the run covers, from the low bits up.
        qs: [u8; 64],
        /// Scale of the scales.
        d: f16,
        /// Scale of the minimums.
        dmin: f16,
    }
}

block! {
    /// 256 elements in 16 sub-blocks of 16: `d * (scale - 32) * (q - 4)`, `q` of 3 bits, scales of 6 bits.
    BlockQ3_K: Q3_K {
        /// The third bits: byte `i` holds those of elements `i`, `32 + i`, ..., `224 + i`, from the low bit up.
        hmask: [u8; 32],
        /// The low two bits, placed as in [`BlockQ2_K`].
        qs: [u8; 64],
        /// Packed scales; see [`unpack_scales_q3_k`](crate::unpack_scales_q3_k).
        scales: [u8; 12],
        /// Scale of the scales.
        d: f16,
    }
}

block! {
    /// 256 elements in 8 sub-blocks of 32: `d * scale * q - dmin * min`, `q` of 4 bits, scales and minimums of 6.
    BlockQ4_K: Q4_K {
        /// Scale of the scales.
        d: f16,
        /// Scale of the minimums.
        dmin: f16,
        /// Packed scales and minimums; see [`unpack_scales_mins_k`](crate::unpack_scales_mins_k).
        scales: [u8; 12],
        /// Byte `i` of each run of 32 bytes holds elements `i` (low) and `32 + i` (high) of the 64 that the run
        /// covers.
        qs: [u8; 128],
    }
}

block! {
    /// 256 elements in 8 sub-blocks of 32: `d * scale * q - dmin * min`, `q` of 5 bits, scales and minimums of 6.
    BlockQ5_K: Q5_K {
        /// Scale of the scales.
        d: f16,
        /// Scale of the minimums.
        dmin: f16,
        /// Packed scales and minimums; see [`unpack_scales_mins_k`](crate::unpack_scales_mins_k).
        scales: [u8; 12],
        /// The fifth bits: byte `i` holds those of elements `i`, `32 + i`, ..., `224 + i`, from the low bit up.
        qh: [u8; 32],
        /// The low four bits, placed as in [`BlockQ4_K`].
        qs: [u8; 128],
    }
}

block! {
    /// 256 elements in 16 sub-blocks of 16: `d * scale * (q - 32)`, `q` of 6 bits.
    BlockQ6_K: Q6_K {
        /// The low four bits: byte `i` of each run of 64 bytes holds elements `i` (low) and `64 + i` (high) of the
        /// 128 that the run covers.
        ql: [u8; 128],
        /// The high two bits, placed as the elements of [`BlockQ2_K`].
        qh: [u8; 64],
        /// One scale per sub-block.
        scales: [i8; 16],
        /// Scale of the scales.
        d: f16,
    }
}

block! {
    /// 256 elements `d * q`, with the sums that a dot product with a format that has minimums needs.
    ///
    /// The format of quantised activations: made in memory, not found in model files.
    BlockQ8_K: Q8_K {
        /// Scale.
        d: f32,
        /// One element each.
        qs: [i8; 256],
        /// Sum of the quants of each run of 16.
        bsums: [i16; 16],
    }
}

block! {
    /// 32 elements `d * table[q]`, `q` of 4 bits; see [`IQ4_NL_VALUES`](crate::IQ4_NL_VALUES).
    BlockIQ4_NL: IQ4_NL {
        /// Scale.
        d: f16,
        /// Indices, placed as in [`BlockQ4_0`].
        qs: [u8; 16],
    }
}

block! {
    /// 256 elements in 8 sub-blocks of 32: `d * (scale - 32) * table[q]`, `q` of 4 bits, scales of 6 bits; see
    /// [`IQ4_NL_VALUES`](crate::IQ4_NL_VALUES).
    BlockIQ4_XS: IQ4_XS {
        /// Scale of the scales.
        d: f16,
        /// The high two bits of the scales, sub-block 0 in the low bits.
        scales_h: u16,
        /// The low four bits of the scales: byte `i` holds sub-blocks `2 i` (low) and `2 i + 1` (high).
        scales_l: [u8; 4],
        /// Indices: 16 bytes per sub-block, each placed as in [`BlockQ4_0`].
        qs: [u8; 128],
    }
}

block! {
    /// 32 elements `2^(e - 128) * table[q]`, `q` of 4 bits; see
    /// [`E2M1_DOUBLED_VALUES`](crate::E2M1_DOUBLED_VALUES).
    BlockMXFP4: MXFP4 {
        /// Shared exponent (E8M0, bias 127).
        e: u8,
        /// Indices, placed as in [`BlockQ4_0`].
        qs: [u8; 16],
    }
}

/// The bytes as whole blocks, without copying.
///
/// # Errors
///
/// [`Error::PartialBytes`] if they are not a whole number of blocks, [`Error::Misaligned`] if they do not start
/// at a multiple of the structure's alignment (see the [module](self) documentation for why mapped tensors do).
pub fn cast_blocks<B: Block>(bytes: &[u8]) -> Result<&[B], Error> {
    if bytes.is_empty() {
        return Ok(&[]);
    }
    bytemuck::try_cast_slice(bytes).map_err(|error| match error {
        PodCastError::TargetAlignmentGreaterAndInputNotAligned => Error::Misaligned {
            format: B::FORMAT,
            alignment: align_of::<B>(),
            address: bytes.as_ptr().addr(),
        },
        _ => Error::PartialBytes { format: B::FORMAT, bytes: bytes.len() },
    })
}
