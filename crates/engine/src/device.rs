//! The devices that this build can run models on, and how a user names them.

use crate::{Error, readable};
use cuda::{CudaBackend, CudaError};
use graph::Backend;
use metal_sim::device::SimDevice;
use std::fmt;
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
    /// An NVIDIA GPU; as many as a model needs.
    Cuda,
    /// NVIDIA GPUs by their numbers, which share a model.
    CudaGpus(Gpus),
    /// A simulated GPU of a Mac, which runs and checks the same kernels on any machine that has clang, slowly.
    MetalSim,
}

/// NVIDIA GPUs by their numbers, as the driver counts them from 0 on, in the order of the layers that they are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpus {
    numbers: [u8; Gpus::MOST],
    count: u8,
}

impl Gpus {
    /// Most GPUs of one host.
    pub const MOST: usize = 16;

    /// Reads a list such as `cuda:0,cuda:1`; `None` if it is none, or names a GPU twice.
    fn read(names: &str) -> Option<Gpus> {
        let mut gpus = Gpus { numbers: [0; Gpus::MOST], count: 0 };
        for name in names.split(',') {
            let number =
                name.strip_prefix("cuda:").filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()))?;
            let number = number.parse().ok()?;
            if gpus.numbers().any(|other| other == usize::from(number)) {
                return None;
            }
            *gpus.numbers.get_mut(usize::from(gpus.count))? = number;
            gpus.count += 1;
        }
        Some(gpus)
    }

    /// The numbers.
    pub fn numbers(&self) -> impl Iterator<Item = usize> + '_ {
        self.numbers.iter().take(usize::from(self.count)).map(|&number| usize::from(number))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Device::CudaGpus(gpus) = self else { return f.write_str(self.name()) };
        let names: Vec<String> = gpus.numbers().map(|number| format!("cuda:{number}")).collect();
        f.write_str(&names.join(","))
    }
}

/// How long a simulated GPU may take for a forward: minutes, where a real one is given seconds.
const SIMULATION_TIMEOUT: Duration = Duration::from_secs(3600);

impl Device {
    /// All that have a name of their own: GPUs by number are not among them.
    pub const ALL: [Device; 5] = [Device::Auto, Device::Cpu, Device::Metal, Device::Cuda, Device::MetalSim];

    /// The name that [`FromStr`] reads; without numbers.
    pub fn name(self) -> &'static str {
        match self {
            Device::Auto => "auto",
            Device::Cpu => "cpu",
            Device::Metal => "metal",
            Device::Cuda | Device::CudaGpus(_) => "cuda",
            Device::MetalSim => "metal-sim",
        }
    }

    /// The backends that this device has besides the CPU's, in order of priority.
    ///
    /// # Errors
    /// [`Error::Device`] where a device was named and cannot be set up. [`Device::Auto`] takes what there is; a GPU that
    /// is there and cannot be set up is a line in `notices` then.
    pub fn accelerators(self, notices: &mut Vec<String>) -> Result<Vec<Box<dyn Backend>>, Error> {
        let backend = match self {
            Device::Auto if metal_is_disabled() => return Ok(first_of([cuda], notices)),
            Device::Auto => return Ok(first_of([metal, cuda], notices)),
            Device::Cpu => return Ok(Vec::new()),
            Device::Metal if metal_is_disabled() => {
                return Err(self.error("switched off by SMELT_METAL_DISABLE=1 in the environment"));
            }
            Device::Metal => metal(),
            Device::Cuda => cuda(),
            Device::CudaGpus(gpus) => return self.gpus(gpus.numbers()),
            Device::MetalSim => metal_sim(),
        };
        Ok(vec![backend.map_err(|failure| self.error(failure.message))?])
    }

    /// The NVIDIA GPUs with these numbers.
    fn gpus(self, numbers: impl Iterator<Item = usize>) -> Result<Vec<Box<dyn Backend>>, Error> {
        let open = |number| match CudaBackend::open(number) {
            Ok(backend) => Ok(Box::new(backend) as Box<dyn Backend>),
            Err(error) => Err(Error::Device { name: format!("cuda:{number}"), message: error.to_string() }),
        };
        numbers.map(open).collect()
    }

    /// All NVIDIA GPUs that the driver shows, by their numbers; the one that `SMELT_CUDA_DEVICE` names where it does.
    ///
    /// # Errors
    /// [`Error::Device`] for the first that cannot be set up.
    pub(crate) fn all_gpus() -> Result<Vec<Box<dyn Backend>>, Error> {
        if std::env::var_os("SMELT_CUDA_DEVICE").is_some() {
            let only = CudaBackend::default_device().map_err(|error| Device::Cuda.error(error))?;
            return Device::Cuda.gpus(std::iter::once(only));
        }
        let count = match CudaBackend::count() {
            // A Mac, whose own GPU has no room.
            Err(CudaError::NoDriver) => 0,
            count => count.map_err(|error| Device::Cuda.error(error))?,
        };
        Device::Cuda.gpus(0..count.min(Gpus::MOST))
    }

    fn error(self, message: impl ToString) -> Error {
        Error::Device { name: self.to_string(), message: message.to_string() }
    }

    /// Every device that this build can use on this machine, with a line about it.
    pub fn available() -> Vec<(String, String)> {
        Device::present().into_iter().map(|present| (present.name, present.description)).collect()
    }

    /// The same, opened.
    pub(crate) fn present() -> Vec<Present> {
        let threads = cpu::default_threads();
        let cpu = match cpu::SimdLevel::by_default() {
            Ok(level) => format!("{threads} threads, {level}"),
            Err(error) => format!("{threads} threads, but {error}"),
        };
        let line =
            |device: Device, (description, room)| Present { name: device.to_string(), description, room };
        let mut all = vec![line(Device::Cpu, (cpu, Room::Host))];
        all.extend(metal_line().map(|found| line(Device::Metal, found)));
        // Where there is a driver, what keeps its GPU from being used is worth a line; elsewhere there is no GPU.
        let gpu = |name: String, opened: Result<CudaBackend, CudaError>| {
            let (description, room) = match opened {
                Ok(backend) => (backend.description(), backend.usable_memory().map_or(Room::Host, Room::Own)),
                Err(CudaError::NoDriver) => return None,
                Err(error) => (format!("cannot be used: {error}"), Room::Unusable),
            };
            Some(Present { name, description, room })
        };
        match CudaBackend::count() {
            Ok(count) if count > 1 => {
                all.extend(
                    (0..count).filter_map(|number| gpu(format!("cuda:{number}"), CudaBackend::open(number))),
                );
            }
            _ => all.extend(gpu(Device::Cuda.to_string(), CudaBackend::new())),
        }
        if let Ok(device) = SimDevice::from_environment() {
            let (description, room) = about(&device);
            all.push(line(Device::MetalSim, (format!("{description}, simulated: for tests"), room)));
        }
        all
    }
}

/// A device of this machine.
pub(crate) struct Present {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) room: Room,
}

/// The memory that a device has for a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// The host's.
    Host,
    /// One of its own, with so many bytes that can be had.
    Own(usize),
    /// None: the device cannot be used.
    Unusable,
}

/// `SMELT_METAL_DISABLE=1`: no GPU is touched.
fn metal_is_disabled() -> bool {
    std::env::var("SMELT_METAL_DISABLE").is_ok_and(|value| value == "1")
}

/// Why a device was not set up.
struct Failure {
    device: Device,
    message: String,
    /// There is no such device on this machine, so that nobody misses it.
    absent: bool,
}

impl Failure {
    fn absent(device: Device, message: impl ToString) -> Failure {
        Failure { device, message: message.to_string(), absent: true }
    }

    fn of(device: Device, message: impl ToString) -> Failure {
        Failure { device, message: message.to_string(), absent: false }
    }
}

/// Sets a device up.
type SetUp = fn() -> Result<Box<dyn Backend>, Failure>;

/// The first backend that can be set up. Notices say what kept those before it from that, unless they are not there.
fn first_of<const N: usize>(devices: [SetUp; N], notices: &mut Vec<String>) -> Vec<Box<dyn Backend>> {
    for set_up in devices {
        match set_up() {
            Ok(backend) => return vec![backend],
            Err(failure) if failure.absent => {}
            Err(Failure { device, message, .. }) => {
                notices.push(format!("device '{}' takes no part: {message}", device.name()));
            }
        }
    }
    Vec::new()
}

/// The backend of the Mac's GPU.
#[cfg(target_os = "macos")]
fn metal() -> Result<Box<dyn Backend>, Failure> {
    let gpu = metal::device::objc::ObjcDevice::system_default();
    let gpu = gpu.map_err(|error| Failure::absent(Device::Metal, error))?;
    start(Device::Metal, gpu, metal::TIMEOUT, metal::library::EMBEDDED)
}

/// Other systems have no Metal.
#[cfg(not(target_os = "macos"))]
fn metal() -> Result<Box<dyn Backend>, Failure> {
    Err(Failure::absent(Device::Metal, "there is no Metal on this system, only on macOS"))
}

/// A line about the Mac's GPU, and its room.
#[cfg(target_os = "macos")]
fn metal_line() -> Option<(String, Room)> {
    let device = metal::device::objc::ObjcDevice::system_default().ok()?;
    if metal_is_disabled() { Some(("switched off".into(), Room::Unusable)) } else { Some(about(&device)) }
}

/// There is none.
#[cfg(not(target_os = "macos"))]
fn metal_line() -> Option<(String, Room)> {
    None
}

/// The backend of an NVIDIA GPU.
fn cuda() -> Result<Box<dyn Backend>, Failure> {
    match CudaBackend::new() {
        Ok(backend) => Ok(Box::new(backend)),
        Err(error @ (CudaError::NoDriver | CudaError::NoDevice)) => Err(Failure::absent(Device::Cuda, error)),
        Err(error) => Err(Failure::of(Device::Cuda, error)),
    }
}

/// Lets NVIDIA GPUs that are to share every layer exchange values by themselves. For other devices the host brings them
/// together.
///
/// # Errors
/// [`Error::Device`] where the library for that cannot be loaded, or fails.
pub(crate) fn connect(accelerators: &mut [Box<dyn Backend>]) -> Result<(), Error> {
    let name = accelerators.iter().map(|accelerator| accelerator.name()).collect::<Vec<_>>().join("+");
    let gpus = accelerators.iter_mut().map(|accelerator| accelerator.as_any()?.downcast_mut::<CudaBackend>());
    let Some(mut gpus) = gpus.collect::<Option<Vec<_>>>() else { return Ok(()) };
    cuda::connect(&mut gpus).map_err(|error| Error::Device { name, message: error.to_string() })
}

/// The backend of a simulated GPU.
fn metal_sim() -> Result<Box<dyn Backend>, Failure> {
    let device = SimDevice::from_environment();
    let device = device.map_err(|error| Failure::of(Device::MetalSim, error))?;
    start(Device::MetalSim, device, SIMULATION_TIMEOUT, &[])
}

fn start(
    device: Device,
    gpu: impl metal::device::Device,
    timeout: Duration,
    compiled: metal::library::Compiled,
) -> Result<Box<dyn Backend>, Failure> {
    let failed = |error: metal::Error| Failure::of(device, error);
    let switches = metal::Switches::from_environment().map_err(failed)?;
    let options = metal::MetalOptions { name: device.name(), timeout, switches };
    Ok(Box::new(metal::MetalBackend::with_embedded(gpu, options, compiled).map_err(failed)?))
}

/// A line about a GPU, and its room.
fn about(gpu: &impl metal::device::Device) -> (String, Room) {
    if let Err(error) = metal::check_device(gpu) {
        return (format!("cannot be used: {error}"), Room::Unusable);
    }
    let capabilities = gpu.capabilities();
    let cores = capabilities.gpu_cores.map(|cores| format!(", {cores} cores")).unwrap_or_default();
    let usable = metal::usable_memory(gpu);
    let memory = format!("{} of unified memory can be had", readable(usable));
    (
        format!("{}, Apple GPU family {}{cores}, {memory}", gpu.name(), capabilities.gpu_family),
        Room::Own(usable),
    )
}

impl FromStr for Device {
    type Err = Error;

    /// Reads a device's name. [`Error::Device`] names those that there are.
    fn from_str(name: &str) -> Result<Device, Error> {
        if let Some(gpus) = Gpus::read(name) {
            return Ok(Device::CudaGpus(gpus));
        }
        Device::ALL.into_iter().find(|device| device.name() == name).ok_or_else(|| {
            let names = Device::ALL.map(Device::name).join(", ");
            let message = format!("no such device, expected one of {names}, or GPUs such as cuda:0,cuda:1");
            Error::Device { name: name.into(), message }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken() -> Result<Box<dyn Backend>, Failure> {
        Err(Failure::of(Device::Metal, "the kernels do not compile"))
    }

    fn absent() -> Result<Box<dyn Backend>, Failure> {
        Err(Failure::absent(Device::Cuda, "no driver"))
    }

    fn working() -> Result<Box<dyn Backend>, Failure> {
        let backend = cpu::CpuBackend::new(cpu::CpuOptions { threads: Some(1), ..Default::default() });
        Ok(Box::new(backend.map_err(|error| Failure::of(Device::Cpu, error))?))
    }

    #[test]
    fn gpus_are_named_by_their_numbers() {
        for name in ["cuda:0", "cuda:1,cuda:0", "cuda:3,cuda:2,cuda:15"] {
            let device: Device = name.parse().unwrap();
            assert!(matches!(device, Device::CudaGpus(_)));
            assert_eq!(device.to_string(), name);
        }
        let many = (0..17).map(|number| format!("cuda:{number}")).collect::<Vec<_>>().join(",");
        for name in ["cuda:", "cuda:0,", "cuda:0,cuda:0", "cuda:0,1", "cuda:-1", "cuda:+1", "cuda:256", &many]
        {
            let error = name.parse::<Device>().unwrap_err().to_string();
            assert!(error.contains("expected one of auto") && error.contains("cuda:0,cuda:1"), "{error}");
        }
    }

    #[test]
    fn a_gpu_that_cannot_be_set_up_is_told_and_one_that_is_not_there_is_not() {
        let notice = "device 'metal' takes no part: the kernels do not compile";
        let told = |devices: [SetUp; 2], found: usize| {
            let mut notices = Vec::new();
            assert_eq!(first_of(devices, &mut notices).len(), found);
            notices
        };
        assert!(told([absent, absent], 0).is_empty());
        assert_eq!(told([broken, absent], 0), [notice]);
        assert!(told([absent, working], 1).is_empty());
        assert_eq!(told([broken, working], 1), [notice]);
        // What is not needed is not tried.
        assert!(told([working, broken], 1).is_empty());
    }
}
