//! The devices that this build can run models on, and how a user names them.

use crate::Error;
use graph::Backend;
use std::str::FromStr;

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The best there is.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
}

impl Device {
    /// All of them.
    pub const ALL: [Device; 2] = [Device::Auto, Device::Cpu];

    /// The name that [`FromStr`] reads.
    pub fn name(self) -> &'static str {
        match self {
            Device::Auto => "auto",
            Device::Cpu => "cpu",
        }
    }

    /// The backends that this device has besides the CPU's, in order of priority.
    ///
    /// # Errors
    /// [`Error::Device`] where a device was named and cannot be set up. [`Device::Auto`] takes what there is.
    pub fn accelerators(self) -> Result<Vec<Box<dyn Backend>>, Error> {
        match self {
            // The CPU is the best there is, and all there is.
            Device::Auto | Device::Cpu => Ok(Vec::new()),
        }
    }

    /// Every device that this build can use on this machine, with a line about it.
    pub fn available() -> Vec<(&'static str, String)> {
        vec![("cpu", format!("{} threads, {}", cpu::default_threads(), cpu::SimdLevel::detect()))]
    }
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
