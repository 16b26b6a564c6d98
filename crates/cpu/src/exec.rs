//! One node being executed: its operands as checked views of memory, its weights, and the backend's working parts.

use crate::backend::Activations;
use crate::buffers::{AlignedMemory, BufferPool, State, States};
use crate::pool::{Pool, PoolError};
use crate::quantize::{Columns, QuantCache};
use crate::rope::RopeCache;
use crate::simd::{Kernels, Panel};
use crate::weights::{Weight, Weights};
use graph::{BackendError, DType, NodeCall, Operand, Shape, StatePart, WeightId};
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;

/// An f32 matrix that is read. It may be the memory that an [`Out`] of the same node is written to, so rows are only
/// turned into slices where that is excluded.
#[derive(Clone, Copy)]
pub(crate) struct In<'a> {
    ptr: *const f32,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    memory: PhantomData<&'a f32>,
}

/// An f32 matrix that is written.
#[derive(Clone, Copy)]
pub(crate) struct Out<'a> {
    ptr: *mut f32,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    memory: PhantomData<&'a f32>,
}

// SAFETY: a view of plain floats. Concurrent access is the business of whoever dereferences its pointers.
unsafe impl Sync for In<'_> {}
// SAFETY: as above.
unsafe impl Send for In<'_> {}
// SAFETY: as above.
unsafe impl Sync for Out<'_> {}
// SAFETY: as above.
unsafe impl Send for Out<'_> {}

impl<'a> In<'a> {
    /// The first element of a row, followed by `cols` elements.
    pub(crate) fn row(&self, row: usize) -> *const f32 {
        assert!(row < self.rows.max(1), "row {row} of {}", self.rows);
        self.ptr.wrapping_add(row * self.cols)
    }

    /// All elements.
    ///
    /// # Safety
    /// Nothing writes to the matrix while the slice lives.
    pub(crate) unsafe fn as_slice(&self) -> &'a [f32] {
        // SAFETY: the view is valid for its elements; not written by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.ptr, self.rows * self.cols) }
    }
}

impl<'a> Out<'a> {
    /// A view of a slice.
    pub(crate) fn new(data: &'a mut [f32], rows: usize, cols: usize) -> Out<'a> {
        assert!(data.len() >= rows * cols, "a view of {rows} x {cols} needs more than {}", data.len());
        Out { ptr: data.as_mut_ptr(), rows, cols, memory: PhantomData }
    }

    /// The first element of a row, followed by `cols` elements.
    pub(crate) fn row(&self, row: usize) -> *mut f32 {
        assert!(row < self.rows.max(1), "row {row} of {}", self.rows);
        self.ptr.wrapping_add(row * self.cols)
    }

    /// A row as a slice.
    ///
    /// # Safety
    /// Nobody else accesses the row while the slice lives.
    #[allow(clippy::mut_from_ref, reason = "a view: the caller promises disjoint rows")]
    pub(crate) unsafe fn row_mut(&self, row: usize) -> &'a mut [f32] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: inside the view; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.row(row), self.cols) }
    }

    /// The same memory, to read from.
    pub(crate) fn as_in(&self) -> In<'a> {
        In { ptr: self.ptr, rows: self.rows, cols: self.cols, memory: PhantomData }
    }
}

/// Scratch of one worker.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Unpacked weights.
    pub(crate) panel: Panel,
    /// A decoded weight row, or the tiles of attention.
    pub(crate) floats: Vec<f32>,
}

/// A [`Scratch`] for each worker of the pool.
pub(crate) struct Workers {
    scratch: Vec<UnsafeCell<Scratch>>,
}

// SAFETY: each element is only used by the worker of its index; see `of`.
unsafe impl Sync for Workers {}

impl Workers {
    pub(crate) fn new(threads: usize) -> Workers {
        Workers { scratch: (0..threads).map(|_| UnsafeCell::default()).collect() }
    }

    /// The scratch of a worker.
    ///
    /// # Safety
    /// `worker` is the index that the pool gave to the running body, which holds only this one reference.
    #[allow(clippy::mut_from_ref, reason = "one worker, one element")]
    pub(crate) unsafe fn of(&self, worker: usize) -> &mut Scratch {
        // SAFETY: the pool gives an index to one thread at a time.
        unsafe { &mut *self.scratch[worker].get() }
    }
}

/// Reused memory of operations that run one at a time.
#[derive(Default)]
pub(crate) struct Temporaries {
    /// Results between the steps of a fused operation.
    pub(crate) fused: [Vec<f32>; 3],
    /// Activations and products of logits.
    pub(crate) logits: crate::matmul::LogitsScratch,
    /// Choices in the order of their experts, and results in that order.
    pub(crate) experts: crate::experts::ExpertScratch,
    /// Work list and partial results of attention.
    pub(crate) attention: crate::attention::AttentionScratch,
}

/// What an operation works with.
pub(crate) struct Exec<'a> {
    pub(crate) call: &'a NodeCall<'a>,
    pub(crate) kernels: &'static Kernels,
    pub(crate) activations: Activations,
    pub(crate) pool: &'a mut Pool,
    pub(crate) workers: &'a Workers,
    pub(crate) quant: &'a mut QuantCache,
    pub(crate) rope: &'a mut RopeCache,
    pub(crate) temporaries: &'a mut Temporaries,
    pub(crate) buffers: &'a BufferPool,
    pub(crate) states: &'a States,
    pub(crate) weights: &'a Weights,
}

impl From<PoolError> for BackendError {
    fn from(error: PoolError) -> BackendError {
        BackendError::Device(error.to_string())
    }
}

/// An error about something that the graph or its plan promised.
pub(crate) fn invariant(what: impl ToString, expected: impl ToString, found: impl ToString) -> BackendError {
    BackendError::Invariant {
        what: what.to_string(),
        expected: expected.to_string(),
        found: found.to_string(),
    }
}

/// Checks a count that the graph promised. `what` is only written down if it differs.
pub(crate) fn equal(what: impl fmt::Display, found: usize, expected: usize) -> Result<(), BackendError> {
    if found == expected { Ok(()) } else { Err(invariant(what, expected, found)) }
}

/// Checks an index that comes from an input.
pub(crate) fn index(what: &str, row: usize, found: i32, limit: usize) -> Result<usize, BackendError> {
    usize::try_from(found).ok().filter(|&found| found < limit).ok_or_else(|| BackendError::BadInput {
        what: what.into(),
        row,
        found: i64::from(found),
        limit: limit as i64,
    })
}

impl<'a> Exec<'a> {
    /// An input operand.
    pub(crate) fn operand(&self, input: usize) -> Result<Operand, BackendError> {
        let call = self.call;
        call.inputs
            .get(input)
            .copied()
            .ok_or_else(|| invariant("inputs", format!("at least {}", input + 1), call.inputs.len()))
    }

    /// The memory of an operand, aligned for its elements.
    fn locate(
        &self,
        what: fmt::Arguments<'_>,
        operand: &Operand,
        dtype: DType,
    ) -> Result<*mut u8, BackendError> {
        if operand.dtype != dtype {
            return Err(invariant(what, dtype, operand.dtype));
        }
        let bytes = operand
            .shape
            .bytes(dtype)
            .ok_or_else(|| invariant(what, "a shape that fits in memory", operand.shape))?;
        if !operand.offset.is_multiple_of(4) {
            return Err(invariant(what, "an offset that is a multiple of 4", operand.offset));
        }
        self.buffers.get(operand.buffer)?.range(operand.offset, bytes, what)
    }

    /// An f32 input.
    pub(crate) fn input(&self, input: usize) -> Result<In<'a>, BackendError> {
        let operand = self.operand(input)?;
        let ptr = self.locate(format_args!("input {input}"), &operand, DType::F32)?;
        Ok(In { ptr: ptr.cast(), rows: operand.shape.rows, cols: operand.shape.cols, memory: PhantomData })
    }

    /// An i32 input. The one operation that writes integers reads none, so it can be lent as a slice.
    pub(crate) fn ints(&self, input: usize) -> Result<&'a [i32], BackendError> {
        let operand = self.operand(input)?;
        let ptr = self.locate(format_args!("input {input}"), &operand, DType::I32)?;
        // SAFETY: inside a buffer, aligned, always initialised (buffers start as zeros). The output of the node is
        // another range, which `output` checks.
        Ok(unsafe { std::slice::from_raw_parts(ptr.cast(), operand.shape.elements()) })
    }

    /// Where the result goes, after checking that it shares memory with no input but one that it may replace: the
    /// same range, element for element.
    pub(crate) fn output(&self) -> Result<Out<'a>, BackendError> {
        let ptr = self.output_of(DType::F32)?;
        let Shape { rows, cols } = self.call.output.shape;
        Ok(Out { ptr: ptr.cast(), rows, cols, memory: PhantomData })
    }

    /// Where integers go, row by row: as [`output`](Exec::output).
    pub(crate) fn int_output(&self) -> Result<Columns<i32>, BackendError> {
        let ptr = self.output_of(DType::I32)?;
        let shape = self.call.output.shape;
        // SAFETY: inside a buffer, aligned, always initialised; nobody else has this range during the operation.
        let all = unsafe { std::slice::from_raw_parts_mut(ptr.cast(), shape.elements()) };
        Ok(Columns::new(all, shape.cols))
    }

    /// The memory of the result, checked as [`output`](Exec::output) says.
    fn output_of(&self, dtype: DType) -> Result<*mut u8, BackendError> {
        let output = self.call.output;
        let ptr = self.locate(format_args!("output"), &output, dtype)?;
        for (i, input) in self.call.inputs.iter().enumerate() {
            let overlap = input.buffer == output.buffer
                && input.offset < output.offset + output.bytes()
                && output.offset < input.offset + input.bytes();
            let same = input.offset == output.offset && input.bytes() == output.bytes();
            if overlap && !(same && self.call.node.op.may_alias(i)) {
                return Err(invariant(
                    "output",
                    format!("no memory of input {i}, at byte {} of buffer {}", input.offset, input.buffer.0),
                    format!("byte {} of it", output.offset),
                ));
            }
        }
        Ok(ptr)
    }

    /// The bytes of an input and of the result, of the same element type. They may overlap.
    pub(crate) fn bytes_in_and_out(&self, input: usize) -> Result<(*const u8, *mut u8), BackendError> {
        let (operand, output) = (self.operand(input)?, self.call.output);
        let src = self.locate(format_args!("input {input}"), &operand, output.dtype)?;
        Ok((src.cast_const(), self.locate(format_args!("output"), &output, output.dtype)?))
    }

    /// A weight.
    pub(crate) fn weight(&self, id: WeightId) -> Result<&'a Weight, BackendError> {
        let info = self.call.graph.weights().get(id.0).ok_or_else(|| {
            invariant("weight", format!("one of {}", self.call.graph.weights().len()), id.0)
        })?;
        let weight = self.weights.get(&info.name)?;
        if (weight.format, weight.rows, weight.cols) != (info.format, info.rows, info.cols) {
            return Err(invariant(
                format_args!("weight '{}'", info.name),
                format!("{} [{}, {}]", info.format, info.rows, info.cols),
                format!("{} [{}, {}]", weight.format, weight.rows, weight.cols),
            ));
        }
        Ok(weight)
    }

    /// A vector weight (norm, bias), decoded.
    pub(crate) fn vector(&self, id: WeightId) -> Result<&'a [f32], BackendError> {
        self.weight(id)?.vector()
    }

    /// The state of the node's layer.
    pub(crate) fn state(&self) -> Result<&'a State, BackendError> {
        let id = self.call.state.ok_or_else(|| invariant("state", "one", "none"))?;
        self.states.get(id)
    }

    /// A part of the state, with its rows, columns and element type.
    pub(crate) fn state_part(&self, part: StatePart) -> Result<StateMatrix<'a>, BackendError> {
        let state = self.state()?;
        let memory = state.part(part)?;
        let (rows, cols, dtype) = state
            .spec
            .part(part)
            .ok_or_else(|| invariant("part of the state", format!("{part:?}"), "none"))?;
        let row_bytes =
            dtype.row_bytes(cols).ok_or_else(|| invariant("columns of the state", "whole blocks", cols))?;
        Ok(StateMatrix { memory, rows, cols, dtype, row_bytes })
    }
}

/// One matrix of a state.
#[derive(Clone, Copy)]
pub(crate) struct StateMatrix<'a> {
    memory: &'a AlignedMemory,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) dtype: DType,
    pub(crate) row_bytes: usize,
}

impl StateMatrix<'_> {
    /// The first byte of a row.
    pub(crate) fn row(&self, row: usize) -> *mut u8 {
        assert!(row < self.rows, "cache row {row} of {}", self.rows);
        self.memory.as_ptr().wrapping_add(row * self.row_bytes)
    }
}
