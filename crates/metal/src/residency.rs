//! Keeping weights and caches mapped for the GPU: what is asked of a queue's residency set, when, and for how long.
//!
//! A system may unmap memory a second after the last work that used it, and the next token pays for mapping all weights
//! again. So while nothing is submitted, the memory is asked for at intervals. After some minutes that ends: a program
//! that nobody uses leaves the memory to others.

use crate::device::{Device, ResidencySet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// When the memory is asked for.
#[derive(Clone, Copy)]
struct Times {
    /// How long after the last submission or request it is asked for again.
    interval: Duration,
    /// How long after the last submission that goes on.
    keep: Duration,
}

/// Half of the second that others saw macOS 26 wait, and as long as a reader of an answer may think before the next question.
const TIMES: Times = Times { interval: Duration::from_millis(500), keep: Duration::from_secs(180) };

/// The residency set of a queue, where the device has such a thing, and the thread that asks for its memory. When it is dropped,
/// the set is, too: after that nothing but work under way uses the memory.
pub(crate) struct Residency<B> {
    shared: Option<Arc<Shared<B>>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared<B> {
    set: Mutex<Box<dyn ResidencySet<B>>>,
    clock: Mutex<Clock>,
    changed: Condvar,
}

impl<B: 'static> Residency<B> {
    /// Of a queue that has none yet. It is a matter of speed alone, so a device may refuse it.
    pub fn new<D: Device<Buffer = B>>(device: &D, queue: &D::Queue) -> Residency<B> {
        Residency::of(device.new_residency_set(queue).ok().flatten(), TIMES)
    }

    fn of(set: Option<Box<dyn ResidencySet<B>>>, times: Times) -> Residency<B> {
        let shared = set.map(|set| {
            let clock = Mutex::new(Clock::new(Instant::now()));
            Arc::new(Shared { set: Mutex::new(set), clock, changed: Condvar::new() })
        });
        let thread = shared.clone().and_then(|shared| {
            let name = "metal residency".to_owned();
            thread::Builder::new().name(name).spawn(move || shared.keep(times)).ok()
        });
        Residency { shared, thread }
    }

    /// Adds buffers and has them mapped.
    pub fn map(&self, buffers: &[B]) {
        if let Some(shared) = &self.shared {
            let mut set = lock(&shared.set);
            set.change(buffers, &[]);
            set.request();
            shared.used();
        }
    }

    /// Keeps buffers, once the first work has mapped them, and others no longer.
    pub fn keep(&self, added: &[B], removed: &[B]) {
        if let Some(shared) = &self.shared {
            lock(&shared.set).change(added, removed);
        }
    }

    /// Work that may use the memory was submitted.
    pub fn used(&self) {
        if let Some(shared) = &self.shared {
            shared.used();
        }
    }
}

impl<B> Drop for Residency<B> {
    fn drop(&mut self) {
        let Some(shared) = &self.shared else { return };
        lock(&shared.clock).ended = true;
        shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, nothing would be asked for any more, which is what is wanted.
            let _ = thread.join();
        }
    }
}

impl<B> Shared<B> {
    fn used(&self) {
        let mut clock = lock(&self.clock);
        clock.used = Instant::now();
        if std::mem::take(&mut clock.sleeps) {
            self.changed.notify_one();
        }
    }

    /// What the thread does until the end.
    fn keep(&self, times: Times) {
        let mut clock = lock(&self.clock);
        while !clock.ended {
            let now = Instant::now();
            clock = match clock.next(now, times) {
                Next::Ask => {
                    clock.asked = now;
                    drop(clock);
                    lock(&self.set).request();
                    lock(&self.clock)
                }
                Next::Wait(time) => {
                    self.changed.wait_timeout(clock, time).unwrap_or_else(PoisonError::into_inner).0
                }
                Next::Sleep => {
                    clock.sleeps = true;
                    self.changed.wait(clock).unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }
}

/// No lock is held over what may panic with the data in disorder.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was when.
struct Clock {
    /// The last submission.
    used: Instant,
    /// The last time that the memory was asked for.
    asked: Instant,
    /// The thread waits to be woken.
    sleeps: bool,
    ended: bool,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Ask for the memory.
    Ask,
    /// Look again after this time.
    Wait(Duration),
    /// Let the memory go, until there is a submission.
    Sleep,
}

impl Clock {
    fn new(now: Instant) -> Clock {
        Clock { used: now, asked: now, sleeps: false, ended: false }
    }

    fn next(&self, now: Instant, times: Times) -> Next {
        if now.duration_since(self.used) >= times.keep {
            return Next::Sleep;
        }
        match times.interval.checked_sub(now.duration_since(self.used.max(self.asked))) {
            None | Some(Duration::ZERO) => Next::Ask,
            Some(rest) => Next::Wait(rest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

    #[derive(Debug, PartialEq, Eq)]
    enum Event {
        Changed(usize, usize),
        Asked,
        Gone,
    }

    struct Told(Sender<Event>);

    impl Told {
        fn tell(&self, event: Event) {
            // Nobody may be left to hear it.
            let _ = self.0.send(event);
        }
    }

    impl ResidencySet<u8> for Told {
        fn change(&mut self, added: &[u8], removed: &[u8]) {
            self.tell(Event::Changed(added.len(), removed.len()));
        }

        fn request(&mut self) {
            self.tell(Event::Asked);
        }
    }

    impl Drop for Told {
        fn drop(&mut self) {
            self.tell(Event::Gone);
        }
    }

    fn start(interval: u64, keep: u64) -> (Residency<u8>, Receiver<Event>) {
        let (sender, events) = channel();
        let times = Times { interval: Duration::from_millis(interval), keep: Duration::from_millis(keep) };
        (Residency::of(Some(Box::new(Told(sender))), times), events)
    }

    /// Far longer than anything here takes.
    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn memory_is_asked_for_while_nothing_uses_it_and_then_let_go() {
        let second = Duration::from_secs(1);
        let start = Instant::now();
        let mut clock = Clock::new(start);
        let at = |clock: &Clock, seconds: u32| {
            clock.next(start + second * seconds, Times { interval: second * 10, keep: second * 60 })
        };
        assert_eq!(at(&clock, 0), Next::Wait(second * 10));
        assert_eq!(at(&clock, 9), Next::Wait(second));
        assert_eq!(at(&clock, 10), Next::Ask);
        clock.asked = start + second * 11;
        assert_eq!(at(&clock, 12), Next::Wait(second * 9));
        assert_eq!(at(&clock, 40), Next::Ask);
        // A submission has the memory mapped by itself.
        clock.used = start + second * 35;
        assert_eq!(at(&clock, 40), Next::Wait(second * 5));
        assert_eq!(at(&clock, 94), Next::Ask);
        clock.asked = start + second * 94;
        assert_eq!(at(&clock, 95), Next::Sleep);
    }

    /// Waits until the thread sleeps; what it told so far.
    fn asleep(residency: &Residency<u8>, events: &Receiver<Event>) -> Vec<Event> {
        let start = Instant::now();
        while !lock(&residency.shared.as_ref().unwrap().clock).sleeps {
            assert!(start.elapsed() < LONG, "it never sleeps");
            thread::sleep(Duration::from_millis(1));
        }
        events.try_iter().collect()
    }

    #[test]
    fn the_thread_asks_sleeps_and_wakes() {
        let (residency, events) = start(20, 400);
        residency.map(&[1, 2, 3]);
        let told = asleep(&residency, &events);
        let mapped = told.iter().position(|event| *event == Event::Changed(3, 0)).expect("they are added");
        // At once, then every 20 of 400 ms at most, and it may have been about to when these buffers came.
        let asked = told[mapped + 1..].iter().filter(|event| **event == Event::Asked).count();
        assert!((2..=21).contains(&asked), "{told:?}");
        assert_eq!(events.recv_timeout(Duration::from_millis(50)), Err(RecvTimeoutError::Timeout));
        residency.used();
        assert_eq!(events.recv_timeout(LONG), Ok(Event::Asked));
        asleep(&residency, &events);
        residency.map(&[4]);
        for expected in [Event::Changed(1, 0), Event::Asked, Event::Asked] {
            assert_eq!(events.recv_timeout(LONG), Ok(expected));
        }
    }

    #[test]
    fn the_end_takes_the_set_along_at_once() {
        let (residency, events) = start(60_000, 60_000);
        residency.keep(&[1], &[2, 3]);
        assert_eq!(events.try_recv(), Ok(Event::Changed(1, 2)));
        // Time for the thread to begin its wait of a minute.
        thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        drop(residency);
        assert_eq!(events.try_recv(), Ok(Event::Gone));
        assert!(start.elapsed() < LONG, "it waited for {:?}", start.elapsed());
        // A device without such a thing.
        let none = Residency::<u8>::of(None, TIMES);
        none.map(&[1]);
        none.keep(&[1], &[]);
        none.used();
    }
}
