//! x86-64 with dot products of bytes: AVX-512 with VNNI, and AVX2 with AVX-VNNI.
//!
//! Integer dot products alone are written anew: `vpdpbusd` adds four products of unsigned and signed bytes to a 32-bit
//! lane, exactly, so that sums need no pieces and no second instruction. All other kernels are those of AVX2.

mod dot;
#[cfg(test)]
pub(super) mod emulated;
mod kernel;
mod lanes;

pub(crate) use dot::PanelMemory;

use super::avx2::{self, unpack::Packing};
use super::{Kernels, SimdLevel};
use crate::quantize::QuantRow;
use dot::{Level, dot_tile};
use kernel::{GROUP_ROWS, PANEL_ROWS};
use lanes::{Lanes, Lanes8, Lanes16, LanesVex};

/// To be used only where [`SimdLevel::Avx512`] is available.
pub(crate) static AVX512: Kernels =
    Kernels { level: SimdLevel::Avx512, dot_tile: dot_tile::<Avx512>, ..avx2::KERNELS };

/// To be used only where [`SimdLevel::AvxVnni`] is available.
pub(crate) static AVX_VNNI: Kernels =
    Kernels { level: SimdLevel::AvxVnni, dot_tile: dot_tile::<AvxVnni>, ..avx2::KERNELS };

struct Avx512;
struct AvxVnni;

/// Compiles the bodies of `kernel` with a level's instructions.
macro_rules! level {
    ($name:ident, $features:literal, $stream:ty, $panel:ty, $tokens:literal) => {
        impl Level for $name {
            const PANEL_GROUPS: usize = <$panel as Lanes>::ROWS / GROUP_ROWS;
            const TOKENS: usize = $tokens;

            #[target_feature(enable = $features)]
            unsafe fn stream<F: Packing, const T: usize>(
                group: &[u8],
                blocks: usize,
                x: QuantRow<'_>,
                y: &mut [[f32; GROUP_ROWS]; T],
            ) {
                // SAFETY: the caller's.
                unsafe { kernel::stream::<$stream, F, T>(group, blocks, x, y) }
            }

            #[target_feature(enable = $features)]
            unsafe fn unpack<F: Packing>(group: &[u8], blocks: usize, panel: *mut u8) {
                // SAFETY: the caller's.
                unsafe { kernel::unpack::<$panel, F>(group, blocks, panel) }
            }

            #[target_feature(enable = $features)]
            unsafe fn products<F: Packing, const T: usize>(
                panel: *const u8,
                blocks: usize,
                x: QuantRow<'_>,
                y: &mut [[f32; PANEL_ROWS]; T],
            ) {
                // SAFETY: the caller's.
                unsafe { kernel::products::<$panel, F, T>(panel, blocks, x, y) }
            }
        }
    };
}

#[cfg(test)]
use level;

level!(Avx512, "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni", Lanes8, Lanes16, 8);
level!(AvxVnni, "avx2,fma,f16c,avxvnni", LanesVex, LanesVex, 6);
