//! GPUs that are to share every layer: their connection, and a first exchange.

use super::{CudaBackend, number};
use crate::CudaError;
use crate::driver::DeviceMemory;
use crate::nccl::{Communicator, Exchange, Kind, late};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};

/// Lets GPUs that are to share every layer exchange values by themselves, unless `SMELT_CUDA_NCCL=0` leaves that to the
/// host. From then on their work must be synchronised at the same time, each on a thread of its own.
///
/// # Errors
/// [`CudaError::NoNccl`], what NCCL says, or [`CudaError::Deadline`] where it says nothing.
pub fn connect(gpus: &mut [&mut CudaBackend]) -> Result<(), CudaError> {
    if number("SMELT_CUDA_NCCL", 1)? == 0 {
        return Ok(());
    }
    let deadline = gpus.iter().map(|gpu| gpu.deadline).max().unwrap_or_default();
    let numbers: Vec<usize> = gpus.iter().map(|gpu| gpu.device.ordinal).collect();
    for (gpu, communicator) in gpus.iter_mut().zip(Communicator::connect(&numbers, deadline)?) {
        gpu.communicator = Some(communicator);
    }
    // NCCL connects the GPUs with the first exchange of a kind, and its call waits for them without a deadline: here, where all
    // have come, not in a step. Where it does not return in time it is ended.
    let connections: Vec<_> =
        gpus.iter().filter_map(|gpu| gpu.communicator.as_ref()).map(|c| Arc::clone(c.connection())).collect();
    let (working, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let threads: Vec<_> = gpus
            .iter_mut()
            .map(|gpu| {
                let working = working.clone();
                scope.spawn(move || {
                    let exchanged = gpu.exchange_once();
                    drop(working);
                    exchanged
                })
            })
            .collect();
        drop(working);
        let is_late = ended.recv_timeout(deadline) == Err(RecvTimeoutError::Timeout);
        if is_late {
            connections.iter().for_each(|connection| connection.end());
        }
        let panicked = |_| Err(CudaError::Partner);
        let exchanged = threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked));
        let exchanged = exchanged.fold(Ok(()), Result::and);
        if is_late { Err(late(deadline)) } else { exchanged }
    })
}

impl CudaBackend {
    /// A first exchange of each kind, of one float.
    fn exchange_once(&mut self) -> Result<(), CudaError> {
        let Some(communicator) = &self.communicator else { return Ok(()) };
        let memory = DeviceMemory::new(&self.device, 4 * (1 + communicator.members()))?;
        self.stream.clear(memory.address(), memory.len())?;
        communicator.meet()?;
        for kind in [Kind::Sum, Kind::Gather] {
            let (from, to) = (memory.address(), memory.address() + 4);
            let exchange = Exchange { kind, from, to, count: 1, label: "the first exchange".into() };
            self.stream.exchange(communicator, &exchange)?;
        }
        self.stream.wait(self.deadline)
    }
}
