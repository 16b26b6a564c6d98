//! Tables that kernels read beside the weights.

use crate::device::{Buffer, Device};
use crate::error::backend_error;
use crate::tensor::{Memory, Slice};
use graph::BackendError;
use graph::ops::RopeTable;
use std::f64::consts::TAU;
use std::sync::Arc;

/// The angles of the rotations that were met, on the device.
pub(crate) struct RopeTables<B> {
    tables: Vec<(Arc<RopeTable>, Slice<B>)>,
}

impl<B: Buffer> RopeTables<B> {
    pub fn new() -> RopeTables<B> {
        RopeTables { tables: Vec::new() }
    }

    /// The table's angles, brought to the device at the first call.
    pub fn get<D: Device<Buffer = B>>(
        &mut self,
        device: &D,
        table: &Arc<RopeTable>,
    ) -> Result<Slice<B>, BackendError> {
        let known = |(other, _): &&(Arc<RopeTable>, Slice<B>)| Arc::ptr_eq(other, table) || other == table;
        if let Some((_, slice)) = self.tables.iter().find(known) {
            return Ok(slice.clone());
        }
        let turns: Vec<u64> = table.inv_freq.iter().map(|&radians| turns(radians)).collect();
        let bytes: &[u8] = bytemuck::cast_slice(&turns);
        let failed = |error| backend_error(error, "a table of angles", bytes.len());
        let buffer = device.new_buffer("rope table", bytes.len().max(8)).map_err(failed)?;
        buffer.write(0, bytes).map_err(failed)?;
        let slice = Memory::constant(buffer).whole();
        // Graphs of models that are gone hold no tables any more.
        self.tables.retain(|(table, _)| Arc::strong_count(table) > 1);
        self.tables.push((Arc::clone(table), slice.clone()));
        Ok(slice)
    }
}

/// Radians per position as the fraction of a turn, in units of 2^-64. The product with a position wraps around at
/// whole turns by itself, so the angle is exact at every position.
fn turns(radians: f64) -> u64 {
    ((radians / TAU).rem_euclid(1.0) * 2f64.powi(64)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angles_stay_exact_far_out() {
        for radians in [1.0, 0.9, 1e-4, 3.7e-7, 6.5] {
            for position in [0u64, 1, 1000, 131_071, 10_000_000] {
                let angle = turns(radians).wrapping_mul(position) as f64 / 2f64.powi(64) * TAU;
                let expected = (radians * position as f64).rem_euclid(TAU);
                let difference = (angle - expected).abs();
                let difference = difference.min(TAU - difference);
                assert!(difference < 1e-8, "{radians} at {position}: {angle}, expected {expected}");
            }
        }
    }
}
