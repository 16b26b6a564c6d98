//! How fast the machine can read memory: the limit of decoding, which reads every weight once for each token.

use crate::buffers::AlignedMemory;
use crate::error::CpuError;
use crate::pool::Pool;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Bytes that are read: more than caches hold.
const BYTES: usize = 256 << 20;
/// Bytes that a thread takes at a time.
const PART: usize = 1 << 20;
/// Passes, of which the fastest counts: the limit is asked for, not what was left of it.
const PASSES: usize = 5;

/// Bytes per second that a plain loop reads, in `threads` threads (by default as many as [`crate::CpuBackend`] has).
/// Takes some tenths of a second.
///
/// # Errors
/// [`CpuError`] if there are no threads, or no memory for the buffer of a quarter of a gigabyte.
///
/// ```no_run
/// println!("{:.1} GB/s", cpu::read_bandwidth(None)? / 1e9);
/// # Ok::<(), cpu::CpuError>(())
/// ```
pub fn read_bandwidth(threads: Option<usize>) -> Result<f64, CpuError> {
    let mut pool = Pool::new(threads)?;
    let memory =
        AlignedMemory::zeroed(BYTES, "the buffer to read").map_err(|_| CpuError::Memory { bytes: BYTES })?;
    memory.prefer_huge_pages();
    let base = SendPtr(memory.as_ptr());
    // Written once: pages that were never written are all the same one.
    pool.run(BYTES / PART, 1, &|_, parts| {
        for part in parts {
            // SAFETY: inside the memory, and each part is one worker's.
            unsafe { std::ptr::write_bytes(base.get().add(part * PART), 1, PART) };
        }
    })?;
    let total = AtomicU64::new(0);
    let mut fastest = f64::INFINITY;
    for _ in 0..PASSES {
        let start = Instant::now();
        pool.run(BYTES / PART, 1, &|_, parts| {
            for part in parts {
                // SAFETY: inside the memory, aligned, written above and only read now.
                let words: &[u64] = unsafe {
                    std::slice::from_raw_parts(
                        base.get().add(part * PART).cast::<u64>().cast_const(),
                        PART / 8,
                    )
                };
                total.fetch_add(sum(words), Ordering::Relaxed);
            }
        })?;
        fastest = fastest.min(start.elapsed().as_secs_f64());
    }
    // The sum is used, so that the loop is not optimised away.
    std::hint::black_box(total.into_inner());
    Ok(BYTES as f64 / fastest)
}

/// Independent sums, so that the loop waits for memory alone.
fn sum(words: &[u64]) -> u64 {
    let mut lanes = [0u64; 16];
    for words in words.as_chunks::<16>().0 {
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.into_iter().fold(0, u64::wrapping_add)
}

/// A pointer that workers share.
struct SendPtr(*mut u8);

impl SendPtr {
    fn get(&self) -> *mut u8 {
        self.0
    }
}

// SAFETY: what it points to outlives the jobs, which keep to their own parts when they write.
unsafe impl Sync for SendPtr {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_reads_memory() {
        let found = read_bandwidth(Some(2)).unwrap();
        // Between a tenth and ten thousand gigabytes a second: not a measurement, but it is not zero or infinite.
        assert!((1e8..1e13).contains(&found), "{found}");
        assert!(matches!(read_bandwidth(Some(0)), Err(CpuError::Pool(_))));
    }
}
