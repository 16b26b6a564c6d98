//! What an answer must look like, beside what the model would say.

use std::fmt;

/// A rule for the tokens of one answer: a grammar, a JSON schema. The engine asks it before each token, and tells it
/// which one was chosen.
///
/// Errors are texts: they end the answer with [`Error::Constraint`](crate::Error::Constraint).
pub trait Constraint: Send {
    /// Sets the logits of all tokens that may not come next to `-inf`.
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String>;

    /// Takes the token that was chosen, and tells whether the answer is complete, so that none may follow.
    fn accept(&mut self, token: u32) -> Result<bool, String>;

    /// The same rule in the same state, for another answer.
    fn fork(&self) -> Box<dyn Constraint>;
}

impl fmt::Debug for dyn Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Constraint")
    }
}
