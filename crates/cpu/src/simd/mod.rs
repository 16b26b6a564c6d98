//! The kernels of each SIMD level, behind one table of function pointers that is filled once at start.
//!
//! `scalar` is the reference of everything. A level's variant of a kernel gives the same bits: the integer parts of a
//! quantised dot product are exact, and every float operation happens in the same order, in the same lane.
//!
//! | file | contents |
//! |---|---|
//! | `math` | elementary functions |
//! | `float` | the float kernels, portable code that every level compiles for itself |
//! | `attention` | scores and weighted sums over the cache, the reference |
//! | `blocks` | what a block of each weight format is, for the scalar reference |
//! | `scalar` | the reference table |
//! | `avx2/` | x86-64 with AVX2, FMA and F16C |
//! | `vnni/` | x86-64 with dot products of bytes besides: AVX-VNNI, and AVX-512 with VNNI |
//! | `neon/` | aarch64: NEON, and with FEAT_DotProd and FEAT_I8MM |

pub(crate) mod attention;
pub(crate) mod blocks;
pub(crate) mod float;
pub(crate) mod math;
pub(crate) mod scalar;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod vnni;

use crate::buffers::ALIGN;
use crate::exec::Out;
use crate::pack::{Groups, Layout, rows_of_group};
use crate::quantize::{QuantMatrix, QuantRowMut};
use attention::{KvRows, Rows};
use graph::ops::{Activation, ClampedSwiGlu};
use quant::Format;
#[cfg(target_arch = "aarch64")]
use std::arch::is_aarch64_feature_detected;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// A set of CPU instructions that the kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SimdLevel {
    /// Portable code: the reference.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// The same with AVX-VNNI: dot products of bytes in 256-bit vectors.
    AvxVnni,
    /// The same as [`Avx2`](SimdLevel::Avx2) with AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
    /// Any aarch64.
    Neon,
    /// aarch64 with FEAT_DotProd: `sdot`.
    NeonDotprod,
    /// aarch64 with FEAT_DotProd and FEAT_I8MM: `smmla`.
    NeonI8mm,
}

impl SimdLevel {
    /// Every level, the best first.
    pub const ALL: [SimdLevel; 7] = [
        SimdLevel::Avx512,
        SimdLevel::AvxVnni,
        SimdLevel::Avx2,
        SimdLevel::NeonI8mm,
        SimdLevel::NeonDotprod,
        SimdLevel::Neon,
        SimdLevel::Scalar,
    ];

    /// What `SMELT_CPU` may be: the names of all levels.
    pub(crate) const NAMES: &str = "scalar, avx2, avxvnni, avx512, neon, neon-dotprod or neon-i8mm";

    /// The level's name, as in `SMELT_CPU=avx2`.
    pub const fn name(self) -> &'static str {
        match self {
            SimdLevel::Scalar => "scalar",
            SimdLevel::Avx2 => "avx2",
            SimdLevel::AvxVnni => "avxvnni",
            SimdLevel::Avx512 => "avx512",
            SimdLevel::Neon => "neon",
            SimdLevel::NeonDotprod => "neon-dotprod",
            SimdLevel::NeonI8mm => "neon-i8mm",
        }
    }

    /// Whether this processor has the instructions.
    pub fn is_available(self) -> bool {
        match self {
            SimdLevel::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            SimdLevel::AvxVnni => SimdLevel::Avx2.is_available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512 => {
                SimdLevel::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(not(target_arch = "x86_64"))]
            SimdLevel::Avx2 | SimdLevel::AvxVnni | SimdLevel::Avx512 => false,
            #[cfg(target_arch = "aarch64")]
            SimdLevel::Neon => is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            SimdLevel::NeonDotprod => {
                SimdLevel::Neon.is_available() && is_aarch64_feature_detected!("dotprod")
            }
            #[cfg(target_arch = "aarch64")]
            SimdLevel::NeonI8mm => {
                SimdLevel::NeonDotprod.is_available() && is_aarch64_feature_detected!("i8mm")
            }
            #[cfg(not(target_arch = "aarch64"))]
            SimdLevel::Neon | SimdLevel::NeonDotprod | SimdLevel::NeonI8mm => false,
        }
    }

    /// The best level of this processor.
    pub fn detect() -> SimdLevel {
        SimdLevel::ALL.into_iter().find(|level| level.is_available()).unwrap_or(SimdLevel::Scalar)
    }
}

impl fmt::Display for SimdLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for SimdLevel {
    type Err = ();

    fn from_str(name: &str) -> Result<SimdLevel, ()> {
        SimdLevel::ALL.into_iter().find(|level| level.name() == name).ok_or(())
    }
}

/// Rows of a weight matrix, the quantised activations that they meet, and where the products go.
pub(crate) struct DotTile<'a> {
    /// A block format that [`blocks::is_dot_format`] knows.
    pub(crate) format: Format,
    /// All rows of the matrix as they lie in the file, without gaps.
    pub(crate) weights: &'a [u8],
    /// The same in the order of the kernels. Without it, kernels that want that order make it, group by group.
    pub(crate) packed: Option<Groups<'a>>,
    /// Elements of a row.
    pub(crate) cols: usize,
    /// Activation rows of the same width.
    pub(crate) activations: &'a QuantMatrix,
    /// A row for each token, a column for each weight row.
    pub(crate) out: Out<'a>,
}

impl DotTile<'_> {
    /// The bytes of a row in the file.
    pub(crate) fn row(&self, row: usize) -> &[u8] {
        let bytes = self.format.row_bytes(self.cols).unwrap_or(0);
        &self.weights[row * bytes..][..bytes]
    }

    /// The packed bytes of a group, at the start of a cache line. Where weights were not packed before, it is packed
    /// into `memory`.
    ///
    /// # Safety
    /// The processor has the instructions of `pack_group`.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    unsafe fn group<'a>(
        &'a self,
        pack_group: PackGroup,
        layout: Layout,
        group: usize,
        memory: &'a mut Vec<Line>,
    ) -> &'a [u8] {
        let bytes = layout.group_bytes(self.cols / 32);
        let Some(packed) = self.packed else {
            memory.resize(bytes.div_ceil(ALIGN), Line([0; ALIGN]));
            let to = bytemuck::cast_slice_mut(memory);
            let rows = rows_of_group(self.weights, self.out.cols, group);
            // SAFETY: the caller's.
            unsafe { pack_group(self.format, layout, self.cols, rows, to) };
            return to;
        };
        let group = packed.group(group);
        assert!(group.len() >= bytes, "a group of {} bytes instead of {bytes}", group.len());
        assert!(group.as_ptr().addr().is_multiple_of(ALIGN), "a group that no cache line starts with");
        group
    }
}

/// A cache line.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; ALIGN]);

/// Scratch of one worker for [`Kernels::dot_tile`].
#[derive(Default)]
pub(crate) struct Panel {
    #[cfg(target_arch = "x86_64")]
    avx2: avx2::PanelMemory,
    #[cfg(target_arch = "x86_64")]
    vnni: vnni::PanelMemory,
    #[cfg(target_arch = "aarch64")]
    neon: neon::PanelMemory,
}

type Binary = unsafe fn(dst: *mut f32, a: *const f32, b: *const f32, n: usize);
type WithFactor = unsafe fn(dst: *mut f32, a: *const f32, factor: f32, n: usize);
/// The format, its layout, elements of a row, the rows, and where the group goes.
pub(crate) type PackGroup = unsafe fn(Format, Layout, usize, &[u8], &mut [u8]);
type Quantize = unsafe fn(x: &[f32], to: QuantRowMut<'_>);
type Rotate = unsafe fn(dst: *mut f32, x: *const f32, cos: *const f32, sin: *const f32, pairs: usize);

/// The kernels of one level. Each is described at its scalar form, in `float`, `attention` or `scalar`.
///
/// Calling any of them demands, beside what its description says, that the processor has the level's instructions;
/// [`Kernels::of`] gives the table out only then.
pub(crate) struct Kernels {
    pub(crate) level: SimdLevel,
    /// Whether `dot_tile` reads weights in the order of [`crate::pack`].
    pub(crate) packs: bool,
    pub(crate) add: Binary,
    pub(crate) mul: Binary,
    pub(crate) scale: WithFactor,
    pub(crate) soft_cap: WithFactor,
    pub(crate) activation: unsafe fn(dst: *mut f32, a: *const f32, kind: Activation, n: usize),
    pub(crate) gated: unsafe fn(dst: *mut f32, a: *const f32, b: *const f32, kind: Activation, n: usize),
    pub(crate) clamped_swiglu:
        unsafe fn(dst: *mut f32, a: *const f32, b: *const f32, n: usize, op: ClampedSwiGlu),
    pub(crate) rms_norm: unsafe fn(dst: *mut f32, x: *const f32, weight: *const f32, n: usize, epsilon: f32),
    pub(crate) softmax: WithFactor,
    pub(crate) exp_scores: unsafe fn(scores: &mut [f32]) -> (f32, f32),
    pub(crate) axpby: unsafe fn(dst: &mut [f32], dst_factor: f32, src: &[f32], src_factor: f32),
    pub(crate) rope_split: Rotate,
    pub(crate) rope_interleaved: Rotate,
    pub(crate) quantize: Quantize,
    pub(crate) dot1: unsafe fn(w: *const f32, x: [*const f32; 1], n: usize) -> [f32; 1],
    pub(crate) dot4: unsafe fn(w: *const f32, x: [*const f32; 4], n: usize) -> [f32; 4],
    pub(crate) scores: unsafe fn(scores: Rows<'_>, queries: &[f32], keys: &KvRows<'_>),
    pub(crate) weighted_sum:
        unsafe fn(sums: Rows<'_>, rows: usize, weights: &[f32], weight_stride: usize, values: &KvRows<'_>),
    pub(crate) f16_to_f32: unsafe fn(dst: &mut [f32], src: &[u8]),
    pub(crate) bf16_to_f32: unsafe fn(dst: &mut [f32], src: &[u8]),
    pub(crate) f32_to_f16: unsafe fn(dst: &mut [u8], src: &[f32]),
    pub(crate) f32_to_bf16: unsafe fn(dst: &mut [u8], src: &[f32]),
    pub(crate) pack_group: PackGroup,
    pub(crate) dot_tile:
        unsafe fn(tile: &DotTile<'_>, rows: Range<usize>, tokens: Range<usize>, panel: &mut Panel),
}

impl Kernels {
    /// The table of a level, if the processor has its instructions.
    pub(crate) fn of(level: SimdLevel) -> Option<&'static Kernels> {
        if !level.is_available() {
            return None;
        }
        match level {
            SimdLevel::Scalar => Some(&scalar::KERNELS),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2 => Some(&avx2::KERNELS),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::AvxVnni => Some(&vnni::AVX_VNNI),
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512 => Some(&vnni::AVX512),
            #[cfg(not(target_arch = "x86_64"))]
            SimdLevel::Avx2 | SimdLevel::AvxVnni | SimdLevel::Avx512 => None,
            #[cfg(target_arch = "aarch64")]
            SimdLevel::Neon => Some(&neon::NEON),
            #[cfg(target_arch = "aarch64")]
            SimdLevel::NeonDotprod => Some(&neon::DOTPROD),
            #[cfg(target_arch = "aarch64")]
            SimdLevel::NeonI8mm => Some(&neon::I8MM),
            #[cfg(not(target_arch = "aarch64"))]
            SimdLevel::Neon | SimdLevel::NeonDotprod | SimdLevel::NeonI8mm => None,
        }
    }
}

/// Bytes that weights are fetched ahead of their use where they stream: two pages. The processor's own prefetching stops
/// at the end of a page, and with one page fewer bytes were under way than memory can bring (`docs/performance.md`).
#[cfg(target_arch = "x86_64")]
pub(crate) const WEIGHTS_AHEAD: usize = 8192;

/// Fetches the cache lines of `bytes` bytes from `at` on, which may be any address: a hint.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8, bytes: usize) {
    for line in (0..bytes).step_by(64) {
        let at = at.wrapping_add(line);
        // SAFETY: nothing is read.
        #[cfg(target_arch = "x86_64")]
        #[allow(unused_unsafe, reason = "depends on the compiler's version")]
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
        }
        // SAFETY: nothing is read, and nothing changes.
        #[cfg(target_arch = "aarch64")]
        unsafe {
            std::arch::asm!(
                "prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly)
            );
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = at;
    }
}

/// Compiles bodies of `float` with the attributes in brackets, under their own names.
macro_rules! float_kernels {
    ($attributes:tt $($name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(crate::simd::float_kernels! { @one $attributes $name [$($arg: $type),*] [$(-> $result)?] ($($arg),*) })*
    };
    (@one [$($attribute:tt)*] $name:ident [$($args:tt)*] [$($result:tt)*] $pass:tt) => {
        // The safety conditions are those of the body of the same name.
        $($attribute)*
        #[allow(unused_unsafe, reason = "some bodies are safe, some are not")]
        pub(super) unsafe fn $name($($args)*) $($result)* {
            // SAFETY: the caller's.
            unsafe { crate::simd::float::$name $pass }
        }
    };
}

/// All float kernels that no level writes by hand; see [`float_kernels`].
macro_rules! all_float_kernels {
    ($attributes:tt) => {
        crate::simd::float_kernels! {
            $attributes
            add(dst: *mut f32, a: *const f32, b: *const f32, n: usize);
            mul(dst: *mut f32, a: *const f32, b: *const f32, n: usize);
            scale(dst: *mut f32, a: *const f32, factor: f32, n: usize);
            soft_cap(dst: *mut f32, a: *const f32, cap: f32, n: usize);
            clamped_swiglu(
                dst: *mut f32, a: *const f32, b: *const f32, n: usize, op: graph::ops::ClampedSwiGlu
            );
            rms_norm(dst: *mut f32, x: *const f32, weight: *const f32, n: usize, epsilon: f32);
            softmax(dst: *mut f32, x: *const f32, factor: f32, n: usize);
            axpby(dst: &mut [f32], dst_factor: f32, src: &[f32], src_factor: f32);
            rope_split(dst: *mut f32, x: *const f32, cos: *const f32, sin: *const f32, pairs: usize);
            rope_interleaved(dst: *mut f32, x: *const f32, cos: *const f32, sin: *const f32, pairs: usize);
            bf16_to_f32(dst: &mut [f32], src: &[u8]);
            f32_to_bf16(dst: &mut [u8], src: &[f32]);
        }
    };
}

pub(crate) use {all_float_kernels, float_kernels};

#[cfg(test)]
mod perf;
#[cfg(test)]
mod proptests;
#[cfg(test)]
pub(crate) mod tests;
