//! What an operation sees while it is encoded: its operands, temporary memory, and launches.

use crate::backend::Core;
use crate::device::{Buffer, Capabilities, Device, Error, Limits, Pipeline, Size, checks};
use crate::families::SIMD_WIDTH;
use crate::ops::Kernels;
use crate::pipelines::PipelineId;
use crate::recorder::{Bound, Dispatch, Grid};
use crate::switches::Switches;
use crate::tensor::{Bindable, Slice, Tensor, Weight};
use crate::tracker::Access;
use bytemuck::NoUninit;
use graph::ops::RopeTable;
use graph::{BackendError, BufferId, DType, NodeCall, Operand, Shape, StatePart, WeightId};
use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;

/// A broken invariant.
pub(crate) fn invariant(what: &str, expected: impl Display, found: impl Display) -> BackendError {
    BackendError::Invariant { what: what.into(), expected: expected.to_string(), found: found.to_string() }
}

/// Checks a count.
pub(crate) fn equal(what: &str, found: usize, expected: usize) -> Result<(), BackendError> {
    if found == expected { Ok(()) } else { Err(invariant(what, expected, found)) }
}

/// One node, being encoded.
pub struct Pass<'a, D: Device> {
    call: &'a NodeCall<'a>,
    core: &'a mut Core<D>,
    kernels: &'a Kernels,
    scratch: Vec<BufferId>,
}

impl<'a, D: Device> Pass<'a, D> {
    pub(crate) fn new(call: &'a NodeCall<'a>, core: &'a mut Core<D>, kernels: &'a Kernels) -> Pass<'a, D> {
        Pass { call, core, kernels, scratch: Vec::new() }
    }

    /// The node.
    pub fn call(&self) -> &'a NodeCall<'a> {
        self.call
    }

    /// The pipelines, by family.
    pub fn kernels(&self) -> &'a Kernels {
        self.kernels
    }

    /// What the device can launch.
    pub fn limits(&self) -> &Limits {
        self.core.device.limits()
    }

    /// What the device can compile.
    pub fn capabilities(&self) -> &Capabilities {
        self.core.device.capabilities()
    }

    /// The switches of the environment.
    pub fn switches(&self) -> &Switches {
        &self.core.switches
    }

    /// A count as the shaders take it.
    ///
    /// # Errors
    /// [`BackendError::Invariant`] past the range of `u32`.
    pub fn u32(&self, what: &str, count: usize) -> Result<u32, BackendError> {
        u32::try_from(count).map_err(|_| invariant(what, format!("at most {}", u32::MAX), count))
    }

    /// Cache rows of a page.
    pub fn page_len(&self) -> usize {
        self.call.graph.params().cache.page_len
    }

    /// An input of the node.
    ///
    /// # Errors
    /// [`BackendError::Invariant`] if the node has no such input, [`BackendError::UnknownHandle`] and
    /// [`BackendError::Length`] if its operand is not in the pool.
    pub fn input(&self, index: usize) -> Result<Tensor<D::Buffer>, BackendError> {
        let operand = self
            .call
            .inputs
            .get(index)
            .ok_or_else(|| invariant("inputs", format!("more than {index}"), self.call.inputs.len()))?;
        self.operand(operand)
    }

    /// The result of the node. It may lie where an input lies, where [`Op::may_alias`](graph::Op::may_alias) says so.
    ///
    /// # Errors
    /// As for [`Pass::input`].
    pub fn output(&self) -> Result<Tensor<D::Buffer>, BackendError> {
        self.operand(&self.call.output)
    }

    /// Any operand of the node, or of a node that is held for it.
    ///
    /// # Errors
    /// As for [`Pass::input`].
    pub fn operand(&self, operand: &Operand) -> Result<Tensor<D::Buffer>, BackendError> {
        let slice = self.core.pool.slice(operand.buffer, operand.offset, operand.bytes())?;
        Ok(Tensor { slice, dtype: operand.dtype, shape: operand.shape })
    }

    /// A weight of the graph.
    ///
    /// # Errors
    /// [`BackendError::MissingWeight`], and [`BackendError::Invariant`] if it is registered in another shape or format
    /// than the graph's.
    pub fn weight(&self, id: WeightId) -> Result<Weight<D::Buffer>, BackendError> {
        self.core.weights.get(self.call.graph.weight(id))
    }

    /// One part of the state of the node's layer: all cache rows.
    ///
    /// # Errors
    /// [`BackendError::Invariant`] if the node has no state or that state has no such part.
    pub fn state(&self, part: StatePart) -> Result<Tensor<D::Buffer>, BackendError> {
        let id = self.call.state.ok_or_else(|| invariant("state", "a state of the layer", "none"))?;
        self.core.states.part(id, part)
    }

    /// The angles of a rotation as u64, one a pair: turns per position in units of 2^-64, so that the product with a
    /// position, wrapped, is the exact fraction of a turn at any position.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn rope_table(&mut self, table: &Arc<RopeTable>) -> Result<Slice<D::Buffer>, BackendError> {
        self.core.tables.get(&self.core.device, table)
    }

    /// Temporary memory for this node, with undefined content. Later nodes may get the same memory; the tracker orders
    /// them.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`].
    pub fn scratch(&mut self, dtype: DType, shape: Shape) -> Result<Tensor<D::Buffer>, BackendError> {
        let bytes = shape.bytes(dtype).ok_or_else(|| invariant("scratch", "whole rows", shape))?;
        let id = self.core.pool.alloc(&self.core.device, bytes)?;
        self.scratch.push(id);
        Ok(Tensor { slice: self.core.pool.slice(id, 0, bytes)?, dtype, shape })
    }

    /// Of parts of a node that do so many operations on floats each, how many one dispatch may do: a dispatch cannot be cut, and
    /// takes no longer than a command buffer may.
    pub fn at_once(&self, operations: u64) -> usize {
        self.core.work.at_once(operations)
    }

    /// Begins a dispatch of a kernel. `step` tells the dispatches of one node apart, as in `qkv` or `combine`; it may
    /// be empty.
    pub fn launch(&mut self, kernel: PipelineId, step: &str) -> Launch<'_, D> {
        let node = &self.call.node.label;
        let label = if step.is_empty() { node.clone() } else { format!("{node}.{step}") };
        Launch::new(self.core, kernel, label)
    }

    /// Threads of a threadgroup for a kernel that takes any number of whole SIMD-groups: so many as are wanted, or as its registers
    /// leave room for; and no more SIMD-groups than one of them has lanes, since one joins what all have found.
    pub fn whole_simdgroups(&self, kernel: PipelineId, wanted: usize) -> usize {
        let most = self.core.most_threads(kernel).min(SIMD_WIDTH * SIMD_WIDTH);
        wanted.clamp(1, most).next_multiple_of(SIMD_WIDTH).min(most / SIMD_WIDTH * SIMD_WIDTH)
    }
}

impl<D: Device> Drop for Pass<'_, D> {
    fn drop(&mut self) {
        for id in self.scratch.drain(..) {
            self.core.pool.free(id);
        }
    }
}

/// A dispatch in the making: bindings, then [`Launch::threadgroups`] or [`Launch::threads`].
#[must_use = "a launch does nothing until its grid is given"]
pub struct Launch<'c, D: Device> {
    core: &'c mut Core<D>,
    kernel: PipelineId,
    label: String,
    buffers: Vec<Bound<D::Buffer>>,
    bytes: Vec<(usize, Range<usize>)>,
    threadgroup_memory: Vec<(usize, usize)>,
    operations: u64,
}

impl<'c, D: Device> Launch<'c, D> {
    /// One that belongs to no node.
    pub(crate) fn new(core: &'c mut Core<D>, kernel: PipelineId, label: String) -> Launch<'c, D> {
        Launch {
            core,
            kernel,
            label,
            buffers: Vec::with_capacity(6),
            bytes: Vec::with_capacity(1),
            threadgroup_memory: Vec::new(),
            operations: 0,
        }
    }

    /// Says how many operations on floats the kernel does, as many as tiles would do in its time. Without it, the bytes that it
    /// touches are its work.
    pub fn operations(self, operations: u64) -> Self {
        Launch { operations, ..self }
    }

    /// Binds memory that the kernel only reads. The whole range of the operand counts as read.
    pub fn reads(self, slot: usize, operand: &impl Bindable<D::Buffer>) -> Self {
        let touched = operand.bytes();
        self.bind(slot, operand, Access::Read, touched)
    }

    /// The same for a kernel that reads only some bytes of the operand, which it chooses itself (rows of a table): the
    /// dependencies are those of all of it, and the counts those of `bytes`.
    pub fn reads_some(self, slot: usize, operand: &impl Bindable<D::Buffer>, bytes: usize) -> Self {
        self.bind(slot, operand, Access::Read, bytes)
    }

    /// Binds memory that the kernel writes, or reads and writes.
    pub fn writes(self, slot: usize, operand: &impl Bindable<D::Buffer>) -> Self {
        let touched = operand.bytes();
        self.bind(slot, operand, Access::Write, touched)
    }

    /// As [`reads_some`](Launch::reads_some), for rows of a cache.
    pub fn writes_some(self, slot: usize, operand: &impl Bindable<D::Buffer>, bytes: usize) -> Self {
        self.bind(slot, operand, Access::Write, bytes)
    }

    fn bind(
        mut self,
        slot: usize,
        operand: &impl Bindable<D::Buffer>,
        access: Access,
        touched: usize,
    ) -> Self {
        let (slice, columns) = (operand.slice().clone(), operand.columns().cloned());
        self.buffers.push(Bound { slot, slice, access, columns, touched });
        self
    }

    /// Copies arguments into the command buffer: a `#[repr(C)]` struct that mirrors the shader's `constant Args&`.
    pub fn bytes(mut self, slot: usize, arguments: &impl NoUninit) -> Self {
        let range = self.core.recorder.inline(bytemuck::bytes_of(arguments));
        self.bytes.push((slot, range));
        self
    }

    /// Gives a `[[threadgroup(slot)]]` parameter memory; lengths are rounded up to the device's granularity.
    pub fn threadgroup_memory(mut self, slot: usize, length: usize) -> Self {
        let alignment = self.core.device.limits().threadgroup_memory_alignment;
        self.threadgroup_memory.push((slot, length.next_multiple_of(alignment)));
        self
    }

    /// Records the dispatch of whole threadgroups. Of none, nothing is recorded.
    ///
    /// # Errors
    /// [`BackendError::Invariant`] for what the device could not launch: it never sees it.
    pub fn threadgroups(self, groups: Size, threads: Size) -> Result<(), BackendError> {
        self.record(Grid::Threadgroups(groups), groups, threads)
    }

    /// Records the dispatch of exactly so many threads. Of none, nothing is recorded. Such a kernel does not look at its
    /// threadgroup, so that this may be a smaller one than was asked for, where the kernel's registers leave room for no more.
    ///
    /// # Errors
    /// As for [`Launch::threadgroups`].
    pub fn threads(self, grid: Size, threads: Size) -> Result<(), BackendError> {
        let threads = threads.at_most(self.core.most_threads(self.kernel));
        self.record(Grid::Threads(grid), grid, threads)
    }

    fn record(self, grid: Grid, size: Size, threads: Size) -> Result<(), BackendError> {
        if size.to_array().contains(&0) {
            return Ok(());
        }
        self.check(size, threads)?;
        let bytes = self.buffers.iter().fold(0u64, |sum, bound| sum.saturating_add(bound.touched as u64));
        let time = self.core.work.time(self.operations, bytes);
        self.core.recorder.add(Dispatch {
            label: self.label,
            pipeline: self.kernel,
            buffers: self.buffers,
            bytes: self.bytes,
            threadgroup_memory: self.threadgroup_memory,
            grid,
            threads,
            time,
            barrier: false,
        });
        Ok(())
    }

    /// Compares what the dispatch needs with what the device has, as queried from it.
    fn check(&self, size: Size, threads: Size) -> Result<(), BackendError> {
        let name = self.core.pipelines.get(self.kernel).name();
        let (limits, most) = (self.core.device.limits(), self.core.most_threads(self.kernel));
        let checked = || {
            limits.check_launch(name, most, size, threads)?;
            for (slot, length) in &self.threadgroup_memory {
                limits.check_threadgroup_slot(name, *slot, *length)?;
            }
            for (slot, range) in &self.bytes {
                limits.check_inline_bytes(*slot, range.len())?;
            }
            for Bound { slot, slice, .. } in &self.buffers {
                limits.check_buffer_slot(*slot)?;
                let buffer = slice.memory.buffer();
                // An offset at the very end leaves nothing to bind.
                checks::buffer_range(buffer.label(), buffer.length(), slice.offset, 1)?;
            }
            Ok(())
        };
        checked().map_err(|error: Error| {
            invariant(&format!("dispatch of kernel '{name}'"), "one within the device's limits", error)
        })
    }
}
