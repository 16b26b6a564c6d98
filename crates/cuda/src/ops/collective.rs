//! What GPUs that share every layer exchange.

use super::Lowering;
use crate::nccl::{Exchange, Kind};
use crate::program::Work;
use crate::step::Step;
use graph::BackendError;

impl Lowering<'_> {
    /// An exchange with the other GPUs. What follows begins when it is done: NCCL's kernels do not say when they are.
    pub(super) fn exchange(&mut self, step: &Step, kind: Kind) -> Result<(), BackendError> {
        let input = step.input(0)?;
        let (from, to) = (self.floats(&input)?, self.floats(&step.output)?);
        let count = input.shape.elements();
        self.out.row_product = None;
        self.out.launches.push(Work::Exchange(Exchange { kind, from, to, count, label: self.label.clone() }));
        self.alone = true;
        Ok(())
    }
}
