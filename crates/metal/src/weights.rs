//! The registered weights: views into the mapped file, where the device can map it, and copies elsewhere.

use crate::device::{Buffer, Device};
use crate::error::backend_error;
use crate::pass::invariant;
use crate::tensor::{Memory, Slice, Weight};
use bytes::Bytes;
use graph::{BackendError, WeightData, WeightInfo};
use std::collections::HashMap;
use std::ptr::NonNull;

/// Where kernels may begin to read: the alignment of a buffer's offset.
const OFFSET_ALIGNMENT: usize = 4;

/// A part of a file as one buffer, without a copy.
struct Part<B> {
    /// Address of the first byte of the buffer.
    start: usize,
    memory: Memory<B>,
    /// Keeps the mapping; dropped after the buffer.
    _owner: Bytes,
}

/// How many bytes of weights lie where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightBytes {
    /// Read by the device where the file is mapped.
    pub mapped: usize,
    /// Copied into buffers of their own.
    pub copied: usize,
}

/// Weights by name.
pub(crate) struct Weights<B> {
    parts: Vec<Part<B>>,
    weights: HashMap<String, Weight<B>>,
    copy: bool,
    bytes: WeightBytes,
}

impl<B: Buffer> Weights<B> {
    /// No weights. With `copy`, none is read where the file is mapped.
    pub fn new(copy: bool) -> Weights<B> {
        Weights { parts: Vec::new(), weights: HashMap::new(), copy, bytes: WeightBytes::default() }
    }

    /// Maps a part of a file: the weights that lie in it are read there. Only whole pages can be mapped; what lies in
    /// the part's first and last page beyond them is copied, as are all weights of a part that the device refuses.
    pub fn add_part<D: Device<Buffer = B>>(&mut self, device: &D, part: &Bytes) -> Option<Memory<B>> {
        if self.copy || part.is_empty() {
            return None;
        }
        let alignment = device.limits().no_copy_alignment;
        let first = part.as_ptr() as usize;
        let start = first.next_multiple_of(alignment);
        // Mappings are made of whole pages of the host, so the rest of the last one is there and zero.
        let end = (first + part.len()).next_multiple_of(host_page_size()) / alignment * alignment;
        if start >= end {
            return None;
        }
        let memory = NonNull::new(part.as_ptr().wrapping_add(start - first).cast_mut())?;
        // SAFETY: the range lies in whole pages of the mapping that `part` shares, which the entry keeps until after the
        // buffer, and no kernel writes to weights.
        let buffer = unsafe { device.new_buffer_no_copy("weights", memory, end - start) }.ok()?;
        let memory = Memory::constant(buffer);
        self.parts.push(Part { start, memory: memory.clone(), _owner: part.clone() });
        Some(memory)
    }

    /// Registers a weight: a view into a part, or else a copy.
    pub fn register<D: Device<Buffer = B>>(
        &mut self,
        device: &D,
        name: &str,
        data: WeightData,
    ) -> Result<(), BackendError> {
        let expected = data.format.row_bytes(data.cols).and_then(|row| row.checked_mul(data.rows));
        if expected != Some(data.bytes.len()) {
            return Err(BackendError::Length {
                what: format!("weight '{name}' of {} x {} in {}", data.rows, data.cols, data.format),
                expected: expected.unwrap_or(0),
                found: data.bytes.len(),
            });
        }
        let slice = match self.view(&data.bytes) {
            Some(slice) => {
                self.bytes.mapped += slice.length;
                slice
            }
            None => {
                let slice = copy(device, name, &data.bytes)?;
                self.bytes.copied += slice.length;
                if let Some(release) = data.release {
                    release.release();
                }
                slice
            }
        };
        let weight = Weight { slice, format: data.format, rows: data.rows, cols: data.cols };
        self.weights.insert(name.into(), weight);
        Ok(())
    }

    /// The part's range with these bytes.
    fn view(&self, bytes: &Bytes) -> Option<Slice<B>> {
        let first = bytes.as_ptr() as usize;
        self.parts.iter().find_map(|part| {
            let offset = first.checked_sub(part.start)?;
            let slice = part.memory.slice(offset, bytes.len())?;
            offset.is_multiple_of(OFFSET_ALIGNMENT).then_some(slice)
        })
    }

    pub fn contains(&self, name: &str) -> bool {
        self.weights.contains_key(name)
    }

    /// A weight in the shape and format that the graph knows.
    pub fn get(&self, info: &WeightInfo) -> Result<Weight<B>, BackendError> {
        let missing = || BackendError::MissingWeight { name: info.name.clone() };
        let weight = self.weights.get(&info.name).ok_or_else(missing)?;
        if (weight.format, weight.rows, weight.cols) != (info.format, info.rows, info.cols) {
            return Err(invariant(
                &format!("weight '{}'", info.name),
                format!("{} x {} in {}", info.rows, info.cols, info.format),
                format!("{} x {} in {}", weight.rows, weight.cols, weight.format),
            ));
        }
        Ok(weight.clone())
    }

    /// Keeps all mappings for ever: the device may still read them.
    pub fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.parts));
    }

    pub fn bytes(&self) -> WeightBytes {
        self.bytes
    }
}

/// A constant buffer with these bytes.
fn copy<D: Device>(device: &D, label: &str, bytes: &[u8]) -> Result<Slice<D::Buffer>, BackendError> {
    let length = bytes.len();
    let failed = |error| backend_error(error, "a weight", length);
    let buffer = device.new_buffer(label, length.max(1)).map_err(failed)?;
    buffer.write(0, bytes).map_err(failed)?;
    Ok(Slice { memory: Memory::constant(buffer), offset: 0, length })
}

/// Bytes of a page of the host's memory.
fn host_page_size() -> usize {
    // SAFETY: no memory is involved.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
}
