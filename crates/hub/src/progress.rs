/// Hears how a download or a check goes on. `()` ignores it.
pub trait Progress {
    /// A new step begins; one line of text for a person.
    fn message(&mut self, _text: &str) {}

    /// Bytes done so far in this step, and all of them if known (pip tells it rounded).
    fn bytes(&mut self, _done: u64, _total: Option<u64>) {}
}

impl Progress for () {}
