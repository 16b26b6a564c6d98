//! The GPU as a [`metal::device::Device`]: libraries and pipelines.

use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys::CUfunction;
use metal::device::{
    Capabilities, CompileOptions, Device, Error, FunctionConstants, Interface, Limits, Pipeline, Result, Size,
};
use metal_sim::compile::{Clang, Source};
use metal_sim::device::{constant_values, interface};
use metal_sim::runtime::Kernel;

use crate::buffer::PtxBuffer;
use crate::compile::{self, Compiled};
use crate::driver::{Code, Context};
use crate::libraries;
use crate::queue::PtxQueue;

/// An NVIDIA GPU that executes Metal's kernels. A clone is another handle on it.
#[derive(Clone)]
pub struct PtxDevice {
    context: Arc<Context>,
    name: Arc<str>,
    limits: Limits,
    capabilities: Capabilities,
}

impl PtxDevice {
    /// The machine's first GPU.
    ///
    /// # Errors
    /// [`Error::Device`] on a machine without a driver or a GPU.
    pub fn first() -> Result<Self> {
        let (context, name, memory) = Context::first()?;
        let limits = Limits {
            max_buffer_length: memory,
            max_threadgroup_size: Size::new(1024, 1024, 64),
            recommended_working_set: memory,
            ..Limits::default()
        };
        let capabilities = Capabilities {
            // What the shim offers is what Apple's GPUs have since this family; memory of two kinds looks like one.
            gpu_family: 7,
            simdgroup_matrix: true,
            bfloat: true,
            simd_reductions: true,
            unified_memory: true,
            gpu_cores: None,
        };
        Ok(Self { context, name: name.into(), limits, capabilities })
    }
}

impl Device for PtxDevice {
    type Buffer = PtxBuffer;
    type Library = PtxLibrary;
    type Pipeline = PtxPipeline;
    type Queue = PtxQueue;

    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn new_buffer(&self, label: &str, length: usize) -> Result<PtxBuffer> {
        PtxBuffer::owned(&self.context, label, length, &self.limits)
    }

    unsafe fn new_buffer_no_copy(
        &self,
        label: &str,
        memory: NonNull<u8>,
        length: usize,
    ) -> Result<PtxBuffer> {
        // SAFETY: the caller vouches for the range.
        unsafe { PtxBuffer::foreign(&self.context, label, memory, length, &self.limits) }
    }

    fn new_library(&self, label: &str, source: &str, options: &CompileOptions) -> Result<PtxLibrary> {
        let source = Source { name: label, text: source, include_directories: &[], only: None };
        if let Some(data) = libraries::find(source, options) {
            return self.new_library_with_data(label, &data);
        }
        let clang = Clang::find().map_err(|error| Error::Device(error.to_string()))?;
        self.new_library_with_data(label, &compile::build(&clang, source, options)?)
    }

    fn new_library_with_data(&self, label: &str, data: &[u8]) -> Result<PtxLibrary> {
        Ok(PtxLibrary { label: label.into(), compiled: Arc::new(compile::load(label, data)?) })
    }

    fn new_pipeline(
        &self,
        library: &PtxLibrary,
        name: &str,
        constants: &FunctionConstants,
    ) -> Result<PtxPipeline> {
        let module = &library.compiled.module;
        let number = module.kernels().iter().position(|kernel| kernel.name == name).ok_or_else(|| {
            Error::KernelNotFound { name: name.to_owned(), library: library.label.to_string() }
        })?;
        let kernel = &module.kernels()[number];
        let (values, defined) = constant_values(kernel, module.constants(), constants)?;
        // Function constants are variables of the module, so that each pipeline has a module of its own.
        let code = Code::new(&self.context, &compile::with_one_kernel(&library.compiled.ptx, number))?;
        let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        if !values.is_empty() {
            code.set_global("metal_sim_constants", &values)?;
            code.set_global("metal_sim_constants_defined", &defined)?;
        }
        let (function, threads) = code.function(&compile::symbol(number))?;
        let most = self.limits.max_threads_per_threadgroup.min(threads);
        Ok(PtxPipeline {
            shared: Arc::new(Specialised {
                kernel: kernel.clone(),
                interface: interface(kernel, most),
                function,
                _code: code,
                _tables: Arc::clone(&library.compiled),
            }),
        })
    }

    fn new_queue(&self, label: &str) -> Result<PtxQueue> {
        PtxQueue::new(label, &self.context, &self.limits)
    }
}

/// Compiled MSL.
#[derive(Clone)]
pub struct PtxLibrary {
    label: Arc<str>,
    compiled: Arc<Compiled>,
}

impl PtxLibrary {
    /// The names of all kernels.
    pub fn kernel_names(&self) -> impl Iterator<Item = &str> {
        self.compiled.module.kernels().iter().map(|kernel| kernel.name.as_str())
    }
}

/// One kernel with its function constants.
#[derive(Clone)]
pub struct PtxPipeline {
    pub(crate) shared: Arc<Specialised>,
}

pub(crate) struct Specialised {
    pub kernel: Kernel,
    pub interface: Interface,
    pub function: CUfunction,
    // Keep the code that `function` and the table that `kernel` point to.
    _code: Code,
    _tables: Arc<Compiled>,
}

// SAFETY: the function's handle may be used from every thread, as that of its module.
unsafe impl Send for Specialised {}
// SAFETY: as above.
unsafe impl Sync for Specialised {}

impl Pipeline for PtxPipeline {
    fn interface(&self) -> &Interface {
        &self.shared.interface
    }

    fn simd_width(&self) -> usize {
        32
    }
}
