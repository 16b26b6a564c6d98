//! What the sanitizer needs to know about a command buffer before it runs.

use std::collections::HashSet;
use std::sync::Arc;

use super::encoder::{Binding, Command, Dispatch};
use crate::runtime::ArgumentKind;
use crate::sanitize::{CheckedBinding, Checks, Sanitizer, Timeline, Tracked, Use};

/// Whether a dispatch may write to what is bound to a slot.
fn may_write(dispatch: &Dispatch, slot: usize) -> bool {
    dispatch
        .pipeline
        .shared
        .kernel
        .arguments
        .iter()
        .any(|argument| argument.kind == ArgumentKind::Buffer && argument.slot == slot && !argument.read_only)
}

/// Whether a dispatch can reach what is bound to a slot at all: bindings stay from one pipeline to the next.
fn may_use(dispatch: &Dispatch, slot: usize) -> bool {
    let arguments = &dispatch.pipeline.shared.kernel.arguments;
    arguments.iter().any(|argument| argument.kind == ArgumentKind::Buffer && argument.slot == slot)
}

fn tracked(binding: &Binding) -> Option<&Arc<Tracked>> {
    match binding {
        Binding::Buffer { buffer, .. } => buffer.tracked(),
        Binding::Bytes(_) => None,
    }
}

/// Gives every dispatch what its checks need, and tells the buffers that they are in use.
pub(super) fn prepare(
    commands: &mut [Command],
    sanitizer: &Arc<Sanitizer>,
    timeline: &Arc<Timeline>,
    number: u64,
    label: &str,
) {
    let submission: Arc<str> = label.into();
    // Which buffers are written to in which interval.
    let mut written = HashSet::new();
    for command in &*commands {
        if let Command::Dispatch(dispatch) = command {
            for (slot, binding) in &dispatch.bindings {
                if let Some(memory) = tracked(binding).filter(|_| may_write(dispatch, *slot)) {
                    written.insert((dispatch.interval, Arc::as_ptr(memory)));
                }
            }
        }
    }
    let used = |kernel: &str, dispatch: &str, slot, range: std::ops::Range<usize>, writes| Use {
        timeline: Arc::clone(timeline),
        number,
        submission: Arc::clone(&submission),
        kernel: kernel.to_owned(),
        dispatch: dispatch.to_owned(),
        slot,
        offset: range.start,
        end: range.end,
        writes,
    };
    for command in commands {
        match command {
            Command::Dispatch(dispatch) => {
                let mut bindings = Vec::new();
                for (slot, binding) in dispatch.bindings.iter().filter(|(slot, _)| may_use(dispatch, *slot)) {
                    let memory = tracked(binding).cloned();
                    let (start, length) = (binding.address() as usize, binding.length());
                    let writes = may_write(dispatch, *slot);
                    if let Some(memory) = &memory {
                        let offset = start - memory.start();
                        let range = offset..offset + length;
                        memory.add_use(used(
                            &dispatch.launch.kernel,
                            &dispatch.label,
                            Some(*slot),
                            range,
                            writes,
                        ));
                    }
                    let contended = memory
                        .as_ref()
                        .is_some_and(|memory| written.contains(&(dispatch.interval, Arc::as_ptr(memory))));
                    bindings.push(CheckedBinding { slot: *slot, start, length, memory, contended });
                }
                dispatch.launch.checks = Some(Arc::new(Checks {
                    sanitizer: Arc::clone(sanitizer),
                    label: dispatch.label.clone(),
                    interval: dispatch.interval,
                    bindings,
                }));
            }
            Command::Copy { source, source_offset, destination, destination_offset, length } => {
                let sides = [(source, *source_offset, false), (destination, *destination_offset, true)];
                for (buffer, offset, writes) in sides {
                    if let Some(memory) = buffer.tracked() {
                        memory.add_use(used("copy", "copy", None, offset..offset + *length, writes));
                    }
                }
            }
        }
    }
}
