//! Memory for what lies between the launches of one node.

use crate::buffers::out_of_memory;
use crate::driver::{Device, DeviceMemory, Stream};
use crate::ops::device_error;
use graph::BackendError;
use std::collections::HashMap;
use std::sync::Arc;

/// What the memory is for. Launches run one after the other, so a region serves every node anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Region {
    /// Activations as halves.
    Halves,
    /// The factors of their rows.
    Unscale,
    /// Sums over parts of the columns.
    Partial,
    /// Products before what is fused with them.
    Products,
    /// What blocks of attention found.
    Attention,
    /// How many of them are done: zeros between launches.
    Done,
    /// The largest elements of parts of rows.
    Largest,
    /// How many of the parts of a row are done: zeros between launches.
    LargestDone,
    /// Choices of experts in their order.
    Order,
    /// Blocks of products of chosen experts.
    Work,
    /// Cosines and sines of one rotation.
    Angles(usize),
}

/// The regions, which only grow. Outgrown memory is kept until nothing refers to it.
#[derive(Default)]
pub(crate) struct Scratch {
    regions: HashMap<Region, DeviceMemory>,
    outgrown: Vec<DeviceMemory>,
}

impl Scratch {
    /// The address of a region of at least this many bytes.
    pub(crate) fn get(
        &mut self,
        device: &Arc<Device>,
        stream: &Stream,
        region: Region,
        bytes: usize,
    ) -> Result<u64, BackendError> {
        if let Some(memory) = self.regions.get(&region).filter(|memory| memory.len() >= bytes) {
            return Ok(memory.address());
        }
        let memory =
            DeviceMemory::new(device, bytes).map_err(|error| out_of_memory("scratch", bytes, error))?;
        let address = memory.address();
        if matches!(region, Region::Done | Region::LargestDone) {
            stream.clear(address, bytes).map_err(device_error)?;
        }
        self.outgrown.extend(self.regions.insert(region, memory));
        Ok(address)
    }

    /// Frees outgrown memory. No launch that refers to it is left.
    pub(crate) fn tidy(&mut self) {
        self.outgrown.clear();
    }
}
