//! What begins a forward: what the host writes comes to its places with the first launch, from page-locked memory that the GPU
//! reads by itself, and angles of rotations are made of it.

use crate::CudaError;
use crate::buffers::Buffers;
use crate::driver::{Device, Launch, Pinned, argument};
use crate::kernels::{Kernels, Spec};
use crate::ops::device_error;
use graph::{BackendError, BufferId, Operand};
use std::sync::Arc;

/// Bytes that the host can write before a run without a copy of its own.
const STAGING: usize = 1 << 20;
/// Places that one launch writes, and rotations whose angles it makes, at most: as in `inputs.cu`.
const MOST_UPLOADS: usize = 12;
const MOST_ANGLES: usize = 2;
/// Threads of a block, and blocks for a place, at most: each word takes a way over the bus.
const THREADS: u32 = 128;
const MOST_BLOCKS: u32 = 64;
/// Tokens whose angles the first launch makes, at most: their positions are read over the bus.
const FEW_TOKENS: u32 = 4;

/// A place that the host writes before a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Upload {
    buffer: BufferId,
    offset: usize,
    len: usize,
}

impl Upload {
    /// How far into what was written a value begins that is part of it.
    fn place_of(&self, value: &Operand) -> Option<usize> {
        let place = value.offset.checked_sub(self.offset)?;
        (value.buffer == self.buffer && place.checked_add(value.bytes())? <= self.len).then_some(place)
    }

    /// Bytes that it takes.
    fn taken(&self) -> usize {
        self.len.next_multiple_of(16)
    }
}

/// The argument of the kernel `angles`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct AnglesArgs {
    pub(crate) positions: u64,
    pub(crate) inv_freq: u64,
    pub(crate) out: u64,
    pub(crate) tokens: u32,
    pub(crate) pairs: u32,
    pub(crate) magnitude: f32,
}

/// Cosines and sines of a rotation, and the positions that they are of.
#[derive(Clone, Copy)]
pub(crate) struct Angles {
    pub(crate) positions: Operand,
    pub(crate) args: AnglesArgs,
}

impl Angles {
    fn blocks(&self) -> u32 {
        (self.args.tokens * self.args.pairs).div_ceil(THREADS).max(1)
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct InputsArgs {
    from: u64,
    to: [u64; MOST_UPLOADS],
    first: [u32; MOST_UPLOADS],
    words: [u32; MOST_UPLOADS],
    uploads: u32,
    angles: [AnglesArgs; MOST_ANGLES],
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
        angles: &[Angles],
    ) -> Result<Vec<Launch>, BackendError> {
        let mut make = |name: &'static str, grid: [u32; 3], argument: Box<[u64]>| {
            let function = kernels.get(Spec::Plain("inputs.cu", name)).map_err(device_error)?;
            let (threads, label) = (THREADS, name.into());
            Ok(Launch { function, grid, threads, shared: 0, argument, alone: false, orderly: false, label })
        };
        let mut launches = Vec::new();
        let mut left = Vec::new();
        if self.uploads.is_empty() {
            left.extend_from_slice(angles);
        } else {
            let mut args = InputsArgs {
                from: self.staging.address(),
                to: [0; MOST_UPLOADS],
                first: [0; MOST_UPLOADS],
                words: [0; MOST_UPLOADS],
                uploads: self.uploads.len() as u32,
                angles: [AnglesArgs::default(); MOST_ANGLES],
            };
            let mut at = 0;
            let mut found = vec![None; angles.len()];
            for (index, upload) in self.uploads.iter().enumerate() {
                args.to[index] =
                    buffers.address(upload.buffer, upload.offset, upload.len, "write to a buffer")?;
                args.first[index] = (at / 4) as u32;
                args.words[index] = (upload.len / 4) as u32;
                for (found, angles) in found.iter_mut().zip(angles) {
                    *found = found.or(upload.place_of(&angles.positions).map(|place| at + place));
                }
                at += upload.taken();
            }
            let most = args.words.into_iter().max().unwrap_or(0);
            let mut blocks = most.div_ceil(THREADS).clamp(1, MOST_BLOCKS);
            let mut merged = 0;
            for (angles, found) in angles.iter().zip(found) {
                match found.filter(|_| merged < MOST_ANGLES && angles.args.tokens <= FEW_TOKENS) {
                    Some(at) => {
                        let positions = args.from + at as u64;
                        args.angles[merged] = AnglesArgs { positions, ..angles.args };
                        blocks = blocks.max(angles.blocks());
                        merged += 1;
                    }
                    None => left.push(*angles),
                }
            }
            launches.push(make("inputs", [args.uploads + merged as u32, blocks, 1], argument(args))?);
        }
        for angles in left {
            launches.push(make("angles", [angles.blocks(), 1, 1], argument(angles.args))?);
        }
        Ok(launches)
    }
}
