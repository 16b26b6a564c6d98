//! What the sanitizer reports, for people and for programs.

use std::fmt::{self, Write};

/// A class of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// An access outside of everything that is bound, of threadgroup memory, or of an array.
    OutOfBounds,
    /// An access of a buffer that is gone.
    UseAfterFree,
    /// A read of memory that neither the host nor a kernel wrote.
    UninitializedRead,
    /// Two threads of a threadgroup access the same memory, one of them writes, and no barrier is between.
    Race,
    /// Two threadgroups of a dispatch access the same memory, and one of them writes.
    ThreadgroupRace,
    /// Two dispatches without a barrier between them access the same memory, and one of them writes.
    DispatchHazard,
    /// Command buffers of two queues, not ordered by the host, access the same memory, and one of them writes.
    QueueHazard,
    /// The host touches memory that a command buffer in flight uses.
    HostAccess,
    /// Not all threads reach a barrier, or they reach different ones.
    DivergentBarrier,
    /// An object is accessed at an address that its type does not allow.
    Misaligned,
    /// A thread takes more steps than the budget.
    InfiniteLoop,
    /// The processor stopped the kernel: a division by zero or a wild address.
    Fault,
}

impl Kind {
    /// The name in machine-readable reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OutOfBounds => "out-of-bounds",
            Self::UseAfterFree => "use-after-free",
            Self::UninitializedRead => "uninitialized-read",
            Self::Race => "race",
            Self::ThreadgroupRace => "threadgroup-race",
            Self::DispatchHazard => "dispatch-hazard",
            Self::QueueHazard => "queue-hazard",
            Self::HostAccess => "host-access",
            Self::DivergentBarrier => "divergent-barrier",
            Self::Misaligned => "misaligned",
            Self::InfiniteLoop => "infinite-loop",
            Self::Fault => "fault",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Read memory.
    Read,
    /// Wrote memory.
    Write,
    /// Read memory atomically.
    AtomicRead,
    /// Wrote or updated memory atomically.
    AtomicWrite,
    /// Waited at a barrier.
    Wait,
    /// Returned from the kernel.
    Return,
    /// Ran.
    Run,
}

impl Action {
    /// The name in machine-readable reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::AtomicRead => "atomic read",
            Self::AtomicWrite => "atomic write",
            Self::Wait => "wait",
            Self::Return => "return",
            Self::Run => "run",
        }
    }
}

/// One of the two sides of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
    /// What it did.
    pub action: Action,
    /// `file:line`, where known.
    pub place: Option<String>,
    /// The kernel, unless it is the host.
    pub kernel: Option<String>,
    /// `thread_index_in_threadgroup`, unless it is the host.
    pub thread: Option<u32>,
    /// `threadgroup_position_in_grid`, unless it is the host.
    pub threadgroup: Option<[u32; 3]>,
}

/// The memory that a fault is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Memory {
    /// A bound buffer.
    Buffer {
        /// Its slot.
        slot: usize,
        /// The buffer's label; empty for inline bytes.
        label: String,
        /// Bytes from the start of the binding.
        offset: i64,
        /// Bytes of the binding.
        length: u64,
    },
    /// A buffer that is not bound.
    Unbound {
        /// The buffer's label.
        label: String,
        /// Bytes from its start.
        offset: i64,
        /// Its length.
        length: u64,
    },
    /// Dynamic threadgroup memory.
    Threadgroup {
        /// Its slot.
        slot: usize,
        /// Bytes from its start.
        offset: i64,
        /// Its length.
        length: u64,
    },
    /// A threadgroup variable of the kernel.
    Variable {
        /// Bytes from its start.
        offset: i64,
        /// Its size.
        length: u64,
    },
    /// An address that belongs to nothing.
    Address(u64),
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffer { slot, label, offset, length } if label.is_empty() => {
                write!(f, "offset {offset} of buffer({slot}) ({length} bytes)")
            }
            Self::Buffer { slot, label, offset, length } => {
                write!(f, "offset {offset} of buffer({slot}) ('{label}', {length} bytes)")
            }
            Self::Unbound { label, offset, length } => {
                write!(f, "offset {offset} of the buffer '{label}' ({length} bytes)")
            }
            Self::Threadgroup { slot, offset, length } => {
                write!(f, "offset {offset} of threadgroup({slot}) ({length} bytes)")
            }
            Self::Variable { offset, length } => {
                write!(f, "offset {offset} of a threadgroup variable of {length} bytes")
            }
            Self::Address(address) => write!(f, "address {address:#x}"),
        }
    }
}

/// One fault. Repetitions at the same places are reported once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The class of the fault.
    pub kind: Kind,
    /// The kernel at fault.
    pub kernel: String,
    /// The dispatch's label.
    pub dispatch: String,
    /// The side that was found at fault, the later one of two.
    pub party: Party,
    /// The earlier side, where there are two.
    pub other: Option<Party>,
    /// The memory in question.
    pub memory: Option<Memory>,
    /// Bytes of the access, 0 where there is none.
    pub size: u64,
    /// What happened, in a sentence.
    pub message: String,
    /// The seed that gives the same order of threads again, as `SMELT_SIM_SEED`.
    pub seed: u64,
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.action.name(), self.place.as_deref().unwrap_or("an unknown place"))?;
        if let Some(thread) = self.thread {
            write!(f, " by thread {thread}")?;
        }
        if let Some([x, y, z]) = self.threadgroup {
            write!(f, " of threadgroup ({x}, {y}, {z})")?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.party.place.as_deref().unwrap_or("?");
        write!(f, "{place}: {}: kernel '{}': {}", self.kind, self.kernel, self.message)?;
        if let Some(memory) = &self.memory {
            write!(f, "\n  memory: {memory}")?;
            if self.size > 0 {
                write!(f, ", {} bytes accessed", self.size)?;
            }
        }
        write!(f, "\n  {}", self.party)?;
        if let Some(other) = &self.other {
            write!(f, "\n  {other}")?;
            if let Some(kernel) = other.kernel.as_ref().filter(|&kernel| *kernel != self.kernel) {
                write!(f, " of kernel '{kernel}'")?;
            }
        }
        write!(f, "\n  dispatch: {}; SMELT_SIM_SEED={}", self.dispatch, self.seed)
    }
}

impl Report {
    /// The report as one line of JSON, without the line's end.
    pub fn to_json(&self) -> String {
        let mut out = String::from("{");
        field(&mut out, "kind", self.kind.name());
        field(&mut out, "kernel", &self.kernel);
        field(&mut out, "dispatch", &self.dispatch);
        field(&mut out, "message", &self.message);
        party(&mut out, "party", &self.party);
        if let Some(other) = &self.other {
            party(&mut out, "other", other);
        }
        if let Some(memory) = &self.memory {
            out.push_str("\"memory\":{");
            match memory {
                Memory::Buffer { slot, label, offset, length } => {
                    field(&mut out, "space", "device");
                    field(&mut out, "label", label);
                    let _ = write!(out, "\"slot\":{slot},\"offset\":{offset},\"length\":{length}");
                }
                Memory::Unbound { label, offset, length } => {
                    field(&mut out, "space", "device");
                    field(&mut out, "label", label);
                    let _ = write!(out, "\"offset\":{offset},\"length\":{length}");
                }
                Memory::Threadgroup { slot, offset, length } => {
                    field(&mut out, "space", "threadgroup");
                    let _ = write!(out, "\"slot\":{slot},\"offset\":{offset},\"length\":{length}");
                }
                Memory::Variable { offset, length } => {
                    field(&mut out, "space", "threadgroup");
                    let _ = write!(out, "\"offset\":{offset},\"length\":{length}");
                }
                Memory::Address(address) => {
                    let _ = write!(out, "\"address\":{address}");
                }
            }
            let _ = write!(out, ",\"size\":{}}},", self.size);
        }
        // A number past 2^53 would lose digits in most readers.
        let _ = write!(out, "\"seed\":\"{}\"}}", self.seed);
        out
    }
}

fn party(out: &mut String, name: &str, party: &Party) {
    let _ = write!(out, "\"{name}\":{{");
    if let Some(place) = &party.place {
        field(out, "place", place);
    }
    if let Some(kernel) = &party.kernel {
        field(out, "kernel", kernel);
    }
    if let Some(thread) = party.thread {
        let _ = write!(out, "\"thread\":{thread},");
    }
    if let Some([x, y, z]) = party.threadgroup {
        let _ = write!(out, "\"threadgroup\":[{x},{y},{z}],");
    }
    let _ = write!(out, "\"action\":\"{}\"}},", party.action.name());
}

fn field(out: &mut String, name: &str, value: &str) {
    let _ = write!(out, "\"{name}\":\"");
    for character in value.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            control if control < ' ' => {
                let _ = write!(out, "\\u{:04x}", control as u32);
            }
            other => out.push(other),
        }
    }
    out.push_str("\",");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let party = |action, thread| Party {
            action,
            place: Some(format!("k.metal:{thread}")),
            kernel: Some("k".to_owned()),
            thread: Some(thread),
            threadgroup: Some([1, 0, 2]),
        };
        Report {
            kind: Kind::Race,
            kernel: "k".to_owned(),
            dispatch: "step \"1\"\n".to_owned(),
            party: party(Action::Read, 7),
            other: Some(party(Action::Write, 8)),
            memory: Some(Memory::Threadgroup { slot: 1, offset: 28, length: 64 }),
            size: 4,
            message: "no barrier between".to_owned(),
            seed: 5,
        }
    }

    #[test]
    fn text_names_both_sides_and_the_seed() {
        assert_eq!(
            report().to_string(),
            "k.metal:7: race: kernel 'k': no barrier between\n  \
             memory: offset 28 of threadgroup(1) (64 bytes), 4 bytes accessed\n  \
             read at k.metal:7 by thread 7 of threadgroup (1, 0, 2)\n  \
             write at k.metal:8 by thread 8 of threadgroup (1, 0, 2)\n  \
             dispatch: step \"1\"\n; SMELT_SIM_SEED=5"
        );
    }

    #[test]
    fn json_is_one_line_with_escapes() {
        assert_eq!(
            report().to_json(),
            "{\"kind\":\"race\",\"kernel\":\"k\",\"dispatch\":\"step \\\"1\\\"\\n\",\"message\":\"no barrier between\",\
             \"party\":{\"place\":\"k.metal:7\",\"kernel\":\"k\",\"thread\":7,\"threadgroup\":[1,0,2],\"action\":\"read\"},\
             \"other\":{\"place\":\"k.metal:8\",\"kernel\":\"k\",\"thread\":8,\"threadgroup\":[1,0,2],\"action\":\"write\"},\
             \"memory\":{\"space\":\"threadgroup\",\"slot\":1,\"offset\":28,\"length\":64,\"size\":4},\"seed\":\"5\"}"
        );
    }
}
