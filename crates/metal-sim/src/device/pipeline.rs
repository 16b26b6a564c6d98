//! Libraries and pipelines.

use std::sync::Arc;

use metal::device::{Error, FunctionConstants, Interface, Pipeline, Result};

use super::argument::{constant_values, interface};
use crate::runtime::{Kernel, Module, SIMD_WIDTH};

/// Compiled MSL.
#[derive(Clone, Debug)]
pub struct SimLibrary {
    label: Arc<str>,
    module: Arc<Module>,
}

/// One kernel with its function constants.
#[derive(Clone)]
pub struct SimPipeline {
    pub(super) shared: Arc<Specialised>,
}

pub(super) struct Specialised {
    pub kernel: Kernel,
    pub interface: Interface,
    pub constants: Arc<[u64]>,
    pub constants_defined: Arc<[u8]>,
    pub queue_size: usize,
    /// Whether the kernel was compiled for the sanitizer.
    pub sanitized: bool,
    // Keeps the code that the kernel points to.
    _module: Arc<Module>,
}

impl SimLibrary {
    pub(super) fn new(label: &str, module: Module) -> Self {
        Self { label: label.into(), module: Arc::new(module) }
    }

    /// The names of all kernels.
    pub fn kernel_names(&self) -> impl Iterator<Item = &str> {
        self.module.kernels().iter().map(|kernel| kernel.name.as_str())
    }

    /// The kernel of that name with its parameters.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.module.kernel(name)
    }

    pub(super) fn pipeline(
        &self,
        name: &str,
        constants: &FunctionConstants,
        max_threads: usize,
    ) -> Result<SimPipeline> {
        let kernel = self.module.kernel(name).ok_or_else(|| Error::KernelNotFound {
            name: name.to_owned(),
            library: self.label.to_string(),
        })?;
        let (values, defined) = constant_values(kernel, self.module.constants(), constants)?;
        Ok(SimPipeline {
            shared: Arc::new(Specialised {
                kernel: kernel.clone(),
                interface: interface(kernel, max_threads),
                constants: values.into(),
                constants_defined: defined.into(),
                queue_size: self.module.queue_size(),
                sanitized: self.module.is_sanitized(),
                _module: Arc::clone(&self.module),
            }),
        })
    }
}

impl Pipeline for SimPipeline {
    fn interface(&self) -> &Interface {
        &self.shared.interface
    }

    fn simd_width(&self) -> usize {
        SIMD_WIDTH
    }
}
