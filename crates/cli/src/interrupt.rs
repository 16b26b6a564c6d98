//! Ctrl-C: the first asks the command to come to an end, the second ends the program.

use crate::exit;
use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C is a request. Without a handler it just ends the program, so a failure here costs little.
pub fn install() {
    let _ = ctrlc::set_handler(|| {
        if REQUESTED.swap(true, Ordering::SeqCst) {
            std::process::exit(exit::INTERRUPTED.into());
        }
    });
}

/// Whether the command should come to an end.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}

/// Whether it was requested; the next Ctrl-C is a request again.
pub fn take() -> bool {
    REQUESTED.swap(false, Ordering::SeqCst)
}
