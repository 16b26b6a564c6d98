//! A small harness: compile, bind, dispatch, read back.
#![allow(dead_code, reason = "every test file uses another part")]

pub mod sanitizer;

use std::time::Duration;

use metal::device::*;
use metal_sim::device::{Settings, SimBuffer, SimDevice, SimLibrary, SimQueue};
use metal_sim::profile::Profile;
use metal_sim::sanitize;

/// The simulated device. Fails with the message that names the packages to install where clang is missing.
pub fn device() -> SimDevice {
    let (profile, settings) = (Profile::default(), Settings { threads: 2, budget: Duration::from_secs(2) });
    // The tests of `sanitizer_kernels` are those of other files.
    let device = if module_path!().starts_with("sanitizer_kernels") {
        SimDevice::with_sanitizer(profile, settings, sanitize::Settings::default())
    } else {
        SimDevice::new(profile, settings)
    };
    match device {
        Ok(device) => device,
        Err(error) => panic!("these tests need clang: {error}"),
    }
}

/// A device with a library and a queue.
pub struct Lab {
    pub device: SimDevice,
    pub library: SimLibrary,
    pub queue: SimQueue,
    /// Name, text and mode of arithmetic of the library's source; empty for one without.
    pub source: (String, String, MathMode),
}

impl Lab {
    pub fn new(name: &str, source: &str) -> Self {
        Self::with_options(name, source, &CompileOptions::default())
    }

    pub fn with_options(name: &str, source: &str, options: &CompileOptions) -> Self {
        Self::on(device(), name, source, options)
    }

    /// Whether its dispatches are worth comparing: kernels under the sanitizer are often wrong on purpose.
    fn can_be_recorded(&self) -> bool {
        !self.source.1.is_empty() && self.device.sanitizer().is_none()
    }

    pub fn on(device: SimDevice, name: &str, source: &str, options: &CompileOptions) -> Self {
        let library = device.new_library(name, source, options).unwrap_or_else(|error| panic!("{error}"));
        let queue = device.new_queue("test").unwrap();
        let source = (name.to_owned(), source.to_owned(), options.math);
        Self { device, library, queue, source }
    }

    /// With a library that has no source to be recorded.
    pub fn of(device: SimDevice, library: SimLibrary, queue: SimQueue) -> Self {
        Self { device, library, queue, source: (String::new(), String::new(), MathMode::Fast) }
    }

    pub fn buffer<T: Plain>(&self, values: &[T]) -> SimBuffer {
        let buffer = self.device.new_buffer("data", size_of_val(values)).unwrap();
        buffer.write(0, bytes_of(values)).unwrap();
        buffer
    }

    /// Starts a dispatch of the kernel.
    pub fn launch(&self, kernel: &str) -> Launch<'_> {
        Launch {
            lab: self,
            kernel: kernel.to_owned(),
            buffers: Vec::new(),
            bytes: Vec::new(),
            threadgroup: Vec::new(),
            constants: FunctionConstants::new(),
        }
    }
}

/// One dispatch in the making.
pub struct Launch<'a> {
    lab: &'a Lab,
    kernel: String,
    buffers: Vec<(usize, SimBuffer, usize)>,
    bytes: Vec<(usize, Vec<u8>)>,
    threadgroup: Vec<(usize, usize)>,
    constants: FunctionConstants,
}

impl Launch<'_> {
    pub fn buffer(self, slot: usize, buffer: &SimBuffer) -> Self {
        self.buffer_at(slot, buffer, 0)
    }

    pub fn buffer_at(mut self, slot: usize, buffer: &SimBuffer, offset: usize) -> Self {
        self.buffers.push((slot, buffer.clone(), offset));
        self
    }

    pub fn bytes<T: Plain>(mut self, slot: usize, values: &[T]) -> Self {
        self.bytes.push((slot, bytes_of(values).to_vec()));
        self
    }

    pub fn threadgroup(mut self, slot: usize, length: usize) -> Self {
        self.threadgroup.push((slot, length));
        self
    }

    pub fn constant(mut self, index: u32, value: ConstantValue) -> Self {
        self.constants = self.constants.set(index, value);
        self
    }

    pub fn threadgroups(self, threadgroups: Size, threads: Size) -> Result<GpuInterval> {
        self.dispatch(threadgroups, threads, false)
    }

    pub fn threads(self, grid: Size, threads: Size) -> Result<GpuInterval> {
        self.dispatch(grid, threads, true)
    }

    fn dispatch(self, grid: Size, threads: Size, exact: bool) -> Result<GpuInterval> {
        let pipeline = self.lab.device.new_pipeline(&self.lab.library, &self.kernel, &self.constants)?;
        let mut command_buffer = self.lab.queue.new_command_buffer("test buffer")?;
        {
            let mut encoder = command_buffer.compute_encoder("test", DispatchMode::Serial);
            encoder.set_pipeline(&pipeline);
            for (slot, buffer, offset) in &self.buffers {
                encoder.set_buffer(*slot, buffer, *offset)?;
            }
            for (slot, bytes) in &self.bytes {
                encoder.set_bytes(*slot, bytes)?;
            }
            for (slot, length) in &self.threadgroup {
                encoder.set_threadgroup_memory(*slot, *length)?;
            }
            if exact {
                encoder.dispatch_threads(grid, threads)?;
            } else {
                encoder.dispatch_threadgroups(grid, threads)?;
            }
        }
        let before: Vec<Vec<u8>> = self.buffers.iter().map(|(_, buffer, _)| read(buffer)).collect();
        let interval = command_buffer.commit()?.wait(Duration::from_secs(120))?;
        if let Some(directory) = std::env::var_os("SMELT_SIM_RECORD").filter(|_| self.lab.can_be_recorded()) {
            self.record(directory.as_ref(), &before, (grid, threads, exact));
        }
        Ok(interval)
    }

    /// Writes the dispatch to the directory that `SMELT_SIM_RECORD` names, for another executor to be compared.
    fn record(&self, directory: &std::path::Path, before: &[Vec<u8>], launch: (Size, Size, bool)) {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (label, source, math) = self.lab.source.clone();
        let name =
            format!("{}-{}-{}-{number}.case", label.replace('/', "_"), self.kernel, std::process::id());
        let buffers = self.buffers.iter().zip(before);
        let dispatch = metal_sim::record::Dispatch {
            label,
            source,
            safe_math: math == MathMode::Safe,
            kernel: self.kernel.clone(),
            constants: self.constants.clone(),
            buffers: buffers
                .map(|((slot, buffer, offset), before)| (*slot, *offset, before.clone(), read(buffer)))
                .collect(),
            bytes: self.bytes.clone(),
            threadgroup: self.threadgroup.clone(),
            grid: launch.0,
            threads: launch.1,
            counts_threads: launch.2,
        };
        dispatch.write(&directory.join(name)).unwrap();
    }
}

/// Types that are nothing but their bytes.
pub trait Plain: Copy + Default {}
impl Plain for u8 {}
impl Plain for i8 {}
impl Plain for u16 {}
impl Plain for i16 {}
impl Plain for u32 {}
impl Plain for i32 {}
impl Plain for u64 {}
impl Plain for i64 {}
impl Plain for f32 {}
impl Plain for half::f16 {}
impl Plain for half::bf16 {}

pub fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: `Plain` types have no padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

pub fn read<T: Plain>(buffer: &SimBuffer) -> Vec<T> {
    let mut values = vec![T::default(); buffer.length() / size_of::<T>()];
    let length = size_of_val(values.as_slice());
    // SAFETY: `Plain` types have no padding and any bytes are a value.
    let bytes = unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), length) };
    buffer.read(0, bytes).unwrap();
    values
}

/// Numbers in -1..1 that look random and are the same everywhere.
pub fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

/// Normalised mean squared error.
pub fn nmse(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let error: f64 = found.iter().zip(expected).map(|(&f, &e)| (f64::from(f) - e).powi(2)).sum();
    error / expected.iter().map(|e| e * e).sum::<f64>()
}
