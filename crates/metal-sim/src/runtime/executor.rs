//! Spreads the threadgroups of a dispatch over OS threads.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::fault;
use super::launch::{Failure, Launch};
use super::worker::Worker;

/// How often the watchdog looks.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);

/// Runs dispatches, one at a time, on its own threads and the caller's.
pub struct Executor {
    shared: Arc<Shared>,
    own: Box<Worker>,
    helpers: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct State {
    job: Option<Arc<Job>>,
    /// Counts jobs, so that a helper takes each one once.
    number: u64,
    /// Helpers that have yet to finish the current job.
    busy: usize,
    stopping: bool,
}

/// One dispatch while it runs.
struct Job {
    launch: Launch,
    total: u64,
    chunk: u64,
    next: AtomicU64,
    stop: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

// SAFETY: a launch holds addresses of buffers that its owner keeps alive and that kernels may use from any
// thread; everything else in a job is synchronised.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic of another thread leaves plain data behind.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Executor {
    /// Starts an executor on `threads` OS threads, the caller's included.
    ///
    /// # Errors
    /// If stacks or threads cannot be had.
    pub fn new(threads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::default()),
            work: Condvar::new(),
            done: Condvar::new(),
        });
        let mut helpers = Vec::new();
        for index in 1..threads.max(1) {
            let shared = Arc::clone(&shared);
            let worker = WorkerOnTheWay(Worker::new()?);
            let name = format!("metal-sim-{index}");
            helpers.push(thread::Builder::new().name(name).spawn(move || help(&shared, worker))?);
        }
        Ok(Self { shared, own: Worker::new()?, helpers })
    }

    /// Runs a dispatch to its end.
    ///
    /// # Errors
    /// The first failure of any threadgroup; threadgroups that have not started are left out then.
    ///
    /// # Safety
    /// The buffers of the launch must be valid for what the kernel does with them, and `run` must be the entry
    /// point of a library that stays loaded.
    pub unsafe fn execute(&mut self, launch: Launch) -> Result<(), Failure> {
        fault::install();
        let total = launch.threadgroups.volume();
        let threads = self.helpers.len() as u64 + 1;
        let job = Arc::new(Job {
            total,
            chunk: (total / (threads * 8)).max(1),
            next: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
            launch,
        });
        // The sanitizer has one state for all threadgroups, and repeats the order of a run.
        let shares = total > 1 && !self.helpers.is_empty() && job.launch.checker.is_null();
        if shares {
            let mut state = lock(&self.shared.state);
            state.job = Some(Arc::clone(&job));
            state.number += 1;
            state.busy = self.helpers.len();
            self.shared.work.notify_all();
        }
        job.run(&mut self.own);
        if shares {
            let mut state = lock(&self.shared.state);
            while state.busy > 0 {
                state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.job = None;
        }
        match lock(&job.failure).take() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        lock(&self.shared.state).stopping = true;
        self.shared.work.notify_all();
        for helper in self.helpers.drain(..) {
            // A helper that panicked has nothing left to clean up.
            let _ = helper.join();
        }
    }
}

// SAFETY: a worker's raw pointers lead into itself, and it is used by one thread at a time.
unsafe impl Send for Executor {}

struct WorkerOnTheWay(Box<Worker>);
// SAFETY: the worker has not run yet and moves to the thread that will use it alone.
unsafe impl Send for WorkerOnTheWay {}

fn help(shared: &Shared, worker: WorkerOnTheWay) {
    let WorkerOnTheWay(mut worker) = worker;
    fault::install();
    let mut seen = 0;
    loop {
        let job = {
            let mut state = lock(&shared.state);
            loop {
                if state.stopping {
                    return;
                }
                if state.number != seen
                    && let Some(job) = &state.job
                {
                    seen = state.number;
                    break Arc::clone(job);
                }
                state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        };
        job.run(&mut worker);
        drop(job);
        let mut state = lock(&shared.state);
        state.busy -= 1;
        if state.busy == 0 {
            shared.done.notify_all();
        }
    }
}

impl Job {
    /// Takes threadgroups until none is left.
    fn run(&self, worker: &mut Worker) {
        let mut prepared = false;
        let watch = watched(self.launch.budget);
        while !self.stop.load(Ordering::Relaxed) {
            let start = self.next.fetch_add(self.chunk, Ordering::Relaxed);
            if start >= self.total {
                break;
            }
            if !prepared {
                if let Err(failure) = worker.prepare(&self.launch) {
                    self.fail(failure);
                    break;
                }
                prepared = true;
            }
            for index in start..(start + self.chunk).min(self.total) {
                if self.stop.load(Ordering::Relaxed) {
                    break;
                }
                watch.started.fetch_add(1, Ordering::Relaxed);
                if let Err(failure) = worker.run_threadgroup(&self.launch, index) {
                    self.fail(failure);
                    break;
                }
            }
        }
        watch.active.store(false, Ordering::Relaxed);
    }

    fn fail(&self, failure: Failure) {
        self.stop.store(true, Ordering::Relaxed);
        lock(&self.failure).get_or_insert(failure);
    }
}

/// What the watchdog knows about one OS thread.
struct Watch {
    thread: libc::pthread_t,
    active: AtomicBool,
    /// Counts threadgroups: one that stays for too long is stopped.
    started: AtomicU64,
    budget_nanoseconds: AtomicU64,
}

// SAFETY: the handle is used by the watchdog alone, under the lock that the thread takes before it ends.
unsafe impl Send for Watch {}
// SAFETY: as above.
unsafe impl Sync for Watch {}

/// Keeps a thread under watch until it ends.
struct Registration(Arc<Watch>);

impl Drop for Registration {
    fn drop(&mut self) {
        lock(&WATCHES).retain(|watch| !Arc::ptr_eq(watch, &self.0));
    }
}

thread_local! {
    static WATCH: Registration = register();
}

static WATCHES: Mutex<Vec<Arc<Watch>>> = Mutex::new(Vec::new());

fn register() -> Registration {
    static WATCHDOG: OnceLock<()> = OnceLock::new();
    WATCHDOG.get_or_init(|| {
        // Without a watchdog endless kernels stay endless, which is no reason to refuse all others.
        let _ = thread::Builder::new().name("metal-sim-watch".to_owned()).spawn(watchdog);
    });
    let watch = Arc::new(Watch {
        // SAFETY: has no preconditions.
        thread: unsafe { libc::pthread_self() },
        active: AtomicBool::new(false),
        started: AtomicU64::new(0),
        budget_nanoseconds: AtomicU64::new(0),
    });
    lock(&WATCHES).push(Arc::clone(&watch));
    Registration(watch)
}

/// Starts the watch over this thread.
fn watched(budget: Duration) -> Arc<Watch> {
    WATCH.with(|Registration(watch)| {
        let nanoseconds = u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX);
        watch.budget_nanoseconds.store(nanoseconds, Ordering::Relaxed);
        watch.started.fetch_add(1, Ordering::Relaxed);
        watch.active.store(true, Ordering::Relaxed);
        Arc::clone(watch)
    })
}

/// Stops threadgroups that take more processor time than their budget.
fn watchdog() {
    // Thread handle, threadgroup count and processor time at the first look.
    let mut seen: Vec<(libc::pthread_t, u64, Duration)> = Vec::new();
    loop {
        thread::sleep(WATCH_INTERVAL);
        // The lock keeps threads from ending between the look and the signal.
        for watch in lock(&WATCHES).iter() {
            if !watch.active.load(Ordering::Relaxed) {
                seen.retain(|(thread, ..)| *thread != watch.thread);
                continue;
            }
            let Some(used) = fault::processor_time(watch.thread) else { continue };
            let started = watch.started.load(Ordering::Relaxed);
            match seen.iter_mut().find(|(thread, ..)| *thread == watch.thread) {
                Some((_, count, since)) if *count == started => {
                    let budget = Duration::from_nanos(watch.budget_nanoseconds.load(Ordering::Relaxed));
                    if used.saturating_sub(*since) > budget {
                        fault::interrupt(watch.thread);
                    }
                }
                Some(entry) => *entry = (watch.thread, started, used),
                None => seen.push((watch.thread, started, used)),
            }
        }
    }
}
