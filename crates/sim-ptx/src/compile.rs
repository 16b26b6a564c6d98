//! From MSL to PTX, and the file that holds a compiled library.

use metal::device::{CompileOptions, Error, Result};
use metal_sim::compile::{self, Clang, Source, Target};
use metal_sim::runtime::Module;

/// The shim's headers for this target.
const HEADERS: [(&str, &str); 5] = [
    ("runtime.h", include_str!("../shim/runtime.h")),
    ("sanitizer.h", include_str!("../shim/sanitizer.h")),
    ("simdgroup.h", include_str!("../shim/simdgroup.h")),
    ("simdgroup_matrix.h", include_str!("../shim/simdgroup_matrix.h")),
    ("context.h", include_str!("../shim/context.h")),
];

/// The driver compiles PTX for the GPU at hand, this generation or a later one.
const FLAGS: &[&str] = &[
    "-x",
    "c++",
    "--target=nvptx64-nvidia-cuda",
    "-march=sm_80",
    "-Xclang",
    "-target-feature",
    "-Xclang",
    "+ptx78",
    "-std=c++17",
    "-O3",
    "-S",
    "-ffreestanding",
    // Barriers and shuffles stay where every thread reaches them.
    "-fconvergent-functions",
    // Members that are functions in truth: components of vectors that are computed.
    "-fdeclspec",
    "-fno-exceptions",
    "-fno-rtti",
    "-fsigned-char",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-nostdinc++",
    "-w",
    "-ferror-limit=20",
];

const TARGET: Target<'static> = Target { name: "ptx", headers: &HEADERS, flags: FLAGS, entry_point };

fn entry_point(number: usize, entry: &str) -> String {
    format!(
        "extern \"C\" __attribute__((nvptx_kernel)) void metal_kernel_{number}(metal_sim::Arguments arguments) \
         {{ {entry}::run(arguments); }}"
    )
}

/// The name of a kernel in the PTX: its place in the module's table.
pub(crate) fn symbol(number: usize) -> String {
    format!("metal_kernel_{number}")
}

/// The PTX without its other kernels: the driver compiles all that it is given.
pub(crate) fn with_one_kernel(ptx: &str, number: usize) -> String {
    let entry = |line: &str| {
        line.strip_prefix(".visible .entry ").map(|rest| rest.split('(').next() == Some(&symbol(number)))
    };
    let mut text = String::with_capacity(ptx.len());
    let mut is_wanted = true;
    for line in ptx.lines() {
        is_wanted = entry(line).unwrap_or(is_wanted);
        if is_wanted {
            text.push_str(line);
            text.push('\n');
        }
        // The end of a function; blocks within are indented.
        is_wanted |= line == "}";
    }
    text
}

/// A compiled library: what its kernels' parameters are, and their code.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub module: Module,
    pub ptx: String,
}

/// What a library's file starts with: its two parts follow, each behind its length.
const MAGIC: &[u8; 8] = b"SIMPTX1\n";

/// Compiles a source to the bytes of a library that [`Device::new_library_with_data`](metal::device::Device) takes, also
/// on a machine without clang.
///
/// # Errors
/// [`Error::Compile`].
pub fn build(clang: &Clang, source: Source<'_>, options: &CompileOptions) -> Result<Vec<u8>> {
    let failed = |error: compile::Error| Error::compile(source.name, error);
    // The simulator's library tells what parameters the kernels have; nothing of it is run.
    let tables = compile::build(clang, source, options).map_err(failed)?;
    let tables = std::fs::read(&tables).map_err(|error| {
        failed(compile::Error::Io { action: format!("reading {}", tables.display()), source: error })
    })?;
    let ptx = compile::cross_compile(clang, source, options, TARGET).map_err(failed)?;
    let mut data = MAGIC.to_vec();
    for part in [&tables[..], ptx.as_bytes()] {
        data.extend((part.len() as u64).to_le_bytes());
        data.extend(part);
    }
    Ok(data)
}

/// Takes a library's file apart.
pub(crate) fn load(label: &str, data: &[u8]) -> Result<Compiled> {
    let failed = |diagnostics: String| Error::compile(label, diagnostics);
    let rest = data
        .strip_prefix(MAGIC)
        .ok_or_else(|| failed("expected a library that sim-ptx compiled (sim-ptx build)".to_owned()))?;
    let (tables, rest) = part(rest).ok_or_else(|| failed("the library is cut off".to_owned()))?;
    let (ptx, rest) = part(rest).ok_or_else(|| failed("the library is cut off".to_owned()))?;
    if !rest.is_empty() {
        return Err(failed(format!("{} bytes behind the library's end", rest.len())));
    }
    let module = compile::load_data(tables).map_err(|error| failed(error.to_string()))?;
    let ptx = String::from_utf8(ptx.to_vec()).map_err(|error| failed(error.to_string()))?;
    Ok(Compiled { module, ptx })
}

fn part(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = data.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_library_or_is_cut_off_is_told() {
        for (data, reason) in [(&b"no library"[..], "expected a library"), (b"SIMPTX1\nx", "cut off")] {
            let error = load("w", data).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn of_the_kernels_only_the_wanted_one_stays() {
        let kernel = |number: usize| {
            format!(
                ".visible .entry metal_kernel_{number}(\n\t.param .b8 a[8]\n)\n{{\n\t{{ // callseq\n\t}} // callseq\n\tret;\n}}\n"
            )
        };
        let (head, function) = (".version 7.8\n.global .u64 g;\n", ".func f()\n{\n\tret;\n}\n");
        let ptx = [head, &kernel(1), function, &kernel(10), &kernel(2), function].concat();
        assert_eq!(with_one_kernel(&ptx, 1), [head, &kernel(1), function, function].concat());
        assert_eq!(with_one_kernel(&ptx, 10), [head, function, &kernel(10), function].concat());
    }
}
