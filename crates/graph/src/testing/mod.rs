//! For tests: a backend that executes with plain f32 loops, keeps results pending until they are synchronised, and
//! records every call. Behind the feature `testing`.
//!
//! [`Control`] is shared by the backends of one test: they write to one log, so that the order of calls over backends
//! can be checked, and fail where it says.

mod backend;
mod reference;

pub use backend::TestBackend;
pub use reference::{Data, Value, evaluate};

use crate::{BufferId, NodeId, Operand, StateId, StatePart};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A call that a [`TestBackend`] received.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// `alloc_buffer` (or `alloc_fresh`, if `fresh`). `recycled` tells whether the buffer was in use before.
    Alloc {
        /// The buffer.
        buffer: BufferId,
        /// Bytes asked for.
        bytes: usize,
        /// Asked for with `alloc_fresh`.
        fresh: bool,
        /// Had been freed before.
        recycled: bool,
    },
    /// `free_buffer`.
    Free {
        /// The buffer.
        buffer: BufferId,
        /// Work that uses it was pending.
        pending: bool,
    },
    /// `alloc_state`.
    AllocState(StateId),
    /// `free_state`.
    FreeState(StateId),
    /// `read_state` of this many bytes.
    ReadState(StateId, StatePart, usize),
    /// `write_state` of this many bytes.
    WriteState(StateId, StatePart, usize),
    /// `prepare_node` of the node with this number.
    Prepare(NodeId),
    /// `execute_node`.
    Execute {
        /// The node's number.
        id: NodeId,
        /// Its label.
        label: String,
        /// The name of its operation.
        op: &'static str,
        /// Where it reads.
        inputs: Vec<Operand>,
        /// Where it writes.
        output: Operand,
        /// The state that it touches.
        state: Option<StateId>,
        /// The forward that it is part of.
        epoch: u64,
    },
    /// `read_host` of this many bytes.
    ReadHost {
        /// The buffer.
        buffer: BufferId,
        /// First byte.
        offset: usize,
        /// Bytes.
        bytes: usize,
        /// The buffer's writer had not been synchronised: the bytes given are poison.
        pending: bool,
    },
    /// `write_host` of this many bytes.
    WriteHost {
        /// The buffer.
        buffer: BufferId,
        /// First byte.
        offset: usize,
        /// Bytes.
        bytes: usize,
    },
    /// `copy_from` of this many bytes, from the backend of this name.
    CopyFrom(String, usize),
    /// `synchronize`, with this many nodes pending.
    Synchronize(usize),
}

/// What a backend is to fail at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `prepare_node` of the node with this label.
    Prepare(String),
    /// `execute_node` of the node with this label.
    Execute(String),
    /// `synchronize`.
    Synchronize,
    /// `alloc_buffer` and `alloc_fresh` of at least this many bytes.
    Alloc(usize),
    /// `alloc_state`.
    AllocState,
    /// `register_weight` of this name.
    Register(String),
    /// It has a memory of its own, with room for so many bytes.
    Memory(usize),
    /// `read_host`.
    ReadHost,
    /// `write_host`.
    WriteHost,
    /// `read_state`.
    ReadState,
    /// `write_state`.
    WriteState,
}

/// The log and the faults that the backends of a test share.
#[derive(Clone, Debug, Default)]
pub struct Control(Arc<Mutex<Shared>>);

#[derive(Debug, Default)]
struct Shared {
    log: Vec<(String, Event)>,
    faults: Vec<(String, Fault)>,
}

impl Control {
    /// An empty log and no faults.
    pub fn new() -> Control {
        Control::default()
    }

    /// A backend of this name that writes to the log.
    pub fn backend(&self, name: &str) -> TestBackend {
        TestBackend::new(name, self.clone())
    }

    /// Makes a backend fail from now on.
    pub fn fail(&self, backend: &str, fault: Fault) {
        self.lock().faults.push((backend.into(), fault));
    }

    /// Ends all faults.
    pub fn heal(&self) {
        self.lock().faults.clear();
    }

    /// Takes the log: each call with the name of the backend that received it.
    pub fn take_log(&self) -> Vec<(String, Event)> {
        std::mem::take(&mut self.lock().log)
    }

    fn record(&self, backend: &str, event: Event) {
        self.lock().log.push((backend.into(), event));
    }

    /// The room that a backend has, if it has a memory of its own.
    fn room(&self, backend: &str) -> Option<usize> {
        self.lock().faults.iter().find_map(|(name, fault)| match fault {
            Fault::Memory(room) if name == backend => Some(*room),
            _ => None,
        })
    }

    fn is_faulty(&self, backend: &str, is: impl Fn(&Fault) -> bool) -> bool {
        self.lock().faults.iter().any(|(name, fault)| name == backend && is(fault))
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // A test that panicked while it held the lock has failed already.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
