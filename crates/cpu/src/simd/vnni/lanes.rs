//! The vectors that the kernels are generic over, with a 32-bit lane for each weight row.

use std::arch::x86_64::*;

/// A vector type with dot products of bytes.
///
/// # Safety
/// All functions demand that the processor has the instructions of the type's level, and that pointers are valid for
/// what is read or written. They are always inlined, so that vectors never travel through memory.
pub(super) trait Lanes {
    /// Integer lanes.
    type Int: Copy;
    /// Float lanes.
    type Float: Copy;
    /// 32-bit lanes: weight rows.
    const ROWS: usize;

    unsafe fn zero() -> Self::Int;
    unsafe fn zeros() -> Self::Float;
    /// A vector at an aligned address.
    unsafe fn load(from: *const u8) -> Self::Int;
    /// A vector at an aligned address.
    unsafe fn load_floats(from: *const u8) -> Self::Float;
    /// To any address.
    unsafe fn store(to: *mut f32, y: Self::Float);
    /// Four bytes or two words at any address, in every lane.
    unsafe fn splat(from: *const i32) -> Self::Int;
    unsafe fn splat_float(from: *const f32) -> Self::Float;
    unsafe fn splat_word(word: i16) -> Self::Int;
    /// In each lane, `sum` and the four products of unsigned bytes of `w` with signed bytes of `x`, exactly.
    unsafe fn dot(sum: Self::Int, w: Self::Int, x: Self::Int) -> Self::Int;
    /// In each lane, the sum of the two products of words.
    unsafe fn dot_words(a: Self::Int, b: Self::Int) -> Self::Int;
    unsafe fn to_floats(a: Self::Int) -> Self::Float;
    unsafe fn mul(a: Self::Float, b: Self::Float) -> Self::Float;
    /// `a * b + c`, rounded once.
    unsafe fn mul_add(a: Self::Float, b: Self::Float, c: Self::Float) -> Self::Float;
    /// `c - a * b`, rounded once.
    unsafe fn mul_sub_from(a: Self::Float, b: Self::Float, c: Self::Float) -> Self::Float;
}

/// Implements [`Lanes`]; the last list names the intrinsics in the order of the trait's functions.
macro_rules! lanes {
    ($(#[$doc:meta])* $name:ident, $rows:literal, $int:ty, $float:ty,
     [$zero:ident, $zeros:ident, $load:ident, $load_floats:ident, $store:ident, $splat:ident, $splat_float:ident,
      $splat_word:ident, $dot:ident, $dot_words:ident, $to_floats:ident, $mul:ident, $mul_add:ident,
      $mul_sub_from:ident]) => {
        $(#[$doc])*
        pub(super) struct $name;

        // SAFETY of all the blocks: the caller has the instructions, and pointers are valid.
        impl Lanes for $name {
            type Int = $int;
            type Float = $float;
            const ROWS: usize = $rows;

            lanes! { zero() -> $int, $zero() }
            lanes! { zeros() -> $float, $zeros() }
            lanes! { load(from: *const u8) -> $int, $load(from.cast()) }
            lanes! { load_floats(from: *const u8) -> $float, $load_floats(from.cast()) }
            lanes! { store(to: *mut f32, y: $float) -> (), $store(to, y) }
            lanes! { splat(from: *const i32) -> $int, $splat(from.read_unaligned()) }
            lanes! { splat_float(from: *const f32) -> $float, $splat_float(*from) }
            lanes! { splat_word(word: i16) -> $int, $splat_word(word) }
            lanes! { dot(sum: $int, w: $int, x: $int) -> $int, $dot(sum, w, x) }
            lanes! { dot_words(a: $int, b: $int) -> $int, $dot_words(a, b) }
            lanes! { to_floats(a: $int) -> $float, $to_floats(a) }
            lanes! { mul(a: $float, b: $float) -> $float, $mul(a, b) }
            lanes! { mul_add(a: $float, b: $float, c: $float) -> $float, $mul_add(a, b, c) }
            lanes! { mul_sub_from(a: $float, b: $float, c: $float) -> $float, $mul_sub_from(a, b, c) }
        }
    };
    ($name:ident($($arg:ident: $type:ty),*) -> $result:ty, $body:expr) => {
        #[inline(always)]
        unsafe fn $name($($arg: $type),*) -> $result {
            // SAFETY: see the trait.
            unsafe { $body }
        }
    };
}

lanes!(
    /// AVX-512 with VNNI.
    Lanes16, 16, __m512i, __m512,
    [
        _mm512_setzero_si512, _mm512_setzero_ps, _mm512_load_si512, _mm512_load_ps, _mm512_storeu_ps,
        _mm512_set1_epi32, _mm512_set1_ps, _mm512_set1_epi16, _mm512_dpbusd_epi32, _mm512_madd_epi16,
        _mm512_cvtepi32_ps, _mm512_mul_ps, _mm512_fmadd_ps, _mm512_fnmadd_ps
    ]
);
lanes!(
    /// Half the width of [`Lanes16`], with the same instructions.
    Lanes8, 8, __m256i, __m256,
    [
        _mm256_setzero_si256, _mm256_setzero_ps, _mm256_load_si256, _mm256_load_ps, _mm256_storeu_ps,
        _mm256_set1_epi32, _mm256_set1_ps, _mm256_set1_epi16, _mm256_dpbusd_epi32, _mm256_madd_epi16,
        _mm256_cvtepi32_ps, _mm256_mul_ps, _mm256_fmadd_ps, _mm256_fnmadd_ps
    ]
);
lanes!(
    /// AVX2 with AVX-VNNI.
    LanesVex, 8, __m256i, __m256,
    [
        _mm256_setzero_si256, _mm256_setzero_ps, _mm256_load_si256, _mm256_load_ps, _mm256_storeu_ps,
        _mm256_set1_epi32, _mm256_set1_ps, _mm256_set1_epi16, _mm256_dpbusd_avx_epi32, _mm256_madd_epi16,
        _mm256_cvtepi32_ps, _mm256_mul_ps, _mm256_fmadd_ps, _mm256_fnmadd_ps
    ]
);
