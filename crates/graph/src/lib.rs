//! The compute graph: IR, passes, buffer plan, scheduler and the Backend trait.
