//! The devices that this build can run models on, and how a user names them.

use crate::Error;
use cuda::{CudaBackend, CudaError};
use graph::Backend;
use metal_sim::device::SimDevice;
use std::str::FromStr;
use std::time::Duration;

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The best there is.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU of a Mac.
    Metal,
    /// An NVIDIA GPU.
    Cuda,
    /// A simulated GPU of a Mac, which runs and checks the same kernels on any machine that has clang, slowly.
    MetalSim,
}

/// How long a simulated GPU may take for a forward: minutes, where a real one is given seconds.
const SIMULATION_TIMEOUT: Duration = Duration::from_secs(3600);

impl Device {
    /// All of them.
    pub const ALL: [Device; 5] = [Device::Auto, Device::Cpu, Device::Metal, Device::Cuda, Device::MetalSim];

    /// The name that [`FromStr`] reads.
    pub fn name(self) -> &'static str {
        match self {
            Device::Auto => "auto",
            Device::Cpu => "cpu",
            Device::Metal => "metal",
            Device::Cuda => "cuda",
            Device::MetalSim => "metal-sim",
        }
    }

    /// The backends that this device has besides the CPU's, in order of priority.
    ///
    /// # Errors
    /// [`Error::Device`] where a device was named and cannot be set up. [`Device::Auto`] takes what there is.
    pub fn accelerators(self) -> Result<Vec<Box<dyn Backend>>, Error> {
        match self {
            // No GPU, or none that can be set up, is no error: `smelt devices` tells.
            Device::Auto if metal_is_disabled() => Ok(cuda().into_iter().collect()),
            Device::Auto => Ok(metal().or_else(|_| cuda()).into_iter().collect()),
            Device::Cpu => Ok(Vec::new()),
            Device::Metal if metal_is_disabled() => {
                Err(self.error("switched off by SMELT_METAL_DISABLE=1 in the environment"))
            }
            Device::Metal => Ok(vec![metal()?]),
            Device::Cuda => Ok(vec![cuda()?]),
            Device::MetalSim => Ok(vec![metal_sim()?]),
        }
    }

    fn error(self, message: impl ToString) -> Error {
        Error::Device { name: self.name().into(), message: message.to_string() }
    }

    /// Every device that this build can use on this machine, with a line about it.
    pub fn available() -> Vec<(&'static str, String)> {
        let threads = cpu::default_threads();
        let cpu = match cpu::SimdLevel::by_default() {
            Ok(level) => format!("{threads} threads, {level}"),
            Err(error) => format!("{threads} threads, but {error}"),
        };
        let mut all = vec![(Device::Cpu.name(), cpu)];
        all.extend(metal_line().map(|line| (Device::Metal.name(), line)));
        // Where there is a driver, what keeps its GPU from being used is worth a line; elsewhere there is no GPU.
        match CudaBackend::new() {
            Ok(backend) => all.push((Device::Cuda.name(), backend.description())),
            Err(CudaError::NoDriver) => {}
            Err(error) => all.push((Device::Cuda.name(), format!("cannot be used: {error}"))),
        }
        if let Ok(device) = SimDevice::from_environment() {
            all.push((Device::MetalSim.name(), format!("{}, simulated: for tests", describe(&device))));
        }
        all
    }
}

/// `SMELT_METAL_DISABLE=1`: no GPU is touched.
fn metal_is_disabled() -> bool {
    std::env::var("SMELT_METAL_DISABLE").is_ok_and(|value| value == "1")
}

/// The backend of the Mac's GPU.
#[cfg(target_os = "macos")]
fn metal() -> Result<Box<dyn Backend>, Error> {
    let failed = |error: metal::device::Error| Device::Metal.error(error);
    start(Device::Metal, metal::device::objc::ObjcDevice::system_default().map_err(failed)?, metal::TIMEOUT)
}

/// Other systems have no Metal.
#[cfg(not(target_os = "macos"))]
fn metal() -> Result<Box<dyn Backend>, Error> {
    Err(Device::Metal.error("there is no Metal on this system, only on macOS"))
}

/// A line about the Mac's GPU.
#[cfg(target_os = "macos")]
fn metal_line() -> Option<String> {
    let device = metal::device::objc::ObjcDevice::system_default().ok()?;
    Some(if metal_is_disabled() { "switched off".into() } else { describe(&device) })
}

/// There is none.
#[cfg(not(target_os = "macos"))]
fn metal_line() -> Option<String> {
    None
}

/// The backend of an NVIDIA GPU.
fn cuda() -> Result<Box<dyn Backend>, Error> {
    let backend = CudaBackend::new().map_err(|error| Device::Cuda.error(error))?;
    Ok(Box::new(backend))
}

/// The backend of a simulated GPU.
fn metal_sim() -> Result<Box<dyn Backend>, Error> {
    let device = SimDevice::from_environment().map_err(|error| Device::MetalSim.error(error))?;
    start(Device::MetalSim, device, SIMULATION_TIMEOUT)
}

fn start(
    device: Device,
    gpu: impl metal::device::Device,
    timeout: Duration,
) -> Result<Box<dyn Backend>, Error> {
    let failed = |error: metal::Error| device.error(error);
    let switches = metal::Switches::from_environment().map_err(failed)?;
    let options = metal::MetalOptions { name: device.name(), timeout, switches };
    Ok(Box::new(metal::MetalBackend::new(gpu, options).map_err(failed)?))
}

/// Name, family and cores of a GPU.
fn describe(gpu: &impl metal::device::Device) -> String {
    let capabilities = gpu.capabilities();
    let cores = capabilities.gpu_cores.map(|cores| format!(", {cores} cores")).unwrap_or_default();
    format!("{}, Apple GPU family {}{cores}, unified memory", gpu.name(), capabilities.gpu_family)
}

impl FromStr for Device {
    type Err = Error;

    /// Reads a device's name. [`Error::Device`] names those that there are.
    fn from_str(name: &str) -> Result<Device, Error> {
        Device::ALL.into_iter().find(|device| device.name() == name).ok_or_else(|| {
            let names = Device::ALL.map(Device::name).join(", ");
            Error::Device { name: name.into(), message: format!("no such device, expected one of {names}") }
        })
    }
}
