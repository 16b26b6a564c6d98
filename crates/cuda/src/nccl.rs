//! NCCL: sums and concatenations over the GPUs that share every layer.
//!
//! The library is loaded when GPUs are connected, by the few functions that are called here: NVIDIA's packages install it as
//! `libnccl.so.2` alone, which cudarc's own bindings do not look for. It reads variables of the environment of its own
//! (`NCCL_DEBUG`, `NCCL_NVLS_ENABLE`, ...).

use crate::CudaError;
use cudarc::driver::sys;
use libloading::Library;
use std::env;
use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::Duration;

/// The oldest version whose calls can be captured into graphs by several threads, as `major * 10000 + minor * 100`.
const OLDEST: c_int = 21_800;
/// `ncclFloat32`.
const FLOAT: c_int = 7;
/// `ncclSum`.
const SUM: c_int = 0;

type Handle = *mut c_void;
type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, sys::CUstream) -> c_int;
type AllGather =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, Handle, sys::CUstream) -> c_int;

/// The library's functions.
struct Api {
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    init_all: unsafe extern "C" fn(*mut Handle, c_int, *const c_int) -> c_int,
    abort: unsafe extern "C" fn(Handle) -> c_int,
    all_reduce: AllReduce,
    all_gather: AllGather,
    /// What the functions are in.
    _library: Library,
}

/// Where the library can be: the file or the folder that `SMELT_NCCL` names, or else where the system finds libraries.
fn candidates(named: Option<OsString>) -> Vec<PathBuf> {
    const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
    match named.filter(|named| !named.is_empty()).map(PathBuf::from) {
        Some(folder) if folder.is_dir() => NAMES.map(|name| folder.join(name)).into(),
        Some(file) => vec![file],
        None => NAMES.map(PathBuf::from).into(),
    }
}

impl Api {
    fn load(named: Option<OsString>) -> Result<Api, CudaError> {
        let candidates = candidates(named);
        let missing = |message: String| CudaError::NoNccl { message };
        // SAFETY: NVIDIA's library, which does nothing when it is loaded.
        let found = candidates.iter().find_map(|file: &PathBuf| unsafe { Library::new(file) }.ok());
        let Some(library) = found else {
            let names: Vec<String> = candidates.iter().map(|file| file.display().to_string()).collect();
            return Err(missing(format!(
                "looked for {}; it is part of NVIDIA's HPC SDK, and of the Python packages nvidia-nccl-cu13 and -cu12, \
                 whose folder SMELT_NCCL can name",
                names.join(" and ")
            )));
        };
        let symbol = |name: &'static str| move |error: libloading::Error| missing(format!("{name}: {error}"));
        // SAFETY: the types are those of nccl.h, the same in all versions since the oldest that is accepted; the library
        // is kept as long as the functions.
        unsafe {
            let version: unsafe extern "C" fn(*mut c_int) -> c_int =
                *library.get(b"ncclGetVersion\0").map_err(symbol("ncclGetVersion"))?;
            let mut found = 0;
            if version(&mut found) != 0 || found < OLDEST {
                return Err(missing(format!("expected version {OLDEST} or later, found {found}")));
            }
            Ok(Api {
                error_string: *library.get(b"ncclGetErrorString\0").map_err(symbol("ncclGetErrorString"))?,
                init_all: *library.get(b"ncclCommInitAll\0").map_err(symbol("ncclCommInitAll"))?,
                abort: *library.get(b"ncclCommAbort\0").map_err(symbol("ncclCommAbort"))?,
                all_reduce: *library.get(b"ncclAllReduce\0").map_err(symbol("ncclAllReduce"))?,
                all_gather: *library.get(b"ncclAllGather\0").map_err(symbol("ncclAllGather"))?,
                _library: library,
            })
        }
    }

    fn check(&self, call: &'static str, result: c_int) -> Result<(), CudaError> {
        if result == 0 {
            return Ok(());
        }
        // SAFETY: the text is static, and there is one for every number.
        let message = unsafe { CStr::from_ptr((self.error_string)(result)) }.to_string_lossy().into_owned();
        Err(CudaError::Driver { call, message })
    }
}

/// Something was waited for until the deadline.
pub(crate) fn late(deadline: Duration) -> CudaError {
    CudaError::Deadline { seconds: deadline.as_secs() }
}

/// What GPUs exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The sum of all.
    Sum,
    /// One behind the other.
    Gather,
}

/// An exchange of floats: `count` of them on each GPU.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) kind: Kind,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) count: usize,
    /// The node that it is.
    pub(crate) label: String,
}

/// Where the threads of all GPUs wait for each other.
struct Meeting {
    members: usize,
    state: Mutex<Round>,
    all_here: Condvar,
    /// Whether one of the GPUs takes no more work.
    failed: AtomicBool,
}

/// One time that threads wait for each other.
#[derive(Default)]
struct Round {
    /// Its number.
    number: u64,
    /// Threads that are here, and those that have said that they do not come.
    here: usize,
    left: usize,
    /// Whether some did not come the last time.
    incomplete: bool,
}

impl Meeting {
    fn new(members: usize) -> Meeting {
        let (state, all_here) = (Mutex::default(), Condvar::new());
        Meeting { members, state, all_here, failed: AtomicBool::new(false) }
    }

    /// Ends the round if nobody is missing.
    fn end_round(&self, round: &mut Round) -> bool {
        let ends = round.here + round.left == self.members;
        if ends {
            *round = Round { number: round.number + 1, here: 0, left: 0, incomplete: round.left > 0 };
            self.all_here.notify_all();
        }
        ends
    }

    /// Says that a thread does not come this time: whoever waits need not.
    fn leave(&self) {
        let mut round = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        round.left += 1;
        self.end_round(&mut round);
    }

    /// Says that a thread will never come again.
    fn fail(&self) {
        let _round = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.failed.store(true, Ordering::Release);
        self.all_here.notify_all();
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Waits until all are here, at most this long: one that failed does not come.
    fn wait(&self, deadline: Duration) -> Result<(), CudaError> {
        // Nothing that can panic happens under the lock.
        let mut round = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let number = round.number;
        round.here += 1;
        if !self.end_round(&mut round) {
            let waits = |round: &mut Round| round.number == number && !self.has_failed();
            let waited = self.all_here.wait_timeout_while(round, deadline, waits);
            round = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if round.number == number {
            round.here -= 1;
            return Err(if self.has_failed() { CudaError::Partner } else { late(deadline) });
        }
        // Nobody can have ended the round after this one without this thread.
        if round.incomplete { Err(CudaError::Partner) } else { Ok(()) }
    }
}

/// NCCL's part of a communicator, which ends once: with the communicator, or before, where a call of it does not return.
pub(crate) struct Connection {
    api: Arc<Api>,
    handle: Handle,
    has_ended: AtomicBool,
}

// SAFETY: a communicator may be used from any thread, by one at a time, which the backend that owns it makes sure of; ending it from
// another is how NCCL lets calls be given up.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

impl Connection {
    /// Ends it. A call that waits in it returns with an error. This does not wait for other GPUs, which may have failed.
    pub(crate) fn end(&self) {
        if !self.has_ended.swap(true, Ordering::AcqRel) {
            // SAFETY: made in `connect`, ended once, and not used afterwards.
            let _ = unsafe { (self.api.abort)(self.handle) };
        }
    }
}

/// A GPU's place among those that exchange values.
pub(crate) struct Communicator {
    connection: Arc<Connection>,
    meeting: Arc<Meeting>,
    deadline: Duration,
}

impl Communicator {
    /// Connects the GPUs with these numbers: a communicator for each.
    pub(crate) fn connect(devices: &[usize], deadline: Duration) -> Result<Vec<Communicator>, CudaError> {
        let api = Arc::new(Api::load(env::var_os("SMELT_NCCL"))?);
        let numbers: Vec<c_int> =
            devices.iter().map(|&device| c_int::try_from(device).unwrap_or(c_int::MAX)).collect();
        // There is nothing yet that could be ended, so where the call does not return its thread is left behind.
        let (result, made) = mpsc::channel();
        let init = Arc::clone(&api);
        std::thread::spawn(move || {
            let mut handles = vec![std::ptr::null_mut(); numbers.len()];
            // SAFETY: there is room for a handle for each of the numbers.
            let called =
                unsafe { (init.init_all)(handles.as_mut_ptr(), numbers.len() as c_int, numbers.as_ptr()) };
            let connection =
                |handle| Connection { api: Arc::clone(&init), handle, has_ended: AtomicBool::new(false) };
            let made = init
                .check("ncclCommInitAll", called)
                .map(|()| handles.into_iter().map(connection).map(Arc::new).collect::<Vec<_>>());
            // Nobody listens where this took too long.
            if let Err(unheard) = result.send(made) {
                unheard.0.into_iter().flatten().for_each(|connection| connection.end());
            }
        });
        let connections = made.recv_timeout(deadline).map_err(|_| late(deadline))??;
        let meeting = Arc::new(Meeting::new(devices.len()));
        let communicators = connections.into_iter().map(|connection| Communicator {
            connection,
            meeting: Arc::clone(&meeting),
            deadline,
        });
        Ok(communicators.collect())
    }

    /// What ends it from another thread.
    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Waits until all GPUs are as far: none starts an exchange, in which it waits for the others, while one of them still
    /// makes its launches. Taking memory can wait for the work of all GPUs that can read it.
    pub(crate) fn meet(&self) -> Result<(), CudaError> {
        self.meeting.wait(self.deadline)
    }

    /// Says that this GPU does not start its exchanges this time, in place of [`meet`](Communicator::meet).
    pub(crate) fn leave(&self) {
        self.meeting.leave();
    }

    /// Whether one of the GPUs takes no more work.
    pub(crate) fn has_failed(&self) -> bool {
        self.meeting.has_failed()
    }

    /// GPUs that exchange values.
    pub(crate) fn members(&self) -> usize {
        self.meeting.members
    }

    /// Starts an exchange behind everything before on a stream of this GPU. The others must do the same, each on a thread
    /// of its own: this can wait for them.
    pub(crate) fn start(&self, exchange: &Exchange, stream: sys::CUstream) -> Result<(), CudaError> {
        let Connection { api, handle, has_ended } = &*self.connection;
        if has_ended.load(Ordering::Acquire) {
            return Err(CudaError::Partner);
        }
        let (from, to, count) = (exchange.from as *const c_void, exchange.to as *mut c_void, exchange.count);
        // SAFETY: whoever made the exchange gives addresses of so many floats of the GPU, of so many for each GPU where
        // they are put together; the stream is alive.
        let (call, result) = unsafe {
            match exchange.kind {
                Kind::Sum => {
                    ("ncclAllReduce", (api.all_reduce)(from, to, count, FLOAT, SUM, *handle, stream))
                }
                Kind::Gather => ("ncclAllGather", (api.all_gather)(from, to, count, FLOAT, *handle, stream)),
            }
        };
        api.check(call, result)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.meeting.fail();
        self.connection.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn threads_wait_for_each_other_but_not_for_ever() {
        let meeting = Meeting::new(2);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| (0..100).try_for_each(|_| meeting.wait(Duration::from_secs(60))));
            (0..100).try_for_each(|_| meeting.wait(Duration::from_secs(60))).unwrap();
            other.join().unwrap().unwrap();
        });
        let late = meeting.wait(Duration::from_millis(5)).unwrap_err();
        assert_eq!(late, CudaError::Deadline { seconds: 0 });
        assert_eq!(meeting.state.lock().unwrap().here, 0, "who gave up is not counted");
    }

    #[test]
    fn nobody_waits_for_one_that_leaves_or_failed() {
        let meeting = Meeting::new(2);
        let long = Duration::from_secs(60);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| meeting.wait(long));
            meeting.leave();
            assert_eq!(waits.join().unwrap(), Err(CudaError::Partner));
            // All may leave, and meet the next time.
            meeting.leave();
            meeting.leave();
            let waits = scope.spawn(|| meeting.wait(long));
            assert_eq!(meeting.wait(long), Ok(()));
            assert_eq!(waits.join().unwrap(), Ok(()));
            let waits = scope.spawn(|| meeting.wait(long));
            meeting.fail();
            assert_eq!(waits.join().unwrap(), Err(CudaError::Partner));
            assert_eq!(meeting.wait(long), Err(CudaError::Partner));
        });
    }

    #[test]
    fn the_library_is_looked_for_where_it_is_named() {
        assert_eq!(candidates(None), [Path::new("libnccl.so.2"), Path::new("libnccl.so")]);
        assert_eq!(candidates(Some("".into())), candidates(None));
        let folder = env::temp_dir();
        assert_eq!(
            candidates(Some(folder.clone().into())),
            ["libnccl.so.2", "libnccl.so"].map(|n| folder.join(n))
        );
        assert_eq!(candidates(Some("/opt/libnccl.so.2.28".into())), [Path::new("/opt/libnccl.so.2.28")]);
    }

    #[test]
    fn a_library_that_is_not_there_or_another_one_is_told() {
        let error = Api::load(Some("/nowhere/libnccl.so.2".into())).err().expect("there is none").to_string();
        assert!(error.contains("/nowhere/libnccl.so.2") && error.contains("SMELT_NCCL"), "{error}");
        if cfg!(target_os = "linux") {
            let error =
                Api::load(Some("libc.so.6".into())).err().expect("it has no such functions").to_string();
            assert!(error.contains("ncclGetVersion"), "{error}");
        }
    }
}
