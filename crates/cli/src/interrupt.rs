//! Ctrl-C: while somebody asks for it, the first one only asks the command to come to an end, and the second ends the
//! program. While nobody asks, as when a model is loading or a long text becomes tokens, the first one ends it.

use crate::exit;
use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);
static POLLED: AtomicBool = AtomicBool::new(false);

/// To be called before anything else. Without a handler Ctrl-C ends the program by a signal, so a failure here costs
/// little: no more than the exit code.
pub fn install() {
    let _ = ctrlc::set_handler(|| {
        // The request first: whoever stops polling between the two sees it.
        let again = REQUESTED.swap(true, Ordering::SeqCst);
        if again || !POLLED.load(Ordering::SeqCst) {
            std::process::exit(exit::INTERRUPTED.into());
        }
    });
}

/// While this lives, Ctrl-C is a request that [`requested`] tells of.
#[must_use]
pub struct Polled {
    before: bool,
}

/// Promises to look at [`requested`] every now and then.
pub fn polled() -> Polled {
    Polled { before: POLLED.swap(true, Ordering::SeqCst) }
}

impl Drop for Polled {
    fn drop(&mut self) {
        POLLED.store(self.before, Ordering::SeqCst);
    }
}

/// Whether the command should come to an end.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}

/// Whether it was requested; the next Ctrl-C is a request again.
pub fn take() -> bool {
    REQUESTED.swap(false, Ordering::SeqCst)
}
