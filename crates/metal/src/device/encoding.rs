//! What an encoder has been told so far: the same for every device.

use super::{Bindings, Buffer, DispatchMode, Error, Limits, Pipeline, Result, Size};

/// The state of one compute encoder, checked as Metal's validation layer would. `B` is what the device keeps of each
/// binding, `P` its pipelines.
#[derive(Clone, Debug)]
pub struct Encoding<B, P> {
    label: String,
    mode: DispatchMode,
    limits: Limits,
    bindings: Bindings<B>,
    pipeline: Option<P>,
}

impl<B, P: Pipeline> Encoding<B, P> {
    /// Nothing bound to any slot of a device with such limits.
    pub fn new(label: &str, mode: DispatchMode, limits: &Limits) -> Self {
        let bindings = Bindings::new(limits);
        Self { label: label.to_owned(), mode, limits: limits.clone(), bindings, pipeline: None }
    }

    /// The name of the dispatches that follow.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Whether dispatches may overlap.
    pub fn is_concurrent(&self) -> bool {
        self.mode == DispatchMode::Concurrent
    }

    /// What is bound.
    pub fn bindings(&self) -> &Bindings<B> {
        &self.bindings
    }

    /// Names the dispatches that follow.
    pub fn set_label(&mut self, label: &str) {
        label.clone_into(&mut self.label);
    }

    /// Selects the kernel of the dispatches that follow.
    pub fn set_pipeline(&mut self, pipeline: &P) {
        self.pipeline = Some(pipeline.clone());
    }

    /// Binds a buffer from `offset` on.
    ///
    /// # Errors
    /// As for [`Bindings::set_buffer`].
    pub fn set_buffer(&mut self, slot: usize, buffer: &impl Buffer, offset: usize, value: B) -> Result<()> {
        self.bindings.set_buffer(&self.limits, slot, buffer, offset, value)
    }

    /// Lets what is bound to a slot end after `length` bytes.
    pub fn limit_buffer(&mut self, slot: usize, length: usize) {
        self.bindings.limit_buffer(slot, length);
    }

    /// Binds a copy of some bytes.
    ///
    /// # Errors
    /// As for [`Bindings::set_bytes`].
    pub fn set_bytes(&mut self, slot: usize, bytes: &[u8], value: B) -> Result<()> {
        self.bindings.set_bytes(&self.limits, slot, bytes, value)
    }

    /// Gives a slot threadgroup memory.
    ///
    /// # Errors
    /// As for [`Bindings::set_threadgroup_memory`].
    pub fn set_threadgroup_memory(&mut self, slot: usize, length: usize) -> Result<()> {
        let kernel = self.pipeline.as_ref().map_or("", |pipeline| pipeline.name());
        self.bindings.set_threadgroup_memory(&self.limits, kernel, slot, length)
    }

    /// Checks a dispatch against everything bound; `grid` counts threads or threadgroups. Returns its pipeline.
    ///
    /// # Errors
    /// [`Error::NoPipeline`], and as for [`Bindings::check_dispatch`].
    pub fn check_dispatch(&self, grid: Size, threads: Size) -> Result<&P> {
        let pipeline = self.pipeline.as_ref().ok_or(Error::NoPipeline)?;
        self.bindings.check_dispatch(&self.limits, pipeline.interface(), grid, threads)?;
        Ok(pipeline)
    }
}
