//! What every family that reads weights shares: the decoders (`kernels/formats.h`), and a kernel for each of them.

use crate::device::{Device, Result};
use crate::pipelines::{LibraryLoader, PipelineId};
use quant::Format;

/// The header of all kernels. It needs the constants of [`elementwise`](super::elementwise).
pub(super) const COMMON: (&str, &str) = ("common.h", include_str!("../../kernels/common.h"));
/// The decoders of the block formats.
pub(super) const FORMATS: (&str, &str) = ("formats.h", include_str!("../../kernels/formats.h"));

/// A kernel for every format, in the order of [`Format::ALL`].
pub(super) struct ByFormat(Vec<PipelineId>);

impl ByFormat {
    /// Loads the kernel `prefix`, name of the format, `suffix` for each format.
    pub(super) fn load<D: Device>(
        library: &mut LibraryLoader<'_, '_, D>,
        prefix: &str,
        suffix: &str,
    ) -> Result<ByFormat> {
        let kernels = Format::ALL.iter().map(|format| library.kernel(&format!("{prefix}{format}{suffix}")));
        Ok(ByFormat(kernels.collect::<Result<_>>()?))
    }

    /// The format's kernel.
    pub(super) fn get(&self, format: Format) -> PipelineId {
        let before = Format::ALL.iter().take_while(|&&other| other != format).count();
        self.0[before]
    }
}
