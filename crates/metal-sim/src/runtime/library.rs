//! Compiled libraries: loading them and reading their tables.

use std::ffi::{CStr, c_char};
use std::fmt;
use std::path::Path;
use std::slice;

use super::layout::{
    ABI_VERSION, KernelDescriptor, Lane, LibraryDescriptor, Runtime, SANITIZED, SimdGroup, Threadgroup,
};
use super::scheduler::RUNTIME;

/// What a parameter is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentKind {
    /// `[[buffer(slot)]]`
    Buffer,
    /// `[[threadgroup(slot)]]`
    Threadgroup,
    /// Filled in by the launch.
    Builtin,
}

/// One parameter of a kernel.
#[derive(Clone, Debug)]
pub struct Argument {
    /// The parameter's name.
    pub name: String,
    /// What it is bound to.
    pub kind: ArgumentKind,
    /// Its slot.
    pub slot: usize,
    /// Whether the kernel can only read through it.
    pub read_only: bool,
    /// Whether it is a reference, so that the whole object must be bound.
    pub reference: bool,
    /// Whether a function constant decides if it exists.
    pub optional: bool,
    /// Size of the pointed-to type in bytes.
    pub size: usize,
    /// Alignment of the pointed-to type in bytes.
    pub alignment: usize,
}

/// One kernel of a library.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Name on the host side.
    pub name: String,
    /// The entry point for one thread.
    pub run: unsafe extern "C" fn(*mut Lane),
    /// Parameters in order.
    pub arguments: Vec<Argument>,
    /// `[[max_total_threads_per_threadgroup(n)]]`, if the kernel has it.
    pub max_threads: Option<usize>,
    /// Indices of the function constants that must have a value.
    pub required_constants: Vec<u32>,
}

/// One function constant of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constant {
    /// Its name in the source.
    pub name: String,
    /// Its type as written in the source.
    pub type_name: String,
    /// Its index.
    pub index: u32,
    /// Bytes of its type.
    pub size: usize,
}

/// Why a compiled library cannot be loaded.
#[derive(Debug)]
pub enum LoadError {
    /// The dynamic linker refused.
    Link(String),
    /// It was compiled against another version of the shim.
    Abi {
        /// What the library says, and what the runtime expects.
        found: [u32; 4],
        /// What the runtime expects.
        expected: [u32; 4],
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(reason) => f.write_str(reason),
            Self::Abi { found, expected } => {
                write!(
                    f,
                    "the library's layout {found:?} is not the runtime's {expected:?}: delete the cache"
                )
            }
        }
    }
}

impl std::error::Error for LoadError {}

/// A loaded library.
pub struct Module {
    kernels: Vec<Kernel>,
    constants: Vec<Constant>,
    queue_size: usize,
    sanitized: bool,
    // Keeps the code that `kernels` points to.
    _library: libloading::Library,
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").field("kernels", &self.kernels.len()).finish_non_exhaustive()
    }
}

impl Module {
    /// Loads a compiled library.
    ///
    /// # Errors
    /// If it cannot be linked, or if it was made for another version of the runtime.
    ///
    /// # Safety
    /// The file must be one that the crate's compiler made: its code runs in this process.
    pub unsafe fn load(path: &Path) -> Result<Self, LoadError> {
        let link_error = |error: libloading::Error| LoadError::Link(format!("{}: {error}", path.display()));
        // SAFETY: the library has no initialisers of its own, as the caller vouches.
        let library = unsafe { libloading::Library::new(path) }.map_err(link_error)?;
        // SAFETY: the emitter writes this function with this signature; its table lives as long as the library
        // and consists of what `layout` describes, which the sizes confirm before anything else is read.
        unsafe {
            let attach = library
                .get::<unsafe extern "C" fn(*const Runtime) -> *const LibraryDescriptor>(
                    b"metal_sim_attach\0",
                )
                .map_err(link_error)?;
            let descriptor = &*attach(&raw const RUNTIME);
            let found = [
                descriptor.abi & !SANITIZED,
                descriptor.lane_size,
                descriptor.simdgroup_size,
                descriptor.threadgroup_size,
            ];
            let expected = [
                ABI_VERSION,
                size_of::<Lane>() as u32,
                size_of::<SimdGroup>() as u32,
                size_of::<Threadgroup>() as u32,
            ];
            if found != expected {
                return Err(LoadError::Abi { found, expected });
            }
            let kernels = slice::from_raw_parts(descriptor.kernels, descriptor.kernel_count as usize);
            let constants = slice::from_raw_parts(descriptor.constants, descriptor.constant_count as usize);
            // For each kernel a count and as many indices.
            let mut required =
                *library.get::<*const u32>(b"metal_sim_required_constants\0").map_err(link_error)?;
            let mut next = || {
                let number = *required;
                required = required.add(1);
                number
            };
            let mut with_constants = |kernel: &KernelDescriptor| {
                let count = next();
                Kernel { required_constants: (0..count).map(|_| next()).collect(), ..read_kernel(kernel) }
            };
            Ok(Self {
                kernels: kernels.iter().map(&mut with_constants).collect(),
                constants: constants
                    .iter()
                    .map(|constant| Constant {
                        name: text(constant.name),
                        type_name: text(constant.type_name),
                        index: constant.index,
                        size: constant.size as usize,
                    })
                    .collect(),
                queue_size: descriptor.queue_size as usize,
                sanitized: descriptor.abi & SANITIZED != 0,
                _library: library,
            })
        }
    }

    /// All kernels, by their names on the host side.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// The kernel of that name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    /// All function constants.
    pub fn constants(&self) -> &[Constant] {
        &self.constants
    }

    /// Whether its kernels call the sanitizer, and need it to run.
    pub fn is_sanitized(&self) -> bool {
        self.sanitized
    }

    /// Bytes of a SIMD-group's matrix queue.
    pub fn queue_size(&self) -> usize {
        self.queue_size
    }
}

unsafe fn text(pointer: *const c_char) -> String {
    // SAFETY: the emitter writes string literals.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

unsafe fn read_kernel(kernel: &KernelDescriptor) -> Kernel {
    // SAFETY: the table has as many arguments and names as it says.
    unsafe {
        let count = kernel.argument_count as usize;
        let arguments = slice::from_raw_parts(kernel.arguments, count);
        let names = slice::from_raw_parts(kernel.argument_names, count);
        let arguments = arguments.iter().zip(names).enumerate();
        Kernel {
            name: text(kernel.name),
            run: kernel.run,
            arguments: arguments
                .map(|(index, (argument, &name))| Argument {
                    name: text(name),
                    kind: match argument.kind {
                        0 => ArgumentKind::Buffer,
                        1 => ArgumentKind::Threadgroup,
                        _ => ArgumentKind::Builtin,
                    },
                    slot: argument.slot as usize,
                    read_only: argument.read_only != 0,
                    reference: argument.reference != 0,
                    optional: index < 64 && kernel.optional >> index & 1 != 0,
                    size: argument.size as usize,
                    alignment: argument.alignment as usize,
                })
                .collect(),
            max_threads: (kernel.max_threads != 0).then_some(kernel.max_threads as usize),
            required_constants: Vec::new(),
        }
    }
}
