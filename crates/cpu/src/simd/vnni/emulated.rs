//! The kernels over vectors whose operations are plain loops, so that processors with AVX2 alone test all but the
//! instructions.

use super::dot::{Level, dot_tile};
use super::kernel::{self, GROUP_ROWS, PANEL_ROWS};
use super::lanes::Lanes;
use crate::quantize::QuantRow;
use crate::simd::avx2::{self, unpack::Packing};
use crate::simd::{Kernels, SimdLevel};
use bytemuck::cast;
use std::arch::x86_64::{__m256, __m256i};
use std::array::from_fn;

/// Like AVX-512: panels of 16 rows. To be used only where AVX2 is available.
static WIDE: Kernels = Kernels { dot_tile: dot_tile::<Wide>, ..avx2::KERNELS };
/// Like AVX-VNNI: panels of 8 rows. To be used only where AVX2 is available.
static NARROW: Kernels = Kernels { dot_tile: dot_tile::<Narrow>, ..avx2::KERNELS };

/// The tables; none if the processor has not even AVX2.
pub(in crate::simd) fn tables() -> impl Iterator<Item = &'static Kernels> {
    [&WIDE, &NARROW].into_iter().filter(|_| SimdLevel::Avx2.is_available())
}

struct Wide;
struct Narrow;

super::level!(Wide, "avx2,fma,f16c", Emulated8, Emulated16, 8);
super::level!(Narrow, "avx2,fma,f16c", Emulated8, Emulated8, 6);

macro_rules! emulated {
    ($name:ident, $rows:literal, $int:ty, $float:ty) => {
        struct $name;

        impl Lanes for $name {
            type Int = $int;
            type Float = $float;
            const ROWS: usize = $rows;

            unsafe fn zero() -> $int {
                cast([0i32; $rows])
            }
            unsafe fn zeros() -> $float {
                cast([0.0f32; $rows])
            }
            unsafe fn load(from: *const u8) -> $int {
                assert!(from.addr().is_multiple_of(4 * $rows));
                // SAFETY: the caller's.
                unsafe { from.cast::<$int>().read_unaligned() }
            }
            unsafe fn load_floats(from: *const u8) -> $float {
                assert!(from.addr().is_multiple_of(4 * $rows));
                // SAFETY: the caller's.
                unsafe { from.cast::<$float>().read_unaligned() }
            }
            unsafe fn store(to: *mut f32, y: $float) {
                // SAFETY: the caller's.
                unsafe { to.cast::<$float>().write_unaligned(y) }
            }
            unsafe fn splat(from: *const i32) -> $int {
                // SAFETY: the caller's.
                cast([unsafe { from.read_unaligned() }; $rows])
            }
            unsafe fn splat_float(from: *const f32) -> $float {
                // SAFETY: the caller's.
                cast([unsafe { *from }; $rows])
            }
            unsafe fn splat_word(word: i16) -> $int {
                cast([[word; 2]; $rows])
            }
            unsafe fn dot(sum: $int, w: $int, x: $int) -> $int {
                let sum: [i32; $rows] = cast(sum);
                let (w, x): ([[u8; 4]; $rows], [[i8; 4]; $rows]) = (cast(w), cast(x));
                let products = |i: usize| (0..4).map(move |k| i32::from(w[i][k]) * i32::from(x[i][k]));
                cast::<[i32; $rows], $int>(from_fn(|i| sum[i] + products(i).sum::<i32>()))
            }
            unsafe fn dot_words(a: $int, b: $int) -> $int {
                let (a, b): ([[i16; 2]; $rows], [[i16; 2]; $rows]) = (cast(a), cast(b));
                let products = |i: usize| (0..2).map(move |k| i32::from(a[i][k]) * i32::from(b[i][k]));
                cast::<[i32; $rows], $int>(from_fn(|i| products(i).sum()))
            }
            unsafe fn to_floats(a: $int) -> $float {
                cast(cast::<$int, [i32; $rows]>(a).map(|a| a as f32))
            }
            unsafe fn mul(a: $float, b: $float) -> $float {
                let (a, b): ([f32; $rows], [f32; $rows]) = (cast(a), cast(b));
                cast::<[f32; $rows], $float>(from_fn(|i| a[i] * b[i]))
            }
            unsafe fn mul_add(a: $float, b: $float, c: $float) -> $float {
                let (a, b, c): ([f32; $rows], [f32; $rows], [f32; $rows]) = (cast(a), cast(b), cast(c));
                cast::<[f32; $rows], $float>(from_fn(|i| a[i].mul_add(b[i], c[i])))
            }
            unsafe fn mul_sub_from(a: $float, b: $float, c: $float) -> $float {
                let (a, b, c): ([f32; $rows], [f32; $rows], [f32; $rows]) = (cast(a), cast(b), cast(c));
                cast::<[f32; $rows], $float>(from_fn(|i| (-a[i]).mul_add(b[i], c[i])))
            }
        }
    };
}

emulated!(Emulated8, 8, __m256i, __m256);
emulated!(Emulated16, 16, [i32; 16], [f32; 16]);
