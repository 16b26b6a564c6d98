//! Checks of what operations are given.

use crate::pass::invariant;
use graph::BackendError;
use std::fmt::Display;

/// A count as the kernels take it: signed, so that differences of counts are safe to form.
pub(super) fn int(what: &str, count: usize) -> Result<i32, BackendError> {
    i32::try_from(count).map_err(|_| invariant(what, format!("at most {}", i32::MAX), count))
}

/// A condition on an operand.
pub(super) fn require(
    holds: bool,
    what: &str,
    expected: impl Display,
    found: impl Display,
) -> Result<(), BackendError> {
    if holds { Ok(()) } else { Err(invariant(what, expected, found)) }
}

/// Of bytes, the share of `count` of `of` equal parts.
pub(super) fn share(bytes: usize, count: usize, of: usize) -> usize {
    // No more than the bytes; the product of two counts fits.
    (bytes as u128 * count.min(of) as u128 / of.max(1) as u128) as usize
}
