//! Loading weight blocks of every quantised format, eight blocks (256 elements) at a time.
//!
//! The number form is that of [`crate::simd::blocks`]; where quants lie around an offset they stay unsigned here and
//! the kernels subtract `offset * sum(activations)`, an exact integer.

#![allow(non_camel_case_types, reason = "the names are the field's own")]

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

macro_rules! loader {
    ($(#[$doc:meta])* $name:ident, $block:ty, $count:literal, { $($const:ident: $type:ty = $value:expr;)* },
     |$blocks:ident| $body:expr) => {
        $(#[$doc])*
        pub(super) struct $name;
        impl Load for $name {
            type Block = $block;
            const COUNT: usize = $count;
            $(const $const: $type = $value;)*

            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn load($blocks: &[$block]) -> Super {
                assert!($blocks.len() >= $count);
                $body
            }
        }
    };
}

loader!(
    /// Unsigned nibbles around 8.
    LoadQ4_0, BlockQ4_0, 8, { OFFSET_BITS: i32 = 3; SUMS: usize = 8; },
    |b| plain(each(|j| nibbles(&b[j].qs)), halves(each(|j| b[j].d.to_bits())))
);

loader!(
    /// Unsigned nibbles and a minimum.
    LoadQ4_1, BlockQ4_1, 8, { MINIMUM: bool = true; SUMS: usize = 8; },
    |b| {
        let low = plain(each(|j| nibbles(&b[j].qs)), halves(each(|j| b[j].d.to_bits())));
        with_minimum(low, halves(each(|j| b[j].m.to_bits())))
    }
);

loader!(
    /// Unsigned 5-bit quants around 16.
    LoadQ5_0, BlockQ5_0, 8, { OFFSET_BITS: i32 = 4; SUMS: usize = 4; },
    |b| {
        let q = each(|j| _mm256_or_si256(nibbles(&b[j].qs), fifth_bits(b[j].qh)));
        plain(q, halves(each(|j| b[j].d.to_bits())))
    }
);

loader!(
    /// Unsigned 5-bit quants and a minimum.
    LoadQ5_1, BlockQ5_1, 8, { MINIMUM: bool = true; SUMS: usize = 4; },
    |b| {
        let q = each(|j| _mm256_or_si256(nibbles(&b[j].qs), fifth_bits(b[j].qh)));
        let low = plain(q, halves(each(|j| b[j].d.to_bits())));
        with_minimum(low, halves(each(|j| b[j].m.to_bits())))
    }
);

loader!(
    /// Signed bytes.
    LoadQ8_0, BlockQ8_0, 8, { SIGNED: bool = true; SUMS: usize = 1; },
    // SAFETY: 32 bytes.
    |b| plain(
        each(|j| unsafe { _mm256_loadu_si256(b[j].qs.as_ptr().cast()) }),
        halves(each(|j| b[j].d.to_bits())),
    )
);

loader!(
    /// Indices into a table of signed bytes.
    LoadIQ4_NL, BlockIQ4_NL, 8, { SIGNED: bool = true; SUMS: usize = 1; },
    |b| {
        let table = table(&IQ4_NL_VALUES);
        let q = each(|j| _mm256_shuffle_epi8(table, nibbles(&b[j].qs)));
        plain(q, halves(each(|j| b[j].d.to_bits())))
    }
);

loader!(
    /// Indices into a table of doubled E2M1 values around 16.
    LoadMXFP4, BlockMXFP4, 8, { OFFSET_BITS: i32 = 4; SUMS: usize = 4; },
    |b| {
        let table = table(&E2M1_DOUBLED_VALUES.map(|v| v + 16));
        let q = each(|j| _mm256_shuffle_epi8(table, nibbles(&b[j].qs)));
        let d: [f32; 8] = std::array::from_fn(|j| e8m0_half(b[j].e));
        // SAFETY: eight floats.
        plain(q, unsafe { _mm256_loadu_ps(d.as_ptr()) })
    }
);

loader!(
    /// 2-bit quants; a nibble each for the scale and the minimum of a half block.
    LoadQ2_K, BlockQ2_K, 1, { SCALES: Scales = Scales::Half; MINIMUM: bool = true; SUMS: usize = 4; },
    |b| {
        let b = &b[0];
        // SAFETY: 16 bytes.
        let scales = unsafe { _mm_loadu_si128(b.scales.as_ptr().cast()) };
        let mask = _mm_set1_epi8(15);
        Super {
            q: two_bits(&b.qs),
            d: _mm256_set1_ps(b.d.to_f32()),
            s: _mm256_cvtepu8_epi16(_mm_and_si128(scales, mask)),
            dm: _mm256_set1_ps(b.dmin.to_f32()),
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
        // SAFETY: 32 bytes.
        let high = unsafe { _mm256_loadu_si256(b.hmask.as_ptr().cast()) };
        for (j, q) in q.iter_mut().enumerate() {
            let bit = _mm256_set1_epi8((1u8 << j) as i8);
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit);
            *q = _mm256_or_si256(*q, _mm256_and_si256(set, _mm256_set1_epi8(4)));
        }
        let scales: [i16; 16] = unpack_scales_q3_k(&b.scales).map(i16::from);
        // SAFETY: 32 bytes.
        let s = unsafe { _mm256_loadu_si256(scales.as_ptr().cast()) };
        Super { s, ..plain(q, _mm256_set1_ps(b.d.to_f32())) }
    }
);

loader!(
    /// 4-bit quants with 6-bit scales and minimums.
    LoadQ4_K, BlockQ4_K, 1, { SCALES: Scales = Scales::Block; MINIMUM: bool = true; SUMS: usize = 8; },
    |b| {
        let b = &b[0];
        let (s, m) = k4_scales_mins(&b.scales);
        let (d, dm) = (_mm256_set1_ps(b.d.to_f32()), _mm256_set1_ps(b.dmin.to_f32()));
        Super { q: nibble_pairs(&b.qs), d, s, dm, m }
    }
);

loader!(
    /// 5-bit quants with 6-bit scales and minimums.
    LoadQ5_K, BlockQ5_K, 1, { SCALES: Scales = Scales::Block; MINIMUM: bool = true; SUMS: usize = 4; },
    |b| {
        let b = &b[0];
        let mut q = nibble_pairs(&b.qs);
        // SAFETY: 32 bytes.
        let high = unsafe { _mm256_loadu_si256(b.qh.as_ptr().cast()) };
        for (j, q) in q.iter_mut().enumerate() {
            let bit = _mm256_set1_epi8((1u8 << j) as i8);
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(high, bit), bit);
            *q = _mm256_or_si256(*q, _mm256_and_si256(set, _mm256_set1_epi8(16)));
        }
        let (s, m) = k4_scales_mins(&b.scales);
        let (d, dm) = (_mm256_set1_ps(b.d.to_f32()), _mm256_set1_ps(b.dmin.to_f32()));
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
            // SAFETY: 64 bytes of `ql` and 32 of `qh` from half a super-block's start on.
            let (a, b, high) = unsafe {
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
        // SAFETY: 16 bytes.
        let s = _mm256_cvtepi8_epi16(unsafe { _mm_loadu_si128(b.scales.as_ptr().cast()) });
        Super { s, ..plain(q, _mm256_set1_ps(b.d.to_f32())) }
    }
);

loader!(
    /// Indices into a table of signed bytes, with 6-bit scales.
    LoadIQ4_XS, BlockIQ4_XS, 1, { SIGNED: bool = true; SCALES: Scales = Scales::Block; SUMS: usize = 1; },
    |b| {
        let b = &b[0];
        let table = table(&IQ4_NL_VALUES);
        let q = each(|j| {
            // SAFETY: 16 bytes of the 128.
            let low = unsafe { _mm_loadu_si128(b.qs.as_ptr().add(16 * j).cast()) };
            _mm256_shuffle_epi8(table, split_nibbles(low))
        });
        let by_block = b.unpack_scales();
        let scales: [i16; 16] = std::array::from_fn(|i| i16::from(by_block[i / 2]));
        // SAFETY: 32 bytes.
        let s = unsafe { _mm256_loadu_si256(scales.as_ptr().cast()) };
        Super { s, ..plain(q, _mm256_set1_ps(b.d.to_f32())) }
    }
);

/// An array of eight vectors.
#[inline(always)]
fn each<T>(f: impl FnMut(usize) -> T) -> [T; 8] {
    std::array::from_fn(f)
}

/// Without scales and minimums.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn plain(q: [__m256i; 8], d: __m256) -> Super {
    Super { q, d, s: _mm256_set1_epi16(1), dm: _mm256_setzero_ps(), m: _mm256_setzero_si256() }
}

/// With a minimum that is added, as the legacy formats have it.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn with_minimum(blocks: Super, added: __m256) -> Super {
    Super { dm: _mm256_xor_ps(added, _mm256_set1_ps(-0.0)), m: _mm256_set1_epi16(1), ..blocks }
}

/// Eight half floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn halves(bits: [u16; 8]) -> __m256 {
    let [a, b, c, d, e, f, g, h] = bits.map(|v| v as i16);
    _mm256_cvtph_ps(_mm_set_epi16(h, g, f, e, d, c, b, a))
}

/// Low nibbles in the first half, high nibbles in the second.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn split_nibbles(bytes: __m128i) -> __m256i {
    let both = _mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes);
    _mm256_and_si256(both, _mm256_set1_epi8(15))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nibbles(qs: &[u8; 16]) -> __m256i {
    // SAFETY: 16 bytes.
    split_nibbles(unsafe { _mm_loadu_si128(qs.as_ptr().cast()) })
}

/// A table for `shuffle_epi8`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn table(values: &[i8; 16]) -> __m256i {
    // SAFETY: 16 bytes.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(values.as_ptr().cast()) })
}

/// 16 in the bytes whose bit is set: bit `i` for byte `i`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fifth_bits(qh: [u8; 4]) -> __m256i {
    let bits = _mm256_set1_epi32(i32::from_le_bytes(qh));
    let byte_of = _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
    // Every bit but the byte's own is set; with its own, all are.
    let others = _mm256_set1_epi64x(0x7fbf_dfef_f7fb_fdfe);
    let spread = _mm256_or_si256(_mm256_shuffle_epi8(bits, byte_of), others);
    let set = _mm256_cmpeq_epi8(spread, _mm256_set1_epi8(-1));
    _mm256_and_si256(set, _mm256_set1_epi8(16))
}

/// 128 bytes: of each 32, the low nibbles are a block and the high nibbles the next.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nibble_pairs(qs: &[u8; 128]) -> [__m256i; 8] {
    let mask = _mm256_set1_epi8(15);
    let mut q = [_mm256_setzero_si256(); 8];
    for j in 0..4 {
        // SAFETY: 32 bytes of the 128.
        let bytes = unsafe { _mm256_loadu_si256(qs.as_ptr().add(32 * j).cast()) };
        q[2 * j] = _mm256_and_si256(bytes, mask);
        q[2 * j + 1] = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask);
    }
    q
}

/// 64 bytes: of each 32, the bit pairs from the lowest on are a block each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn two_bits(qs: &[u8; 64]) -> [__m256i; 8] {
    let mask = _mm256_set1_epi8(3);
    let mut q = [_mm256_setzero_si256(); 8];
    for half in 0..2 {
        // SAFETY: 32 bytes of the 64.
        let bytes = unsafe { _mm256_loadu_si256(qs.as_ptr().add(32 * half).cast()) };
        q[4 * half] = _mm256_and_si256(bytes, mask);
        q[4 * half + 1] = _mm256_and_si256(_mm256_srli_epi16::<2>(bytes), mask);
        q[4 * half + 2] = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask);
        q[4 * half + 3] = _mm256_and_si256(_mm256_srli_epi16::<6>(bytes), mask);
    }
    q
}

/// The scales and minimums of a `Q4_K` or `Q5_K` block, each twice (for both halves of a block).
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn k4_scales_mins(packed: &[u8; 12]) -> (__m256i, __m256i) {
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
