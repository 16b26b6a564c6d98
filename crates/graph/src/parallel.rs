//! Devices that share every layer, as one backend: tensor parallelism.
//!
//! The graph is that of one device, with its part of the heads and features; all devices run it at the same time, each
//! with its part of the weights and of the cache, and meet where the graph says so ([`Op::AllReduce`],
//! [`Op::AllGather`]). Devices that have a way of their own to do that are given these nodes like any others; for others
//! the host brings the values together. What all devices have alike, the host reads from the first.
//!
//! This module does not know devices, and not which weights are cut in which way.

use crate::{
    Backend, BackendError, BufferId, Cut, DType, FusedOp, Graph, Largest, NodeCall, NodeId, Op, OpQuery,
    Operand, Shape, StateId, StatePart, StateSpec, WeightData,
};
use std::collections::HashMap;

/// Several backends that share every layer.
pub struct TensorParallel {
    name: String,
    devices: Vec<Box<dyn Backend>>,
    /// How weights are cut, by name; those that are not here every device has whole.
    cuts: HashMap<String, Cut>,
    /// Whether the devices meet by themselves.
    meets: bool,
    /// The ids that the devices have given for each of this backend's.
    buffers: HashMap<usize, Vec<BufferId>>,
    states: HashMap<usize, Vec<StateId>>,
    next: usize,
}

impl TensorParallel {
    /// One backend of several; its name is theirs, with `+` between them.
    ///
    /// # Panics
    /// If there are no devices.
    pub fn new(devices: Vec<Box<dyn Backend>>, cuts: HashMap<String, Cut>) -> TensorParallel {
        assert!(!devices.is_empty(), "a group needs at least one device");
        let name = devices.iter().map(|device| device.name()).collect::<Vec<_>>().join("+");
        let query = OpQuery {
            op: &Op::AllReduce,
            output: DType::F32,
            shape: Shape::new(1, 1),
            inputs: &[DType::F32],
            weights: &[],
            state: None,
        };
        let meets = devices.iter().all(|device| device.supports_op(&query));
        TensorParallel {
            name,
            devices,
            cuts,
            meets,
            buffers: HashMap::new(),
            states: HashMap::new(),
            next: 0,
        }
    }

    /// The ids of the devices for a buffer.
    fn buffer(&self, id: BufferId) -> Result<&[BufferId], BackendError> {
        let found = self.buffers.get(&id.0).map(Vec::as_slice);
        found.ok_or(BackendError::UnknownHandle { kind: "buffer", id: id.0 })
    }

    fn state(&self, id: StateId) -> Result<&[StateId], BackendError> {
        let found = self.states.get(&id.0).map(Vec::as_slice);
        found.ok_or(BackendError::UnknownHandle { kind: "state", id: id.0 })
    }

    /// Takes a buffer on every device, or on none.
    fn alloc(
        &mut self,
        take: impl Fn(&mut dyn Backend) -> Result<BufferId, BackendError>,
    ) -> Result<BufferId, BackendError> {
        let mut ids = Vec::with_capacity(self.devices.len());
        for index in 0..self.devices.len() {
            match take(self.devices[index].as_mut()) {
                Ok(id) => ids.push(id),
                Err(error) => {
                    for (device, id) in self.devices.iter_mut().zip(ids) {
                        device.free_buffer(id);
                    }
                    return Err(error);
                }
            }
        }
        self.next += 1;
        self.buffers.insert(self.next, ids);
        Ok(BufferId(self.next))
    }

    /// Does something on all devices at once, each on a thread, since they wait for each other: those that meet by
    /// themselves can only finish together. The first error is told, or the first that is a device's own.
    fn at_once(
        &mut self,
        act: impl Fn(&mut dyn Backend) -> Result<(), BackendError> + Sync,
    ) -> Result<(), BackendError> {
        let Some((first, others)) = self.devices.split_first_mut() else { return Ok(()) };
        let act = &act;
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                others.iter_mut().map(|device| scope.spawn(move || act(device.as_mut()))).collect();
            let own = act(first.as_mut());
            threads.into_iter().fold(own, |done, thread| {
                let panicked = |_| Err(BackendError::Device("a device's thread panicked".into()));
                match (done, thread.join().unwrap_or_else(panicked)) {
                    (Ok(()), joined) => joined,
                    (Err(BackendError::Partner(_)), Err(own)) => Err(own),
                    (done, _) => done,
                }
            })
        })
    }

    /// Where a value lies on one of the devices.
    fn operand(&self, operand: &Operand, device: usize) -> Result<Operand, BackendError> {
        Ok(Operand { buffer: self.buffer(operand.buffer)?[device], ..*operand })
    }

    /// Brings the values of all devices together on the host. The order of the sum is that of the devices.
    fn meet(&mut self, call: &NodeCall<'_>) -> Result<(), BackendError> {
        self.at_once(|device| device.synchronize())?;
        let Some(input) = call.inputs.first() else {
            let expected = "a value to bring together".to_owned();
            return Err(BackendError::Invariant { what: "inputs".into(), expected, found: "none".into() });
        };
        let len = input.shape.elements();
        let mut all = vec![0f32; len.saturating_mul(self.devices.len())];
        for (index, part) in all.chunks_mut(len.max(1)).enumerate() {
            let from = self.operand(input, index)?;
            self.devices[index].read_host(from.buffer, from.offset, bytemuck::cast_slice_mut(part))?;
        }
        if call.node.op == Op::AllReduce {
            let (sum, others) = all.split_at_mut(len);
            for part in others.chunks(len.max(1)) {
                sum.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
            }
            all.truncate(len);
        }
        for index in 0..self.devices.len() {
            let to = self.operand(&call.output, index)?;
            self.devices[index].write_host(to.buffer, to.offset, bytemuck::cast_slice(&all))?;
        }
        Ok(())
    }

    /// The rows of a state are not in one place.
    fn divided(&self) -> BackendError {
        BackendError::Invariant {
            what: "rows of a state".into(),
            expected: "a state on one device".into(),
            found: format!("{}, each with heads of its own", self.name),
        }
    }
}

impl Backend for TensorParallel {
    fn name(&self) -> &str {
        &self.name
    }

    fn supports_op(&self, query: &OpQuery<'_>) -> bool {
        match query.op {
            Op::AllReduce | Op::AllGather(_) => {
                query.output == DType::F32 && query.inputs.iter().all(|&input| input == DType::F32)
            }
            _ => self.devices.iter().all(|device| device.supports_op(query)),
        }
    }

    fn supports_fused(&self, fused: FusedOp) -> bool {
        self.devices.iter().all(|device| device.supports_fused(fused))
    }

    fn alloc_buffer(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        self.alloc(|device| device.alloc_buffer(bytes))
    }

    fn free_buffer(&mut self, buffer: BufferId) {
        for (device, id) in self.devices.iter_mut().zip(self.buffers.remove(&buffer.0).unwrap_or_default()) {
            device.free_buffer(id);
        }
    }

    fn alloc_fresh(&mut self, bytes: usize) -> Result<BufferId, BackendError> {
        self.alloc(|device| device.alloc_fresh(bytes))
    }

    fn register_weight(&mut self, name: &str, data: WeightData) -> Result<(), BackendError> {
        let cut = self.cuts.get(name).copied().unwrap_or(Cut::Whole);
        for (index, device) in self.devices.iter_mut().enumerate() {
            device.register_weight(name, cut.part(name, &data, index)?)?;
        }
        Ok(())
    }

    fn has_weight(&self, name: &str) -> bool {
        self.devices.iter().all(|device| device.has_weight(name))
    }

    fn packed_bytes(&self) -> usize {
        self.devices.iter().map(|device| device.packed_bytes()).sum()
    }

    /// That of the device that has least: all have parts of one size.
    fn usable_memory(&self) -> Option<usize> {
        self.devices.iter().filter_map(|device| device.usable_memory()).min()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.devices.first().map(|device| device.counters()).unwrap_or_default()
    }

    fn alloc_state(&mut self, spec: &StateSpec) -> Result<StateId, BackendError> {
        let mut ids = Vec::with_capacity(self.devices.len());
        for index in 0..self.devices.len() {
            match self.devices[index].alloc_state(spec) {
                Ok(id) => ids.push(id),
                Err(error) => {
                    for (device, id) in self.devices.iter_mut().zip(ids) {
                        device.free_state(id);
                    }
                    return Err(error);
                }
            }
        }
        self.next += 1;
        self.states.insert(self.next, ids);
        Ok(StateId(self.next))
    }

    fn free_state(&mut self, state: StateId) {
        for (device, id) in self.devices.iter_mut().zip(self.states.remove(&state.0).unwrap_or_default()) {
            device.free_state(id);
        }
    }

    fn read_state(&mut self, _: StateId, _: StatePart, _: usize, _: &mut [u8]) -> Result<(), BackendError> {
        Err(self.divided())
    }

    fn write_state(&mut self, _: StateId, _: StatePart, _: usize, _: &[u8]) -> Result<(), BackendError> {
        Err(self.divided())
    }

    fn copy_state_rows(
        &mut self,
        state: StateId,
        spec: &StateSpec,
        from: usize,
        to: usize,
        rows: usize,
    ) -> Result<(), BackendError> {
        let ids = self.state(state)?.to_vec();
        let mut devices = self.devices.iter_mut().zip(ids);
        devices.try_for_each(|(device, id)| device.copy_state_rows(id, spec, from, to, rows))
    }

    fn prepare_node(&mut self, graph: &Graph, node: NodeId) -> Result<(), BackendError> {
        if matches!(graph.node(node).op, Op::AllReduce | Op::AllGather(_)) && !self.meets {
            return Ok(());
        }
        self.at_once(|device| device.prepare_node(graph, node))
    }

    fn execute_node(&mut self, call: &NodeCall<'_>) -> Result<(), BackendError> {
        if matches!(call.node.op, Op::AllReduce | Op::AllGather(_)) && !self.meets {
            return self.meet(call);
        }
        for index in 0..self.devices.len() {
            let inputs: Vec<Operand> =
                call.inputs.iter().map(|input| self.operand(input, index)).collect::<Result<_, _>>()?;
            let output = self.operand(&call.output, index)?;
            let state = call.state.map(|state| Ok(self.state(state)?[index])).transpose()?;
            self.devices[index].execute_node(&NodeCall { inputs: &inputs, output, state, ..*call })?;
        }
        Ok(())
    }

    fn remember_split(&mut self, split: u64, nodes: usize) {
        // Where the host brings values together, a split is not the devices' alone.
        if self.meets {
            self.devices.iter_mut().for_each(|device| device.remember_split(split, nodes));
        }
    }

    fn knows_split(&self, split: u64) -> bool {
        self.meets && self.devices.iter().all(|device| device.knows_split(split))
    }

    fn repeat_split(&mut self, split: u64) -> Result<(), BackendError> {
        self.devices.iter_mut().try_for_each(|device| device.repeat_split(split))
    }

    fn read_host(&mut self, buffer: BufferId, offset: usize, dst: &mut [u8]) -> Result<(), BackendError> {
        let first = self.buffer(buffer)?[0];
        self.devices[0].read_host(first, offset, dst)
    }

    fn largest(
        &mut self,
        buffer: BufferId,
        offset: usize,
        shape: [usize; 2],
        count: usize,
    ) -> Result<Option<Vec<Largest>>, BackendError> {
        // All of them look, so that all go on running the same.
        let mut ids = self.buffer(buffer)?.to_vec().into_iter();
        let mut found = None;
        for (index, device) in self.devices.iter_mut().enumerate() {
            let Some(own) = ids.next() else { continue };
            let largest = device.largest(own, offset, shape, count)?;
            if index == 0 {
                found = largest;
            }
        }
        Ok(found)
    }

    fn write_host(&mut self, buffer: BufferId, offset: usize, src: &[u8]) -> Result<(), BackendError> {
        for index in 0..self.devices.len() {
            let own = self.buffer(buffer)?[index];
            self.devices[index].write_host(own, offset, src)?;
        }
        Ok(())
    }

    fn synchronize(&mut self) -> Result<(), BackendError> {
        self.at_once(|device| device.synchronize())
    }

    fn abandon(&mut self) -> Result<(), BackendError> {
        self.at_once(|device| device.abandon())
    }
}
