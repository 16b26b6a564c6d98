//! NVRTC: from the sources in this crate to code for one architecture, kept in a folder for the next start.

use crate::CudaError;
use crate::symbols;
use cudarc::nvrtc::sys::{self, nvrtcResult};
use libloading::Library;
use sha2::{Digest, Sha256};
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs, ptr};

/// The sources, and the headers that they include.
const SOURCES: [(&str, &str); 17] = [
    ("attention.cu", include_str!("../kernels/attention.cu")),
    ("cache.cu", include_str!("../kernels/cache.cu")),
    ("combine.cu", include_str!("../kernels/combine.cu")),
    ("decode_attention.cu", include_str!("../kernels/decode_attention.cu")),
    ("elementwise.cu", include_str!("../kernels/elementwise.cu")),
    ("experts.cu", include_str!("../kernels/experts.cu")),
    ("flash.cu", include_str!("../kernels/flash.cu")),
    ("gemm.cu", include_str!("../kernels/gemm.cu")),
    ("gemm_hopper.cu", include_str!("../kernels/gemm_hopper.cu")),
    ("halves.cu", include_str!("../kernels/halves.cu")),
    ("inputs.cu", include_str!("../kernels/inputs.cu")),
    ("largest.cu", include_str!("../kernels/largest.cu")),
    ("matvec.cu", include_str!("../kernels/matvec.cu")),
    ("norm.cu", include_str!("../kernels/norm.cu")),
    ("panels.cu", include_str!("../kernels/panels.cu")),
    ("repack.cu", include_str!("../kernels/repack.cu")),
    ("rows.cu", include_str!("../kernels/rows.cu")),
];
const HEADERS: [(&str, &str); 6] = [
    ("cache.cuh", include_str!("../kernels/cache.cuh")),
    ("common.cuh", include_str!("../kernels/common.cuh")),
    ("decode.cuh", include_str!("../kernels/decode.cuh")),
    ("hopper.cuh", include_str!("../kernels/hopper.cuh")),
    ("rank.cuh", include_str!("../kernels/rank.cuh")),
    ("tiled.cuh", include_str!("../kernels/tiled.cuh")),
];
/// The header that `quant` generates from the layouts of its blocks.
const BLOCKS: &str = "blocks.h";

/// The compiler, loaded.
pub(crate) struct Compiler {
    /// Its version.
    version: (i32, i32),
    /// Headers and sources by name.
    headers: Vec<(&'static str, String)>,
    sources: Vec<(&'static str, String)>,
}

/// Loads the libraries from a folder, so that they are found by their names from then on.
fn preload(folder: &Path) -> Result<(), CudaError> {
    let error = |message: String| CudaError::NoCompiler { message };
    let entries = fs::read_dir(folder).map_err(|e| error(format!("{}: {e}", folder.display())))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    // What the compiler loads by itself comes first, which the order of the names gives.
    files.sort();
    let named = |file: &PathBuf| {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_library = name.contains(".so") || name.ends_with(".dll");
        is_library && name.contains("nvrtc") && !name.contains(".alt.")
    };
    for file in files.iter().filter(|file| named(file)) {
        // SAFETY: NVIDIA's libraries, which do nothing when they are loaded.
        let library = unsafe { Library::new(file) };
        let library = library.map_err(|e| error(format!("{}: {e}", file.display())))?;
        // It stays loaded as long as the program runs, as the compiler's own handle does.
        std::mem::forget(library);
    }
    Ok(())
}

impl Compiler {
    /// Loads the compiler: from the folder that `SMELT_NVRTC` names, or else from where the system finds libraries. The
    /// sources are those in this program, or, for work on them, those in the folder that `SMELT_CUDA_KERNELS` names.
    pub(crate) fn load() -> Result<Compiler, CudaError> {
        static PRELOADED: OnceLock<Result<(), CudaError>> = OnceLock::new();
        if let Some(folder) = env::var_os("SMELT_NVRTC").filter(|folder| !folder.is_empty()) {
            PRELOADED.get_or_init(|| preload(Path::new(&folder))).clone()?;
        }
        // SAFETY: the library is only looked for.
        if !unsafe { sys::is_culib_present() } {
            let message = "it is part of the CUDA toolkit, and of the Python package nvidia-cuda-nvrtc, whose folder \
                           SMELT_NVRTC can name";
            return Err(CudaError::NoCompiler { message: message.into() });
        }
        if let Some(function) = symbols::missing_in_compiler() {
            let message = format!("it has no function {function}, needed is that of CUDA 12.0 or later");
            return Err(CudaError::NoCompiler { message });
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the library is there; out-pointers are valid.
        check("the compiler's version", unsafe { sys::nvrtcVersion(&mut major, &mut minor) })?;
        let folder = env::var_os("SMELT_CUDA_KERNELS").filter(|folder| !folder.is_empty()).map(PathBuf::from);
        let text = |&(name, built_in): &(&'static str, &'static str)| {
            let Some(folder) = &folder else { return Ok((name, built_in.to_owned())) };
            let file = folder.join(name);
            let failed = |e| CudaError::NoCompiler { message: format!("{}: {e}", file.display()) };
            Ok((name, fs::read_to_string(&file).map_err(failed)?))
        };
        let mut headers = HEADERS.iter().map(text).collect::<Result<Vec<_>, _>>()?;
        headers.push((BLOCKS, quant::c_header()));
        let sources = SOURCES.iter().map(text).collect::<Result<Vec<_>, _>>()?;
        Ok(Compiler { version: (major, minor), headers, sources })
    }

    /// Compiles a source with these definitions for an architecture such as `sm_90`, or takes the code from the cache.
    pub(crate) fn compile(
        &self,
        source: &str,
        definitions: &[String],
        architecture: &str,
    ) -> Result<Vec<u8>, CudaError> {
        let key = self.key(source, definitions, architecture);
        let file = cache_folder().map(|folder| folder.join(format!("{key}.cubin")));
        if let Some(code) = file.as_deref().and_then(read_cached) {
            return Ok(code);
        }
        let code = self.compile_fresh(source, definitions, architecture)?;
        if let Some(file) = file {
            // What cannot be kept is compiled again the next time.
            let _ = write_cached(&file, &code);
        }
        Ok(code)
    }

    /// A hash of all that the code depends on.
    fn key(&self, source: &str, definitions: &[String], architecture: &str) -> String {
        let mut hash = Sha256::new();
        let mut add = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        };
        for (name, text) in self.headers.iter().chain(self.sources.iter().filter(|(name, _)| *name == source))
        {
            add(name);
            add(text);
        }
        add(architecture);
        add(&format!("{}.{}", self.version.0, self.version.1));
        definitions.iter().for_each(|definition| add(definition));
        hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Compiles, whatever is in the cache.
    pub(crate) fn compile_fresh(
        &self,
        source: &str,
        definitions: &[String],
        architecture: &str,
    ) -> Result<Vec<u8>, CudaError> {
        let kernel = format!("{source} {}", definitions.join(" "));
        let failed = |log: String| CudaError::Compile { kernel: kernel.clone(), log };
        let Some((_, text)) = self.sources.iter().find(|(name, _)| *name == source) else {
            return Err(failed("no such source".into()));
        };
        let c = |text: &str| CString::new(text).map_err(|_| failed("a text with a zero".into()));
        let headers = &self.headers;
        let names = headers.iter().map(|(name, _)| c(name)).collect::<Result<Vec<_>, _>>()?;
        let texts = headers.iter().map(|(_, text)| c(text)).collect::<Result<Vec<_>, _>>()?;
        let name_pointers: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
        let text_pointers: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
        let options = [format!("--gpu-architecture={architecture}"), "--std=c++17".into(), "-w".into()];
        let definitions = definitions.iter().map(|definition| format!("-D{definition}"));
        let options =
            options.into_iter().chain(definitions).map(|option| c(&option)).collect::<Result<Vec<_>, _>>()?;
        let option_pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let (text, name) = (c(text)?, c(source)?);

        let mut program = Program(ptr::null_mut());
        // SAFETY: all texts end with a zero and live until the end; lengths are those of the lists.
        unsafe {
            check(
                "a program",
                sys::nvrtcCreateProgram(
                    &mut program.0,
                    text.as_ptr(),
                    name.as_ptr(),
                    headers.len() as i32,
                    text_pointers.as_ptr(),
                    name_pointers.as_ptr(),
                ),
            )?;
            let compiled =
                sys::nvrtcCompileProgram(program.0, option_pointers.len() as i32, option_pointers.as_ptr());
            if compiled != nvrtcResult::NVRTC_SUCCESS {
                return Err(failed(program.log()));
            }
            let mut len = 0;
            check("the size of the code", sys::nvrtcGetCUBINSize(program.0, &mut len))?;
            let mut code = vec![0u8; len];
            check("the code", sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast()))?;
            Ok(code)
        }
    }
}

struct Program(sys::nvrtcProgram);

impl Program {
    fn log(&self) -> String {
        let mut len = 0;
        // SAFETY: the program is alive, and there is room for the text that it says it has.
        unsafe {
            if sys::nvrtcGetProgramLogSize(self.0, &mut len) != nvrtcResult::NVRTC_SUCCESS {
                return "no log".into();
            }
            let mut text = vec![0u8; len.max(1)];
            if sys::nvrtcGetProgramLog(self.0, text.as_mut_ptr().cast()) != nvrtcResult::NVRTC_SUCCESS {
                return "no log".into();
            }
            let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
            text.to_string_lossy().into_owned()
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: created once, destroyed once.
            let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
        }
    }
}

fn check(what: &str, result: nvrtcResult) -> Result<(), CudaError> {
    if result == nvrtcResult::NVRTC_SUCCESS {
        Ok(())
    } else {
        Err(CudaError::Compile { kernel: what.into(), log: format!("{result:?}") })
    }
}

/// Where code is kept: `SMELT_CUDA_CACHE`, or else `smelt/cuda` in the user's cache folder. Nowhere if the variable is
/// empty.
fn cache_folder() -> Option<PathBuf> {
    if let Some(folder) = env::var_os("SMELT_CUDA_CACHE") {
        return (!folder.is_empty()).then(|| PathBuf::from(folder));
    }
    let xdg = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let base = xdg.or_else(|| env::home_dir().map(|home| home.join(".cache")))?;
    Some(base.join("smelt").join("cuda"))
}

/// The code in a file that begins with its hash; nothing if the file is not whole.
fn read_cached(file: &Path) -> Option<Vec<u8>> {
    let bytes = fs::read(file).ok()?;
    let (hash, code) = bytes.split_at_checked(32)?;
    (Sha256::digest(code).as_slice() == hash).then(|| code.to_vec())
}

/// Writes the file whole or not at all.
fn write_cached(file: &Path, code: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    // Threads of several GPUs can compile the same.
    static PARTS: AtomicU64 = AtomicU64::new(0);
    let number = PARTS.fetch_add(1, Ordering::Relaxed);
    let part = file.with_extension(format!("{}-{number}.part", std::process::id()));
    let mut bytes = Sha256::digest(code).to_vec();
    bytes.extend_from_slice(code);
    fs::write(&part, bytes)?;
    fs::rename(&part, file)
}
