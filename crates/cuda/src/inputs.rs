//! What begins a forward: what the host writes comes to its places with the first launch, from page-locked memory that the GPU
//! reads by itself, and angles of rotations are made of it.

use crate::CudaError;
use crate::buffers::Buffers;
use crate::driver::{Device, Launch, Pinned, argument};
use crate::kernels::{Kernels, Spec};
use crate::ops::device_error;
use graph::{BackendError, BufferId};
use std::sync::Arc;

/// Bytes that the host can write before a run without a copy of its own.
const STAGING: usize = 1 << 20;
/// Places that one launch writes, at most: as in `inputs.cu`.
const MOST_UPLOADS: usize = 12;
/// Threads of a block, and blocks for a place, at most: each word takes a way over the bus.
const THREADS: u32 = 128;
const MOST_BLOCKS: u32 = 64;

/// A place that the host writes before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Upload {
    buffer: BufferId,
    offset: usize,
    len: usize,
}

impl Upload {
    /// Bytes that it takes.
    fn taken(&self) -> usize {
        self.len.next_multiple_of(16)
    }
}

/// Cosines and sines of a rotation: the argument of the kernel `angles`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AnglesArgs {
    pub(crate) positions: u64,
    pub(crate) inv_freq: u64,
    pub(crate) out: u64,
    pub(crate) tokens: u32,
    pub(crate) pairs: u32,
    pub(crate) magnitude: f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct InputsArgs {
    from: u64,
    to: [u64; MOST_UPLOADS],
    first: [u32; MOST_UPLOADS],
    words: [u32; MOST_UPLOADS],
}

/// What the host wrote since the last run, in order.
pub(crate) struct Inputs {
    staging: Pinned,
    uploads: Vec<Upload>,
    bytes: usize,
}

impl Inputs {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Inputs, CudaError> {
        Ok(Inputs { staging: Pinned::new(device, STAGING)?, uploads: Vec::new(), bytes: 0 })
    }

    /// Keeps what the host writes until the next run; no launch that reads what was kept before is left. `false`, with nothing
    /// kept, if there is no room or if it is no whole words.
    pub(crate) fn put(&mut self, buffer: BufferId, offset: usize, src: &[u8]) -> bool {
        let upload = Upload { buffer, offset, len: src.len() };
        if self.bytes + upload.taken() > STAGING
            || self.uploads.len() == MOST_UPLOADS
            || !src.len().is_multiple_of(4)
            || !offset.is_multiple_of(4)
        {
            return false;
        }
        self.staging.bytes()[self.bytes..][..src.len()].copy_from_slice(src);
        self.bytes += upload.taken();
        self.uploads.push(upload);
        true
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.uploads.is_empty()
    }

    /// The places that are written.
    pub(crate) fn uploads(&self) -> &[Upload] {
        &self.uploads
    }

    /// Forgets what was written.
    pub(crate) fn clear(&mut self) {
        self.uploads.clear();
        self.bytes = 0;
    }

    /// The launches that bring everything to its places and make angles.
    pub(crate) fn launches(
        &self,
        buffers: &Buffers,
        kernels: &mut Kernels,
        angles: &[AnglesArgs],
    ) -> Result<Vec<Launch>, BackendError> {
        let mut make = |name: &'static str, grid: [u32; 3], argument: Box<[u64]>| {
            let function = kernels.get(Spec::Plain("inputs.cu", name)).map_err(device_error)?;
            let (threads, label) = (THREADS, name.into());
            Ok(Launch { function, grid, threads, shared: 0, argument, alone: false, orderly: false, label })
        };
        let mut launches = Vec::with_capacity(1 + angles.len());
        if !self.uploads.is_empty() {
            let mut args = InputsArgs {
                from: self.staging.address(),
                to: [0; MOST_UPLOADS],
                first: [0; MOST_UPLOADS],
                words: [0; MOST_UPLOADS],
            };
            let mut at = 0;
            for (index, upload) in self.uploads.iter().enumerate() {
                args.to[index] =
                    buffers.address(upload.buffer, upload.offset, upload.len, "write to a buffer")?;
                args.first[index] = (at / 4) as u32;
                args.words[index] = (upload.len / 4) as u32;
                at += upload.taken();
            }
            let most = args.words.into_iter().max().unwrap_or(0);
            let blocks = most.div_ceil(THREADS).clamp(1, MOST_BLOCKS);
            launches.push(make("inputs", [self.uploads.len() as u32, blocks, 1], argument(args))?);
        }
        for args in angles {
            let blocks = (args.tokens * args.pairs).div_ceil(THREADS);
            launches.push(make("angles", [blocks, 1, 1], argument(*args))?);
        }
        Ok(launches)
    }
}
