//! How weights are cut for several devices that share every layer.

use crate::{BackendError, Release, WeightData};
use bytes::Bytes;

/// What each device has of a weight. A part that reaches beyond the weight's end is filled up with zeros, which every
/// format decodes to zeros: so all devices have parts of one shape, also where blocks do not divide evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// All of it.
    Whole,
    /// All of it on the first, zeros on the others: what is added to a sum over the devices.
    First,
    /// So many output features.
    Rows(usize),
    /// So many input features, a whole number of blocks.
    Cols(usize),
}

impl Cut {
    /// The part of device number `device`.
    ///
    /// # Errors
    /// [`BackendError::Invariant`] for a part that is no whole number of blocks.
    pub fn part(self, name: &str, data: &WeightData, device: usize) -> Result<WeightData, BackendError> {
        let WeightData { format, rows, cols, .. } = *data;
        let invariant = |expected: &str, found: String| BackendError::Invariant {
            what: format!("part of weight '{name}'"),
            expected: expected.into(),
            found,
        };
        let row_bytes = |cols: usize| {
            let blocks = format!("whole blocks of {}", format.block_len());
            format.row_bytes(cols).ok_or_else(|| invariant(&blocks, format!("{cols} columns")))
        };
        let row = row_bytes(cols)?;
        if rows.checked_mul(row) != Some(data.bytes.len()) {
            return Err(invariant(
                &format!("{rows} rows of {row} bytes"),
                format!("{} bytes", data.bytes.len()),
            ));
        }
        let zeros = |bytes: Option<usize>| {
            let bytes = bytes.filter(|&bytes| bytes <= isize::MAX as usize);
            bytes
                .map(|bytes| vec![0; bytes])
                .ok_or_else(|| invariant("what fits in memory", format!("{self:?}")))
        };
        // Where a part begins, and how much of it there is.
        let range = |share: usize, all: usize| {
            let start = share.saturating_mul(device).min(all);
            (start, share.min(all - start))
        };
        match self {
            Cut::First if device > 0 => {
                let bytes = zeros(Some(data.bytes.len()))?;
                Ok(WeightData { bytes: bytes.into(), release: Some(Release::of_copy()), ..data.clone() })
            }
            Cut::Whole | Cut::First => Ok(data.clone()),
            Cut::Rows(share) => {
                let (start, len) = range(share, rows);
                let own = data.bytes.slice(start * row..(start + len) * row);
                if len == share {
                    let release = data.release.clone();
                    return Ok(WeightData { format, rows: share, cols, bytes: own, release });
                }
                let mut bytes = zeros(share.checked_mul(row))?;
                bytes[..own.len()].copy_from_slice(&own);
                let (bytes, release) = (Bytes::from(bytes), Some(Release::of_copy()));
                Ok(WeightData { format, rows: share, cols, bytes, release })
            }
            Cut::Cols(share) => {
                let (start, len) = range(share, cols);
                let (first, own, to) = (row_bytes(start)?, row_bytes(len)?, row_bytes(share)?);
                let mut bytes = zeros(rows.checked_mul(to))?;
                if own > 0 {
                    for (from, to) in data.bytes.chunks_exact(row).zip(bytes.chunks_exact_mut(to)) {
                        to[..own].copy_from_slice(&from[first..][..own]);
                    }
                }
                let (bytes, release) = (Bytes::from(bytes), Some(Release::of_copy()));
                Ok(WeightData { format, rows, cols: share, bytes, release })
            }
        }
    }
}
