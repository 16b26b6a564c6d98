//! The registered weights: views into the mapped file, where the device can map it, and copies elsewhere.

use crate::device::{Buffer, Device};
use crate::error::backend_error;
use crate::pass::invariant;
use crate::tensor::{Memory, Slice, Weight};
use bytes::Bytes;
use graph::{BackendError, Release, WeightData, WeightInfo};
use std::collections::HashMap;
use std::ptr::NonNull;

/// Where kernels may begin to read: the alignment of a buffer's offset.
const OFFSET_ALIGNMENT: usize = 4;

/// A weight and, while its bytes are copied from the file, who gives those up.
struct Entry<B> {
    weight: Weight<B>,
    release: Option<Release>,
}

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
    /// Copied below one another, to be read by one kernel.
    pub joined: usize,
}

/// Weights by name.
pub(crate) struct Weights<B> {
    parts: Vec<Part<B>>,
    weights: HashMap<String, Entry<B>>,
    joined: HashMap<Vec<String>, Weight<B>>,
    copy: bool,
    bytes: WeightBytes,
}

impl<B: Buffer> Weights<B> {
    /// No weights. With `copy`, none is read where the file is mapped.
    pub fn new(copy: bool) -> Weights<B> {
        Weights {
            parts: Vec::new(),
            weights: HashMap::new(),
            joined: HashMap::new(),
            copy,
            bytes: WeightBytes::default(),
        }
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
        let mapped = self.view(&data.bytes);
        let (slice, release) = match mapped {
            Some(slice) => {
                self.bytes.mapped += slice.length;
                (slice, data.release)
            }
            None => {
                let slice = copy(device, name, &[&data.bytes])?;
                self.bytes.copied += slice.length;
                if let Some(release) = data.release {
                    release.release();
                }
                (slice, None)
            }
        };
        self.joined.retain(|names, _| names.iter().all(|joined| joined != name));
        let weight = Weight { slice, format: data.format, rows: data.rows, cols: data.cols };
        self.weights.insert(name.into(), Entry { weight, release });
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
        let weight = &self.weights.get(&info.name).ok_or_else(missing)?.weight;
        if (weight.format, weight.rows, weight.cols) != (info.format, info.rows, info.cols) {
            return Err(invariant(
                &format!("weight '{}'", info.name),
                format!("{} x {} in {}", info.rows, info.cols, info.format),
                format!("{} x {} in {}", weight.rows, weight.cols, weight.format),
            ));
        }
        Ok(weight.clone())
    }

    /// Weights that [`join`](Weights::join) has brought together.
    pub fn joined(&self, infos: &[&WeightInfo]) -> Result<Weight<B>, BackendError> {
        for info in infos {
            self.get(info)?;
        }
        let names: Vec<String> = infos.iter().map(|info| info.name.clone()).collect();
        let joined = self.joined.get(&names).cloned();
        joined.ok_or_else(|| invariant("joined weights", names.join(" + "), "none"))
    }

    /// Brings the rows of several weights of one width and format below one another, so that one kernel multiplies with
    /// all. Where they lie so in the file, nothing is copied; otherwise their rows become views into the copy, so that
    /// no weight is in memory twice.
    pub fn join<D: Device<Buffer = B>>(
        &mut self,
        device: &D,
        infos: &[&WeightInfo],
    ) -> Result<(), BackendError> {
        let names: Vec<String> = infos.iter().map(|info| info.name.clone()).collect();
        if self.joined.contains_key(&names) {
            return Ok(());
        }
        let weights = infos.iter().map(|info| self.get(info)).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = weights.first() else { return Ok(()) };
        let (format, cols) = (first.format, first.cols);
        if let Some(other) = weights.iter().find(|other| (other.format, other.cols) != (format, cols)) {
            let expected = format!("weights of {cols} columns in {format}");
            let found = format!("{} in {}", other.cols, other.format);
            return Err(invariant(&format!("joining {}", names.join(" + ")), expected, found));
        }
        let rows = weights.iter().map(|weight| weight.rows).sum();
        let length = weights.iter().map(|weight| weight.slice.length).sum();
        let follows = |pair: &[Weight<B>]| {
            let (one, next) = (&pair[0].slice, &pair[1].slice);
            one.memory.id() == next.memory.id() && one.offset + one.length == next.offset
        };
        let slice = if weights.windows(2).all(follows) {
            first.slice.memory.slice(first.slice.offset, length)
        } else {
            let mut bytes = vec![Vec::new(); weights.len()];
            for (bytes, weight) in bytes.iter_mut().zip(&weights) {
                bytes.resize(weight.slice.length, 0);
                let failed = |error| backend_error(error, "a weight", weight.slice.length);
                weight.slice.memory.buffer().read(weight.slice.offset, bytes).map_err(failed)?;
            }
            let all: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
            let slice = copy(device, &names.join("+"), &all)?;
            let mut offset = 0;
            for (name, weight) in names.iter().zip(&weights) {
                let part = slice.part(offset, weight.slice.length);
                offset += weight.slice.length;
                // Weights that were part of another joint stay where they are.
                let elsewhere = self.joined.keys().any(|joined| joined.contains(name));
                if let (Some(part), Some(entry), false) = (part, self.weights.get_mut(name), elsewhere) {
                    entry.weight.slice = part;
                    if let Some(release) = entry.release.take() {
                        release.release();
                    }
                }
            }
            self.bytes.joined += length;
            Some(slice)
        };
        let slice = slice.ok_or_else(|| invariant("joined weights", "rows in one buffer", &names[0]))?;
        self.joined.insert(names, Weight { slice, format, rows, cols });
        Ok(())
    }

    pub fn bytes(&self) -> WeightBytes {
        self.bytes
    }
}

/// A constant buffer with these bytes, one after the other.
fn copy<D: Device>(device: &D, label: &str, parts: &[&[u8]]) -> Result<Slice<D::Buffer>, BackendError> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let failed = |error| backend_error(error, "a weight", length);
    let buffer = device.new_buffer(label, length.max(1)).map_err(failed)?;
    let mut offset = 0;
    for part in parts {
        buffer.write(offset, part).map_err(failed)?;
        offset += part.len();
    }
    Ok(Slice { memory: Memory::constant(buffer), offset: 0, length })
}

/// Bytes of a page of the host's memory.
fn host_page_size() -> usize {
    // SAFETY: no memory is involved.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
}
