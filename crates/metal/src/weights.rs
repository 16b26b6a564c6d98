//! The registered weights: views into the mapped file, where the device can map it, and copies elsewhere.

use crate::device::{Buffer, Device};
use crate::error::backend_error;
use crate::pass::invariant;
use crate::tensor::{Memory, Slice, Weight};
use bytes::Bytes;
use graph::{BackendError, WeightData, WeightInfo};
use std::collections::HashMap;
use std::ops::Range;
use std::ptr::NonNull;

/// Where kernels may begin to read: the alignment of a buffer's offset.
const OFFSET_ALIGNMENT: usize = 4;

/// Some pages of a part of a file as one buffer, without a copy.
struct Window<B> {
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
    weights: HashMap<String, Weight<B>>,
    /// After the weights, which are in them.
    windows: Vec<Window<B>>,
    /// The addresses of whole pages of each part.
    parts: Vec<Range<usize>>,
    copy: bool,
    bytes: WeightBytes,
    unmapped: usize,
}

impl<B: Buffer> Weights<B> {
    /// No weights. With `copy`, none is read where the file is mapped.
    pub fn new(copy: bool) -> Weights<B> {
        Weights {
            weights: HashMap::new(),
            windows: Vec::new(),
            parts: Vec::new(),
            copy,
            bytes: WeightBytes::default(),
            unmapped: 0,
        }
    }

    /// Maps those pages of a part of a file that have these ranges of weights in them, in as few buffers as the device's longest
    /// allows: the weights are read there. Only whole pages can be mapped; what lies in the part's first and last page beyond
    /// them is copied, as is what the device refuses to map.
    pub fn add_part<D: Device<Buffer = B>>(
        &mut self,
        device: &D,
        part: &Bytes,
        weights: &[Range<usize>],
    ) -> Vec<B> {
        if self.copy || part.is_empty() {
            return Vec::new();
        }
        let (page, longest) = (device.limits().no_copy_alignment, device.limits().max_buffer_length);
        let first = part.as_ptr() as usize;
        // Mappings are made of whole pages of the host, so the rest of the last one is there and zero.
        let end = (first + part.len()).next_multiple_of(host_page_size()) / page * page;
        let whole = first.next_multiple_of(page)..end;
        let inside = weights.iter().filter(|range| range.end <= part.len());
        let addresses = inside.map(|range| first + range.start..first + range.end);
        let mut mapped = Vec::new();
        for pages in windows(addresses, &whole, page, longest) {
            let memory = part.as_ptr().wrapping_add(pages.start - first).cast_mut();
            let Some(memory) = NonNull::new(memory) else { continue };
            // SAFETY: the range lies in whole pages of the mapping that `part` shares, which the window keeps until after the
            // buffer, and no kernel writes to weights.
            let buffer = unsafe { device.new_buffer_no_copy("weights", memory, pages.len()) };
            let Ok(buffer) = buffer else { continue };
            mapped.push(buffer.clone());
            let memory = Memory::constant(buffer);
            self.windows.push(Window { start: pages.start, memory, _owner: part.clone() });
        }
        self.parts.push(whole);
        mapped
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
                if self.is_in_whole_pages(&data.bytes) {
                    self.unmapped += slice.length;
                }
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

    /// Whether these bytes could be mapped, as far as it is for their place.
    fn is_in_whole_pages(&self, bytes: &Bytes) -> bool {
        let first = bytes.as_ptr() as usize;
        self.parts.iter().any(|part| part.start <= first && first + bytes.len() <= part.end)
    }

    /// Bytes of weights that were copied, though whole pages of a part have them.
    pub fn unmapped(&self) -> usize {
        self.unmapped
    }

    /// The window's range with these bytes.
    fn view(&self, bytes: &Bytes) -> Option<Slice<B>> {
        let first = bytes.as_ptr() as usize;
        self.windows.iter().find_map(|window| {
            let offset = first.checked_sub(window.start)?;
            let slice = window.memory.slice(offset, bytes.len())?;
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
        std::mem::forget(std::mem::take(&mut self.windows));
    }

    pub fn bytes(&self) -> WeightBytes {
        self.bytes
    }
}

/// The pages of a part that have these weights in them, in runs of at most `longest` bytes: each weight lies as a whole in
/// one of them, so that two runs may share the pages between them. Of no use are pages for a weight that is longer than that, or that begins before
/// or ends behind the part's whole pages.
fn windows(
    weights: impl Iterator<Item = Range<usize>>,
    whole: &Range<usize>,
    page: usize,
    longest: usize,
) -> Vec<Range<usize>> {
    let around = |weight: Range<usize>| weight.start / page * page..weight.end.next_multiple_of(page);
    let mut pages: Vec<_> = weights.filter(|weight| !weight.is_empty()).map(around).collect();
    pages.retain(|pages| whole.start <= pages.start && pages.end <= whole.end && pages.len() <= longest);
    pages.sort_by_key(|pages| (pages.start, pages.end));
    let mut runs: Vec<Range<usize>> = Vec::new();
    for pages in pages {
        match runs.last_mut() {
            Some(run) if pages.start <= run.end && pages.end.max(run.end) - run.start <= longest => {
                run.end = run.end.max(pages.end);
            }
            _ => runs.push(pages),
        }
    }
    runs
}

/// A constant buffer with these bytes.
fn copy<D: Device>(device: &D, label: &str, bytes: &[u8]) -> Result<Slice<D::Buffer>, BackendError> {
    let length = bytes.len();
    let what = format!("a weight in one buffer, of {} bytes at most", device.limits().max_buffer_length);
    let failed = |error| backend_error(error, &what, length);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(weights: &[Range<usize>], longest: usize) -> Vec<Range<usize>> {
        windows(weights.iter().cloned(), &(16..160), 16, longest)
    }

    #[test]
    fn neighbours_share_a_window_as_long_as_it_may_be() {
        let weights = [16..24, 24..60, 60..61, 100..120];
        assert_eq!(runs(&weights, 1000), [16..64, 96..128]);
        assert_eq!(runs(&weights, 48), [16..64, 96..128]);
        assert_eq!(runs(&[100..120, 16..24, 24..24], 1000), [16..32, 96..128], "in any order");
        // Pages that touch are one run, others between them are nobody's.
        assert_eq!(runs(&[16..32, 32..48, 64..80], 1000), [16..48, 64..80]);
    }

    #[test]
    fn every_weight_lies_in_one_window_as_a_whole() {
        // The page that both need is in both windows.
        assert_eq!(runs(&[16..40, 40..80], 48), [16..48, 32..80]);
        let weights: Vec<_> = (0..11).map(|i| 20 + i * 12..32 + i * 12).collect();
        for longest in [32, 48, 64, 100] {
            let found = runs(&weights, longest);
            for weight in &weights {
                let holds = |run: &&Range<usize>| run.start <= weight.start && weight.end <= run.end;
                assert!(found.iter().find(holds).is_some(), "{weight:?} in {found:?}");
            }
            assert!(found.iter().all(|run| run.len() <= longest && run.start % 16 == 0 && run.end % 16 == 0));
        }
    }

    #[test]
    fn what_is_too_long_or_at_the_edge_is_not_mapped() {
        assert_eq!(runs(&[16..80, 80..90, 120..130], 48), [80..96, 112..144]);
        assert_eq!(runs(&[0..20, 150..161], 1000), []);
    }
}
