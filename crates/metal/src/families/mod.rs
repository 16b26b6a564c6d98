//! The kernel sources: which files make a library, what host and shader agree on, and the one text that is compiled.
//!
//! The build script compiles the same texts ahead of time where it can, so that this module uses nothing of the crate's.

pub(crate) mod args;
pub(crate) mod attention;
pub(crate) mod cache;
pub(crate) mod copy;
pub(crate) mod elementwise;
pub(crate) mod experts;
pub(crate) mod matmul;
pub(crate) mod norm;
pub(crate) mod rope;
pub(crate) mod rows;
pub(crate) mod softmax;
pub(crate) mod topk;
pub(crate) mod warmup;

use std::collections::HashMap;
use std::fmt::Write as _;

/// The libraries of all families.
pub const LIBRARIES: &[Library] = &[
    attention::DECODE,
    attention::PREFILL,
    cache::LIBRARY,
    copy::LIBRARY,
    elementwise::LIBRARY,
    experts::GEMM,
    experts::LIBRARY,
    matmul::GEMM,
    matmul::MATVEC,
    norm::LIBRARY,
    rope::LIBRARY,
    rows::LIBRARY,
    softmax::LIBRARY,
    topk::LIBRARY,
    warmup::LIBRARY,
];

/// The header of all kernels.
const COMMON: (&str, &str) = ("common.h", include_str!("../../kernels/common.h"));
/// The decoders of the block formats.
const FORMATS: (&str, &str) = ("formats.h", include_str!("../../kernels/formats.h"));

/// Threads of a SIMD-group on every Apple GPU.
pub(crate) const SIMD_WIDTH: usize = 32;
/// Most threads of a threadgroup whose geometry is fixed. Others may be smaller where a kernel's registers leave room for fewer.
pub(crate) const FIXED_THREADS: usize = 128;

/// The activations by their numbers in the shaders; 0 is none.
pub(crate) const ACTIVATION_SILU: i32 = 1;
pub(crate) const ACTIVATION_GELU: i32 = 2;
pub(crate) const ACTIVATION_SIGMOID: i32 = 3;
/// No activation alone: the gate of gpt-oss.
pub(crate) const ACTIVATION_CLAMPED: i32 = 4;

/// What every library has `#define`d for `common.h`.
const COMMON_CONSTANTS: [(&str, usize); 5] = [
    ("SIMD_WIDTH", SIMD_WIDTH),
    ("ACTIVATION_SILU", ACTIVATION_SILU as usize),
    ("ACTIVATION_GELU", ACTIVATION_GELU as usize),
    ("ACTIVATION_SIGMOID", ACTIVATION_SIGMOID as usize),
    ("ACTIVATION_CLAMPED", ACTIVATION_CLAMPED as usize),
];

/// A family of kernels: files that are compiled together. Metal's run-time compiler includes no files, so they are
/// joined here, behind the layouts of quantised blocks and the constants that host and shader share.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// The family's name, as in `norm`; also the Rust module beside the kernels.
    pub name: &'static str,
    /// Name and text of each file, headers first.
    pub files: &'static [(&'static str, &'static str)],
    /// What the host's geometry and the kernels must agree on: `#define`d in front of the files.
    pub constants: &'static [(&'static str, usize)],
}

impl Library {
    /// The text that is compiled. Diagnostics name the files and lines that a person can open.
    pub fn source(&self, sources: &Sources) -> String {
        let mut text =
            String::from("#include <metal_stdlib>\nusing namespace metal;\n#line 1 \"quant_blocks.h\"\n");
        text.push_str(&quant::c_header().replace("#pragma once\n", "\n"));
        for (name, value) in COMMON_CONSTANTS.iter().chain(self.constants) {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "#define {name} {value}");
        }
        for (name, file) in self.files {
            let _ = writeln!(text, "#line 1 \"{name}\"");
            text.push_str(sources.0.get(*name).map_or(*file, String::as_str));
            text.push('\n');
        }
        text
    }
}

/// Where the texts of kernel files come from: out of this program, but for those that it has other texts for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources(pub(crate) HashMap<String, String>);
