//! The memory that requests take, counted.

use crate::error::ApiError;
use axum::http::StatusCode;
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of a request that need no room: what many clients send at once stays small without a count.
pub const SMALL: usize = 64 << 10;

/// Bytes that all requests have together beyond those.
const ROOM: usize = 256 << 20;

/// What is counted in.
const UNIT: usize = 1 << 10;

/// Units of a mebibyte.
const MIB: usize = (1 << 20) / UNIT;

/// The room that all requests share.
#[derive(Clone, Debug)]
pub struct Memory {
    units: Arc<Semaphore>,
    total: usize,
    /// What it is for, in words.
    purpose: &'static str,
}

/// What one request has of the room, given back with it.
#[derive(Debug)]
pub struct Account {
    memory: Memory,
    bytes: usize,
    held: Option<OwnedSemaphorePermit>,
}

impl Memory {
    /// Room for requests whose bodies have at most `limit` bytes.
    pub fn new(limit: usize) -> Memory {
        Memory::of_bytes(ROOM.max(limit.saturating_mul(2)), "large requests")
    }

    /// Room for so many bytes.
    pub fn of_bytes(bytes: usize, purpose: &'static str) -> Memory {
        let total = bytes.div_ceil(UNIT).min(Semaphore::MAX_PERMITS);
        Memory { units: Arc::new(Semaphore::new(total)), total, purpose }
    }

    /// The account of a request, which has taken nothing.
    pub fn account(&self) -> Account {
        Account { memory: self.clone(), bytes: 0, held: None }
    }
}

impl Account {
    /// Takes the room for so many more bytes, or none.
    ///
    /// # Errors
    /// 503 where others have it, 413 where there is not as much at all.
    pub fn grow(&mut self, more: usize) -> Result<(), ApiError> {
        let units = units(self.bytes.saturating_add(more));
        if units > self.memory.total {
            let message = format!(
                "the request takes too much memory: {} MiB, expected at most {}",
                units.div_ceil(MIB),
                self.memory.total / MIB
            );
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, Some("request_too_large"), message));
        }
        let missing = units.saturating_sub(self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
        if missing > 0 {
            let taken = u32::try_from(missing)
                .ok()
                .and_then(|missing| Arc::clone(&self.memory.units).try_acquire_many_owned(missing).ok());
            let Some(taken) = taken else {
                let message = format!("others have the memory that is set aside for {}", self.memory.purpose);
                return Err(ApiError::unavailable("overloaded", message, 1));
            };
            match &mut self.held {
                Some(held) => held.merge(taken),
                None => self.held = Some(taken),
            }
        }
        self.bytes = self.bytes.saturating_add(more);
        Ok(())
    }

    /// Bytes that it has taken.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives the room of so many bytes back.
    pub fn shrink(&mut self, less: usize) {
        self.bytes = self.bytes.saturating_sub(less);
        if let Some(held) = &mut self.held {
            let spare = held.num_permits().saturating_sub(units(self.bytes));
            // Dropped, so given back.
            drop(held.split(spare));
        }
    }
}

/// Units for so many bytes beside the first ones.
fn units(bytes: usize) -> usize {
    bytes.saturating_sub(SMALL).div_ceil(UNIT)
}

/// An account that two threads use.
#[derive(Debug)]
pub struct SharedAccount(Mutex<Account>);

impl SharedAccount {
    pub fn new(account: Account) -> SharedAccount {
        SharedAccount(Mutex::new(account))
    }

    pub fn lock(&self) -> MutexGuard<'_, Account> {
        // What it guards is whole after each call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that the tree of a JSON text takes at most, beside those of its texts.
///
/// Each value but the first comes behind a bracket, a comma or a colon. Lists grow by doubling, so at worst half of their
/// places are empty, and a text or a list has a block of memory of its own; a field of an object, of twice the size, has
/// two such signs.
pub fn tree_bytes(json: &[u8]) -> usize {
    const VALUE: usize = 2 * size_of::<Value>() + 32;
    let (mut values, mut in_text, mut escaped) = (1, false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            b'[' | b'{' | b',' | b':' if !in_text => values += 1,
            _ => {}
        }
    }
    values * VALUE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_requests_share_their_room_and_small_ones_need_none() {
        let memory = Memory::of_bytes(3 * UNIT, "tests");
        let account = |bytes: usize| {
            let mut account = memory.account();
            [bytes / 2, bytes - bytes / 2].into_iter().try_for_each(|part| account.grow(part))?;
            Ok::<_, ApiError>(account)
        };
        let _small: Vec<_> = (0..100).map(|_| account(SMALL).unwrap()).collect();
        let mut large = account(SMALL + 2 * UNIT + 1).unwrap();
        let refused = account(SMALL + 1).unwrap_err();
        assert_eq!((refused.status, refused.retry_after), (StatusCode::SERVICE_UNAVAILABLE, Some(1)));
        assert!(refused.message.contains("set aside for tests"), "{}", refused.message);
        large.shrink(1);
        let other = account(SMALL + 1).unwrap();
        // What could not be had was not taken.
        large.grow(UNIT).unwrap_err();
        drop(other);
        large.grow(UNIT).unwrap();
        drop(large);
        assert_eq!(memory.units.available_permits(), 3);
    }

    #[test]
    fn what_never_fits_is_not_to_be_tried_again() {
        let error = Memory::of_bytes(3 * UNIT, "tests").account().grow(SMALL + 3 * UNIT + 1).unwrap_err();
        assert_eq!((error.status, error.retry_after), (StatusCode::PAYLOAD_TOO_LARGE, None));
        // Whatever the limit, a body of that size fits.
        let memory = Memory::new(1 << 30);
        memory.account().grow(1 << 30).unwrap();
    }

    #[test]
    fn the_values_of_a_text_are_counted_and_not_its_signs() {
        let one = tree_bytes(b"1");
        assert!(one >= 2 * size_of::<Value>());
        assert_eq!(tree_bytes(b"[1, 2, [3]]"), 5 * one);
        assert_eq!(tree_bytes(br#"{"a": 1, "b": {}}"#), 6 * one);
        assert_eq!(tree_bytes(br#""[1, 2, \"3, \\""#), one);
        assert_eq!(tree_bytes(br#"["\\", 1]"#), 3 * one);
    }
}
