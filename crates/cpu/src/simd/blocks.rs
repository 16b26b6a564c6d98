//! What a block of 32 weights of each quantised format means for an integer dot product.
//!
//! Every format comes down to the same form: with integer quants `q`, scales `s` and minimums `m` (one for each half
//! of the block) and two float factors, element `i` is `d * s[i / 16] * q[i] - dm * m[i / 16]`.
//! This is the scalar reference; the SIMD levels read the same numbers in the order of [`crate::pack`].

use crate::pack::Layout;
use bytemuck::AnyBitPattern;
use quant::{
    BlockIQ4_NL, BlockIQ4_XS, BlockMXFP4, BlockQ2_K, BlockQ3_K, BlockQ4_0, BlockQ4_1, BlockQ4_K, BlockQ5_0,
    BlockQ5_1, BlockQ5_K, BlockQ6_K, BlockQ8_0, E2M1_DOUBLED_VALUES, Format, IQ4_NL_VALUES, e8m0_half,
    unpack_scales_mins_k, unpack_scales_q3_k,
};

/// 32 weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Block {
    pub(crate) q: [i8; 32],
    pub(crate) s: [i32; 2],
    pub(crate) d: f32,
    pub(crate) m: [i32; 2],
    pub(crate) dm: f32,
}

/// Whether products with a format are made from integers.
pub(crate) fn is_dot_format(format: Format) -> bool {
    Layout::of(format).is_some()
}

/// What the minimums of a format belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Minimum {
    /// There are none.
    None,
    /// Blocks of 32.
    Block,
    /// Half blocks.
    Half,
}

/// The minimums of a format.
pub(crate) const fn minimum(format: Format) -> Minimum {
    use Format::*;
    match format {
        Q4_1 | Q5_1 | Q4_K | Q5_K => Minimum::Block,
        Q2_K => Minimum::Half,
        _ => Minimum::None,
    }
}

/// Calls `f` with each block of 32 weights of a row, and its index. The format is one that [`is_dot_format`] knows.
pub(crate) fn for_each_block(format: Format, row: &[u8], f: impl FnMut(usize, Block)) {
    match format {
        Format::Q4_0 => small(row, f, |b: BlockQ4_0| plain(b.quants(), b.d.to_f32())),
        Format::Q4_1 => small(row, f, |b: BlockQ4_1| with_minimum(b.quants(), b.d.to_f32(), b.m.to_f32())),
        Format::Q5_0 => small(row, f, |b: BlockQ5_0| plain(b.quants(), b.d.to_f32())),
        Format::Q5_1 => small(row, f, |b: BlockQ5_1| with_minimum(b.quants(), b.d.to_f32(), b.m.to_f32())),
        Format::Q8_0 => small(row, f, |b: BlockQ8_0| plain(b.qs, b.d.to_f32())),
        Format::IQ4_NL => small(row, f, |b: BlockIQ4_NL| {
            plain(b.indices().map(|i| IQ4_NL_VALUES[usize::from(i)]), b.d.to_f32())
        }),
        Format::MXFP4 => small(row, f, |b: BlockMXFP4| {
            plain(b.indices().map(|i| E2M1_DOUBLED_VALUES[usize::from(i)]), e8m0_half(b.e))
        }),
        Format::Q2_K => large(row, f, |b: &BlockQ2_K| {
            let scales: [i32; 16] = b.scales.map(|s| i32::from(s & 15));
            let mins: [i32; 16] = b.scales.map(|s| i32::from(s >> 4));
            Super { q: b.quants(), s: scales, d: b.d.to_f32(), m: mins, dm: b.dmin.to_f32() }
        }),
        Format::Q3_K => large(row, f, |b: &BlockQ3_K| {
            let s = unpack_scales_q3_k(&b.scales).map(i32::from);
            Super { q: b.quants(), s, d: b.d.to_f32(), m: [0; 16], dm: 0.0 }
        }),
        Format::Q4_K => large(row, f, |b: &BlockQ4_K| {
            let (scales, mins) = unpack_scales_mins_k(&b.scales);
            Super { q: b.quants(), s: twice(scales), d: b.d.to_f32(), m: twice(mins), dm: b.dmin.to_f32() }
        }),
        Format::Q5_K => large(row, f, |b: &BlockQ5_K| {
            let (scales, mins) = unpack_scales_mins_k(&b.scales);
            Super { q: b.quants(), s: twice(scales), d: b.d.to_f32(), m: twice(mins), dm: b.dmin.to_f32() }
        }),
        Format::Q6_K => large(row, f, |b: &BlockQ6_K| {
            let s = b.scales.map(i32::from);
            Super { q: b.quants(), s, d: b.d.to_f32(), m: [0; 16], dm: 0.0 }
        }),
        Format::IQ4_XS => large(row, f, |b: &BlockIQ4_XS| {
            let q = b.indices().map(|i| IQ4_NL_VALUES[usize::from(i)]);
            Super { q, s: twice(b.unpack_scales()), d: b.d.to_f32(), m: [0; 16], dm: 0.0 }
        }),
        Format::F32 | Format::F16 | Format::BF16 | Format::Q8_K => {
            unreachable!("`is_dot_format` is asked before a product is made from integers")
        }
    }
}

/// The numbers of a super-block of 256 weights, scales and minimums by 16.
struct Super {
    q: [i8; 256],
    s: [i32; 16],
    d: f32,
    m: [i32; 16],
    dm: f32,
}

fn small<T: AnyBitPattern>(row: &[u8], mut f: impl FnMut(usize, Block), block: impl Fn(T) -> Block) {
    for (b, bytes) in row.chunks_exact(size_of::<T>()).enumerate() {
        f(b, block(bytemuck::pod_read_unaligned(bytes)));
    }
}

fn large<T: AnyBitPattern>(row: &[u8], mut f: impl FnMut(usize, Block), block: impl Fn(&T) -> Super) {
    for (index, bytes) in row.chunks_exact(size_of::<T>()).enumerate() {
        let all = block(&bytemuck::pod_read_unaligned(bytes));
        for j in 0..8 {
            let q = std::array::from_fn(|i| all.q[32 * j + i]);
            let (s, m) = ([all.s[2 * j], all.s[2 * j + 1]], [all.m[2 * j], all.m[2 * j + 1]]);
            f(8 * index + j, Block { q, s, d: all.d, m, dm: all.dm });
        }
    }
}

fn plain(q: [i8; 32], d: f32) -> Block {
    Block { q, s: [1, 1], d, m: [0, 0], dm: 0.0 }
}

/// With a minimum that is added, as the legacy formats have it.
fn with_minimum(q: [i8; 32], d: f32, added: f32) -> Block {
    Block { q, s: [1, 1], d, m: [1, 1], dm: -added }
}

/// A number for each block of 32 as one for each half.
fn twice<T: Copy>(by_block: [T; 8]) -> [i32; 16]
where
    i32: From<T>,
{
    std::array::from_fn(|i| i32::from(by_block[i / 2]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::tests::random_weights;

    #[test]
    fn the_number_form_is_what_the_reference_decoder_says() {
        for format in Format::ALL.into_iter().filter(|f| is_dot_format(*f)) {
            let cols = 512;
            let row = random_weights(format, 1, cols, 1);
            let mut expected = vec![0.0f32; cols];
            quant::decode(format, &row, &mut expected).unwrap();
            let mut blocks = 0;
            for_each_block(format, &row, |b, block| {
                assert_eq!(b, blocks);
                blocks += 1;
                for i in 0..32 {
                    let h = i / 16;
                    let found = f64::from(block.d) * f64::from(block.s[h] * i32::from(block.q[i]))
                        - f64::from(block.dm) * f64::from(block.m[h]);
                    let e = f64::from(expected[32 * b + i]);
                    assert!((found - e).abs() <= 1e-5 * (e.abs() + 1e-3), "{format} {b} {i}: {found} {e}");
                }
            });
            assert_eq!(blocks, cols / 32);
        }
    }
}
