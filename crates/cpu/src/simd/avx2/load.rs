//! Loading weight blocks of every quantised format, eight blocks (256 elements) at a time.
//!
//! The number form is that of [`crate::simd::blocks`]; where quants lie around an offset they stay unsigned here and
//! the kernels subtract `offset * sum(activations)`, an exact integer.

#![allow(non_camel_case_types, reason = "the names are the field's own")]

use half::f16;
use quant::{
    Block, BlockIQ4_NL, BlockIQ4_XS, BlockMXFP4, BlockQ2_K, BlockQ3_K, BlockQ4_0, BlockQ4_1, BlockQ4_K,
    BlockQ5_0, BlockQ5_1, BlockQ5_K, BlockQ6_K, BlockQ8_0, E2M1_DOUBLED_VALUES, IQ4_NL_VALUES, e8m0_half,
    unpack_scales_q3_k,
};
use std::arch::x86_64::*;

/// Eight blocks of 32 weights.
#[derive(Clone, Copy)]
pub(super) struct Super {
    /// The quants of each block: signed bytes if [`Load::SIGNED`], otherwise unsigned.
    pub(super) q: [__m256i; 8],
    /// The float factor of each block.
    pub(super) d: __m256,
    /// The integer scales of both halves of each block, i16; not used where [`Load::SCALES`] is `One`.
    pub(super) s: __m256i,
    /// The float factor of each block's minimum; used if [`Load::MINIMUM`].
    pub(super) dm: __m256,
    /// The integer minimums of both halves of each block, i16; used if [`Load::MINIMUM`].
    pub(super) m: __m256i,
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

/// A format's loader.
pub(super) trait Load {
    /// The block as it lies in memory.
    type Block: Block;
    /// Blocks in memory that make eight blocks of 32: 8, or 1 for super-blocks.
    const COUNT: usize;
    /// Whether quants are signed bytes.
    const SIGNED: bool = false;
    /// Integer scales.
    const SCALES: Scales = Scales::One;
    /// The offset is `1 << OFFSET_BITS`; 0 for none.
    const OFFSET_BITS: i32 = 0;
    /// Whether there are minimums.
    const MINIMUM: bool = false;
    /// Products of pairs, at most `2 * 127 * largest quant` each, that an i16 holds the sum of. A power of two; 4 at
    /// most where the halves of a block have their own scales.
    const SUMS: usize;

    /// Loads [`COUNT`](Load::COUNT) blocks.
    ///
    /// # Safety
    /// The processor has the level's instructions.
    unsafe fn load(blocks: &[Self::Block]) -> Super;
}

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
pub(super) use each;

macro_rules! loader {
    ($(#[$doc:meta])* $name:ident, $block:ty, $count:literal, { $($const:ident: $type:ty = $value:expr;)* },
     |$blocks:ident| $body:expr) => {
        $(#[$doc])*
        pub(super) struct $name;
        impl Load for $name {
            type Block = $block;
            const COUNT: usize = $count;
            $(const $const: $type = $value;)*

            #[inline(always)]
            unsafe fn load($blocks: &[$block]) -> Super {
                assert!($blocks.len() >= $count);
                // SAFETY: the caller's; loads are of whole fields, as long as the vectors, or inside them.
                unsafe { $body }
            }
        }
    };
}

loader!(
    /// Unsigned nibbles around 8.
    LoadQ4_0, BlockQ4_0, 8, { OFFSET_BITS: i32 = 3; SUMS: usize = 8; },
    |b| plain(each!(|J| nibbles(&b[J].qs)), halves(each!(|J| b[J].d.to_bits() as i16)))
);

loader!(
    /// Unsigned nibbles and a minimum.
    LoadQ4_1, BlockQ4_1, 8, { MINIMUM: bool = true; SUMS: usize = 8; },
    |b| {
        let low = plain(each!(|J| nibbles(&b[J].qs)), halves(each!(|J| b[J].d.to_bits() as i16)));
        with_minimum(low, halves(each!(|J| b[J].m.to_bits() as i16)))
    }
);

loader!(
    /// Unsigned 5-bit quants around 16.
    LoadQ5_0, BlockQ5_0, 8, { OFFSET_BITS: i32 = 4; SUMS: usize = 4; },
    |b| {
        let q = each!(|J| _mm256_or_si256(nibbles(&b[J].qs), fifth_bits(b[J].qh)));
        plain(q, halves(each!(|J| b[J].d.to_bits() as i16)))
    }
);

loader!(
    /// Unsigned 5-bit quants and a minimum.
    LoadQ5_1, BlockQ5_1, 8, { MINIMUM: bool = true; SUMS: usize = 4; },
    |b| {
        let q = each!(|J| _mm256_or_si256(nibbles(&b[J].qs), fifth_bits(b[J].qh)));
        let low = plain(q, halves(each!(|J| b[J].d.to_bits() as i16)));
        with_minimum(low, halves(each!(|J| b[J].m.to_bits() as i16)))
    }
);

loader!(
    /// Signed bytes.
    LoadQ8_0, BlockQ8_0, 8, { SIGNED: bool = true; SUMS: usize = 1; },
    |b| plain(
        each!(|J| _mm256_loadu_si256(b[J].qs.as_ptr().cast())),
        halves(each!(|J| b[J].d.to_bits() as i16)),
    )
);

loader!(
    /// Indices into a table of signed bytes.
    LoadIQ4_NL, BlockIQ4_NL, 8, { SIGNED: bool = true; SUMS: usize = 1; },
    |b| {
        let table = table(&IQ4_NL_VALUES);
        let q = each!(|J| _mm256_shuffle_epi8(table, nibbles(&b[J].qs)));
        plain(q, halves(each!(|J| b[J].d.to_bits() as i16)))
    }
);

loader!(
    /// Indices into a table of doubled E2M1 values around 16.
    LoadMXFP4, BlockMXFP4, 8, { OFFSET_BITS: i32 = 4; SUMS: usize = 4; },
    |b| {
        let table = _mm256_add_epi8(table(&E2M1_DOUBLED_VALUES), _mm256_set1_epi8(16));
        let q = each!(|J| _mm256_shuffle_epi8(table, nibbles(&b[J].qs)));
        let d: [f32; 8] = each!(|J| e8m0_half(b[J].e));
        plain(q, _mm256_loadu_ps(d.as_ptr()))
    }
);

loader!(
    /// 2-bit quants; a nibble each for the scale and the minimum of a half block.
    LoadQ2_K, BlockQ2_K, 1, { SCALES: Scales = Scales::Half; MINIMUM: bool = true; SUMS: usize = 4; },
    |b| {
        let b = &b[0];
        let scales = _mm_loadu_si128(b.scales.as_ptr().cast());
        let mask = _mm_set1_epi8(15);
        Super {
            q: two_bits(&b.qs),
            d: half(b.d),
            s: _mm256_cvtepu8_epi16(_mm_and_si128(scales, mask)),
            dm: half(b.dmin),
            m: _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16::<4>(scales), mask)),
        }
    }
);

loader!(
    /// 3-bit quants around 4 with 6-bit scales.
    LoadQ3_K, BlockQ3_K, 1, { SCALES: Scales = Scales::Half; OFFSET_BITS: i32 = 2; SUMS: usize = 4; },
    |b| {
        let b = &b[0];
        let mut q = two_bits(&b.qs);
        let high = _mm256_loadu_si256(b.hmask.as_ptr().cast());
        for (j, q) in q.iter_mut().enumerate() {
            let bit = _mm256_set1_epi8((1u8 << j) as i8);
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit);
            *q = _mm256_or_si256(*q, _mm256_and_si256(set, _mm256_set1_epi8(4)));
        }
        let scales = unpack_scales_q3_k(&b.scales);
        let s = _mm256_cvtepi8_epi16(_mm_loadu_si128(scales.as_ptr().cast()));
        Super { s, ..plain(q, half(b.d)) }
    }
);

loader!(
    /// 4-bit quants with 6-bit scales and minimums.
    LoadQ4_K, BlockQ4_K, 1, { SCALES: Scales = Scales::Block; MINIMUM: bool = true; SUMS: usize = 8; },
    |b| {
        let b = &b[0];
        let (s, m) = k4_scales_mins(&b.scales);
        let (d, dm) = (half(b.d), half(b.dmin));
        Super { q: nibble_pairs(&b.qs), d, s, dm, m }
    }
);

loader!(
    /// 5-bit quants with 6-bit scales and minimums.
    LoadQ5_K, BlockQ5_K, 1, { SCALES: Scales = Scales::Block; MINIMUM: bool = true; SUMS: usize = 4; },
    |b| {
        let b = &b[0];
        let mut q = nibble_pairs(&b.qs);
        let high = _mm256_loadu_si256(b.qh.as_ptr().cast());
        for (j, q) in q.iter_mut().enumerate() {
            let bit = _mm256_set1_epi8((1u8 << j) as i8);
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit);
            *q = _mm256_or_si256(*q, _mm256_and_si256(set, _mm256_set1_epi8(16)));
        }
        let (s, m) = k4_scales_mins(&b.scales);
        let (d, dm) = (half(b.d), half(b.dmin));
        Super { q, d, s, dm, m }
    }
);

loader!(
    /// 6-bit quants around 32 with 8-bit scales.
    LoadQ6_K, BlockQ6_K, 1, { SCALES: Scales = Scales::Half; OFFSET_BITS: i32 = 5; SUMS: usize = 2; },
    |b| {
        let b = &b[0];
        let (nibble, pair) = (_mm256_set1_epi8(15), _mm256_set1_epi8(0x30));
        let mut q = [_mm256_setzero_si256(); 8];
        for half in 0..2 {
            let (a, b, high) = {
                let low: *const __m256i = b.ql.as_ptr().add(64 * half).cast();
                let high: *const __m256i = b.qh.as_ptr().add(32 * half).cast();
                (_mm256_loadu_si256(low), _mm256_loadu_si256(low.add(1)), _mm256_loadu_si256(high))
            };
            let join = |low, high| {
                _mm256_or_si256(_mm256_and_si256(low, nibble), _mm256_and_si256(high, pair))
            };
            q[4 * half] = join(a, _mm256_slli_epi16::<4>(high));
            q[4 * half + 1] = join(b, _mm256_slli_epi16::<2>(high));
            q[4 * half + 2] = join(_mm256_srli_epi16::<4>(a), high);
            q[4 * half + 3] = join(_mm256_srli_epi16::<4>(b), _mm256_srli_epi16::<2>(high));
        }
        let s = _mm256_cvtepi8_epi16(_mm_loadu_si128(b.scales.as_ptr().cast()));
        Super { s, ..plain(q, half(b.d)) }
    }
);

loader!(
    /// Indices into a table of signed bytes, with 6-bit scales.
    LoadIQ4_XS, BlockIQ4_XS, 1, { SIGNED: bool = true; SCALES: Scales = Scales::Block; SUMS: usize = 1; },
    |b| {
        let b = &b[0];
        let table = table(&IQ4_NL_VALUES);
        let q = each!(|J| {
            let low = _mm_loadu_si128(b.qs.as_ptr().add(16 * J).cast());
            _mm256_shuffle_epi8(table, split_nibbles(low))
        });
        let scales = _mm_loadl_epi64(b.unpack_scales().as_ptr().cast());
        let s = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(scales, scales));
        Super { s, ..plain(q, half(b.d)) }
    }
);

/// Without scales and minimums.
#[inline(always)]
unsafe fn plain(q: [__m256i; 8], d: __m256) -> Super {
    // SAFETY: the caller's; loads are inside the arrays.
    unsafe { Super { q, d, s: _mm256_set1_epi16(1), dm: _mm256_setzero_ps(), m: _mm256_setzero_si256() } }
}

/// With a minimum that is added, as the legacy formats have it.
#[inline(always)]
unsafe fn with_minimum(blocks: Super, added: __m256) -> Super {
    // SAFETY: the caller's; loads are inside the arrays.
    unsafe { Super { dm: _mm256_xor_ps(added, _mm256_set1_ps(-0.0)), m: _mm256_set1_epi16(1), ..blocks } }
}

/// Eight half floats.
#[inline(always)]
unsafe fn halves(bits: [i16; 8]) -> __m256 {
    // SAFETY: the caller's; loads are inside the arrays.
    unsafe {
        let [a, b, c, d, e, f, g, h] = bits;
        _mm256_cvtph_ps(_mm_set_epi16(h, g, f, e, d, c, b, a))
    }
}

/// A half float in all lanes.
#[inline(always)]
unsafe fn half(value: f16) -> __m256 {
    // SAFETY: the caller's.
    unsafe { _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(value.to_bits())))) }
}

/// Low nibbles in the first half, high nibbles in the second.
#[inline(always)]
unsafe fn split_nibbles(bytes: __m128i) -> __m256i {
    // SAFETY: the caller's; loads are inside the arrays.
    unsafe {
        let both = _mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes);
        _mm256_and_si256(both, _mm256_set1_epi8(15))
    }
}

#[inline(always)]
unsafe fn nibbles(qs: &[u8; 16]) -> __m256i {
    // SAFETY: the caller's; loads are inside the arrays.
    unsafe {
        // SAFETY: 16 bytes.
        split_nibbles(_mm_loadu_si128(qs.as_ptr().cast()))
    }
}

/// A table for `shuffle_epi8`.
#[inline(always)]
unsafe fn table(values: &[i8; 16]) -> __m256i {
    // SAFETY: the caller's; loads are inside the arrays.
    unsafe {
        // SAFETY: 16 bytes.
        _mm256_broadcastsi128_si256(_mm_loadu_si128(values.as_ptr().cast()))
    }
}

/// 16 in the bytes whose bit is set: bit `i` for byte `i`.
#[inline(always)]
unsafe fn fifth_bits(qh: [u8; 4]) -> __m256i {
    // SAFETY: the caller's; loads are inside the arrays.
    unsafe {
        let bits = _mm256_set1_epi32(i32::from_le_bytes(qh));
        let byte_of =
            _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
        // Every bit but the byte's own is set; with its own, all are.
        let others = _mm256_set1_epi64x(0x7fbf_dfef_f7fb_fdfe);
        let spread = _mm256_or_si256(_mm256_shuffle_epi8(bits, byte_of), others);
        let set = _mm256_cmpeq_epi8(spread, _mm256_set1_epi8(-1));
        _mm256_and_si256(set, _mm256_set1_epi8(16))
    }
}

/// 128 bytes: of each 32, the low nibbles are a block and the high nibbles the next.
#[inline(always)]
unsafe fn nibble_pairs(qs: &[u8; 128]) -> [__m256i; 8] {
    // SAFETY: the caller's; loads are inside the arrays.
    unsafe {
        let mask = _mm256_set1_epi8(15);
        let mut q = [_mm256_setzero_si256(); 8];
        for j in 0..4 {
            let bytes = _mm256_loadu_si256(qs.as_ptr().add(32 * j).cast());
            q[2 * j] = _mm256_and_si256(bytes, mask);
            q[2 * j + 1] = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask);
        }
        q
    }
}

/// 64 bytes: of each 32, the bit pairs from the lowest on are a block each.
#[inline(always)]
unsafe fn two_bits(qs: &[u8; 64]) -> [__m256i; 8] {
    // SAFETY: the caller's; loads are inside the arrays.
    unsafe {
        let mask = _mm256_set1_epi8(3);
        let mut q = [_mm256_setzero_si256(); 8];
        for half in 0..2 {
            let bytes = _mm256_loadu_si256(qs.as_ptr().add(32 * half).cast());
            q[4 * half] = _mm256_and_si256(bytes, mask);
            q[4 * half + 1] = _mm256_and_si256(_mm256_srli_epi16::<2>(bytes), mask);
            q[4 * half + 2] = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask);
            q[4 * half + 3] = _mm256_and_si256(_mm256_srli_epi16::<6>(bytes), mask);
        }
        q
    }
}

/// The scales and minimums of a `Q4_K` or `Q5_K` block, each twice (for both halves of a block).
#[inline(always)]
unsafe fn k4_scales_mins(packed: &[u8; 12]) -> (__m256i, __m256i) {
    // SAFETY: the caller's; loads are inside the arrays.
    unsafe {
        let word = |i: usize| u32::from_le_bytes([packed[i], packed[i + 1], packed[i + 2], packed[i + 3]]);
        let (a, b, c) = (word(0), word(4), word(8));
        // Four bytes at a time; see `quant::unpack_scales_mins_k`.
        let scales = [a & 0x3f3f_3f3f, (c & 0x0f0f_0f0f) | ((a >> 2) & 0x3030_3030)];
        let mins = [b & 0x3f3f_3f3f, ((c >> 4) & 0x0f0f_0f0f) | ((b >> 2) & 0x3030_3030)];
        let twice = |words: [u32; 2]| {
            let bytes = _mm_set_epi32(0, 0, words[1] as i32, words[0] as i32);
            _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(bytes, bytes))
        };
        (twice(scales), twice(mins))
    }
}
