//! Block formats of GGUF tensors: every layout defined once, with exact reference encoding and decoding.
//!
//! Knows bytes and floats. Does not know files, models or devices: the CPU and GPU backends take the layouts
//! from here (see [`Format`], [`blocks`] and [`c_header`]), and are tested against the reference decoders here.
//!
//! ```
//! use quant::{BlockQ4_0, Format, cast_blocks, decode};
//!
//! // One block of Q4_0: a half-precision scale of 0.5, then 32 quants of 4 bits around 8.
//! let mut bytes = vec![0x00, 0x38];
//! bytes.extend([0x98; 16]);
//! assert_eq!(Some(bytes.len()), Format::Q4_0.row_bytes(32));
//!
//! let mut row = [f32::NAN; 32];
//! decode(Format::Q4_0, &bytes, &mut row)?;
//! assert_eq!(row[..16], [0.0; 16]);
//! assert_eq!(row[16..], [0.5; 16]);
//!
//! // The same bytes in place, as a kernel sees them. (Mapped tensors are aligned; this copy makes sure.)
//! let block: BlockQ4_0 = bytemuck::pod_read_unaligned(&bytes);
//! let block = cast_blocks::<BlockQ4_0>(bytemuck::bytes_of(&block))?[0];
//! assert_eq!(block.quants()[16], 1);
//! # Ok::<(), quant::Error>(())
//! ```

#![warn(missing_docs)]

pub mod blocks;
mod decode;
mod encode;
mod error;
mod format;
mod layout;
mod quants;
mod scales;
mod tables;

pub use blocks::{
    Block, BlockIQ4_NL, BlockIQ4_XS, BlockMXFP4, BlockQ2_K, BlockQ3_K, BlockQ4_0, BlockQ4_1, BlockQ4_K,
    BlockQ5_0, BlockQ5_1, BlockQ5_K, BlockQ6_K, BlockQ8_0, BlockQ8_K, cast_blocks,
};
pub use decode::{
    decode, decode_block_iq4_nl, decode_block_iq4_xs, decode_block_mxfp4, decode_block_q2_k,
    decode_block_q3_k, decode_block_q4_0, decode_block_q4_1, decode_block_q4_k, decode_block_q5_0,
    decode_block_q5_1, decode_block_q5_k, decode_block_q6_k, decode_block_q8_0, decode_block_q8_k,
};
pub use encode::{
    encode, encode_block_iq4_nl, encode_block_iq4_xs, encode_block_mxfp4, encode_block_q2_k,
    encode_block_q3_k, encode_block_q4_0, encode_block_q4_1, encode_block_q4_k, encode_block_q5_0,
    encode_block_q5_1, encode_block_q5_k, encode_block_q6_k, encode_block_q8_0, encode_block_q8_k,
};
pub use error::Error;
pub use format::Format;
pub use layout::{Element, Field, Layout, c_header};
pub use scales::{pack_scales_mins_k, pack_scales_q3_k, unpack_scales_mins_k, unpack_scales_q3_k};
pub use tables::{E2M1_DOUBLED_VALUES, IQ4_NL_VALUES, e8m0_half};
