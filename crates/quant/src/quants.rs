//! The small integers of a block, out of their bit fields and back.
//!
//! `quants()` gives the integers that the scales multiply, offsets taken away, in the order of the elements;
//! `set_quants()` is its inverse. The decoders, the encoders and the scalar kernels share them, so that each
//! format's bit order stands in one place. The table formats have `indices()` instead.

use crate::blocks::*;

/// Takes apart fields of `BITS` bits: byte `i` of each run of `run` bytes holds, from its low bits up, elements
/// `i`, `run + i`, `2 run + i`, ... of the `8 / BITS * run` elements that the run covers.
///
/// Every format packs its bits in this order; they differ in `BITS` and in the length of the run.
///
/// Lengths are constants so that the loops become a few vector instructions: weights are repacked at every start.
#[inline]
fn unpack_fields<const BITS: usize, const RUN: usize, const N: usize>(bytes: &[u8]) -> [u8; N] {
    debug_assert_eq!(bytes.len() * 8, N * BITS);
    let mask = (1u8 << BITS) - 1;
    let mut fields = [0; N];
    let runs = bytes.as_chunks::<RUN>().0;
    for (r, run) in runs.iter().enumerate() {
        for k in 0..8 / BITS {
            let to = &mut fields[(r * (8 / BITS) + k) * RUN..][..RUN];
            for i in 0..RUN {
                to[i] = (run[i] >> (BITS * k)) & mask;
            }
        }
    }
    fields
}

/// The inverse of [`unpack_fields`]; bits above the field's are ignored.
fn pack_fields<const BITS: usize, const N: usize, const M: usize>(fields: &[u8; N], run: usize) -> [u8; M] {
    debug_assert_eq!(M * 8, N * BITS);
    let mask = (1u8 << BITS) - 1;
    let mut bytes = [0; M];
    let covered = 8 / BITS * run;
    for (bytes, fields) in bytes.chunks_exact_mut(run).zip(fields.chunks_exact(covered)) {
        for (k, fields) in fields.chunks_exact(run).enumerate() {
            for (byte, field) in bytes.iter_mut().zip(fields) {
                *byte |= (field & mask) << (BITS * k);
            }
        }
    }
    bytes
}

/// Low and high bits joined (`high` moved up by `shift`), less the offset.
#[inline]
fn join<const N: usize>(low: [u8; N], high: [u8; N], shift: u32, offset: i8) -> [i8; N] {
    std::array::from_fn(|i| (low[i] | (high[i] << shift)) as i8 - offset)
}

/// Adds the offset, which makes every quant of the format non-negative.
fn raise<const N: usize>(quants: &[i8; N], offset: i8) -> [u8; N] {
    quants.map(|q| q.wrapping_add(offset) as u8)
}

/// The bits from `shift` up.
fn high_bits<const N: usize>(fields: &[u8; N], shift: u32) -> [u8; N] {
    fields.map(|q| q >> shift)
}

/// 4-bit quants of 32 elements, less an offset: Q4_0 and Q4_1.
macro_rules! four_bit_block {
    ($block:ident, $offset:literal, $range:literal) => {
        impl $block {
            #[doc = concat!("The quants, in ", $range, ".")]
            #[inline]
            pub fn quants(&self) -> [i8; 32] {
                unpack_fields::<4, 16, 32>(&self.qs).map(|q| q as i8 - $offset)
            }

            #[doc = concat!("Stores quants in ", $range, ".")]
            pub fn set_quants(&mut self, quants: &[i8; 32]) {
                self.qs = pack_fields::<4, 32, 16>(&raise(quants, $offset), 16);
            }
        }
    };
}
four_bit_block!(BlockQ4_0, 8, "-8..=7");
four_bit_block!(BlockQ4_1, 0, "0..=15");

/// 5-bit quants of 32 elements, less an offset: Q5_0 and Q5_1.
macro_rules! five_bit_block {
    ($block:ident, $offset:literal, $range:literal) => {
        impl $block {
            #[doc = concat!("The quants, in ", $range, ".")]
            #[inline]
            pub fn quants(&self) -> [i8; 32] {
                join(unpack_fields::<4, 16, 32>(&self.qs), unpack_fields::<1, 1, 32>(&self.qh), 4, $offset)
            }

            #[doc = concat!("Stores quants in ", $range, ".")]
            pub fn set_quants(&mut self, quants: &[i8; 32]) {
                let fields = raise(quants, $offset);
                self.qs = pack_fields::<4, 32, 16>(&fields, 16);
                self.qh = pack_fields::<1, 32, 4>(&high_bits(&fields, 4), 1);
            }
        }
    };
}
five_bit_block!(BlockQ5_0, 16, "-16..=15");
five_bit_block!(BlockQ5_1, 0, "0..=31");

impl BlockQ2_K {
    /// The quants, in 0..=3.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        unpack_fields::<2, 32, 256>(&self.qs).map(|q| q as i8)
    }

    /// Stores quants in 0..=3.
    pub fn set_quants(&mut self, quants: &[i8; 256]) {
        self.qs = pack_fields::<2, 256, 64>(&raise(quants, 0), 32);
    }
}

impl BlockQ3_K {
    /// The quants, in -4..=3.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        join(unpack_fields::<2, 32, 256>(&self.qs), unpack_fields::<1, 32, 256>(&self.hmask), 2, 4)
    }

    /// Stores quants in -4..=3.
    pub fn set_quants(&mut self, quants: &[i8; 256]) {
        let fields = raise(quants, 4);
        self.qs = pack_fields::<2, 256, 64>(&fields, 32);
        self.hmask = pack_fields::<1, 256, 32>(&high_bits(&fields, 2), 32);
    }
}

impl BlockQ4_K {
    /// The quants, in 0..=15.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        unpack_fields::<4, 32, 256>(&self.qs).map(|q| q as i8)
    }

    /// Stores quants in 0..=15.
    pub fn set_quants(&mut self, quants: &[i8; 256]) {
        self.qs = pack_fields::<4, 256, 128>(&raise(quants, 0), 32);
    }
}

impl BlockQ5_K {
    /// The quants, in 0..=31.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        join(unpack_fields::<4, 32, 256>(&self.qs), unpack_fields::<1, 32, 256>(&self.qh), 4, 0)
    }

    /// Stores quants in 0..=31.
    pub fn set_quants(&mut self, quants: &[i8; 256]) {
        let fields = raise(quants, 0);
        self.qs = pack_fields::<4, 256, 128>(&fields, 32);
        self.qh = pack_fields::<1, 256, 32>(&high_bits(&fields, 4), 32);
    }
}

impl BlockQ6_K {
    /// The quants, in -32..=31.
    #[inline]
    pub fn quants(&self) -> [i8; 256] {
        join(unpack_fields::<4, 64, 256>(&self.ql), unpack_fields::<2, 32, 256>(&self.qh), 4, 32)
    }

    /// Stores quants in -32..=31.
    pub fn set_quants(&mut self, quants: &[i8; 256]) {
        let fields = raise(quants, 32);
        self.ql = pack_fields::<4, 256, 128>(&fields, 64);
        self.qh = pack_fields::<2, 256, 64>(&high_bits(&fields, 4), 32);
    }
}

/// 4-bit indices into a table, in runs of 16 bytes.
macro_rules! table_block {
    ($block:ident, $len:literal, $bytes:literal) => {
        impl $block {
            /// The indices into the table, in 0..=15.
            #[inline]
            pub fn indices(&self) -> [u8; $len] {
                unpack_fields::<4, 16, $len>(&self.qs)
            }

            /// Stores indices into the table, in 0..=15.
            pub fn set_indices(&mut self, indices: &[u8; $len]) {
                self.qs = pack_fields::<4, $len, $bytes>(indices, 16);
            }
        }
    };
}
table_block!(BlockIQ4_NL, 32, 16);
table_block!(BlockIQ4_XS, 256, 128);
table_block!(BlockMXFP4, 32, 16);
