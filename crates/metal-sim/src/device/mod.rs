//! The simulator as a [`metal::device::Device`].

mod argument;
mod buffer;
mod pipeline;
mod queue;
pub mod recording;
mod residency;
mod watch;

use std::env;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use metal::device::{
    Capabilities, CompileOptions, Device, Error, FunctionConstants, Limits, ResidencySet, Result,
};

pub use argument::{constant_values, interface};
pub use buffer::SimBuffer;
pub use pipeline::{SimLibrary, SimPipeline};
pub use queue::{SimCommandBuffer, SimEncoder, SimQueue, SimSubmission, SimTarget};
pub use residency::Resident;

use self::buffer::Allocation;
use self::residency::{Count, SimResidencySet};
use crate::compile::{self, Clang, Source};
use crate::profile::Profile;
use crate::sanitize::{self, Sanitizer};

/// Most OS threads of one queue, unless `SMELT_SIM_THREADS` says otherwise.
const MOST_THREADS: usize = 16;
/// Processor time that one threadgroup may take, unless `SMELT_SIM_BUDGET_MS` says otherwise.
const BUDGET: Duration = Duration::from_secs(10);

/// How a simulated device executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// OS threads of one queue.
    pub threads: usize,
    /// Processor time that one threadgroup may take before its kernel counts as endless.
    pub budget: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self { threads: cores.min(MOST_THREADS), budget: BUDGET }
    }
}

/// A simulated Apple GPU. A clone is another handle on the same device.
#[derive(Clone)]
pub struct SimDevice {
    shared: Arc<Shared>,
}

struct Shared {
    profile: Profile,
    settings: Settings,
    clang: Clang,
    sanitizer: Option<Arc<Sanitizer>>,
    /// Bytes of all buffers that there are.
    allocated: Arc<AtomicUsize>,
    /// Command buffers that were opened outside of a scope.
    unscoped: Arc<AtomicUsize>,
    resident: Count,
}

impl SimDevice {
    /// A device with the given profile.
    ///
    /// # Errors
    /// [`compile::Error::MissingCompiler`].
    pub fn new(profile: Profile, settings: Settings) -> std::result::Result<Self, compile::Error> {
        Ok(Self::of(profile, settings, Clang::find()?, None))
    }

    fn of(profile: Profile, settings: Settings, clang: Clang, sanitizer: Option<Arc<Sanitizer>>) -> Self {
        let (allocated, unscoped, resident) = (Arc::default(), Arc::default(), Count::default());
        let shared = Shared { profile, settings, clang, sanitizer, allocated, unscoped, resident };
        Self { shared: Arc::new(shared) }
    }

    /// The device that the environment describes: `SMELT_SIM_GPU` (default: M1), `SMELT_SIM_KERNEL_THREADS`,
    /// `SMELT_SIM_THREADS`, `SMELT_SIM_BUDGET_MS`; with `SMELT_SIM_SANITIZE=1` also `SMELT_SIM_SEED`, `SMELT_SIM_STEPS`,
    /// `SMELT_SIM_REPORTS` and `SMELT_SIM_WITHOUT_BARRIER` (counted from 1).
    ///
    /// # Errors
    /// [`Error::Device`] for a value that makes no sense, or without clang.
    pub fn from_environment() -> Result<Self> {
        let mut profile = match env::var("SMELT_SIM_GPU") {
            Ok(name) => Profile::named(&name).ok_or_else(|| {
                let known: Vec<_> = Profile::names().collect();
                Error::Device(format!("SMELT_SIM_GPU={name}: expected one of {}", known.join(", ")))
            })?,
            Err(_) => Profile::default(),
        };
        let number = |name: &str| match env::var(name) {
            Ok(text) => match text.parse::<u64>() {
                Ok(number) if number > 0 => Ok(Some(number)),
                _ => Err(Error::Device(format!("{name}={text}: expected a number above 0"))),
            },
            Err(_) => Ok(None),
        };
        if let Some(threads) = number("SMELT_SIM_KERNEL_THREADS")? {
            profile.kernel_threads = usize::try_from(threads).unwrap_or(usize::MAX);
        }
        let mut settings = Settings::default();
        if let Some(threads) = number("SMELT_SIM_THREADS")? {
            settings.threads = usize::try_from(threads).unwrap_or(MOST_THREADS);
        }
        if let Some(milliseconds) = number("SMELT_SIM_BUDGET_MS")? {
            settings.budget = Duration::from_millis(milliseconds);
        }
        let device = match env::var("SMELT_SIM_SANITIZE").as_deref() {
            Err(_) | Ok("" | "0") => Self::new(profile, settings),
            Ok("1") => {
                let mut sanitizer = sanitize::Settings::default();
                if let Ok(text) = env::var("SMELT_SIM_SEED") {
                    sanitizer.seed = text
                        .parse()
                        .map_err(|_| Error::Device(format!("SMELT_SIM_SEED={text}: expected a number")))?;
                }
                if let Some(steps) = number("SMELT_SIM_STEPS")? {
                    sanitizer.steps = steps;
                }
                sanitizer.report_file = env::var_os("SMELT_SIM_REPORTS").map(Into::into);
                sanitizer.without_barrier = number("SMELT_SIM_WITHOUT_BARRIER")?.map(|barrier| barrier - 1);
                Self::with_sanitizer(profile, settings, sanitizer)
            }
            Ok(other) => {
                return Err(Error::Device(format!("SMELT_SIM_SANITIZE={other}: expected 0 or 1")));
            }
        };
        device.map_err(|error| Error::Device(error.to_string()))
    }

    /// The simulated GPU.
    pub fn profile(&self) -> &Profile {
        &self.shared.profile
    }

    /// A device that checks everything its kernels do.
    ///
    /// # Errors
    /// [`compile::Error::MissingCompiler`].
    pub fn with_sanitizer(
        profile: Profile,
        settings: Settings,
        sanitizer: sanitize::Settings,
    ) -> std::result::Result<Self, compile::Error> {
        let clang = Clang::find()?.with_sanitizer();
        Ok(Self::of(profile, settings, clang, Some(Sanitizer::new(sanitizer))))
    }

    /// What residency sets were asked for.
    pub fn resident(&self) -> Resident {
        *self.shared.resident.get()
    }

    /// How many command buffers were opened outside of a [`Device::scope`]: each would leave objects behind for ever on a Mac.
    pub fn unscoped(&self) -> usize {
        self.shared.unscoped.load(Ordering::Relaxed)
    }

    /// What the sanitizer has found, on a device that has one.
    pub fn sanitizer(&self) -> Option<&Sanitizer> {
        self.shared.sanitizer.as_deref()
    }

    /// Compiles a source that may include files.
    ///
    /// # Errors
    /// [`Error::Compile`].
    pub fn new_library_from(&self, source: Source<'_>, options: &CompileOptions) -> Result<SimLibrary> {
        let module = compile::load(&self.shared.clang, source, options)
            .map_err(|error| Error::compile(source.name, error))?;
        Ok(SimLibrary::new(source.name, module))
    }
}

impl Device for SimDevice {
    type Buffer = SimBuffer;
    type Library = SimLibrary;
    type Pipeline = SimPipeline;
    type Queue = SimQueue;

    fn name(&self) -> &str {
        self.shared.profile.name
    }

    fn limits(&self) -> &Limits {
        &self.shared.profile.limits
    }

    fn capabilities(&self) -> &Capabilities {
        &self.shared.profile.capabilities
    }

    fn new_buffer(&self, label: &str, length: usize) -> Result<SimBuffer> {
        let allocation = Allocation::new(&self.shared.allocated, length);
        SimBuffer::owned(label, length, self.limits(), allocation, self.shared.sanitizer.as_ref())
    }

    unsafe fn new_buffer_no_copy(
        &self,
        label: &str,
        memory: NonNull<u8>,
        length: usize,
    ) -> Result<SimBuffer> {
        let allocation = Allocation::new(&self.shared.allocated, length);
        let sanitizer = self.shared.sanitizer.as_ref();
        // SAFETY: the caller vouches for the range.
        unsafe { SimBuffer::foreign(label, memory, length, self.limits(), allocation, sanitizer) }
    }

    fn new_library(&self, label: &str, source: &str, options: &CompileOptions) -> Result<SimLibrary> {
        self.new_library_from(
            Source { name: label, text: source, include_directories: &[], only: None },
            options,
        )
    }

    /// Takes what [`compile::build`] made (`metal-sim build` on the command line), for this version of the simulator
    /// and this kind of processor. Its kernels run in this process, as those compiled from source do: load none that
    /// you would not run. A `.metallib` holds code for Apple's GPUs and is refused.
    fn new_library_with_data(&self, label: &str, data: &[u8]) -> Result<SimLibrary> {
        let module = compile::load_data(data).map_err(|error| Error::compile(label, error))?;
        Ok(SimLibrary::new(label, module))
    }

    fn new_pipeline(
        &self,
        library: &SimLibrary,
        name: &str,
        constants: &FunctionConstants,
    ) -> Result<SimPipeline> {
        let most = self.shared.profile.kernel_threads.min(self.limits().max_threads_per_threadgroup);
        library.pipeline(name, constants, most)
    }

    fn new_queue(&self, label: &str) -> Result<SimQueue> {
        let limits = self.shared.profile.limits.clone();
        let unscoped = Arc::clone(&self.shared.unscoped);
        SimQueue::new(label, limits, self.shared.settings, self.shared.sanitizer.clone(), unscoped)
    }

    fn new_residency_set(&self, queue: &SimQueue) -> Result<Option<Box<dyn ResidencySet<SimBuffer>>>> {
        let set = SimResidencySet::new(&queue.label, &self.shared.resident, &queue.resident)?;
        Ok(Some(Box::new(set)))
    }

    fn allocated_memory(&self) -> usize {
        self.shared.allocated.load(Ordering::Relaxed)
    }

    fn scope<T>(work: impl FnOnce() -> T) -> T {
        queue::in_scope(work)
    }
}
