//! The sanitizer: finds what runs well here and fails on a GPU, or on another day.
//!
//! Kernels are compiled with clang's hooks before every access of memory (`shim/sanitizer.h`). Each granule of
//! memory has a shadow that tells who accessed it last and after which barriers (`order`), each byte of a buffer
//! a bit that tells whether it was ever written (`memory`). The threads of a threadgroup, its SIMD-groups and
//! the threadgroups run in an order that a seed decides, one at a time, so that the seed repeats a run.

mod checker;
mod hooks;
mod image;
pub(crate) mod layout;
mod memory;
mod order;
mod report;
mod shadow;

use std::collections::hash_map::RandomState;
use std::fs::OpenOptions;
use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

pub(crate) use checker::{Cause, CheckedBinding, Checker, Checks};
use memory::{Registry, lock};
pub(crate) use memory::{Timeline, Tracked, Use};
pub use report::{Action, Kind, Memory, Party, Report};

/// Reports that are kept; what comes after them is counted.
const REPORT_LIMIT: usize = 1000;
/// Steps of one threadgroup, unless the settings say otherwise.
const STEPS: u64 = 1 << 30;

/// How the sanitizer works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Decides the order of threads, SIMD-groups and threadgroups.
    pub seed: u64,
    /// Memory accesses and synchronisations that the threads of one threadgroup may take together, before the
    /// kernel counts as endless.
    pub steps: u64,
    /// A file that every report is appended to as a line of JSON.
    pub report_file: Option<PathBuf>,
    /// The barrier of every command buffer, counted from 0, that is left out. Where no hazard is found without it, the
    /// barrier was needless, or what it guards did not happen.
    pub without_barrier: Option<u64>,
}

impl Default for Settings {
    /// A new seed each time.
    fn default() -> Self {
        let seed = RandomState::new().build_hasher().finish();
        Self { seed, steps: STEPS, report_file: None, without_barrier: None }
    }
}

/// The sanitizer of one device.
pub struct Sanitizer {
    settings: Settings,
    reports: Mutex<Reports>,
    registry: Mutex<Registry>,
    /// Of all queues that ever were.
    timelines: Mutex<Vec<Arc<Timeline>>>,
    checker: Mutex<Box<Checker>>,
}

#[derive(Default)]
struct Reports {
    kept: Vec<Report>,
    count: usize,
}

impl Sanitizer {
    pub(crate) fn new(settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            checker: Mutex::new(Checker::new(&settings)),
            settings,
            reports: Mutex::default(),
            registry: Mutex::default(),
            timelines: Mutex::default(),
        })
    }

    /// The seed of this device's order of threads.
    pub fn seed(&self) -> u64 {
        self.settings.seed
    }

    /// How it works.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Everything found so far, the oldest first, at most a thousand.
    pub fn reports(&self) -> Vec<Report> {
        lock(&self.reports).kept.clone()
    }

    /// Everything found since the last call.
    pub fn take_reports(&self) -> Vec<Report> {
        std::mem::take(&mut lock(&self.reports).kept)
    }

    /// The number of reports so far, kept or not.
    pub fn report_count(&self) -> usize {
        lock(&self.reports).count
    }

    pub(crate) fn add(&self, report: Report) {
        let mut reports = lock(&self.reports);
        reports.count += 1;
        if let Some(path) = &self.settings.report_file {
            let written = OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .and_then(|mut file| file.write_all(format!("{}\n", report.to_json()).as_bytes()));
            if let Err(error) = written {
                eprintln!("metal-sim: {}: {error}", path.display());
            }
        }
        if reports.kept.len() < REPORT_LIMIT {
            reports.kept.push(report);
        }
    }

    /// There is one more queue.
    pub(crate) fn add_queue(&self, timeline: &Arc<Timeline>) {
        lock(&self.timelines).push(Arc::clone(timeline));
    }

    /// Each queue, and the last of its submissions whose end the host has seen.
    pub(crate) fn observed(&self) -> Vec<(u64, u64)> {
        lock(&self.timelines).iter().map(|timeline| (timeline.id(), timeline.observed())).collect()
    }

    /// Starts to watch a buffer.
    pub(crate) fn track(
        self: &Arc<Self>,
        label: &str,
        start: usize,
        length: usize,
        foreign: bool,
    ) -> Arc<Tracked> {
        lock(&self.registry).add(self, label, start, length, foreign)
    }

    /// A buffer is gone; `mapping` is its address space, to be unmapped some time later.
    pub(crate) fn forget(&self, tracked: &Tracked, mapping: Option<(usize, usize)>) {
        lock(&self.registry).remove(tracked, mapping);
    }

    /// Commands run one at a time: the shadows are shared by all queues.
    pub(crate) fn checker(&self) -> MutexGuard<'_, Box<Checker>> {
        lock(&self.checker)
    }
}
