//! Gathering rows: of the embedding, of activations, and of the cache.

use super::Lowering;
use crate::buffers::cache_type;
use crate::checks::Check;
use crate::kernels::Spec;
use crate::program::Work;
use crate::step::{Step, invariant};
use graph::{BackendError, StatePart};
use quant::Format;

#[repr(C)]
#[derive(Clone, Copy)]
struct RowsArgs {
    table: u64,
    indices: u64,
    out: u64,
    rows: u32,
    cols: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct LoadArgs {
    cache: u64,
    rows: u64,
    out: u64,
    limit: u32,
    cols: u32,
    kind: i32,
}

impl Lowering<'_> {
    pub(super) fn get_rows(&mut self, step: &Step, from_weight: bool) -> Result<(), BackendError> {
        let (table, rows, format, indices) = if from_weight {
            let info = step.weight(0)?.clone();
            (self.weights.raw(&info.name, self.stream)?, info.rows, info.format, step.input(0)?)
        } else {
            let x = step.input(0)?;
            (self.floats(&x)?, x.shape.rows, Format::F32, step.input(1)?)
        };
        let cols = step.output.shape.cols;
        let args = RowsArgs {
            table,
            indices: self.ints(&indices)?,
            out: self.floats(&step.output)?,
            rows: rows as u32,
            cols: cols as u32,
        };
        let what = if indices.shape.rows == step.tokens { "token" } else { "row index" };
        self.check(Check::Below { what, values: indices, limit: rows });
        let grid = [cols.div_ceil(256), step.output.shape.rows, 1];
        self.launch(Spec::GetRows(format), grid, 256, 0, args)?;
        if let Some(Work::Kernel(launch)) = self.out.launches.last_mut() {
            launch.orderly = true;
        }
        Ok(())
    }

    pub(super) fn kv_load(&mut self, step: &Step, part: StatePart) -> Result<(), BackendError> {
        let state = step.state.ok_or_else(|| invariant("state", "that of a layer", "none"))?;
        let state = self.states.get(state)?;
        let (limit, cols, dtype) =
            state.spec.part(part).ok_or_else(|| invariant("state", format!("{part:?}"), "none"))?;
        let rows = step.input(1)?;
        let args = LoadArgs {
            cache: state.part(part)?.address(),
            rows: self.ints(&rows)?,
            out: self.floats(&step.output)?,
            limit: limit as u32,
            cols: cols as u32,
            kind: cache_type(dtype).ok_or_else(|| invariant("cache", "a type that is known", dtype))?,
        };
        self.check(Check::Below { what: "cache row", values: rows, limit });
        self.launch(Spec::Plain("cache.cu", "kv_load"), [step.output.shape.rows, 1, 1], 256, 0, args)
    }
}
