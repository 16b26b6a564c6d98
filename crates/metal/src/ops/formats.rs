//! A kernel for each of the decoders (`kernels/formats.h`).

use crate::device::Device;
use crate::pipelines::{LibraryLoader, PipelineId};
use quant::Format;

/// A kernel for every format, in the order of [`Format::ALL`].
pub(super) struct ByFormat(Vec<PipelineId>);

impl ByFormat {
    /// Loads the kernel `prefix`, name of the format, `suffix` for each format.
    pub(super) fn load<D: Device>(
        library: &mut LibraryLoader<'_, '_, D>,
        prefix: &str,
        suffix: &str,
    ) -> ByFormat {
        let kernels = Format::ALL.iter().map(|format| library.kernel(&format!("{prefix}{format}{suffix}")));
        ByFormat(kernels.collect())
    }

    /// The format's kernel.
    pub(super) fn get(&self, format: Format) -> PipelineId {
        let before = Format::ALL.iter().take_while(|&&other| other != format).count();
        self.0[before]
    }
}
