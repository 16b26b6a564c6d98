//! What the sanitizer needs to know about a command buffer before it runs.

use std::collections::HashSet;
use std::sync::Arc;

use super::buffer::SimBuffer;
use super::queue::{Dispatch, SimTarget, bound_range};
use super::recording::{Binding, Command};
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

fn tracked(binding: &Binding<SimBuffer>) -> Option<&Arc<Tracked>> {
    match binding {
        Binding::Buffer(buffer) => buffer.tracked(),
        Binding::Bytes(_) => None,
    }
}

/// What the checks of every command need; tells the buffers that they are in use.
pub(super) fn prepare(
    commands: &[Command<SimTarget>],
    sanitizer: &Arc<Sanitizer>,
    timeline: &Arc<Timeline>,
    number: u64,
    label: &str,
) -> Vec<Option<Arc<Checks>>> {
    let submission: Arc<str> = label.into();
    let observed: Arc<[(u64, u64)]> = sanitizer.observed().into();
    // Which buffers are written to in which interval.
    let mut written = HashSet::new();
    for command in commands {
        if let Command::Dispatch(dispatch) = command {
            for (slot, bound) in dispatch.buffers.iter().enumerate() {
                let memory = bound.as_ref().and_then(|bound| tracked(&bound.value));
                if let Some(memory) = memory.filter(|_| may_write(dispatch, slot)) {
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
    let checks_of = |dispatch: &Dispatch| {
        let mut bindings = Vec::new();
        for (slot, bound) in dispatch.buffers.iter().enumerate().filter(|&(slot, _)| may_use(dispatch, slot))
        {
            let Some(bound) = bound else { continue };
            let memory = tracked(&bound.value).cloned();
            let (start, length) = bound_range(bound);
            if let Some(memory) = &memory {
                let range = bound.offset..bound.offset + length;
                let writes = may_write(dispatch, slot);
                let kernel = &dispatch.pipeline.shared.kernel.name;
                memory.add_use(used(kernel, &dispatch.label, Some(slot), range, writes));
            }
            // Another queue's command buffers may write to anything, and come later.
            let contended = observed.len() > 1
                || memory
                    .as_ref()
                    .is_some_and(|memory| written.contains(&(dispatch.interval, Arc::as_ptr(memory))));
            let ordered_before = dispatch.ordered_before[slot];
            bindings.push(CheckedBinding { slot, start, length, memory, contended, ordered_before });
        }
        Arc::new(Checks {
            sanitizer: Arc::clone(sanitizer),
            label: dispatch.label.clone(),
            interval: dispatch.interval,
            number: dispatch.number,
            queue: timeline.id(),
            submission: number,
            observed: Arc::clone(&observed),
            bindings,
        })
    };
    let prepare_one = |command: &Command<SimTarget>| match command {
        Command::Dispatch(dispatch) => Some(checks_of(dispatch)),
        Command::Copy(copy) => {
            let sides = [
                (&copy.source, copy.source_offset, false),
                (&copy.destination, copy.destination_offset, true),
            ];
            for (buffer, offset, writes) in sides {
                if let Some(memory) = buffer.tracked() {
                    memory.add_use(used("copy", "copy", None, offset..offset + copy.length, writes));
                }
            }
            None
        }
    };
    commands.iter().map(prepare_one).collect()
}
