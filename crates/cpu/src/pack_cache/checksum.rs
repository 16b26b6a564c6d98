//! Checksums of packed weights.

use crate::pool::Pool;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes whose checksum is taken together: pieces of a weight are summed in parallel.
pub(super) const PIECE: usize = 1 << 20;

/// A checksum that is as fast as memory. For a fixed length, a change within any one 8-byte word always changes it:
/// each step is a bijection of the lane for a given word, and of the word for a given lane. No protection from malice.
pub fn checksum(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let step = |lane: u64, word: u64| (lane ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let mut lanes = [1u64, 2, 3, 4, 5, 6, 7, 8];
    let mut add = |chunk: &[u8; 64]| {
        for (lane, word) in lanes.iter_mut().zip(chunk.as_chunks::<8>().0) {
            *lane = step(*lane, u64::from_le_bytes(*word));
        }
    };
    let (chunks, rest) = bytes.as_chunks::<64>();
    chunks.iter().for_each(&mut add);
    let mut last = [0; 64];
    last[..rest.len()].copy_from_slice(rest);
    add(&last);
    lanes.into_iter().fold(bytes.len() as u64, step)
}

/// The checksum of the pieces' checksums.
pub(super) fn checksum_of_sums(sums: impl Iterator<Item = u64>) -> u64 {
    checksum(&sums.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
}

/// The checksum of a weight, by all threads; `None` if one of them failed.
pub(super) fn weight_checksum(pool: &mut Pool, bytes: &[u8]) -> Option<u64> {
    let pieces: Vec<&[u8]> = bytes.chunks(PIECE).collect();
    let sums: Vec<AtomicU64> = pieces.iter().map(|_| AtomicU64::new(0)).collect();
    pool.run(pieces.len(), 1, &|_, range| {
        for piece in range {
            sums[piece].store(checksum(pieces[piece]), Ordering::Relaxed);
        }
    })
    .ok()?;
    Some(checksum_of_sums(sums.into_iter().map(AtomicU64::into_inner)))
}
