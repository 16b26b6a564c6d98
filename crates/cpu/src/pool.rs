//! A persistent thread pool: workers spin for a moment between jobs, then park.
//!
//! A job is one phase of one operation: an index range, taken in chunks from a shared counter by whoever is free. Which
//! thread computes an index is left to chance, so nothing may depend on it; the kernels fix the order of every sum
//! instead. Starting a job neither allocates nor locks.
//!
//! A worker that the system does not schedule delays nobody: it joins a job through a gate that the caller closes
//! once all indices are taken, so only those who joined are waited for.

use crate::cores::default_threads;
use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a worker spins for the next job before it parks. The gap between two operations of a forward is a few
/// microseconds; waking a parked thread costs tens.
const SPIN: Duration = Duration::from_micros(60);

/// Spins between two looks at the clock.
const SPINS_PER_CLOCK: u32 = 64;

/// More threads than any machine has: a typing error, not a wish.
const MAX_THREADS: usize = 1024;

/// Why the pool could not start or finish a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolError {
    /// A thread count outside `1..=1024`.
    ThreadCount {
        /// What was asked for.
        found: usize,
    },
    /// The system refused to start a thread.
    Spawn {
        /// Index of the thread.
        index: usize,
        /// What the system said.
        message: String,
    },
    /// A job panicked in some thread; the message is the panic's.
    Panicked(String),
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PoolError::ThreadCount { found } => {
                write!(f, "threads: expected 1 to {MAX_THREADS}, found {found}")
            }
            PoolError::Spawn { index, message } => write!(f, "thread {index} did not start: {message}"),
            PoolError::Panicked(message) => write!(f, "a worker thread panicked: {message}"),
        }
    }
}

impl std::error::Error for PoolError {}

/// The body of a job: `(worker, indices)`. `worker` is below [`Pool::threads`] and unique among those running.
type Body<'a> = &'a (dyn Fn(usize, Range<usize>) + Sync);

/// What the workers read while the gate is open.
struct Job {
    body: Body<'static>,
    items: usize,
    chunk: usize,
}

/// The gate's bits: the lowest 32 count the workers inside, bit 32 says open, and those above count the jobs.
const OPEN: u64 = 1 << 32;
const INSIDE: u64 = OPEN - 1;
const NEXT_JOB: u64 = 1 << 33;

struct Shared {
    gate: AtomicU64,
    /// Number of the next chunk, not of its first index: that one could run over the end of its type.
    next: AtomicUsize,
    job: UnsafeCell<Option<Job>>,
    stop: AtomicBool,
    panicked: AtomicBool,
    panic: Mutex<Option<String>>,
    parked: Vec<AtomicBool>,
}

// SAFETY: everything but `job` is Sync on its own. `job` is written only by the caller of `run` while the gate is
// closed and nobody is inside, and read only by workers that entered through the open gate.
unsafe impl Sync for Shared {}
// SAFETY: as above; the body is `Sync`, so sharing the reference with another thread is sound.
unsafe impl Send for Shared {}

/// The pool. The calling thread is worker 0; `threads - 1` more are kept.
pub struct Pool {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    workers: Vec<Thread>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Pool {
    /// Starts a pool; by default [`default_threads`] of them.
    pub fn new(threads: Option<usize>) -> Result<Pool, PoolError> {
        let threads = threads.unwrap_or_else(default_threads);
        if threads == 0 || threads > MAX_THREADS {
            return Err(PoolError::ThreadCount { found: threads });
        }
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
            parked: (1..threads).map(|_| AtomicBool::new(false)).collect(),
        });
        let mut pool = Pool { shared, handles: Vec::new(), workers: Vec::new() };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let handle = thread::Builder::new()
                .name(format!("smelt-cpu-{index}"))
                .spawn(move || shared.work(index))
                .map_err(|error| PoolError::Spawn { index, message: error.to_string() })?;
            pool.workers.push(handle.thread().clone());
            pool.handles.push(handle);
        }
        Ok(pool)
    }

    /// Threads that take part in a job, the caller's included.
    pub fn threads(&self) -> usize {
        self.handles.len() + 1
    }

    /// Calls `body` on ranges of at most `chunk` indices until all of `0..items` are done. A job of one chunk runs
    /// on the calling thread alone.
    pub fn run(
        &mut self,
        items: usize,
        chunk: usize,
        body: &(dyn Fn(usize, Range<usize>) + Sync),
    ) -> Result<(), PoolError> {
        let chunk = chunk.max(1);
        if items == 0 {
            return Ok(());
        }
        if self.handles.is_empty() || items <= chunk {
            return catch_unwind(AssertUnwindSafe(|| {
                let mut first = 0;
                while first < items {
                    let last = items.min(first.saturating_add(chunk));
                    body(0, first..last);
                    first = last;
                }
            }))
            .map_err(|payload| PoolError::Panicked(message_of(payload)));
        }
        // SAFETY: only the lifetime changes. The gate is closed and empty again before this function returns, on
        // every path, and a worker touches the body only while inside.
        let body: Body<'static> = unsafe { std::mem::transmute::<Body<'_>, Body<'static>>(body) };
        let shared = &*self.shared;
        // SAFETY: `&mut self` and the closed, empty gate leave this thread the only one with access.
        unsafe { *shared.job.get() = Some(Job { body, items, chunk }) };
        shared.next.store(0, Ordering::Relaxed);
        let gate = shared.gate.load(Ordering::Relaxed);
        // SeqCst here and in `work` orders this store against the look at `parked`: either the worker sees the new
        // gate before it parks, or we see that it parked.
        shared.gate.store(gate.wrapping_add(NEXT_JOB) | OPEN, Ordering::SeqCst);
        for (parked, worker) in shared.parked.iter().zip(&self.workers) {
            if parked.load(Ordering::SeqCst) && parked.swap(false, Ordering::SeqCst) {
                worker.unpark();
            }
        }
        shared.take_chunks(0, &Job { body, items, chunk });
        shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0u32;
        while shared.gate.load(Ordering::Acquire) & INSIDE != 0 {
            spins += 1;
            if spins > 20_000 {
                // The others are not running: this machine has fewer free cores than we have threads.
                thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        // No lock unless there is something to fetch.
        if !shared.panicked.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let mut panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner);
        panic.take().map_or(Ok(()), |message| Err(PoolError::Panicked(message)))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in &self.workers {
            worker.unpark();
        }
        for handle in self.handles.drain(..) {
            // A worker catches every panic of a job, so joining cannot fail; if it did, there is nobody to tell.
            let _ = handle.join();
        }
    }
}

impl Shared {
    fn take_chunks(&self, worker: usize, job: &Job) {
        let chunks = job.items.div_ceil(job.chunk);
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let chunk = self.next.fetch_add(1, Ordering::Relaxed);
                if chunk >= chunks {
                    return;
                }
                let first = chunk * job.chunk;
                (job.body)(worker, first..job.items.min(first.saturating_add(job.chunk)));
            }
        }));
        if let Err(payload) = result {
            // The rest of the job is abandoned: its result is lost anyway.
            self.next.store(chunks, Ordering::Relaxed);
            let mut panic = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
            panic.get_or_insert(message_of(payload));
            // Leaving the gate publishes it.
            self.panicked.store(true, Ordering::Relaxed);
        }
    }

    fn work(&self, index: usize) {
        let mut seen = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let gate = self.gate.load(Ordering::SeqCst);
            if gate & OPEN == 0 || gate / NEXT_JOB == seen {
                self.wait(index, seen);
                continue;
            }
            if self.gate.compare_exchange(gate, gate + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            seen = gate / NEXT_JOB;
            // SAFETY: the count in the gate keeps the caller in `run`, so the job stays as it is until we leave.
            if let Some(job) = unsafe { &*self.job.get() } {
                self.take_chunks(index, job);
            }
            self.gate.fetch_sub(1, Ordering::Release);
        }
    }

    /// Returns when there may be a job newer than `seen`, or the pool is to stop.
    fn wait(&self, index: usize, seen: u64) {
        let news = || {
            let gate = self.gate.load(Ordering::SeqCst);
            (gate & OPEN != 0 && gate / NEXT_JOB != seen) || self.stop.load(Ordering::SeqCst)
        };
        let start = Instant::now();
        loop {
            for _ in 0..SPINS_PER_CLOCK {
                if news() {
                    return;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() > SPIN {
                break;
            }
        }
        let parked = &self.parked[index - 1];
        loop {
            // Set again after every wake-up: the caller clears it, and the job may be over already.
            parked.store(true, Ordering::SeqCst);
            if news() {
                break;
            }
            thread::park();
        }
        parked.store(false, Ordering::SeqCst);
    }
}

fn message_of(payload: Box<dyn Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(message) => *message,
        Err(payload) => match payload.downcast::<&'static str>() {
            Ok(message) => message.to_string(),
            Err(payload) => {
                // Dropped, it could panic again, out here where nobody catches it: then a worker would end without
                // leaving the gate, and the caller would wait for it for ever.
                std::mem::forget(payload);
                "no message".to_string()
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(threads: usize, items: usize, chunk: usize) -> Vec<usize> {
        let mut pool = Pool::new(Some(threads)).unwrap();
        let hits: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
        for _ in 0..50 {
            pool.run(items, chunk, &|worker, range| {
                assert!(worker < threads && range.len() <= chunk);
                for i in range {
                    hits[i].fetch_add(1, Ordering::Relaxed);
                }
            })
            .unwrap();
        }
        hits.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn every_index_runs_once() {
        for threads in [1, 2, 3, 5] {
            for (items, chunk) in [(0, 1), (1, 1), (7, 3), (100, 1), (1000, 64)] {
                assert_eq!(
                    count(threads, items, chunk),
                    vec![50; items],
                    "{threads} threads, {items}/{chunk}"
                );
            }
        }
    }

    #[test]
    fn parked_workers_wake_up() {
        let mut pool = Pool::new(Some(3)).unwrap();
        for _ in 0..5 {
            thread::sleep(SPIN * 20);
            let done = AtomicUsize::new(0);
            pool.run(64, 1, &|_, range| {
                done.fetch_add(range.len(), Ordering::Relaxed);
            })
            .unwrap();
            assert_eq!(done.into_inner(), 64);
        }
    }

    #[test]
    fn a_panic_is_an_error_and_the_pool_goes_on() {
        let mut pool = Pool::new(Some(2)).unwrap();
        for (items, chunk) in [(100, 1), (1, 1)] {
            let result = pool.run(items, chunk, &|_, range| {
                if range.contains(&(items / 2)) {
                    panic!("index {}", items / 2);
                }
            });
            assert_eq!(result, Err(PoolError::Panicked(format!("index {}", items / 2))));
        }
        assert_eq!(pool.run(10, 1, &|_, _| ()), Ok(()));
    }

    #[test]
    fn a_panic_that_panics_again_is_an_error_too() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        let mut pool = Pool::new(Some(3)).unwrap();
        for (items, chunk) in [(100, 1), (1, 1)] {
            let result = pool.run(items, chunk, &|_, _| std::panic::panic_any(Bomb));
            assert_eq!(result, Err(PoolError::Panicked("no message".into())));
        }
        assert_eq!(pool.run(10, 1, &|_, _| ()), Ok(()));
    }

    #[test]
    fn indices_up_to_the_largest_run_once() {
        for threads in [1, 3] {
            let mut pool = Pool::new(Some(threads)).unwrap();
            for chunk in [usize::MAX, usize::MAX - 1, usize::MAX / 2 + 1] {
                let (calls, indices) = (AtomicUsize::new(0), AtomicUsize::new(0));
                pool.run(usize::MAX, chunk, &|_, range| {
                    assert!(calls.fetch_add(1, Ordering::Relaxed) < 2, "{range:?}");
                    indices.fetch_add(range.len(), Ordering::Relaxed);
                })
                .unwrap();
                assert_eq!(indices.into_inner(), usize::MAX, "{threads} threads, chunks of {chunk}");
            }
        }
    }

    /// Jobs of every length, with pauses in which workers spin, park, or are between the two, and with panics: a job
    /// that is done twice, or not at all, or waits for a worker that sleeps, fails or never ends.
    #[test]
    fn jobs_after_any_pause_run_once() {
        let threads = 4;
        let mut pool = Pool::new(Some(threads)).unwrap();
        for round in 0..400u32 {
            if round % 3 != 0 {
                let start = Instant::now();
                let pause = SPIN * (round % 8) / 4 + Duration::from_nanos(u64::from(round));
                while start.elapsed() < pause {
                    std::hint::spin_loop();
                }
            }
            let items = 1 + round as usize % 29;
            let sum = AtomicUsize::new(0);
            let result = pool.run(items, 1 + round as usize % 3, &|worker, range| {
                assert!(worker < threads);
                if round % 17 == 5 && range.contains(&(items - 1)) {
                    panic!("round {round}");
                }
                sum.fetch_add(range.sum(), Ordering::Relaxed);
            });
            if round % 17 == 5 {
                assert_eq!(result, Err(PoolError::Panicked(format!("round {round}"))));
            } else {
                assert_eq!((result, sum.into_inner()), (Ok(()), items * (items - 1) / 2), "round {round}");
            }
        }
    }

    #[test]
    #[ignore = "a measurement: the cost of a parallel region, printed"]
    fn overhead_of_a_region() {
        const WORK: Duration = Duration::from_micros(10);
        for threads in [1, 2, 4, 8].into_iter().filter(|&threads| threads <= default_threads()) {
            let mut pool = Pool::new(Some(threads)).unwrap();
            let mut times: Vec<f64> = (0..200)
                .map(|_| {
                    let start = Instant::now();
                    for _ in 0..100 {
                        // Long enough that every thread takes one.
                        pool.run(threads, 1, &|_, _| {
                            let start = Instant::now();
                            while start.elapsed() < WORK {}
                        })
                        .unwrap();
                    }
                    start.elapsed().as_secs_f64() / 100.0 - WORK.as_secs_f64()
                })
                .collect();
            times.sort_by(f64::total_cmp);
            println!("{threads} threads: {:.2} us a region, median of {}", times[100] * 1e6, times.len());
        }
    }

    #[test]
    fn thread_counts_are_checked() {
        for found in [0, MAX_THREADS + 1] {
            let error = Pool::new(Some(found)).unwrap_err();
            assert_eq!(error, PoolError::ThreadCount { found });
            assert_eq!(error.to_string(), format!("threads: expected 1 to 1024, found {found}"));
        }
    }

    #[test]
    fn errors_say_what_happened() {
        let spawn = PoolError::Spawn { index: 3, message: "no more".into() };
        assert_eq!(spawn.to_string(), "thread 3 did not start: no more");
        assert_eq!(PoolError::Panicked("boom".into()).to_string(), "a worker thread panicked: boom");
    }
}
