//! From a group of eight packed rows to vectors of bytes and factors, for every format.
//!
//! The number form is that of [`crate::simd::blocks`]; where quants lie around an offset they stay unsigned here, and
//! products start from `-offset * sum(activations)`, an exact integer.

use crate::pack::Layout;
use crate::simd::blocks::{Minimum, minimum};
use quant::{E2M1_DOUBLED_VALUES, Format, IQ4_NL_VALUES};
use std::arch::x86_64::*;

/// One block of each of eight rows.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(in crate::simd) struct PanelBlock {
    /// Vector `g` holds elements `4g .. 4g + 4` of each row: signed bytes if [`Packing::SIGNED`], else unsigned.
    pub(in crate::simd) q: [__m256i; 8],
    /// A float factor for each row.
    pub(in crate::simd) d: __m256,
    /// Minimums of the block, or of its halves.
    pub(in crate::simd) m: [__m256; 2],
    /// Integer scales of the block, or of its halves: an i16 twice for each row.
    pub(in crate::simd) s: [__m256i; 2],
}

/// What the blocks of a unit have in common.
#[derive(Clone, Copy)]
pub(in crate::simd) struct Head {
    /// The float factor of each row.
    d: __m256,
    /// The float factor of the minimums, or the minimums themselves.
    m: __m256,
}

impl Head {
    /// The float factor of each row.
    pub(in crate::simd) fn d(self) -> __m256 {
        self.d
    }
}

/// Integer scales of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::simd) enum Scales {
    /// None: 1.
    One,
    /// The same for both halves.
    Block,
    /// One for each half.
    Half,
}

/// A format as the kernels see it.
pub(in crate::simd) trait Packing {
    /// The format.
    const FORMAT: Format;
    /// Where the parts are.
    const LAYOUT: Layout = match Layout::of(Self::FORMAT) {
        Some(layout) => layout,
        None => panic!("a format without a packed form"),
    };
    /// Whether quants are signed bytes.
    const SIGNED: bool = false;
    /// The offset is `1 << OFFSET_BITS`; 0 for none.
    const OFFSET_BITS: i32 = 0;
    /// Integer scales.
    const SCALES: Scales = Scales::One;
    /// Minimums.
    const MINIMUM: Minimum = minimum(Self::FORMAT);
    /// Pieces that the products of a block are summed in: in each, the sum of `16 / PIECES` products with quants less
    /// the offset fits an i16, whatever the activations. 2 at least where halves have their own scales.
    const PIECES: usize = 1;

    /// The quants of a block.
    ///
    /// # Safety
    /// The processor has the level's instructions; the layout's bytes are readable, at an aligned address.
    unsafe fn quants(planes: *const __m256i) -> [__m256i; 8];

    /// The factors of a unit.
    ///
    /// # Safety
    /// The processor has the level's instructions; the layout's bytes are readable.
    unsafe fn head(scales: *const u8) -> Head;

    /// Minimums and integer scales of block `j` of a unit.
    ///
    /// # Safety
    /// As for [`head`](Packing::head).
    #[inline(always)]
    unsafe fn factors(head: Head, _scales: *const u8, _j: usize) -> ([__m256; 2], [__m256i; 2]) {
        // SAFETY: the caller's.
        unsafe { ([head.m; 2], [_mm256_set1_epi16(1); 2]) }
    }
}

macro_rules! packing {
    ($(#[$doc:meta])* $name:ident, $format:ident, { $($const:ident: $type:ty = $value:expr;)* },
     |$planes:ident| $quants:expr, |$scales:ident| $head:expr
     $(, |$unit:ident, $bytes:ident, $j:ident| $factors:expr)?) => {
        $(#[$doc])*
        #[allow(non_camel_case_types, reason = "the names are the field's own")]
        pub(in crate::simd) struct $name;
        impl Packing for $name {
            const FORMAT: Format = Format::$format;
            $(const $const: $type = $value;)*

            #[inline(always)]
            unsafe fn quants($planes: *const __m256i) -> [__m256i; 8] {
                // SAFETY: the caller's: inside the planes of the block.
                unsafe { $quants }
            }

            #[inline(always)]
            unsafe fn head($scales: *const u8) -> Head {
                // SAFETY: the caller's: inside the scales of the unit.
                unsafe { $head }
            }

            $(#[inline(always)]
            unsafe fn factors($unit: Head, $bytes: *const u8, $j: usize) -> ([__m256; 2], [__m256i; 2]) {
                // SAFETY: the caller's: inside the scales of the unit.
                unsafe { $factors }
            })?
        }
    };
}

packing!(PackedQ4_0, Q4_0, { OFFSET_BITS: i32 = 3; }, |p| nibbles(p), |s| factor(s));
packing!(PackedQ4_1, Q4_1, {}, |p| nibbles(p), |s| factor_and_minimum(s));
packing!(PackedQ5_0, Q5_0, { OFFSET_BITS: i32 = 4; }, |p| fives(p), |s| factor(s));
packing!(PackedQ5_1, Q5_1, { PIECES: usize = 2; }, |p| fives(p), |s| factor_and_minimum(s));
packing!(PackedQ8_0, Q8_0, { SIGNED: bool = true; PIECES: usize = 8; }, |p| bytes(p), |s| factor(s));
packing!(
    PackedIQ4_NL, IQ4_NL, { SIGNED: bool = true; PIECES: usize = 8; },
    |p| looked_up(table(&IQ4_NL_VALUES), nibbles(p)), |s| factor(s)
);
packing!(
    /// The values are looked up 16 higher, and so unsigned.
    PackedMXFP4, MXFP4, { OFFSET_BITS: i32 = 4; },
    |p| looked_up(_mm256_add_epi8(table(&E2M1_DOUBLED_VALUES), _mm256_set1_epi8(16)), nibbles(p)),
    |s| Head { d: _mm256_loadu_ps(s.cast()), m: _mm256_setzero_ps() }
);
packing!(
    /// A byte for each half block: the scale in the low nibble, the minimum in the high one.
    PackedQ2_K, Q2_K, { SCALES: Scales = Scales::Half; PIECES: usize = 2; },
    |p| pairs(p), |s| factor_and_two_minimums(s),
    |head, s, j| {
        let both = two_rows_of_bytes(s.add(32 + 16 * j));
        let low = _mm256_and_si256(both, _mm256_set1_epi8(15));
        let high = _mm256_and_si256(_mm256_srli_epi16::<4>(both), _mm256_set1_epi8(15));
        let m = [floats(high, 0), floats(high, 8)];
        let m = [_mm256_mul_ps(head.m, m[0]), _mm256_mul_ps(head.m, m[1])];
        (m, [unsigned_words(low, 0), unsigned_words(low, 8)])
    }
);
packing!(
    PackedQ3_K, Q3_K, { OFFSET_BITS: i32 = 2; SCALES: Scales = Scales::Half; PIECES: usize = 2; },
    |p| with_bit::<2>(pairs(p), p.add(2)), |s| factor(s),
    |head, s, j| {
        let both = two_rows_of_bytes(s.add(16 + 16 * j));
        ([head.m; 2], [signed_words(both, 0), signed_words(both, 8)])
    }
);
packing!(
    PackedQ4_K, Q4_K, { SCALES: Scales = Scales::Block; },
    |p| nibbles(p), |s| factor_and_two_minimums(s),
    |head, s, j| scale_and_minimum(head, s, j)
);
packing!(
    PackedQ5_K, Q5_K, { SCALES: Scales = Scales::Block; PIECES: usize = 2; },
    |p| fives(p), |s| factor_and_two_minimums(s),
    |head, s, j| scale_and_minimum(head, s, j)
);
packing!(
    PackedQ6_K, Q6_K, { OFFSET_BITS: i32 = 5; SCALES: Scales = Scales::Half; PIECES: usize = 2; },
    |p| sixes(p), |s| factor(s),
    |head, s, j| {
        let both = two_rows_of_bytes(s.add(16 + 16 * j));
        ([head.m; 2], [signed_words(both, 0), signed_words(both, 8)])
    }
);
packing!(
    PackedIQ4_XS, IQ4_XS, { SIGNED: bool = true; SCALES: Scales = Scales::Block; PIECES: usize = 8; },
    |p| looked_up(table(&IQ4_NL_VALUES), nibbles(p)), |s| factor(s),
    |head, s, j| {
        let scales = _mm256_broadcastsi128_si256(_mm_loadl_epi64(s.add(16 + 8 * j).cast()));
        ([head.m; 2], [signed_words(scales, 0); 2])
    }
);

/// An array of eight values. Not a closure: a closure with vector instructions is not inlined through
/// `array::from_fn`, and its vectors would travel through memory.
macro_rules! each {
    (|$j:ident| $value:expr) => {
        [
            each!(@ $j 0 $value),
            each!(@ $j 1 $value),
            each!(@ $j 2 $value),
            each!(@ $j 3 $value),
            each!(@ $j 4 $value),
            each!(@ $j 5 $value),
            each!(@ $j 6 $value),
            each!(@ $j 7 $value),
        ]
    };
    (@ $j:ident $index:literal $value:expr) => {{
        const $j: usize = $index;
        $value
    }};
}

// The functions below are inlined into kernels that have the instructions. Their safety conditions are those of the
// trait's functions that call them.

#[inline(always)]
unsafe fn bytes(planes: *const __m256i) -> [__m256i; 8] {
    // SAFETY: the caller's.
    unsafe { each!(|G| _mm256_load_si256(planes.add(G))) }
}

#[inline(always)]
unsafe fn nibbles(planes: *const __m256i) -> [__m256i; 8] {
    // SAFETY: the caller's.
    unsafe {
        let mask = _mm256_set1_epi8(15);
        each!(|G| {
            let plane = _mm256_load_si256(planes.add(G % 4));
            _mm256_and_si256(if G < 4 { plane } else { _mm256_srli_epi16::<4>(plane) }, mask)
        })
    }
}

#[inline(always)]
unsafe fn pairs(planes: *const __m256i) -> [__m256i; 8] {
    // SAFETY: the caller's.
    unsafe {
        let mask = _mm256_set1_epi8(3);
        each!(|G| {
            let plane = _mm256_load_si256(planes.add(G / 4));
            let low = match G % 4 {
                0 => plane,
                1 => _mm256_srli_epi16::<2>(plane),
                2 => _mm256_srli_epi16::<4>(plane),
                _ => _mm256_srli_epi16::<6>(plane),
            };
            _mm256_and_si256(low, mask)
        })
    }
}

/// With one more bit, number `BIT`, from a plane whose bit `g` belongs to quant `g`.
#[inline(always)]
unsafe fn with_bit<const BIT: u32>(low: [__m256i; 8], plane: *const __m256i) -> [__m256i; 8] {
    // SAFETY: the caller's.
    unsafe {
        let mask = _mm256_set1_epi8(1 << BIT);
        let plane = _mm256_load_si256(plane);
        each!(|G| {
            let (left, right) = (BIT as i64 - G as i64, G as i64 - BIT as i64);
            let moved = if left >= 0 {
                _mm256_sll_epi16(plane, _mm_cvtsi64_si128(left))
            } else {
                _mm256_srl_epi16(plane, _mm_cvtsi64_si128(right))
            };
            _mm256_or_si256(low[G], _mm256_and_si256(moved, mask))
        })
    }
}

#[inline(always)]
unsafe fn fives(planes: *const __m256i) -> [__m256i; 8] {
    // SAFETY: the caller's.
    unsafe { with_bit::<4>(nibbles(planes), planes.add(4)) }
}

#[inline(always)]
unsafe fn sixes(planes: *const __m256i) -> [__m256i; 8] {
    // SAFETY: the caller's.
    unsafe {
        let (low, mask) = (nibbles(planes), _mm256_set1_epi8(0x30));
        each!(|G| {
            let plane = _mm256_load_si256(planes.add(4 + G / 4));
            let high = match G % 4 {
                0 => _mm256_slli_epi16::<4>(plane),
                1 => _mm256_slli_epi16::<2>(plane),
                2 => plane,
                _ => _mm256_srli_epi16::<2>(plane),
            };
            _mm256_or_si256(low[G], _mm256_and_si256(high, mask))
        })
    }
}

/// A table for `shuffle_epi8`.
#[inline(always)]
unsafe fn table(values: &[i8; 16]) -> __m256i {
    // SAFETY: 16 bytes.
    unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(values.as_ptr().cast())) }
}

#[inline(always)]
unsafe fn looked_up(table: __m256i, indices: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: the caller's.
    unsafe { each!(|G| _mm256_shuffle_epi8(table, indices[G])) }
}

/// Eight half floats.
#[inline(always)]
unsafe fn halves(p: *const u8) -> __m256 {
    // SAFETY: the caller's.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
}

#[inline(always)]
unsafe fn factor(scales: *const u8) -> Head {
    // SAFETY: the caller's.
    unsafe { Head { d: halves(scales), m: _mm256_setzero_ps() } }
}

/// With a minimum that is added, as the legacy formats have it.
#[inline(always)]
unsafe fn factor_and_minimum(scales: *const u8) -> Head {
    // SAFETY: the caller's.
    unsafe {
        let m = _mm256_xor_ps(halves(scales.add(16)), _mm256_set1_ps(-0.0));
        Head { d: halves(scales), m }
    }
}

/// With the factor of minimums that are subtracted.
#[inline(always)]
unsafe fn factor_and_two_minimums(scales: *const u8) -> Head {
    // SAFETY: the caller's.
    unsafe { Head { d: halves(scales), m: halves(scales.add(16)) } }
}

/// Two bytes for each row, as `PackedQ4_K` and `PackedQ5_K` have them.
#[inline(always)]
unsafe fn scale_and_minimum(head: Head, scales: *const u8, j: usize) -> ([__m256; 2], [__m256i; 2]) {
    // SAFETY: the caller's.
    unsafe {
        let both = two_rows_of_bytes(scales.add(32 + 16 * j));
        let m = _mm256_mul_ps(head.m, floats(both, 8));
        ([m; 2], [unsigned_words(both, 0); 2])
    }
}

/// 16 bytes, in both lanes.
#[inline(always)]
unsafe fn two_rows_of_bytes(p: *const u8) -> __m256i {
    // SAFETY: the caller's.
    unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast())) }
}

/// Where to take each byte of a vector from, in its own lane: byte `first + row` to the bytes of each row that
/// `places` names, zero to the others.
const fn spread(first: i8, places: [bool; 4]) -> [i8; 32] {
    let mut bytes = [-1; 32];
    let mut i = 0;
    while i < 32 {
        if places[i % 4] {
            bytes[i] = first + (i / 4) as i8;
        }
        i += 1;
    }
    bytes
}

const LOW_BYTES: [bool; 4] = [true, false, true, false];
const HIGH_BYTES: [bool; 4] = [false, true, false, true];
const LOWEST_BYTE: [bool; 4] = [true, false, false, false];

#[inline(always)]
unsafe fn shuffled(bytes: __m256i, from: &[i8; 32]) -> __m256i {
    // SAFETY: 32 bytes.
    unsafe { _mm256_shuffle_epi8(bytes, _mm256_loadu_si256(from.as_ptr().cast())) }
}

/// Byte `first + row` as a word, twice for each row.
#[inline(always)]
unsafe fn unsigned_words(bytes: __m256i, first: usize) -> __m256i {
    const FROM: [[i8; 32]; 2] = [spread(0, LOW_BYTES), spread(8, LOW_BYTES)];
    // SAFETY: the caller's.
    unsafe { shuffled(bytes, &FROM[first / 8]) }
}

/// The same with a sign.
#[inline(always)]
unsafe fn signed_words(bytes: __m256i, first: usize) -> __m256i {
    const FROM: [[i8; 32]; 2] = [spread(0, HIGH_BYTES), spread(8, HIGH_BYTES)];
    // SAFETY: the caller's.
    unsafe { _mm256_srai_epi16::<8>(shuffled(bytes, &FROM[first / 8])) }
}

/// Byte `first + row` as a float.
#[inline(always)]
unsafe fn floats(bytes: __m256i, first: usize) -> __m256 {
    const FROM: [[i8; 32]; 2] = [spread(0, LOWEST_BYTE), spread(8, LOWEST_BYTE)];
    // SAFETY: the caller's.
    unsafe { _mm256_cvtepi32_ps(shuffled(bytes, &FROM[first / 8])) }
}
