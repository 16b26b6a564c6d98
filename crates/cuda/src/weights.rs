//! The registered weights, and their forms on the device: made when a node that reads them is prepared.

use crate::CudaError;
use crate::buffers::out_of_memory;
use crate::driver::{Device, DeviceMemory, Event, Launch, Pinned, Stream, argument};
use crate::kernels::{Kernels, Spec};
use crate::tiled::{self, Shape};
use bytes::Bytes;
use graph::{BackendError, Release, WeightData};
use quant::Format;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of each of the two page-locked buffers that weights go through.
const STAGE: usize = 32 << 20;
/// Weights of fewer bytes in all are those of tests and of toys, which come and go.
const SMALL: usize = 256 << 20;
/// Threads that fill them: one does not keep up with the bus.
const COPIERS: usize = 8;

/// A weight.
struct Weight {
    data: WeightData,
    /// Bytes in the file.
    len: usize,
    row_bytes: usize,
    /// Tiles, for products.
    tiled: Option<DeviceMemory>,
    /// The bytes of the file, for rows.
    raw: Option<DeviceMemory>,
    /// The elements in single precision, for norms and biases.
    vector: Option<DeviceMemory>,
}

/// A matrix in tiles.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiled {
    pub(crate) address: u64,
    pub(crate) format: Format,
    pub(crate) rows: usize,
    pub(crate) shape: Shape,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RepackArgs {
    raw: u64,
    tiled: u64,
    rows: u32,
    cols: u32,
    units: u32,
}

/// What moves weights to the device.
struct Uploader {
    stages: [(Pinned, Event); 2],
    next: usize,
    /// Where a matrix lies before it is brought into tiles.
    scratch: Option<DeviceMemory>,
}

/// All weights, by their names in the file.
pub(crate) struct Weights {
    device: Arc<Device>,
    weights: HashMap<String, Weight>,
    uploader: Option<Uploader>,
    deadline: Duration,
}

impl Weights {
    pub(crate) fn new(device: &Arc<Device>, deadline: Duration) -> Weights {
        Weights { device: Arc::clone(device), weights: HashMap::new(), uploader: None, deadline }
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.weights.contains_key(name)
    }

    /// Bytes on the device.
    pub(crate) fn bytes(&self) -> usize {
        let forms = self.weights.values().flat_map(|w| [&w.tiled, &w.raw, &w.vector]);
        forms.flatten().map(DeviceMemory::len).sum()
    }

    /// Bytes in the file.
    pub(crate) fn file_bytes(&self) -> usize {
        self.weights.values().map(|weight| weight.len).sum()
    }

    /// Takes note of a weight. Nothing is copied yet.
    pub(crate) fn register(&mut self, name: &str, data: WeightData) -> Result<(), BackendError> {
        let what = || format!("weight '{name}'");
        let row_bytes = data.format.row_bytes(data.cols).ok_or_else(|| BackendError::Invariant {
            what: what(),
            expected: format!("rows of whole blocks of {}", data.format.block_len()),
            found: data.cols.to_string(),
        })?;
        let expected = data.rows.checked_mul(row_bytes);
        if expected != Some(data.bytes.len()) {
            return Err(BackendError::Length {
                what: what(),
                expected: expected.unwrap_or(usize::MAX),
                found: data.bytes.len(),
            });
        }
        let len = data.bytes.len();
        let weight = Weight { data, len, row_bytes, tiled: None, raw: None, vector: None };
        self.weights.insert(name.to_string(), weight);
        Ok(())
    }

    /// Checks that a weight is registered, in this shape.
    pub(crate) fn check(
        &self,
        name: &str,
        format: Format,
        rows: usize,
        cols: usize,
    ) -> Result<(), BackendError> {
        let found = &self.get(name)?.data;
        if (found.format, found.rows, found.cols) == (format, rows, cols) {
            return Ok(());
        }
        Err(BackendError::Invariant {
            what: format!("weight '{name}'"),
            expected: format!("{format} {rows} x {cols}"),
            found: format!("{} {} x {}", found.format, found.rows, found.cols),
        })
    }

    fn get(&self, name: &str) -> Result<&Weight, BackendError> {
        self.weights.get(name).ok_or_else(|| BackendError::MissingWeight { name: name.into() })
    }

    /// The weight, for a form of it that there is not yet.
    fn source(&self, name: &str) -> Result<WeightData, BackendError> {
        let weight = self.get(name)?;
        if weight.data.bytes.len() == weight.len {
            return Ok(weight.data.clone());
        }
        Err(BackendError::Invariant {
            what: format!("weight '{name}'"),
            expected: "a copy that is read in one form".into(),
            found: "a second one".into(),
        })
    }

    /// After a form was made: gives up the bytes that it was made of.
    fn release(&mut self, name: &str) {
        let Some(weight) = self.weights.get_mut(name) else { return };
        match &weight.data.release {
            Some(release) if release.is_of_copy() => weight.data.bytes = Bytes::new(),
            Some(release) => release.release(),
            None => {}
        }
    }

    /// The matrix in tiles.
    pub(crate) fn tiled(
        &mut self,
        name: &str,
        stream: &Stream,
        kernels: &mut Kernels,
    ) -> Result<Tiled, BackendError> {
        let weight = self.get(name)?;
        let WeightData { format, rows, cols, .. } = weight.data;
        let shape = tiled::shape(format, rows, cols).ok_or_else(|| BackendError::Invariant {
            what: format!("weight '{name}'"),
            expected: "a matrix of a format with products, that fits in memory".into(),
            found: format!("{format} {rows} x {cols}"),
        })?;
        let address = match &weight.tiled {
            Some(memory) => memory.address(),
            None => self.make_tiled(name, shape, stream, kernels)?,
        };
        Ok(Tiled { address, format, rows, shape })
    }

    fn make_tiled(
        &mut self,
        name: &str,
        shape: Shape,
        stream: &Stream,
        kernels: &mut Kernels,
    ) -> Result<u64, BackendError> {
        let data = self.source(name)?;
        let bytes = shape.bytes;
        let memory = DeviceMemory::new(&self.device, bytes).map_err(|e| out_of_memory(name, bytes, e))?;
        let len = data.bytes.len();
        let scratch = match self.uploader()?.scratch.take() {
            Some(scratch) if scratch.len() >= len => scratch,
            _ => DeviceMemory::new(&self.device, len).map_err(|e| out_of_memory("scratch", len, e))?,
        };
        let device = |error: CudaError| BackendError::Device(format!("weight '{name}': {error}"));
        let deadline = self.deadline;
        let uploader = self.uploader()?;
        uploader.copy(&data.bytes, scratch.address(), stream, deadline).map_err(device)?;
        stream.clear(memory.address(), tiled::HEADER).map_err(device)?;
        let args = RepackArgs {
            raw: scratch.address(),
            tiled: memory.address(),
            rows: data.rows as u32,
            cols: data.cols as u32,
            units: shape.units,
        };
        let launch = |function, grid| Launch {
            function,
            grid,
            threads: 128,
            shared: 0,
            argument: argument(args),
            alone: true,
            orderly: false,
            label: name.to_string(),
        };
        let largest = kernels.get(Spec::Largest(data.format)).map_err(device)?;
        let repack = kernels.get(Spec::Repack(data.format)).map_err(device)?;
        stream.launch(&launch(largest, [(data.rows as u32).clamp(1, 2048), 1, 1])).map_err(device)?;
        stream.launch(&launch(repack, [shape.units, shape.tiles, 1])).map_err(device)?;
        self.uploader()?.scratch = Some(scratch);
        self.release(name);
        let address = memory.address();
        if let Some(weight) = self.weights.get_mut(name) {
            weight.tiled = Some(memory);
        }
        Ok(address)
    }

    /// The bytes of the file.
    pub(crate) fn raw(&mut self, name: &str, stream: &Stream) -> Result<u64, BackendError> {
        let weight = self.get(name)?;
        if let Some(memory) = &weight.raw {
            return Ok(memory.address());
        }
        let data = self.source(name)?;
        let len = data.bytes.len();
        let memory = DeviceMemory::new(&self.device, len).map_err(|e| out_of_memory(name, len, e))?;
        let address = memory.address();
        let deadline = self.deadline;
        self.uploader()?
            .copy(&data.bytes, address, stream, deadline)
            .map_err(|error| BackendError::Device(format!("weight '{name}': {error}")))?;
        self.release(name);
        if let Some(weight) = self.weights.get_mut(name) {
            weight.raw = Some(memory);
        }
        Ok(address)
    }

    /// The elements of a norm, or of one or several biases.
    pub(crate) fn vector(&mut self, name: &str, stream: &Stream) -> Result<u64, BackendError> {
        let weight = self.get(name)?;
        if let Some(memory) = &weight.vector {
            return Ok(memory.address());
        }
        let row_bytes = weight.row_bytes.max(1);
        let WeightData { format, rows, cols, bytes: encoded, .. } = self.source(name)?;
        let invariant = |found: String| BackendError::Invariant {
            what: format!("weight '{name}'"),
            expected: "floats".into(),
            found,
        };
        if !is_vector(format) {
            return Err(invariant(format!("{format} {rows} x {cols}")));
        }
        let mut elements = vec![0.0f32; rows * cols];
        for (row, to) in encoded.chunks(row_bytes).zip(elements.chunks_mut(cols.max(1))) {
            quant::decode(format, row, to).map_err(|error| invariant(error.to_string()))?;
        }
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        let memory =
            DeviceMemory::new(&self.device, bytes.len()).map_err(|e| out_of_memory(name, bytes.len(), e))?;
        let address = memory.address();
        let deadline = self.deadline;
        self.uploader()?
            .copy(&bytes, address, stream, deadline)
            .map_err(|error| BackendError::Device(format!("weight '{name}': {error}")))?;
        if let Some(weight) = self.weights.get_mut(name) {
            weight.vector = Some(memory);
        }
        if self.get(name)?.data.release.as_ref().is_some_and(Release::is_of_copy) {
            self.release(name);
        }
        Ok(address)
    }

    /// Gives the memory that loading needed back, where that is worth making it anew for the next weight.
    pub(crate) fn end_upload(&mut self) {
        if self.file_bytes() > SMALL {
            self.uploader = None;
        }
    }

    fn uploader(&mut self) -> Result<&mut Uploader, BackendError> {
        if self.uploader.is_none() {
            let stage = || Ok((Pinned::new(&self.device, STAGE)?, Event::new(&self.device)?));
            let stages = stage().and_then(|first| Ok([first, stage()?]));
            let stages = stages.map_err(|e| out_of_memory("staging of weights", STAGE, e))?;
            self.uploader = Some(Uploader { stages, next: 0, scratch: None });
        }
        self.uploader.as_mut().ok_or_else(|| BackendError::Device("no staging of weights".into()))
    }
}

/// Weights that are decoded for norms and biases.
pub(crate) fn is_vector(format: Format) -> bool {
    matches!(format, Format::F32 | Format::F16 | Format::BF16)
}

impl Uploader {
    /// Copies bytes to the device, behind everything before. They are read before this returns.
    fn copy(&mut self, bytes: &[u8], to: u64, stream: &Stream, deadline: Duration) -> Result<(), CudaError> {
        for (index, chunk) in bytes.chunks(STAGE).enumerate() {
            let (stage, free) = &mut self.stages[self.next];
            self.next = 1 - self.next;
            free.wait(deadline)?;
            let room = &mut stage.bytes()[..chunk.len()];
            let part = chunk.len().div_ceil(COPIERS).max(1 << 20);
            std::thread::scope(|scope| {
                let mut parts = room.chunks_mut(part).zip(chunk.chunks(part));
                let own = parts.next();
                for (to, from) in parts {
                    scope.spawn(move || to.copy_from_slice(from));
                }
                if let Some((to, from)) = own {
                    to.copy_from_slice(from);
                }
            });
            stream.copy_to(to + (index * STAGE) as u64, stage, 0, chunk.len())?;
            stream.record(free)?;
        }
        Ok(())
    }
}
