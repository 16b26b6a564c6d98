//! What an encoder has bound, and what a kernel wants: the checks of Metal's validation layer, the same on every device.

use super::{Buffer, Error, Limits, Result, Size, checks};

/// The memory that a kernel's parameter points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterSpace {
    /// `[[buffer(slot)]]`
    Buffer,
    /// `[[threadgroup(slot)]]`
    Threadgroup,
}

/// A parameter of a kernel that needs a binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the source.
    pub name: String,
    /// What it points to.
    pub space: ParameterSpace,
    /// Its slot.
    pub slot: usize,
    /// Whether it may stay unbound.
    pub is_optional: bool,
    /// Bytes that must be bound at least.
    pub size: usize,
    /// What the offset of a binding must be a multiple of.
    pub alignment: usize,
}

/// What a kernel asks of those who dispatch it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The kernel's name.
    pub name: String,
    /// Its parameters, without those that the launch itself fills in.
    pub parameters: Vec<Parameter>,
    /// Threads of a threadgroup at most.
    pub max_threads: usize,
    /// Bytes of threadgroup memory that the kernel declares itself, where known.
    pub static_memory: usize,
}

/// What is bound to a buffer slot.
#[derive(Clone, Debug)]
pub struct Bound<B> {
    /// The device's idea of it.
    pub value: B,
    /// Bytes in front of the binding.
    pub offset: usize,
    /// Bytes from the offset on.
    pub length: usize,
}

/// The bindings of one encoder. `B` is what the device keeps of each buffer.
#[derive(Clone, Debug)]
pub struct Bindings<B> {
    buffers: Vec<Option<Bound<B>>>,
    threadgroup_memory: Vec<usize>,
}

impl<B> Bindings<B> {
    /// Nothing bound to any of a device's slots.
    pub fn new(limits: &Limits) -> Self {
        Self {
            buffers: (0..limits.buffer_slots).map(|_| None).collect(),
            threadgroup_memory: vec![0; limits.threadgroup_slots],
        }
    }

    /// What is bound, by slot.
    pub fn buffers(&self) -> &[Option<Bound<B>>] {
        &self.buffers
    }

    /// Bytes of dynamic threadgroup memory, by slot.
    pub fn threadgroup_memory(&self) -> &[usize] {
        &self.threadgroup_memory
    }

    /// Binds a buffer from `offset` on.
    ///
    /// # Errors
    /// [`Error::Slot`] and [`Error::BufferRange`].
    pub fn set_buffer(
        &mut self,
        limits: &Limits,
        slot: usize,
        buffer: &impl Buffer,
        offset: usize,
        value: B,
    ) -> Result<()> {
        limits.check_buffer_slot(slot)?;
        // An offset at the very end leaves nothing to bind.
        checks::buffer_range(buffer.label(), buffer.length(), offset, 1)?;
        self.buffers[slot] = Some(Bound { value, offset, length: buffer.length() - offset });
        Ok(())
    }

    /// Lets what is bound to a slot end after `length` bytes.
    pub fn limit_buffer(&mut self, slot: usize, length: usize) {
        if let Some(Some(bound)) = self.buffers.get_mut(slot) {
            bound.length = bound.length.min(length);
        }
    }

    /// Binds a copy of some bytes.
    ///
    /// # Errors
    /// [`Error::Slot`] and [`Error::InlineBytes`].
    pub fn set_bytes(&mut self, limits: &Limits, slot: usize, bytes: &[u8], value: B) -> Result<()> {
        limits.check_inline_bytes(slot, bytes.len())?;
        self.buffers[slot] = Some(Bound { value, offset: 0, length: bytes.len() });
        Ok(())
    }

    /// Gives a slot threadgroup memory; `kernel` is for the message.
    ///
    /// # Errors
    /// [`Error::Slot`] and [`Error::ThreadgroupMemory`].
    pub fn set_threadgroup_memory(
        &mut self,
        limits: &Limits,
        kernel: &str,
        slot: usize,
        length: usize,
    ) -> Result<()> {
        limits.check_threadgroup_slot(kernel, slot, length)?;
        self.threadgroup_memory[slot] = length;
        Ok(())
    }

    /// Checks a dispatch of a kernel against everything bound; `grid` counts threads or threadgroups.
    ///
    /// # Errors
    /// [`Error::ThreadgroupSize`], [`Error::EmptyGrid`], [`Error::Unbound`], [`Error::BindingTooSmall`] and
    /// [`Error::ThreadgroupMemory`].
    pub fn check_dispatch(
        &self,
        limits: &Limits,
        kernel: &Interface,
        grid: Size,
        threads: Size,
    ) -> Result<()> {
        limits.check_launch(&kernel.name, kernel.max_threads, grid, threads)?;
        for parameter in &kernel.parameters {
            self.check_parameter(&kernel.name, parameter)?;
        }
        let memory = self.threadgroup_memory.iter().sum::<usize>() + kernel.static_memory;
        limits.check_threadgroup_memory(&kernel.name, memory)
    }

    fn check_parameter(&self, kernel: &str, parameter: &Parameter) -> Result<()> {
        let slot = parameter.slot;
        let unbound = |space: &str| {
            if parameter.is_optional {
                return Ok(());
            }
            Err(Error::Unbound {
                kernel: kernel.to_owned(),
                slot: format!("{space}({slot})"),
                parameter: parameter.name.clone(),
            })
        };
        if parameter.space == ParameterSpace::Threadgroup {
            let has_memory = self.threadgroup_memory.get(slot).is_some_and(|&length| length > 0);
            return if has_memory { Ok(()) } else { unbound("threadgroup") };
        }
        let Some(Some(bound)) = self.buffers.get(slot) else { return unbound("buffer") };
        let reason = if bound.length < parameter.size {
            format!("{} bytes bound, the kernel reads an object of {}", bound.length, parameter.size)
        } else if !bound.offset.is_multiple_of(parameter.alignment) {
            format!(
                "bound at offset {}, which is no multiple of {}, the alignment of its type",
                bound.offset, parameter.alignment
            )
        } else {
            return Ok(());
        };
        Err(Error::BindingTooSmall {
            kernel: kernel.to_owned(),
            slot,
            parameter: parameter.name.clone(),
            reason,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel() -> Interface {
        let parameter = |name: &str, space, slot, size| Parameter {
            name: name.to_owned(),
            space,
            slot,
            is_optional: name == "bias",
            size,
            alignment: 4,
        };
        Interface {
            name: "k".to_owned(),
            parameters: vec![
                parameter("sizes", ParameterSpace::Buffer, 1, 16),
                parameter("parts", ParameterSpace::Threadgroup, 0, 0),
                parameter("bias", ParameterSpace::Buffer, 2, 4),
            ],
            max_threads: 64,
            static_memory: 32 << 10,
        }
    }

    #[test]
    fn a_dispatch_needs_everything_bound() {
        let limits = Limits::default();
        let mut bindings = Bindings::new(&limits);
        let check = |bindings: &Bindings<()>, static_memory| {
            let kernel = Interface { static_memory, ..kernel() };
            bindings.check_dispatch(&limits, &kernel, Size::width(64), Size::width(64))
        };
        let slot_of = |result| match result {
            Err(Error::Unbound { slot, .. }) => slot,
            other => panic!("{other:?}"),
        };
        assert_eq!(slot_of(check(&bindings, 0)), "buffer(1)");
        bindings.set_bytes(&limits, 1, &[0; 12], ()).unwrap();
        let Err(Error::BindingTooSmall { reason, .. }) = check(&bindings, 0) else {
            panic!("12 of 16 bytes")
        };
        assert_eq!(reason, "12 bytes bound, the kernel reads an object of 16");
        bindings.set_bytes(&limits, 1, &[0; 16], ()).unwrap();
        assert_eq!(slot_of(check(&bindings, 0)), "threadgroup(0)");
        bindings.set_threadgroup_memory(&limits, "k", 0, 16).unwrap();
        assert_eq!(check(&bindings, 0), Ok(()));
        // The kernel's own memory and that of the slots share one limit.
        assert!(matches!(check(&bindings, 32 << 10), Err(Error::ThreadgroupMemory { length: 32784, .. })));
    }

    #[test]
    fn slots_have_a_limit() {
        let limits = Limits::default();
        let mut bindings = Bindings::new(&limits);
        assert_eq!(bindings.set_bytes(&limits, 31, &[0; 4], ()), Err(Error::Slot { slot: 31, limit: 31 }));
        assert!(bindings.set_bytes(&limits, 30, &[0; 4], ()).is_ok());
        assert_eq!(bindings.buffers().iter().flatten().count(), 1);
        assert_eq!(bindings.threadgroup_memory().len(), 31);
    }
}
