//! The driver: device, memory, stream, modules and graphs, each freed when it is dropped.
//!
//! Every function of the driver that is called here exists since CUDA 12.0, which [`Device::open`] asks for; that they are all there
//! is seen before the first of them is called.

use crate::CudaError;
use crate::nccl::{Communicator, Exchange};
use crate::symbols;
use cudarc::driver::sys::{self, CUresult};
use std::ffi::{CStr, CString, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// The oldest driver: programmatic dependent launches and `cuLaunchKernelEx`.
const OLDEST_DRIVER: i32 = 12_000;
/// The oldest device: `cp.async`, and products of half precision on the tensor cores.
const OLDEST_DEVICE: (i32, i32) = (8, 0);

fn check(call: &'static str, result: CUresult) -> Result<(), CudaError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = ptr::null();
    // SAFETY: the driver is loaded, since a call of it returned; the text is static.
    let message = unsafe {
        let found = sys::cuGetErrorString(result, &mut text) == CUresult::CUDA_SUCCESS && !text.is_null();
        if found { CStr::from_ptr(text).to_string_lossy().into_owned() } else { format!("{result:?}") }
    };
    Err(CudaError::Driver { call, message })
}

/// Calls a function of the driver.
macro_rules! call {
    ($name:ident($($arg:expr),* $(,)?)) => {
        check(stringify!($name), sys::$name($($arg),*))
    };
}

/// A GPU with its context.
pub(crate) struct Device {
    /// Its number among those that the driver shows.
    pub(crate) ordinal: usize,
    context: sys::CUcontext,
    handle: sys::CUdevice,
    pub(crate) name: String,
    /// Streaming multiprocessors.
    pub(crate) multiprocessors: u32,
    /// Shared memory that a block can ask for.
    pub(crate) shared_memory: u32,
    /// Compute capability.
    pub(crate) capability: (i32, i32),
}

// SAFETY: contexts and devices of the driver may be used from any thread that makes them current, which `bind` does.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// GPUs that the driver shows, after a look at its version.
pub(crate) fn count() -> Result<usize, CudaError> {
    // SAFETY: the library is only looked for.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    let missing = |function| CudaError::MissingFunction { function, expected: OLDEST_DRIVER };
    if let Some(function) = symbols::missing_for_the_version() {
        return Err(missing(function));
    }
    // SAFETY: the library is there, with the functions that are called; out-pointers are valid.
    unsafe {
        let mut version = 0;
        call!(cuDriverGetVersion(&mut version))?;
        if version < OLDEST_DRIVER {
            return Err(CudaError::OldDriver { found: version, expected: OLDEST_DRIVER });
        }
        if let Some(function) = symbols::missing_in_driver() {
            return Err(missing(function));
        }
        match call!(cuInit(0)) {
            Err(CudaError::Driver { message, .. }) if message.contains("no CUDA-capable device") => {
                return Err(CudaError::NoDevice);
            }
            result => result?,
        }
        let mut count = 0;
        call!(cuDeviceGetCount(&mut count))?;
        match usize::try_from(count) {
            Ok(count) if count > 0 => Ok(count),
            _ => Err(CudaError::NoDevice),
        }
    }
}

impl Device {
    /// Opens the GPU with this number.
    pub(crate) fn open(ordinal: usize) -> Result<Arc<Device>, CudaError> {
        let count = count()?;
        let wanted = i32::try_from(ordinal).ok().filter(|_| ordinal < count);
        let wanted = wanted.ok_or(CudaError::NoSuchDevice { ordinal, count })?;
        // SAFETY: the library is there; out-pointers are valid.
        unsafe {
            let mut handle = 0;
            call!(cuDeviceGet(&mut handle, wanted))?;
            let mut name = [0; 128];
            call!(cuDeviceGetName(name.as_mut_ptr(), name.len() as i32 - 1, handle))?;
            let name = CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned();
            let attribute = |attribute| -> Result<i32, CudaError> {
                let mut value = 0;
                call!(cuDeviceGetAttribute(&mut value, attribute, handle))?;
                Ok(value)
            };
            use sys::CUdevice_attribute_enum as Attribute;
            let capability = (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            );
            if capability < OLDEST_DEVICE {
                return Err(CudaError::OldDevice { name, found: capability, expected: OLDEST_DEVICE });
            }
            let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32;
            let shared_memory =
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32;
            let mut context = ptr::null_mut();
            call!(cuDevicePrimaryCtxRetain(&mut context, handle))?;
            let device =
                Device { ordinal, context, handle, name, multiprocessors, shared_memory, capability };
            device.bind()?;
            Ok(Arc::new(device))
        }
    }

    /// Makes the context the thread's own.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is alive.
        unsafe { call!(cuCtxSetCurrent(self.context)) }
    }

    /// Bytes that are free, and all.
    pub(crate) fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: out-pointers are valid.
        unsafe { call!(cuMemGetInfo_v2(&mut free, &mut total))? };
        Ok((free, total))
    }

    /// Lets this device read the memory of another by itself, if the two are linked. Otherwise copies between them go
    /// through the host, in the driver's hands.
    pub(crate) fn link(&self, other: &Device) -> Result<(), CudaError> {
        self.bind()?;
        let mut linked = 0;
        // SAFETY: both are alive, the out-pointer is valid.
        unsafe {
            call!(cuDeviceCanAccessPeer(&mut linked, self.handle, other.handle))?;
            if linked == 0 {
                return Ok(());
            }
            match sys::cuCtxEnablePeerAccess(other.context, 0) {
                CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
                result => check("cuCtxEnablePeerAccess", result),
            }
        }
    }

    /// The architecture, as the compiler is told it.
    pub(crate) fn architecture(&self) -> String {
        format!("sm_{}{}", self.capability.0, self.capability.1)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: retained in `open`, released once.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.handle) };
    }
}

/// Memory of the device.
pub(crate) struct DeviceMemory {
    device: Arc<Device>,
    address: u64,
    len: usize,
}

impl DeviceMemory {
    /// `len` bytes, of any contents.
    pub(crate) fn new(device: &Arc<Device>, len: usize) -> Result<DeviceMemory, CudaError> {
        device.bind()?;
        let mut address = 0;
        // SAFETY: the out-pointer is valid.
        match unsafe { sys::cuMemAlloc_v2(&mut address, len.max(1)) } {
            CUresult::CUDA_SUCCESS => Ok(DeviceMemory { device: Arc::clone(device), address, len }),
            CUresult::CUDA_ERROR_OUT_OF_MEMORY | CUresult::CUDA_ERROR_INVALID_VALUE => {
                Err(CudaError::OutOfMemory { bytes: len, free: device.memory()?.0 })
            }
            other => Err(check("cuMemAlloc_v2", other).err().unwrap_or(CudaError::NoDevice)),
        }
    }

    /// The address on the device.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated in `new`, freed once. The driver waits for work that uses it.
            let _ = unsafe { sys::cuMemFree_v2(self.address) };
        }
    }
}

/// Page-locked memory of the host, which the device can read by itself.
pub(crate) struct Pinned {
    device: Arc<Device>,
    base: *mut u8,
    address: u64,
    len: usize,
}

// SAFETY: memory that this value owns alone.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(crate) fn new(device: &Arc<Device>, len: usize) -> Result<Pinned, CudaError> {
        device.bind()?;
        let mut base: *mut c_void = ptr::null_mut();
        let mut address = 0;
        // SAFETY: out-pointers are valid, and the memory has `len` bytes.
        unsafe {
            call!(cuMemHostAlloc(&mut base, len.max(1), sys::CU_MEMHOSTALLOC_DEVICEMAP))?;
            let mut pinned = Pinned { device: Arc::clone(device), base: base.cast(), address, len };
            ptr::write_bytes(pinned.base, 0, len);
            call!(cuMemHostGetDevicePointer_v2(&mut address, base, 0))?;
            pinned.address = address;
            Ok(pinned)
        }
    }

    /// The address by which the device reads it.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// The word with this number of 8 bytes, which the device may be writing.
    pub(crate) fn word(&self, index: usize) -> Option<&AtomicU64> {
        if index >= self.len / 8 {
            return None;
        }
        // SAFETY: page-locked memory begins with a page, so words are aligned; the index is inside, and what was initialised
        // in `new` is read and written as an atomic here.
        Some(unsafe { &*self.base.cast::<AtomicU64>().add(index) })
    }

    /// The bytes. Whoever writes makes sure that no copy or kernel reads them at the same time.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: valid for `len` bytes, initialised in `new`.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated in `new`, freed once.
            let _ = unsafe { sys::cuMemFreeHost(self.base.cast()) };
        }
    }
}

/// A point in the stream's work.
pub(crate) struct Event {
    device: Arc<Device>,
    handle: sys::CUevent,
}

// SAFETY: events may be used from any thread whose context is theirs.
unsafe impl Send for Event {}

impl Event {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Event, CudaError> {
        device.bind()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the out-pointer is valid.
        unsafe { call!(cuEventCreate(&mut handle, 0))? };
        Ok(Event { device: Arc::clone(device), handle })
    }

    /// Whether everything before it is done; an error if that failed.
    fn is_done(&self) -> Result<bool, CudaError> {
        // SAFETY: the event is alive.
        match unsafe { sys::cuEventQuery(self.handle) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check("cuEventQuery", result).map(|()| true),
        }
    }

    /// Waits until everything before it is done, at most this long.
    pub(crate) fn wait(&self, deadline: Duration) -> Result<(), CudaError> {
        wait(deadline, || self.is_done())
    }
}

/// A decode step takes about a millisecond, so that long the processor asks again and again; then it sleeps in between.
const SPIN: Duration = Duration::from_millis(4);
/// Looks for a result between two questions to the driver.
const LOOKS: usize = 64;

fn wait(deadline: Duration, mut is_done: impl FnMut() -> Result<bool, CudaError>) -> Result<(), CudaError> {
    let start = Instant::now();
    while !is_done()? {
        let waited = start.elapsed();
        if waited > deadline {
            return Err(CudaError::Deadline { seconds: deadline.as_secs() });
        }
        if waited > SPIN {
            std::thread::sleep(Duration::from_micros(50));
        } else {
            std::hint::spin_loop();
        }
    }
    Ok(())
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: created in `new`, destroyed once.
            let _ = unsafe { sys::cuEventDestroy_v2(self.handle) };
        }
    }
}

/// Compiled kernels.
pub(crate) struct Module {
    device: Arc<Device>,
    handle: sys::CUmodule,
}

// SAFETY: modules may be used from any thread whose context is theirs.
unsafe impl Send for Module {}

/// A kernel, alive as long as its module, which the table of kernels never drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function(sys::CUfunction);

// SAFETY: a handle.
unsafe impl Send for Function {}

impl Module {
    pub(crate) fn load(device: &Arc<Device>, image: &[u8]) -> Result<Module, CudaError> {
        device.bind()?;
        let mut handle = ptr::null_mut();
        // SAFETY: a whole image, which says its own size.
        unsafe { call!(cuModuleLoadData(&mut handle, image.as_ptr().cast()))? };
        Ok(Module { device: Arc::clone(device), handle })
    }

    /// A kernel of the module, allowed to use all of a block's shared memory.
    pub(crate) fn function(&self, name: &str) -> Result<Function, CudaError> {
        let c_name = CString::new(name).map_err(|_| CudaError::Driver {
            call: "cuModuleGetFunction",
            message: format!("a name with a zero: {name:?}"),
        })?;
        let mut handle = ptr::null_mut();
        use sys::CUfunction_attribute_enum as Attribute;
        // SAFETY: the module is alive, the name ends with a zero, the out-pointers are valid.
        unsafe {
            call!(cuModuleGetFunction(&mut handle, self.handle, c_name.as_ptr()))?;
            let mut fixed = 0;
            call!(cuFuncGetAttribute(&mut fixed, Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, handle))?;
            let most = self.device.shared_memory as i32 - fixed;
            call!(cuFuncSetAttribute(
                handle,
                Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                most
            ))?;
            // All kernels alike: blocks of two kernels can then be on a multiprocessor at the same time, and it need not
            // be empty to change between them.
            call!(cuFuncSetAttribute(
                handle,
                Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                100
            ))?;
        }
        Ok(Function(handle))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: loaded in `load`, unloaded once.
            let _ = unsafe { sys::cuModuleUnload(self.handle) };
        }
    }
}

/// A kernel with its grid and its argument, one structure.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) function: Function,
    pub(crate) grid: [u32; 3],
    pub(crate) threads: u32,
    pub(crate) shared: u32,
    /// The bytes of the structure, from the start of aligned words.
    pub(crate) argument: Box<[u64]>,
    /// Whether it begins when all before it is done. Otherwise it may begin while those before it still run, and waits for
    /// them itself before it reads what they write.
    pub(crate) alone: bool,
    /// Whether it lets the next one begin only when all before it is done.
    pub(crate) orderly: bool,
    /// The node that it is part of.
    pub(crate) label: String,
}

/// The bytes of an argument.
pub(crate) fn argument<T: Copy>(value: T) -> Box<[u64]> {
    let words = size_of::<T>().div_ceil(8);
    let mut bytes = vec![0u64; words].into_boxed_slice();
    // SAFETY: there is room for `value`. Bytes of padding may be copied: they are written here as `MaybeUninit`, and the
    // words were initialised, so what is not overwritten is zero; the driver alone reads them.
    unsafe {
        let from = ptr::from_ref(&value).cast::<MaybeUninit<u8>>();
        ptr::copy_nonoverlapping(from, bytes.as_mut_ptr().cast(), size_of::<T>());
    }
    bytes
}

/// The queue of work.
pub(crate) struct Stream {
    device: Arc<Device>,
    handle: sys::CUstream,
}

// SAFETY: streams may be used from any thread whose context is theirs.
unsafe impl Send for Stream {}

impl Stream {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Stream, CudaError> {
        device.bind()?;
        let mut handle = ptr::null_mut();
        // SAFETY: the out-pointer is valid.
        unsafe {
            call!(cuStreamCreate(&mut handle, sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32))?
        };
        Ok(Stream { device: Arc::clone(device), handle })
    }

    /// Starts a kernel behind everything before.
    pub(crate) fn launch(&self, launch: &Launch) -> Result<(), CudaError> {
        let overlaps = self.device.capability.0 >= 9 && !launch.alone;
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared,
            hStream: self.handle,
            attrs: &mut attribute,
            numAttrs: u32::from(overlaps),
        };
        let mut parameters = [launch.argument.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: the argument is the structure that the kernel takes, which whoever made the launch saw to, and is read
        // during the call; addresses in it are those of memory that outlives the work.
        unsafe {
            call!(cuLaunchKernelEx(&config, launch.function.0, parameters.as_mut_ptr(), ptr::null_mut()))
        }
    }

    /// Copies to the device, from page-locked memory that stays as it is until the copy is done.
    pub(crate) fn copy_to(&self, to: u64, from: &Pinned, offset: usize, len: usize) -> Result<(), CudaError> {
        debug_assert!(offset + len <= from.len);
        // SAFETY: the range lies in `from`; whoever calls gives an address of `len` bytes of the device.
        unsafe { call!(cuMemcpyHtoDAsync_v2(to, from.base.add(offset).cast(), len, self.handle)) }
    }

    /// Copies from the device into page-locked memory; the bytes are there when the stream is done.
    pub(crate) fn copy_from(&self, to: &mut Pinned, from: u64, len: usize) -> Result<(), CudaError> {
        debug_assert!(len <= to.len);
        // SAFETY: the range lies in `to`; whoever calls gives an address of `len` bytes of the device.
        unsafe { call!(cuMemcpyDtoHAsync_v2(to.base.cast(), from, len, self.handle)) }
    }

    /// Copies from the memory of another device. The event marks a point in the other's work that it comes after; a second
    /// one, on this stream, the point where the bytes are here.
    pub(crate) fn copy_peer(
        &self,
        to: u64,
        from: (&Device, u64),
        len: usize,
        after: &Event,
        done: &Event,
    ) -> Result<(), CudaError> {
        let (peer, address) = from;
        self.wait_for(after)?;
        // SAFETY: both contexts are alive; whoever calls gives addresses of `len` bytes of the two devices.
        unsafe {
            call!(cuMemcpyPeerAsync(to, self.device.context, address, peer.context, len, self.handle))?;
        }
        self.record(done)
    }

    /// Makes what follows on this stream wait for a point in the work of any stream.
    pub(crate) fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        self.device.bind()?;
        // SAFETY: both are alive.
        unsafe { call!(cuStreamWaitEvent(self.handle, event.handle, 0)) }
    }

    /// Fills memory of the device with zeros.
    pub(crate) fn clear(&self, address: u64, len: usize) -> Result<(), CudaError> {
        // SAFETY: whoever calls gives an address of `len` bytes of the device.
        unsafe { call!(cuMemsetD8Async(address, 0, len, self.handle)) }
    }

    /// Marks this point.
    pub(crate) fn record(&self, event: &Event) -> Result<(), CudaError> {
        // SAFETY: both are alive.
        unsafe { call!(cuEventRecord(event.handle, self.handle)) }
    }

    /// Waits for all work, at most this long.
    pub(crate) fn wait(&self, deadline: Duration) -> Result<(), CudaError> {
        wait(deadline, || self.is_done())
    }

    /// Waits until `arrived` says that the host sees the result of all work, or until the work is done or has failed, at most
    /// this long; not if `is_hopeless` says that another GPU will not do its part of an exchange. Asking the driver takes about a microsecond, looking into memory next to nothing.
    pub(crate) fn wait_or(
        &self,
        deadline: Duration,
        mut arrived: impl FnMut() -> bool,
        is_hopeless: impl Fn() -> bool,
    ) -> Result<(), CudaError> {
        wait(deadline, || {
            for _ in 0..LOOKS {
                if arrived() {
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
            let done = self.is_done()?;
            if !done && is_hopeless() { Err(CudaError::Partner) } else { Ok(done) }
        })
    }

    /// Whether all work is done; an error if it failed.
    fn is_done(&self) -> Result<bool, CudaError> {
        // SAFETY: the stream is alive.
        match unsafe { sys::cuStreamQuery(self.handle) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => check("cuStreamQuery", result).map(|()| true),
        }
    }

    /// Starts an exchange with other GPUs behind everything before.
    pub(crate) fn exchange(&self, communicator: &Communicator, exchange: &Exchange) -> Result<(), CudaError> {
        communicator.start(exchange, self.handle)
    }

    /// A graph of what is started meanwhile.
    pub(crate) fn capture(
        &self,
        start: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<CudaGraph, CudaError> {
        use sys::CUstreamCaptureMode_enum as Mode;
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is alive, out-pointers are valid, and the capture is ended whatever is captured.
        unsafe {
            call!(cuStreamBeginCapture_v2(self.handle, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))?;
            let captured = start();
            let ended = call!(cuStreamEndCapture(self.handle, &mut graph));
            captured.and(ended)?;
            let mut exec = ptr::null_mut();
            let made = call!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
            let destroyed = call!(cuGraphDestroy(graph));
            made?;
            let graph = CudaGraph { device: Arc::clone(&self.device), handle: exec };
            destroyed?;
            Ok(graph)
        }
    }

    /// Starts a graph behind everything before.
    pub(crate) fn replay(&self, graph: &CudaGraph) -> Result<(), CudaError> {
        // SAFETY: both are alive; addresses in the graph are those of memory that outlives the work.
        unsafe { call!(cuGraphLaunch(graph.handle, self.handle)) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: created in `new`, destroyed once; its work is finished by the driver.
            let _ = unsafe { sys::cuStreamDestroy_v2(self.handle) };
        }
    }
}

/// Launches that were captured and start with one call.
pub(crate) struct CudaGraph {
    device: Arc<Device>,
    handle: sys::CUgraphExec,
}

// SAFETY: graphs may be used from any thread whose context is theirs.
unsafe impl Send for CudaGraph {}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: instantiated in `capture`, destroyed once.
            let _ = unsafe { sys::cuGraphExecDestroy(self.handle) };
        }
    }
}
