//! Bit fields: taking apart and putting together are inverse, on every pattern of bits.

use bytemuck::{Pod, Zeroable};
use proptest::prelude::*;
use quant::*;

/// Takes a block's quants out and stores them in an empty one: the bytes that hold quants must come back. `fields` says
/// where they are.
macro_rules! quants_survive {
    ($bytes:expr, $block:ident, $get:ident, $set:ident, $($field:ident),+) => {{
        let block: $block = bytemuck::pod_read_unaligned(&$bytes[..size_of::<$block>()]);
        let mut copy = $block::zeroed();
        copy.$set(&block.$get());
        $( prop_assert_eq!(copy.$field, block.$field, "{}.{}", stringify!($block), stringify!($field)); )+
    }};
}

proptest! {
    #[test]
    fn quants_survive_storing(bytes in prop::collection::vec(any::<u8>(), 256)) {
        quants_survive!(bytes, BlockQ4_0, quants, set_quants, qs);
        quants_survive!(bytes, BlockQ4_1, quants, set_quants, qs);
        quants_survive!(bytes, BlockQ5_0, quants, set_quants, qs, qh);
        quants_survive!(bytes, BlockQ5_1, quants, set_quants, qs, qh);
        quants_survive!(bytes, BlockQ2_K, quants, set_quants, qs);
        quants_survive!(bytes, BlockQ3_K, quants, set_quants, qs, hmask);
        quants_survive!(bytes, BlockQ4_K, quants, set_quants, qs);
        quants_survive!(bytes, BlockQ5_K, quants, set_quants, qs, qh);
        quants_survive!(bytes, BlockQ6_K, quants, set_quants, ql, qh);
        quants_survive!(bytes, BlockIQ4_NL, indices, set_indices, qs);
        quants_survive!(bytes, BlockIQ4_XS, indices, set_indices, qs);
        quants_survive!(bytes, BlockMXFP4, indices, set_indices, qs);
    }

    #[test]
    fn scales_survive_packing(packed in any::<[u8; 12]>(), block in any::<[u8; 8]>()) {
        let (scales, mins) = unpack_scales_mins_k(&packed);
        prop_assert!(scales.iter().chain(&mins).all(|&s| s < 64));
        prop_assert_eq!(pack_scales_mins_k(&scales, &mins), packed);

        let scales = unpack_scales_q3_k(&packed);
        prop_assert!(scales.iter().all(|s| (-32..=31).contains(s)));
        prop_assert_eq!(pack_scales_q3_k(&scales), packed);

        let mut iq4 = BlockIQ4_XS::zeroed();
        let head = 2..8;
        bytemuck::bytes_of_mut(&mut iq4)[head].copy_from_slice(&block[2..]);
        let mut copy = BlockIQ4_XS::zeroed();
        copy.pack_scales(&iq4.unpack_scales());
        prop_assert_eq!(copy, iq4);
    }
}

/// A block with a single bit set.
fn with_bit<B: Pod>(byte: usize, bit: u32) -> B {
    let mut block = B::zeroed();
    bytemuck::bytes_of_mut(&mut block)[byte] = 1 << bit;
    block
}

#[test]
fn single_bits_belong_to_the_documented_elements() {
    // Q4_K: byte 32 of the quants is the first of the second run; its high nibble is element 64 + 32.
    assert_eq!(with_bit::<BlockQ4_K>(16 + 32, 4).quants()[96], 1);
    // Q5_K: bit 3 of byte 5 of the fifth bits is element 3 * 32 + 5.
    assert_eq!(with_bit::<BlockQ5_K>(16 + 5, 3).quants()[101], 16);
    // Q5_0: bit 9 of the word is element 9.
    assert_eq!(with_bit::<BlockQ5_0>(2 + 1, 1).quants()[9], 0);
    // Q3_K: the high bit takes the offset of 4 away.
    assert_eq!(with_bit::<BlockQ3_K>(7, 2).quants()[71], 0);
    assert_eq!(with_bit::<BlockQ3_K>(7, 2).quants()[70], -4);
    // Q6_K: bits 4 and 5 of byte 1 of the high bits are element 64 + 1.
    assert_eq!(with_bit::<BlockQ6_K>(128 + 1, 5).quants()[65], 0);
    // Scale 5 of Q4_K has its low bits in byte 9 and its high bits at the top of byte 1.
    let mut packed = [0; 12];
    packed[9] = 0x0f;
    packed[1] = 0x80;
    assert_eq!(unpack_scales_mins_k(&packed).0[5], 0x2f);
}

#[test]
fn e8m0_is_half_a_power_of_two() {
    for e in 0..=255u8 {
        assert_eq!(f64::from(e8m0_half(e)), 2f64.powi(i32::from(e) - 128), "{e}");
    }
}
