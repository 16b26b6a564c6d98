//! Residency sets: nothing has to be mapped here, so only what was asked for is counted.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metal::device::{Error, ResidencySet, Result};

use super::buffer::SimBuffer;

/// Most residency sets of a queue, as of Metal's.
const MOST_SETS: usize = 32;

/// What a device's residency sets were asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// Sets that there are.
    pub sets: usize,
    /// Buffers in them.
    pub buffers: usize,
    /// How often their memory was asked for.
    pub requests: usize,
}

/// What is counted, of a device and of a queue.
#[derive(Clone, Default)]
pub(super) struct Count(Arc<Mutex<Resident>>);

impl Count {
    pub(super) fn get(&self) -> MutexGuard<'_, Resident> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A residency set. As Metal's, it holds its buffers.
pub(super) struct SimResidencySet {
    buffers: Vec<SimBuffer>,
    device: Count,
    queue: Count,
}

impl SimResidencySet {
    pub(super) fn new(label: &str, device: &Count, queue: &Count) -> Result<Self> {
        if queue.get().sets == MOST_SETS {
            let message = format!("queue '{label}': it has {MOST_SETS} residency sets and can have no more");
            return Err(Error::Device(message));
        }
        let set = Self { buffers: Vec::new(), device: device.clone(), queue: queue.clone() };
        set.count(|count| count.sets += 1);
        Ok(set)
    }

    fn count(&self, change: impl Fn(&mut Resident)) {
        change(&mut self.device.get());
        change(&mut self.queue.get());
    }
}

impl ResidencySet<SimBuffer> for SimResidencySet {
    fn change(&mut self, added: &[SimBuffer], removed: &[SimBuffer]) {
        let before = self.buffers.len();
        self.buffers.extend_from_slice(added);
        self.buffers.retain(|held| removed.iter().all(|buffer| buffer.identity() != held.identity()));
        self.count(|count| count.buffers = count.buffers + self.buffers.len() - before);
    }

    fn request(&mut self) {
        self.count(|count| count.requests += 1);
    }
}

impl Drop for SimResidencySet {
    fn drop(&mut self) {
        self.count(|count| {
            count.sets -= 1;
            count.buffers -= self.buffers.len();
        });
    }
}
