//! The registry of kernels: every pipeline that the backend can launch, made when it starts.

use crate::device::{Capabilities, Device, Error, FunctionConstants, MathMode, Pipeline, Result, Size};
use crate::families::{FIXED_THREADS, SIMD_WIDTH};
use crate::library::{Compiled, Library, Sources, compile_options};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

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
    asked: Vec<Asked<D>>,
}

/// A pipeline that [`Loader::finish`] is to make.
struct Asked<D: Device> {
    library: Arc<D::Library>,
    kernel: String,
    constants: FunctionConstants,
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
        Loader { device, math, sources, prebuilt, embedded: &[], compiled: HashMap::new(), asked: Vec::new() }
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
        let (device, math, sources) = (self.device, self.math, &self.sources);
        let embedded = |library: &Library| {
            let (_, data) = self.embedded.iter().find(|(name, _)| *name == library.name)?;
            // A library for a later system is refused; its source may do all the same.
            device.new_library_with_data(library.name, data).ok()
        };
        let results = on_all_processors(libraries, |library| {
            embedded(library).map_or_else(|| compile(device, library, sources, math), Ok)
        });
        for (library, result) in libraries.iter().zip(results) {
            self.compiled.insert(library.name, Arc::new(result?));
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

    /// The filled registry. The pipelines are made on all processors at once: on a Mac that sees them for the first time, each is
    /// some ten milliseconds of its compiler's work.
    ///
    /// # Errors
    /// Of the first, in the order in which they were asked for: [`Error::KernelNotFound`] with the name,
    /// [`Error::FunctionConstant`], or what makes the kernel impossible to launch.
    pub fn finish(self) -> Result<Pipelines<D>> {
        let made = on_all_processors(&self.asked, |Asked { library, kernel, constants }| {
            let pipeline = self.device.new_pipeline(library, kernel, constants)?;
            check_threads(&pipeline).map(|()| pipeline)
        });
        Ok(Pipelines { pipelines: made.into_iter().collect::<Result<_>>()? })
    }
}

/// What the work makes of each item, in their order.
fn on_all_processors<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return done };
            done.push((index, work(item)));
        }
    };
    let workers = thread::available_parallelism().map_or(1, usize::from).min(items.len());
    let mut all = thread::scope(|scope| {
        let others: Vec<_> = (1..workers).map(|_| scope.spawn(worker)).collect();
        let mut all = worker();
        for other in others {
            all.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    });
    all.sort_by_key(|&(index, _)| index);
    all.into_iter().map(|(_, result)| result).collect()
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
    /// Asks for a kernel without function constants.
    pub fn kernel(&mut self, name: &str) -> PipelineId {
        self.kernel_with(name, FunctionConstants::new())
    }

    /// Asks for a kernel with function constants.
    pub fn kernel_with(&mut self, name: &str, constants: FunctionConstants) -> PipelineId {
        let library = Arc::clone(&self.compiled);
        self.loader.asked.push(Asked { library, kernel: name.to_owned(), constants });
        PipelineId(self.loader.asked.len() - 1)
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn all_processors_work_and_results_keep_their_order() {
        let count = thread::available_parallelism().map_or(1, usize::from);
        let all = Barrier::new(count);
        let items: Vec<usize> = (0..3 * count).collect();
        // Nobody is done with the first ones before everybody is at one.
        let tripled = on_all_processors(&items, |&item| {
            if item < count {
                all.wait();
            }
            3 * item
        });
        assert_eq!(tripled, items.iter().map(|item| 3 * item).collect::<Vec<_>>());
        assert_eq!(on_all_processors(&[] as &[usize], |&item| item), []);
    }
}
