//! aarch64: NEON, which every such processor has, and two levels with more instructions for integer products.
//!
//! Every kernel but `dot_tile` is the same at the three levels: the float kernels are the portable bodies (NEON is
//! part of the target, so the compiler vectorises them), float products, half float conversion and the inner loops of
//! attention are written with intrinsics. `dot_tile` is written once, over the products of [`products`].
//!
//! Instructions that Rust has no stable intrinsic for (half float conversion, `sdot`, `smmla`) are inline assembly of
//! one instruction each.

mod attention;
mod dot;
mod float;
mod math;
mod products;
mod unpack;

pub(crate) use dot::PanelMemory;

use super::{Kernels, SimdLevel};

macro_rules! table {
    ($name:ident, $level:ident, $dot_tile:path) => {
        #[doc = concat!("The table. To be used only where [`SimdLevel::", stringify!($level), "`] is available.")]
        pub(crate) static $name: Kernels = Kernels {
            level: SimdLevel::$level,
            packs: true,
            add: float::add,
            mul: float::mul,
            scale: float::scale,
            soft_cap: float::soft_cap,
            activation: float::activation,
            gated: float::gated,
            clamped_swiglu: float::clamped_swiglu,
            rms_norm: float::rms_norm,
            softmax: float::softmax,
            exp_scores: attention::exp_scores,
            axpby: float::axpby,
            rope_split: float::rope_split,
            rope_interleaved: float::rope_interleaved,
            quantize: float::quantize,
            dot1: float::dot1,
            dot4: float::dot4,
            scores: attention::scores,
            weighted_sum: attention::weighted_sum,
            f16_to_f32: float::f16_to_f32,
            bf16_to_f32: float::bf16_to_f32,
            f32_to_f16: float::f32_to_f16,
            f32_to_bf16: float::f32_to_bf16,
            pack_group: super::scalar::pack_group,
            dot_tile: $dot_tile,
        };
    };
}

table!(NEON, Neon, dot::neon);
table!(DOTPROD, NeonDotprod, dot::dotprod);
table!(I8MM, NeonI8mm, dot::i8mm);
