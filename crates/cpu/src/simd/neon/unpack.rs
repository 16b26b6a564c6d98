//! From a group of eight packed rows to vectors of bytes and factors, for every format.
//!
//! The number form is that of [`crate::simd::blocks`]; where quants lie around an offset they stay as they are packed,
//! below 64 and so signed bytes too, and products start from `-offset * sum(activations)`, an exact integer.

use super::float::{f16_high, f16_low};
use super::products::{Integers, Quants};
use crate::pack::Layout;
use crate::simd::blocks::{Minimum, minimum};
use quant::{E2M1_DOUBLED_VALUES, Format, IQ4_NL_VALUES};
use std::arch::aarch64::*;

/// A float for each of eight rows.
pub(super) type Floats = [float32x4_t; 2];

/// One block of each of eight rows.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Block {
    /// The quants.
    pub(super) q: Quants,
    /// A float factor for each row.
    pub(super) d: Floats,
    /// Minimums of the block, or of its halves.
    pub(super) m: [Floats; 2],
    /// Integer scales of the block, or of its halves.
    pub(super) s: [Integers; 2],
}

/// What the blocks of a unit have in common.
#[derive(Clone, Copy)]
pub(super) struct Head {
    /// The float factor of each row.
    pub(super) d: Floats,
    /// The float factor of the minimums, or the minimums themselves.
    m: Floats,
}

/// Integer scales of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scales {
    /// None: 1.
    One,
    /// The same for both halves.
    Block,
    /// One for each half.
    Half,
}

/// A format as the kernels see it.
pub(super) trait Packing {
    /// The format.
    const FORMAT: Format;
    /// Where the parts are.
    const LAYOUT: Layout = match Layout::of(Self::FORMAT) {
        Some(layout) => layout,
        None => panic!("a format without a packed form"),
    };
    /// The offset is `1 << OFFSET_BITS`; 0 for none.
    const OFFSET_BITS: i32 = 0;
    /// Integer scales.
    const SCALES: Scales = Scales::One;
    /// Minimums.
    const MINIMUM: Minimum = minimum(Self::FORMAT);
    /// Quants of four elements whose products can be added, two of each, in an i16: 2 for whole bytes (up to
    /// `2 * 128 * 127`), 4 for less (up to `4 * 63 * 127`).
    const RUN: usize = 4;

    /// The quants of a block.
    ///
    /// # Safety
    /// The layout's bytes are readable.
    unsafe fn quants(planes: *const u8) -> Quants;

    /// The factors of a unit.
    ///
    /// # Safety
    /// The layout's bytes are readable.
    unsafe fn head(scales: *const u8) -> Head;

    /// Minimums and integer scales of block `j` of a unit.
    ///
    /// # Safety
    /// The layout's bytes are readable.
    #[inline(always)]
    unsafe fn factors(head: Head, _scales: *const u8, _j: usize) -> ([Floats; 2], [Integers; 2]) {
        // SAFETY: registers only.
        unsafe { ([head.m; 2], [[vdupq_n_s32(1); 2]; 2]) }
    }
}

macro_rules! packing {
    ($(#[$doc:meta])* $name:ident, $format:ident, { $($const:ident: $type:ty = $value:expr;)* },
     |$planes:ident| $quants:expr, |$scales:ident| $head:expr
     $(, |$unit:ident, $bytes:ident, $j:ident| $factors:expr)?) => {
        $(#[$doc])*
        #[allow(non_camel_case_types, reason = "the names are the field's own")]
        pub(super) struct $name;
        impl Packing for $name {
            const FORMAT: Format = Format::$format;
            $(const $const: $type = $value;)*

            #[inline(always)]
            unsafe fn quants($planes: *const u8) -> Quants {
                // SAFETY: the caller's: inside the planes of the block.
                unsafe { $quants }
            }

            #[inline(always)]
            unsafe fn head($scales: *const u8) -> Head {
                // SAFETY: the caller's: inside the scales of the unit.
                unsafe { $head }
            }

            $(#[inline(always)]
            unsafe fn factors($unit: Head, $bytes: *const u8, $j: usize) -> ([Floats; 2], [Integers; 2]) {
                // SAFETY: the caller's: inside the scales of the unit.
                unsafe { $factors }
            })?
        }
    };
}

packing!(PackedQ4_0, Q4_0, { OFFSET_BITS: i32 = 3; }, |p| nibbles(p), |s| factor(s));
packing!(PackedQ4_1, Q4_1, {}, |p| nibbles(p), |s| factor_and_minimum(s));
packing!(PackedQ5_0, Q5_0, { OFFSET_BITS: i32 = 4; }, |p| fives(p), |s| factor(s));
packing!(PackedQ5_1, Q5_1, {}, |p| fives(p), |s| factor_and_minimum(s));
packing!(PackedQ8_0, Q8_0, { RUN: usize = 2; }, |p| bytes(p), |s| factor(s));
packing!(
    PackedIQ4_NL, IQ4_NL, { RUN: usize = 2; },
    |p| looked_up(&IQ4_NL_VALUES, nibbles(p)), |s| factor(s)
);
packing!(PackedMXFP4, MXFP4, {}, |p| looked_up(&E2M1_DOUBLED_VALUES, nibbles(p)), |s| Head {
    d: [vld1q_f32(s.cast()), vld1q_f32(s.add(16).cast())],
    m: [vdupq_n_f32(0.0); 2]
});
packing!(
    /// A byte for each half block: the scale in the low nibble, the minimum in the high one.
    PackedQ2_K, Q2_K, { SCALES: Scales = Scales::Half; },
    |p| pairs(p), |s| factor_and_two_minimums(s),
    |head, s, j| {
        let both = [vld1_u8(s.add(32 + 16 * j)), vld1_u8(s.add(40 + 16 * j))];
        let (high, low) = (both.map(|b| vshr_n_u8::<4>(b)), both.map(|b| vand_u8(b, vdup_n_u8(15))));
        (high.map(|m| minimums(head, m)), low.map(|s| unsigned(s)))
    }
);
packing!(
    PackedQ3_K, Q3_K, { OFFSET_BITS: i32 = 2; SCALES: Scales = Scales::Half; },
    |p| with_bit::<2>(pairs(p), p.add(64)), |s| factor(s),
    |head, s, j| ([head.m; 2], two_signed_scales(s, j))
);
packing!(
    PackedQ4_K, Q4_K, { SCALES: Scales = Scales::Block; },
    |p| nibbles(p), |s| factor_and_two_minimums(s),
    |head, s, j| scale_and_minimum(head, s, j)
);
packing!(
    PackedQ5_K, Q5_K, { SCALES: Scales = Scales::Block; },
    |p| fives(p), |s| factor_and_two_minimums(s),
    |head, s, j| scale_and_minimum(head, s, j)
);
packing!(
    PackedQ6_K, Q6_K, { OFFSET_BITS: i32 = 5; SCALES: Scales = Scales::Half; },
    |p| sixes(p), |s| factor(s),
    |head, s, j| ([head.m; 2], two_signed_scales(s, j))
);
packing!(
    PackedIQ4_XS, IQ4_XS, { SCALES: Scales = Scales::Block; RUN: usize = 2; },
    |p| looked_up(&IQ4_NL_VALUES, nibbles(p)), |s| factor(s),
    |head, s, j| ([head.m; 2], [signed(vld1_s8(s.add(16 + 8 * j).cast())); 2])
);

// The functions below read what their caller allows, and otherwise work on registers.

/// The quants whose vector `h` of quant `g` is given.
macro_rules! quants {
    (|$g:ident, $h:ident| $value:expr) => {{
        let mut all = [[vdupq_n_s8(0); 2]; 8];
        for $g in 0..8 {
            for $h in 0..2 {
                all[$g][$h] = $value;
            }
        }
        all
    }};
}

/// Rows `4h .. 4h + 4` of a plane.
#[inline(always)]
unsafe fn plane(planes: *const u8, index: usize, h: usize) -> uint8x16_t {
    // SAFETY: the caller's.
    unsafe { vld1q_u8(planes.add(32 * index + 16 * h)) }
}

/// Moves bits to the left, or to the right where the distance is negative. With a distance that the compiler knows,
/// one instruction.
#[inline(always)]
unsafe fn moved(bits: uint8x16_t, left: i8) -> uint8x16_t {
    // SAFETY: registers only.
    unsafe {
        match left {
            4 => vshlq_n_u8::<4>(bits),
            3 => vshlq_n_u8::<3>(bits),
            2 => vshlq_n_u8::<2>(bits),
            1 => vshlq_n_u8::<1>(bits),
            0 => bits,
            -1 => vshrq_n_u8::<1>(bits),
            -2 => vshrq_n_u8::<2>(bits),
            -3 => vshrq_n_u8::<3>(bits),
            -4 => vshrq_n_u8::<4>(bits),
            -5 => vshrq_n_u8::<5>(bits),
            -6 => vshrq_n_u8::<6>(bits),
            _ => vshlq_u8(bits, vdupq_n_s8(left)),
        }
    }
}

#[inline(always)]
unsafe fn bytes(planes: *const u8) -> Quants {
    // SAFETY: the caller's.
    unsafe { quants!(|g, h| vreinterpretq_s8_u8(plane(planes, g, h))) }
}

#[inline(always)]
unsafe fn nibbles(planes: *const u8) -> Quants {
    // SAFETY: the caller's.
    unsafe {
        quants!(|g, h| {
            let both = plane(planes, g % 4, h);
            vreinterpretq_s8_u8(if g < 4 { vandq_u8(both, vdupq_n_u8(15)) } else { vshrq_n_u8::<4>(both) })
        })
    }
}

#[inline(always)]
unsafe fn pairs(planes: *const u8) -> Quants {
    // SAFETY: the caller's.
    unsafe {
        quants!(|g, h| {
            let all = plane(planes, g / 4, h);
            let right = moved(all, -2 * (g % 4) as i8);
            vreinterpretq_s8_u8(if g % 4 == 3 { right } else { vandq_u8(right, vdupq_n_u8(3)) })
        })
    }
}

/// With one more bit, number `BIT`, from a plane whose bit `g` belongs to quant `g`.
#[inline(always)]
unsafe fn with_bit<const BIT: i8>(low: Quants, bits: *const u8) -> Quants {
    // SAFETY: the caller's.
    unsafe {
        let mask = vdupq_n_u8(1 << BIT);
        quants!(|g, h| {
            let bit = vandq_u8(moved(plane(bits, 0, h), BIT - g as i8), mask);
            vreinterpretq_s8_u8(vorrq_u8(vreinterpretq_u8_s8(low[g][h]), bit))
        })
    }
}

#[inline(always)]
unsafe fn fives(planes: *const u8) -> Quants {
    // SAFETY: the caller's.
    unsafe { with_bit::<4>(nibbles(planes), planes.add(128)) }
}

#[inline(always)]
unsafe fn sixes(planes: *const u8) -> Quants {
    // SAFETY: the caller's.
    unsafe {
        let (low, mask) = (nibbles(planes), vdupq_n_u8(0x30));
        quants!(|g, h| {
            let high = moved(plane(planes, 4 + g / 4, h), 4 - 2 * (g % 4) as i8);
            vreinterpretq_s8_u8(vorrq_u8(vreinterpretq_u8_s8(low[g][h]), vandq_u8(high, mask)))
        })
    }
}

#[inline(always)]
unsafe fn looked_up(values: &[i8; 16], indices: Quants) -> Quants {
    // SAFETY: 16 bytes are read.
    unsafe {
        let table = vld1q_s8(values.as_ptr());
        quants!(|g, h| vqtbl1q_s8(table, vreinterpretq_u8_s8(indices[g][h])))
    }
}

/// Eight half floats.
#[inline(always)]
unsafe fn halves(p: *const u8) -> Floats {
    // SAFETY: the caller's.
    unsafe {
        let half = vreinterpretq_u16_u8(vld1q_u8(p));
        [f16_low(half), f16_high(half)]
    }
}

#[inline(always)]
unsafe fn factor(scales: *const u8) -> Head {
    // SAFETY: the caller's.
    unsafe { Head { d: halves(scales), m: [vdupq_n_f32(0.0); 2] } }
}

/// With a minimum that is added, as the legacy formats have it.
#[inline(always)]
unsafe fn factor_and_minimum(scales: *const u8) -> Head {
    // SAFETY: the caller's.
    unsafe { Head { d: halves(scales), m: halves(scales.add(16)).map(|m| vnegq_f32(m)) } }
}

/// With the factor of minimums that are subtracted.
#[inline(always)]
unsafe fn factor_and_two_minimums(scales: *const u8) -> Head {
    // SAFETY: the caller's.
    unsafe { Head { d: halves(scales), m: halves(scales.add(16)) } }
}

/// Two bytes for each row, as `PackedQ4_K` and `PackedQ5_K` have them.
#[inline(always)]
unsafe fn scale_and_minimum(head: Head, scales: *const u8, j: usize) -> ([Floats; 2], [Integers; 2]) {
    // SAFETY: the caller's.
    unsafe {
        let (s, m) = (vld1_u8(scales.add(32 + 16 * j)), vld1_u8(scales.add(40 + 16 * j)));
        ([minimums(head, m); 2], [unsigned(s); 2])
    }
}

/// A signed byte for each half block of each row, as `PackedQ3_K` and `PackedQ6_K` have them.
#[inline(always)]
unsafe fn two_signed_scales(scales: *const u8, j: usize) -> [Integers; 2] {
    // SAFETY: the caller's.
    unsafe {
        let s = scales.add(16 + 16 * j).cast::<i8>();
        [signed(vld1_s8(s)), signed(vld1_s8(s.add(8)))]
    }
}

/// Minimums from bytes.
#[inline(always)]
unsafe fn minimums(head: Head, bytes: uint8x8_t) -> Floats {
    // SAFETY: registers only.
    unsafe {
        let m = unsigned(bytes);
        [vmulq_f32(head.m[0], vcvtq_f32_s32(m[0])), vmulq_f32(head.m[1], vcvtq_f32_s32(m[1]))]
    }
}

#[inline(always)]
unsafe fn unsigned(bytes: uint8x8_t) -> Integers {
    // SAFETY: registers only.
    unsafe {
        let words = vmovl_u8(bytes);
        [vmovl_u16(vget_low_u16(words)), vmovl_high_u16(words)].map(|v| vreinterpretq_s32_u32(v))
    }
}

#[inline(always)]
unsafe fn signed(bytes: int8x8_t) -> Integers {
    // SAFETY: registers only.
    unsafe {
        let words = vmovl_s8(bytes);
        [vmovl_s16(vget_low_s16(words)), vmovl_high_s16(words)]
    }
}
