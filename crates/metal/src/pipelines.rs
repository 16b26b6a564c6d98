//! The registry of kernels: every pipeline that the backend can launch, made when it starts.

use crate::device::{Capabilities, Device, Error, FunctionConstants, MathMode, Pipeline, Result, Size};
use crate::families::{FIXED_THREADS, SIMD_WIDTH};
use crate::library::{Compiled, Library, Sources, compile_options};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A kernel of the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PipelineId(usize);

/// Every pipeline of the backend. All are made at the start, so that a missing or misspelt kernel stops the program
/// then, and not the thousandth token.
pub struct Pipelines<D: Device> {
    pipelines: Vec<D::Pipeline>,
}

impl<D: Device> Pipelines<D> {
    /// A pipeline. Ids come from a [`Loader`] and are valid for the registry that it became.
    pub fn get(&self, id: PipelineId) -> &D::Pipeline {
        &self.pipelines[id.0]
    }

    /// The names of all kernels, in the order in which they were loaded; a kernel that was specialised several times
    /// comes up as often.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.pipelines.iter().map(|pipeline| pipeline.name())
    }

    /// Number of pipelines.
    pub fn len(&self) -> usize {
        self.pipelines.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pipelines.is_empty()
    }
}

/// Fills the registry.
pub struct Loader<'d, D: Device> {
    device: &'d D,
    math: MathMode,
    sources: Sources,
    prebuilt: Option<Arc<D::Library>>,
    embedded: Compiled,
    /// What [`Loader::compile`] compiled, by name.
    compiled: HashMap<&'static str, Arc<D::Library>>,
    pipelines: Vec<D::Pipeline>,
}

impl<'d, D: Device> Loader<'d, D> {
    /// An empty registry whose libraries are compiled with `math`, unless they ask for their own mode. A `prebuilt`
    /// library has the kernels of all of them, and nothing is compiled.
    pub fn new(
        device: &'d D,
        math: MathMode,
        sources: Sources,
        prebuilt: Option<D::Library>,
    ) -> Loader<'d, D> {
        let prebuilt = prebuilt.map(Arc::new);
        Loader {
            device,
            math,
            sources,
            prebuilt,
            embedded: &[],
            compiled: HashMap::new(),
            pipelines: Vec::new(),
        }
    }

    /// Takes libraries that were compiled ahead of time, with fast arithmetic and from the sources in this program. Where
    /// that is not what is wanted, or the device refuses one, its source is compiled.
    #[must_use]
    pub fn with_embedded(mut self, embedded: Compiled) -> Loader<'d, D> {
        if self.math == MathMode::Fast && self.sources == Sources::default() {
            self.embedded = embedded;
        }
        self
    }

    /// Compiles libraries that will be asked for, on all processors at once.
    ///
    /// # Errors
    /// Of the first, in their order, that does not compile.
    pub fn compile(&mut self, libraries: &[Library]) -> Result<()> {
        if self.prebuilt.is_some() {
            return Ok(());
        }
        let (device, math, sources, next) = (self.device, self.math, &self.sources, AtomicUsize::new(0));
        let embedded = |library: &Library| {
            let (_, data) = self.embedded.iter().find(|(name, _)| *name == library.name)?;
            // A library for a later system is refused; its source may do all the same.
            device.new_library_with_data(library.name, data).ok()
        };
        let work = || {
            let mut done = Vec::new();
            while let Some(library) = libraries.get(next.fetch_add(1, Ordering::Relaxed)) {
                let result = embedded(library).map_or_else(|| compile(device, library, sources, math), Ok);
                done.push((library.name, result));
            }
            done
        };
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(libraries.len());
        let mut results: HashMap<_, _> = std::thread::scope(|scope| {
            let others: Vec<_> = (1..workers).map(|_| scope.spawn(work)).collect();
            let mut all = work();
            for other in others {
                match other.join() {
                    Ok(done) => all.extend(done),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            all.into_iter().collect()
        });
        for library in libraries {
            if let Some(result) = results.remove(library.name) {
                self.compiled.insert(library.name, Arc::new(result?));
            }
        }
        Ok(())
    }

    /// What the device can do: kernels that it cannot compile are not to be asked for.
    pub fn capabilities(&self) -> &'d Capabilities {
        self.device.capabilities()
    }

    /// Compiles a library.
    ///
    /// # Errors
    /// [`Error::Compile`] with the compiler's text.
    pub fn library(&mut self, library: &Library) -> Result<LibraryLoader<'_, 'd, D>> {
        self.library_with(library, self.math)
    }

    /// Compiles a library in an arithmetic mode of its own: the strict variant of kernels that have one.
    ///
    /// # Errors
    /// As for [`Loader::library`].
    pub fn library_with(&mut self, library: &Library, math: MathMode) -> Result<LibraryLoader<'_, 'd, D>> {
        let known = self.compiled.get(library.name).filter(|_| math == self.math);
        let compiled = match self.prebuilt.as_ref().or(known) {
            Some(compiled) => Arc::clone(compiled),
            None => Arc::new(compile(self.device, library, &self.sources, math)?),
        };
        Ok(LibraryLoader { loader: self, compiled })
    }

    /// The filled registry.
    pub fn finish(self) -> Pipelines<D> {
        Pipelines { pipelines: self.pipelines }
    }
}

fn compile<D: Device>(
    device: &D,
    library: &Library,
    sources: &Sources,
    math: MathMode,
) -> Result<D::Library> {
    device.new_library(library.name, &library.source(sources), &compile_options(math))
}

/// Takes kernels from one library into the registry.
pub struct LibraryLoader<'l, 'd, D: Device> {
    loader: &'l mut Loader<'d, D>,
    compiled: Arc<D::Library>,
}

impl<D: Device> LibraryLoader<'_, '_, D> {
    /// A kernel without function constants.
    ///
    /// # Errors
    /// [`Error::KernelNotFound`] with the name.
    pub fn kernel(&mut self, name: &str) -> Result<PipelineId> {
        self.kernel_with(name, &FunctionConstants::new())
    }

    /// A kernel with function constants.
    ///
    /// # Errors
    /// As for [`LibraryLoader::kernel`], and [`Error::FunctionConstant`].
    pub fn kernel_with(&mut self, name: &str, constants: &FunctionConstants) -> Result<PipelineId> {
        let pipeline = self.loader.device.new_pipeline(&self.compiled, name, constants)?;
        check_threads(&pipeline)?;
        self.loader.pipelines.push(pipeline);
        Ok(PipelineId(self.loader.pipelines.len() - 1))
    }
}

/// Whether a kernel can be launched at all: how many threads it may have is known once it is compiled.
fn check_threads(pipeline: &impl Pipeline) -> Result<()> {
    let (name, limit, width) =
        (pipeline.name(), pipeline.max_threads_per_threadgroup(), pipeline.simd_width());
    if limit < FIXED_THREADS {
        let size = Size::width(FIXED_THREADS);
        return Err(Error::ThreadgroupSize { kernel: name.to_owned(), size, limit });
    }
    if width != SIMD_WIDTH {
        let found = format!("SIMD-groups of {width} threads, expected {SIMD_WIDTH}");
        return Err(Error::Device(format!("kernel '{name}': {found}")));
    }
    Ok(())
}
