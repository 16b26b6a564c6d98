//! From MSL to a loaded library: preprocess, scan, compile, cache.

mod cache;
mod clang;
mod cross;
mod shim;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use metal::device::{CompileOptions, MathMode};

pub use clang::Clang;
pub use cross::{Target, cross_compile};

use crate::runtime::{LoadError, Module};
use crate::scan::{self, Diagnostic};

/// Why a source does not become a library.
#[derive(Debug)]
pub enum Error {
    /// No usable clang was found.
    MissingCompiler {
        /// The programs that were tried.
        tried: Vec<String>,
    },
    /// The source holds something that the simulator cannot run.
    Unsupported(Vec<Diagnostic>),
    /// clang refused; its diagnostics.
    Clang(String),
    /// The kernels of the source do not fit together.
    Kernels(String),
    /// The compiled library cannot be loaded.
    Load(LoadError),
    /// The bytes are no library of the simulator; what they are instead.
    NotALibrary(&'static str),
    /// A file of the cache could not be read or written, or clang not started.
    Io {
        /// What was being done.
        action: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingCompiler { tried } => write!(
                f,
                "the simulator needs clang 17 or later, found none of {}; on Debian: apt install clang-19 \
                 libclang-rt-19-dev lld-19, or set SMELT_SIM_CLANG",
                tried.join(", ")
            ),
            Self::Unsupported(diagnostics) => {
                for (index, diagnostic) in diagnostics.iter().enumerate() {
                    write!(f, "{}{diagnostic}", if index == 0 { "" } else { "\n" })?;
                }
                Ok(())
            }
            Self::Clang(diagnostics) => f.write_str(diagnostics),
            Self::Kernels(reason) => f.write_str(reason),
            Self::Load(error) => write!(f, "{error}"),
            Self::NotALibrary(found) => {
                write!(f, "expected a library that the simulator compiled (metal-sim build), found {found}")
            }
            Self::Io { action, source } => write!(f, "{action}: {source}"),
        }
    }
}

impl std::error::Error for Error {}

/// A source text to compile.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The name that diagnostics show.
    pub name: &'a str,
    /// The MSL text.
    pub text: &'a str,
    /// Where `#include "..."` looks. Metal's own compiler has nothing of the kind at run time.
    pub include_directories: &'a [PathBuf],
    /// The one kernel that is wanted, if it is only one.
    pub only: Option<&'a str>,
}

/// Compiles a source, or finds it in the cache, and loads it.
///
/// # Errors
/// See [`Error`].
pub fn load(clang: &Clang, source: Source<'_>, options: &CompileOptions) -> Result<Module, Error> {
    let path = build(clang, source, options)?;
    // SAFETY: `build` returns libraries that `compile` made.
    unsafe { Module::load(&path) }.map_err(Error::Load)
}

/// Compiles a source into a shared object, or finds it in the cache.
///
/// # Errors
/// See [`Error`].
pub fn build(clang: &Clang, source: Source<'_>, options: &CompileOptions) -> Result<PathBuf, Error> {
    let directory = cache::directory();
    // Only the text behind the includes tells whether something changed.
    let preprocessed = if source.text.contains("#include \"") || !source.include_directories.is_empty() {
        Some(preprocess(clang, source, options)?)
    } else {
        None
    };
    let key = cache::key(&[
        preprocessed.as_deref().unwrap_or(source.text),
        source.name,
        source.only.unwrap_or(""),
        &format!("{options:?}"),
        clang.identity(),
        shim::fingerprint(),
        &CODE_GENERATION.join(" "),
        if clang.sanitizes() { SANITIZER } else { &[] }.join(" ").as_str(),
        env!("CARGO_PKG_VERSION"),
    ]);
    let library = directory.join(format!("{key}.so"));
    if library.is_file() {
        return Ok(library);
    }
    // Who asks for the same library meanwhile finds it in the cache.
    let turn = turn(&key);
    let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
    if library.is_file() {
        return Ok(library);
    }
    let preprocessed = match preprocessed {
        Some(text) => text,
        None => preprocess(clang, source, options)?,
    };
    compile(clang, &preprocessed, source.only, options, &library)?;
    Ok(library)
}

/// What this process compiles a library under.
fn turn(key: &str) -> Arc<Mutex<()>> {
    static TURNS: Mutex<BTreeMap<String, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());
    let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    turns.retain(|_, turn| Arc::strong_count(turn) > 1);
    Arc::clone(turns.entry(key.to_owned()).or_default())
}

/// Loads a compiled library from the bytes of its file.
///
/// # Errors
/// [`Error::NotALibrary`] for anything else, [`Error::Load`] for one of another version, [`Error::Io`].
pub fn load_data(data: &[u8]) -> Result<Module, Error> {
    const ELF: &[u8] = b"\x7fELF";
    const MACH_O: &[u8] = b"\xcf\xfa\xed\xfe";
    match data {
        [] => return Err(Error::NotALibrary("no bytes")),
        [b'M', b'T', b'L', b'B', ..] => return Err(Error::NotALibrary("a metallib, code for Apple's GPUs")),
        _ if !data.starts_with(ELF) && !data.starts_with(MACH_O) => {
            return Err(Error::NotALibrary("no shared object"));
        }
        _ => {}
    }
    // The dynamic linker wants a file, and finds out by its name whether it has it already.
    let path = cache::directory().join(format!("{}.so", cache::key_of_bytes(data)));
    if !path.is_file() {
        let part = cache::temporary(&path);
        let written = fs::create_dir_all(cache::directory())
            .and_then(|()| fs::write(&part, data))
            .and_then(|()| fs::rename(&part, &path));
        written.map_err(|source| Error::Io { action: format!("writing {}", path.display()), source })?;
    }
    // SAFETY: a shared object; the loader refuses one without the simulator's table or with another layout.
    unsafe { Module::load(&path) }.map_err(Error::Load)
}

/// The C++ that a source becomes.
///
/// # Errors
/// As for [`build`], without clang's second look.
pub fn translate(clang: &Clang, source: Source<'_>, options: &CompileOptions) -> Result<String, Error> {
    let text = preprocess(clang, source, options)?;
    let scanned = scan::scan(&text).map_err(Error::Unsupported)?;
    scan::translate(&text, &scanned, source.only).map_err(Error::Kernels)
}

/// The text behind the preprocessor.
pub(crate) fn preprocess(
    clang: &Clang,
    source: Source<'_>,
    options: &CompileOptions,
) -> Result<String, Error> {
    let shim = shim::install(&cache::directory())?;
    let mut arguments: Vec<String> =
        ["-E", "-x", "c++", "-std=c++17", "-fno-gnu-keywords", "-nostdinc", "-nostdinc++", "-undef"]
            .map(str::to_owned)
            .to_vec();
    arguments.push("-I".to_owned());
    arguments.push(shim.join("blank").display().to_string());
    for directory in source.include_directories {
        arguments.push("-I".to_owned());
        arguments.push(directory.display().to_string());
    }
    let version = format!("__METAL_VERSION__={}", options.version.macro_value());
    for (name, value) in [
        (version.as_str(), None),
        ("__METAL__=1", None),
        ("__METAL_MACOS__=1", None),
        ("__APPLE__=1", None),
        ("__HAVE_BFLOAT__=1", None),
    ]
    .into_iter()
    .chain(options.macros.iter().map(|(name, value)| (name.as_str(), Some(value.as_str()))))
    {
        arguments.push(match value {
            Some(value) => format!("-D{name}={value}"),
            None => format!("-D{name}"),
        });
    }
    if options.math == MathMode::Fast {
        arguments.push("-D__FAST_MATH__=1".to_owned());
    }
    arguments.push("-".to_owned());
    let name = source.name.replace(['"', '\\', '\n'], "_");
    // A byte order mark is none behind the line that names the source.
    let text = source.text.strip_prefix('\u{feff}').unwrap_or(source.text);
    clang.run(&arguments, &format!("# 1 \"{name}\"\n{text}"))
}

/// What clang says about a translation unit of [`scan::translate_for_lint`]; `None` if it has nothing against it.
pub(crate) fn check(clang: &Clang, translated: &str) -> Result<Option<String>, Error> {
    let shim = shim::install(&cache::directory())?;
    let mut arguments: Vec<String> = CHECK.iter().map(|&flag| flag.to_owned()).collect();
    arguments.extend(clang.target_flags().iter().map(|&flag| flag.to_owned()));
    arguments.extend(["-I".to_owned(), shim.display().to_string(), "-".to_owned()]);
    match clang.run(&arguments, translated) {
        Ok(_) => Ok(None),
        Err(Error::Clang(diagnostics)) => Ok(Some(diagnostics)),
        Err(error) => Err(error),
    }
}

/// Where the shim's headers are.
pub(crate) fn shim_directory() -> Result<PathBuf, Error> {
    shim::install(&cache::directory())
}

/// How clang looks at a translation unit without compiling it.
const CHECK: &[&str] = &[
    "-x",
    "c++",
    "-std=c++17",
    "-fsyntax-only",
    "-DMETAL_SIM_LINT",
    // The mode in which pointers to every address space convert to plain ones, and no others to each other.
    "-Xclang",
    "-fsycl-is-device",
    // It asks the other target of that mode for names of types.
    "-Xclang",
    "-aux-triple",
    "-Xclang",
    "x86_64-unknown-linux-gnu",
    "-fdeclspec",
    "-fno-exceptions",
    "-fno-rtti",
    "-fsigned-char",
    "-nostdinc++",
    "-w",
    "-fno-caret-diagnostics",
    "-ferror-limit=50",
];

/// How clang compiles what a source became; part of the key in the cache.
const CODE_GENERATION: &[&str] = &[
    "-x",
    "c++",
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    // Members that are functions in truth: components of vectors that are computed.
    "-fdeclspec",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fsigned-char",
    "-fno-stack-protector",
    "-gline-tables-only",
    // Cached libraries are used from other directories too.
    COMPILATION_DIRECTORY_FLAG,
    // Arrays are addressed as MSL does it; a signed index that wraps is not our business to exploit.
    "-fno-strict-aliasing",
    "-fwrapv",
    // A loop without an end is not to be optimised away.
    "-fno-finite-loops",
    "-nostdinc++",
    "-nostdlib++",
    "-w",
    "-ferror-limit=20",
    "-fuse-ld=lld",
    "-rtlib=compiler-rt",
    "-ffunction-sections",
    "-Wl,--gc-sections",
    // A function that is declared and never defined is an error here, not the end of the process when it is called.
    "-Wl,-z,defs",
    // Round after every operation on halves, as the GPU does.
    "-Xclang",
    "-ffloat16-excess-precision=none",
];

/// How clang compiles for the sanitizer: calls of ours in front of every access of memory, after optimisation, and
/// checks of alignment and of the indices of arrays. These are the compiler's own flags: its driver would link the
/// sanitizers' runtimes.
const SANITIZER: &[&str] = &[
    "-DMETAL_SIM_SANITIZE",
    "-fno-vectorize",
    // The hooks know accesses of up to 16 bytes.
    "-mllvm",
    "-slp-max-reg-size=128",
    "-Xclang",
    "-fsanitize=thread,alignment,array-bounds",
    "-Xclang",
    "-fsanitize-recover=alignment,array-bounds",
    "-fstrict-flex-arrays=1",
    // The shim tells about atomics itself.
    "-mllvm",
    "-tsan-instrument-atomics=0",
    "-mllvm",
    "-tsan-instrument-func-entry-exit=0",
    // A read before a write may be of memory that nobody wrote.
    "-mllvm",
    "-tsan-instrument-read-before-write=1",
];

/// What relative names of sources are relative to in debug information, whatever the compiler's working directory.
pub(crate) const COMPILATION_DIRECTORY: &str = "/metal-sim";
const COMPILATION_DIRECTORY_FLAG: &str = "-fdebug-compilation-dir=/metal-sim";

/// Compiles preprocessed MSL to the shared object at `library`.
fn compile(
    clang: &Clang,
    preprocessed: &str,
    only: Option<&str>,
    options: &CompileOptions,
    library: &Path,
) -> Result<(), Error> {
    let scanned = scan::scan(preprocessed).map_err(Error::Unsupported)?;
    let translated = scan::translate(preprocessed, &scanned, only).map_err(Error::Kernels)?;
    let shim = shim::install(&cache::directory())?;
    let output = cache::temporary(library);
    let mut arguments: Vec<String> = CODE_GENERATION.iter().map(|&flag| flag.to_owned()).collect();
    if clang.sanitizes() {
        arguments.extend(SANITIZER.iter().map(|&flag| flag.to_owned()));
    }
    arguments.extend(clang.target_flags().iter().map(|&flag| flag.to_owned()));
    match options.math {
        MathMode::Fast => arguments.extend(["-ffast-math", "-fno-finite-math-only"].map(str::to_owned)),
        MathMode::Safe => arguments.push("-ffp-contract=off".to_owned()),
    }
    arguments.extend([
        "-I".to_owned(),
        shim.display().to_string(),
        "-o".to_owned(),
        output.display().to_string(),
    ]);
    arguments.extend(["-".to_owned(), "-lm".to_owned()]);
    clang.run(&arguments, &translated).map_err(without_bodies)?;
    fs::rename(&output, library)
        .map_err(|source| Error::Io { action: format!("renaming {}", output.display()), source })
}

/// What the linker says of functions without a body, in the words and with the places of a compiler.
fn without_bodies(error: Error) -> Error {
    let Error::Clang(output) = error else { return error };
    let mut found = Vec::new();
    let mut lines = output.lines();
    while let Some(line) = lines.next() {
        let Some((_, function)) = line.split_once("error: undefined symbol: ") else { continue };
        let place = lines.next().and_then(|line| line.strip_prefix(">>> referenced by ")).unwrap_or_default();
        let place = place.split(" (").next().unwrap_or_default();
        found.push(format!("{place}: error: '{function}' is called and has no body"));
    }
    Error::Clang(if found.is_empty() { output } else { found.join("\n") })
}
