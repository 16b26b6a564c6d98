//! Whether a model fits on the devices of this machine, by its file alone.

use crate::device::Room;
use crate::memory::{MemoryNeed, Need};
use crate::setup::Setup;
use crate::{Device, Error, LoadOptions};
use cpu::{CpuBackend, CpuOptions};
use gguf::File;
use models::Model;
use std::path::Path;

/// A device, and what a model needs of its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// The device's name.
    pub name: String,
    /// A line about it.
    pub description: String,
    /// What the whole model needs there; `None` where the device cannot be used.
    pub need: Option<MemoryNeed>,
    /// Bytes that can be had; `None` where the device uses the host's memory, which is only taken as it fills.
    pub usable: Option<usize>,
    /// Layers of the model.
    pub layers: usize,
    /// How many of them, counted from the last, the device has room for.
    pub fitting: usize,
}

impl Fit {
    /// What each device of this machine would need for a model that is loaded with these options.
    ///
    /// # Errors
    /// As for [`Engine::load`](crate::Engine::load), where the file or the options are at fault.
    pub fn of(path: &Path, options: &LoadOptions) -> Result<Vec<Fit>, Error> {
        let file = File::open(path)?;
        let model = Model::load(&file).map_err(|source| Error::Model { path: path.to_path_buf(), source })?;
        let cpu = CpuBackend::new(CpuOptions {
            threads: Some(1),
            activations: options.activations,
            ..CpuOptions::default()
        });
        let cpu = cpu.map_err(|error| Error::Device { name: "cpu".into(), message: error.to_string() })?;
        let need = |gpu| -> Result<Need, Error> {
            Ok(Setup::new(&model, options, gpu, cpu.activations())?.need(&model, None)?)
        };
        let (on_cpu, on_gpu) = (need(false)?, need(true)?);
        let fits = Device::present().into_iter().map(|present| {
            let need = if present.name == "cpu" { &on_cpu } else { &on_gpu };
            let layers = need.layers();
            let (usable, fitting) = match present.room {
                Room::Host => (None, layers),
                Room::Own(bytes) => (Some(bytes), need.most_layers(bytes)),
                Room::Unusable => (None, 0),
            };
            let whole = (present.room != Room::Unusable).then(|| need.of_last(layers));
            let (name, description) = (present.name, present.description);
            Fit { name, description, need: whole, usable, layers, fitting }
        });
        Ok(fits.collect())
    }
}
