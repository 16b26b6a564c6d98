//! What a GPU must have for this backend, and how much of its memory a model can have.

use crate::device::{Capabilities, Device, Error, Result};

/// The oldest family of Apple's GPUs with all that the kernels use: that of the M1.
const FAMILY: u32 = 7;

/// Of the memory that the GPU may use, what is left to all that the count of a model's need leaves out: free buffers of the pool,
/// scratch and code of kernels, tables of rotations.
const RESERVE: usize = 512 << 20;

/// Whether every kernel and every buffer of the backend is possible on a GPU. On Apple's own since the M1 it is; an Intel
/// Mac's is refused.
///
/// # Errors
/// [`Error::Device`] with what is missing.
pub fn check_device(device: &impl Device) -> Result<()> {
    let needs = |what| {
        let name = device.name();
        Err(Error::Device(format!("the GPU '{name}' has no {what}, as Apple's have since the M1")))
    };
    match device.capabilities() {
        Capabilities { gpu_family: ..FAMILY, .. } => {
            needs("features of Metal's family Apple 7 or a later one")
        }
        Capabilities { unified_memory: false, .. } => needs("memory in common with the host"),
        Capabilities { simd_reductions: false, .. } => needs("reductions over SIMD-groups"),
        _ => Ok(()),
    }
}

/// Bytes of weights, caches and activations that this process can still place on a GPU: of the memory that the system lets it have
/// without taking other memory from it, what is not taken.
pub fn usable_memory(device: &impl Device) -> usize {
    device.limits().recommended_working_set.saturating_sub(device.allocated_memory()).saturating_sub(RESERVE)
}
