//! The parts of NVIDIA's driver that are used, with owners that free.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::{DriverError, result, sys};
use metal::device::{Error, Result};

/// An error of the driver as the device's.
pub(crate) fn failed(action: &str) -> impl Fn(DriverError) -> Error + '_ {
    move |error| Error::Device(format!("{action}: {error}"))
}

/// A GPU with its context.
pub(crate) struct Context {
    device: sys::CUdevice,
    raw: sys::CUcontext,
}

// SAFETY: the driver's handles may be used from every thread; each thread that does makes the context current.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the first GPU.
    pub fn first() -> Result<(Arc<Self>, String, usize)> {
        // SAFETY: only looks for the driver's library.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::Device("no NVIDIA driver on this machine".to_owned()));
        }
        result::init().map_err(failed("NVIDIA driver"))?;
        let count = result::device::get_count().map_err(failed("NVIDIA driver"))?;
        if count == 0 {
            return Err(Error::Device("no NVIDIA GPU on this machine".to_owned()));
        }
        let device = result::device::get(0).map_err(failed("GPU 0"))?;
        let name = result::device::get_name(device).map_err(failed("GPU 0"))?;
        // SAFETY: the device exists; `Drop` releases what is retained here.
        let (raw, memory) = unsafe {
            let memory = result::device::total_mem(device).map_err(failed("GPU 0"))?;
            (result::primary_ctx::retain(device).map_err(failed("GPU 0"))?, memory)
        };
        let context = Arc::new(Self { device, raw });
        context.make_current()?;
        Ok((context, name, memory))
    }

    /// Every thread calls this before it calls the driver.
    pub fn make_current(&self) -> Result<()> {
        // SAFETY: the context lives as long as `self`.
        unsafe { result::ctx::set_current(self.raw) }.map_err(failed("GPU context"))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once. A failure leaves nothing to be done.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Memory of the GPU.
pub(crate) struct DeviceMemory {
    pub address: sys::CUdeviceptr,
    context: Arc<Context>,
}

impl DeviceMemory {
    pub fn new(context: &Arc<Context>, length: usize) -> Result<Self> {
        context.make_current()?;
        // SAFETY: plain memory, freed by `Drop`.
        let address = unsafe { result::malloc_sync(length.max(1)) }.map_err(failed("GPU memory"))?;
        Ok(Self { address, context: Arc::clone(context) })
    }

    pub fn upload(&self, data: &[u8]) -> Result<()> {
        // SAFETY: callers upload no more than they allocated.
        unsafe { result::memcpy_htod_sync(self.address, data) }.map_err(failed("copy to the GPU"))
    }

    pub fn download(&self, out: &mut [u8]) -> Result<()> {
        // SAFETY: as above.
        unsafe { result::memcpy_dtoh_sync(out, self.address) }.map_err(failed("copy from the GPU"))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: allocated by `new`, and nothing in flight uses it: submissions hold their buffers.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Loaded code.
pub(crate) struct Code {
    raw: sys::CUmodule,
    context: Arc<Context>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Code {}
// SAFETY: as for `Context`.
unsafe impl Sync for Code {}

impl Code {
    /// Compiles PTX for the GPU.
    pub fn new(context: &Arc<Context>, ptx: &str) -> Result<Self> {
        context.make_current()?;
        let ptx = CString::new(ptx).map_err(|error| Error::Device(format!("PTX: {error}")))?;
        // SAFETY: text that ends with a zero, as the driver wants it.
        let raw = unsafe { result::module::load_data(ptx.as_ptr().cast()) }.map_err(failed("PTX"))?;
        Ok(Self { raw, context: Arc::clone(context) })
    }

    /// A kernel and the most threads that its registers leave room for.
    pub fn function(&self, symbol: &str) -> Result<(sys::CUfunction, usize)> {
        let name = CString::new(symbol).map_err(|error| Error::Device(format!("{symbol}: {error}")))?;
        // SAFETY: the module is loaded.
        unsafe {
            let function = result::module::get_function(self.raw, name).map_err(failed(symbol))?;
            let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
            let threads =
                result::function::get_function_attribute(function, attribute).map_err(failed(symbol))?;
            Ok((function, usize::try_from(threads).unwrap_or(0)))
        }
    }

    /// Writes to a variable of the module, if the code that uses it has not gone.
    pub fn set_global(&self, name: &str, data: &[u8]) -> Result<()> {
        let symbol = CString::new(name).map_err(|error| Error::Device(format!("{name}: {error}")))?;
        // SAFETY: the module is loaded; no more than the variable holds is written.
        unsafe {
            let Ok((address, length)) = result::module::get_global(self.raw, symbol) else { return Ok(()) };
            if data.len() > length {
                return Err(Error::Device(format!("{name}: {} bytes, it has {length}", data.len())));
            }
            result::memcpy_htod_sync(address, data).map_err(failed(name))
        }
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        if self.context.make_current().is_ok() {
            // SAFETY: submissions hold their pipelines, so that nothing of it runs any more.
            let _ = unsafe { result::module::unload(self.raw) };
        }
    }
}

/// A point in a stream's time.
struct Event(sys::CUevent);

impl Event {
    fn record(stream: sys::CUstream) -> Result<Self> {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(failed("event"))?;
        let event = Self(event);
        // SAFETY: event and stream are alive.
        unsafe { result::event::record(event.0, stream) }.map_err(failed("event"))?;
        Ok(event)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `record`.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}

/// Launches of a stream, to be handed over as a whole.
struct LaunchGraph {
    raw: sys::CUgraph,
    executable: sys::CUgraphExec,
}

impl LaunchGraph {
    fn capture(stream: &Stream, launches: impl FnOnce(&Stream) -> Result<()>) -> Result<Self> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive, and collects no other launches.
        unsafe { result::stream::begin_capture(stream.0, mode) }.map_err(failed("launch graph"))?;
        let launched = launches(stream);
        // Also after an error, which leaves the stream collecting.
        // SAFETY: begun above.
        let raw = unsafe { result::stream::end_capture(stream.0) };
        launched?;
        let raw = raw.map_err(failed("launch graph"))?;
        let mut graph = Self { raw, executable: std::ptr::null_mut() };
        // SAFETY: the graph is alive; the value is the lack of flags.
        graph.executable = unsafe { result::graph::instantiate(raw, sys::CUgraphInstantiate_flags(0)) }
            .map_err(failed("launch graph"))?;
        Ok(graph)
    }
}

impl Drop for LaunchGraph {
    fn drop(&mut self) {
        // SAFETY: made by `capture`, which leaves the second null where it fails. A failure leaves nothing to be done.
        unsafe {
            if !self.executable.is_null() {
                let _ = result::graph::exec_destroy(self.executable);
            }
            let _ = result::graph::destroy(self.raw);
        }
    }
}

/// A stream of launches. Belongs to the thread that made it.
pub(crate) struct Stream(sys::CUstream);

impl Stream {
    pub fn new() -> Result<Self> {
        Ok(Self(result::stream::create(result::stream::StreamKind::NonBlocking).map_err(failed("stream"))?))
    }

    /// Runs launches and waits for their end; returns how long the GPU took in seconds. They are collected first, so that
    /// this is the GPU's time and not the host's, which takes longer to launch a small kernel than the GPU to run it.
    pub fn timed(&self, launches: impl FnOnce(&Self) -> Result<()>) -> Result<f64> {
        let graph = LaunchGraph::capture(self, launches)?;
        // SAFETY: the graph and the stream are alive, the graph until after the synchronisation below.
        unsafe { result::graph::upload(graph.executable, self.0) }.map_err(failed("launch"))?;
        let start = Event::record(self.0)?;
        // SAFETY: as above.
        unsafe { result::graph::launch(graph.executable, self.0) }.map_err(failed("launch"))?;
        let end = Event::record(self.0)?;
        // SAFETY: the stream is alive, and both events are recorded.
        unsafe {
            result::stream::synchronize(self.0).map_err(failed("execution"))?;
            let milliseconds = result::event::elapsed(start.0, end.0).map_err(failed("event"))?;
            Ok(f64::from(milliseconds) / 1000.0)
        }
    }

    /// Starts a kernel whose one parameter is `argument`.
    ///
    /// # Safety
    /// The function takes such a parameter, and the addresses in it are good until the stream is synchronised.
    pub unsafe fn launch<T>(
        &self,
        function: sys::CUfunction,
        blocks: [u32; 3],
        threads: [u32; 3],
        shared_memory: u32,
        argument: &mut T,
    ) -> Result<()> {
        let mut parameters = [std::ptr::from_mut(argument).cast::<c_void>()];
        let (blocks, threads) = (blocks.into(), threads.into());
        // SAFETY: the caller's promise; the driver copies the parameter in the call.
        unsafe { result::launch_kernel(function, blocks, threads, shared_memory, self.0, &mut parameters) }
            .map_err(failed("launch"))
    }

    pub fn copy(&self, from: sys::CUdeviceptr, to: sys::CUdeviceptr, length: usize) -> Result<()> {
        // SAFETY: ranges of live buffers, checked when the copy was recorded.
        unsafe { result::memcpy_dtod_async(to, from, length, self.0) }.map_err(failed("copy"))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made by `new`; the context is current on the thread that owns it.
        let _ = unsafe { result::stream::destroy(self.0) };
    }
}
