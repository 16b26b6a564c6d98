//! The engine's thread: admission, steps, and what comes of them.

use super::choice::{Choice, Group};
use super::embeddings::Embeddings;
use super::engine::{BatchOptions, Shared, lock};
use super::events::{BatchEvent, EmbedRequest, EmbedSink, Sink};
use super::prefixes::Prefixes;
use super::stats::Stats;
use super::{lookup, plan};
use crate::answer::Answer;
use crate::{Engine, Error, Step, Wanted};
use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};

/// A request on its way to the thread.
pub(super) struct Submission {
    pub work: Work,
    pub cancelled: Arc<AtomicBool>,
}

/// What is to be done.
pub(super) enum Work {
    Generate(Prepared, Sink),
    Embed(EmbedRequest, EmbedSink),
}

/// A prompt, and its answers before their first tokens: at least one.
pub(super) struct Prepared {
    pub name: String,
    pub prompt: Vec<u32>,
    pub answers: VecDeque<Answer>,
}

pub(super) struct Worker {
    engine: Engine,
    options: BatchOptions,
    receiver: Receiver<Submission>,
    shared: Arc<Shared>,
    groups: HashMap<u64, Group>,
    waiting: VecDeque<Choice>,
    /// In the order of their requests: the last is the first to give its pages back.
    running: Vec<Choice>,
    prefixes: Prefixes,
    embeddings: Embeddings,
    stats: Stats,
    submitted: u64,
    /// Counts steps, to share what cannot be divided.
    turn: usize,
}

/// What happened to a choice in a step.
enum Outcome {
    GoesOn,
    Ended,
    Failed(Error),
}

impl Worker {
    pub fn new(
        engine: Engine,
        options: BatchOptions,
        receiver: Receiver<Submission>,
        shared: Arc<Shared>,
    ) -> Worker {
        let pages_total = engine.pools.iter().map(|pool| pool.total()).sum();
        let stats = Stats { pages_total, ..Stats::default() };
        *lock(&shared.stats) = stats.clone();
        Worker {
            engine,
            options,
            receiver,
            shared,
            groups: HashMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            prefixes: Prefixes::default(),
            embeddings: Embeddings::default(),
            stats,
            submitted: 0,
            turn: 0,
        }
    }

    /// Until nobody can submit any more, or a device fails.
    pub fn run(mut self) {
        loop {
            // A panic here is a fault of ours. It costs the requests, but it must not leave them without an answer.
            let went = caught(|| match self.receive() {
                ControlFlow::Continue(()) => self.step().map(ControlFlow::Continue),
                ControlFlow::Break(()) => Ok(ControlFlow::Break(())),
            });
            match went {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => return,
                Err(error) => return self.stop(error.to_string()),
            }
        }
    }

    /// Takes what was submitted; waits for it where there is nothing else to do.
    fn receive(&mut self) -> ControlFlow<()> {
        loop {
            let idle = self.running.is_empty() && self.waiting.is_empty() && self.embeddings.is_empty();
            let submission = if idle {
                self.publish();
                self.receiver.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                self.receiver.try_recv()
            };
            match submission {
                Ok(submission) => self.enqueue(submission),
                Err(TryRecvError::Empty) => return ControlFlow::Continue(()),
                Err(TryRecvError::Disconnected) if idle => return ControlFlow::Break(()),
                Err(TryRecvError::Disconnected) => {
                    // The engine was dropped: nobody can wait for these.
                    if self.shared.closing.load(Ordering::Relaxed) {
                        self.groups.values().for_each(|group| group.cancelled.store(true, Ordering::Relaxed));
                        self.embeddings.cancel();
                    }
                    return ControlFlow::Continue(());
                }
            }
        }
    }

    fn enqueue(&mut self, submission: Submission) {
        let Submission { work, cancelled } = submission;
        let (prepared, sink) = match work {
            Work::Generate(prepared, sink) => (prepared, sink),
            Work::Embed(request, sink) => return self.embeddings.push(request, sink, cancelled),
        };
        let Prepared { name, prompt, mut answers } = prepared;
        let group = Group { name, sink, cancelled, open: answers.len(), started: false };
        // Checked when it was submitted: there is at least one.
        let Some(answer) = answers.pop_front() else { return };
        self.submitted += 1;
        self.groups.insert(self.submitted, group);
        self.waiting.push_back(Choice {
            group: self.submitted,
            index: 0,
            prompt_len: prompt.len(),
            tokens: prompt,
            sequence: self.engine.sequence(),
            answer,
            siblings: answers.into(),
            draft: Vec::new(),
        });
    }

    /// Ends everything after a device has failed.
    fn stop(&mut self, reason: String) {
        *lock(&self.shared.stopped) = Some(reason.clone());
        self.shared.load.store(0, Ordering::Relaxed);
        let fail = |group: &mut Group| {
            group.tell(BatchEvent::Failed(Error::Stopped { reason: reason.clone() }));
        };
        self.stats.requests_failed += self.groups.len() as u64;
        self.groups.values_mut().for_each(fail);
        self.groups.clear();
        self.running.clear();
        self.waiting.clear();
        let stopped = || Error::Stopped { reason: reason.clone() };
        self.stats.requests_failed += self.embeddings.fail(stopped) as u64;
        while let Ok(submission) = self.receiver.try_recv() {
            match submission.work {
                Work::Generate(_, mut sink) => {
                    // Its receiver may be gone, which changes nothing.
                    let _ = sink(BatchEvent::Failed(stopped()));
                }
                Work::Embed(_, sink) => sink(Err(stopped())),
            }
        }
        self.publish();
    }

    fn step(&mut self) -> Result<(), Error> {
        self.drop_cancelled();
        self.admit();
        if !self.running.is_empty() {
            let shares = self.reserve()?;
            let rows = self.forward(&shares)?;
            self.turn = self.turn.wrapping_add(1);
            self.stats.steps += 1;
            self.read(&rows);
        }
        self.embed()?;
        self.publish();
        Ok(())
    }

    /// A forward for the texts that become vectors.
    fn embed(&mut self) -> Result<(), Error> {
        if self.embeddings.is_empty() {
            return Ok(());
        }
        let limits = (self.options.parallel, self.options.batch_tokens);
        let alone = self.running.is_empty();
        let done = self.embeddings.step(&mut self.engine, &mut self.prefixes, limits, alone)?;
        self.stats.steps += u64::from(done.stepped);
        self.stats.requests_finished += done.finished;
        self.stats.requests_failed += done.failed;
        self.stats.embedded_tokens += done.tokens;
        self.shared.load.fetch_sub((done.finished + done.failed) as usize, Ordering::Relaxed);
        Ok(())
    }

    /// Forgets the requests whose callers have left.
    fn drop_cancelled(&mut self) {
        let left = self.embeddings.drop_cancelled(&mut self.engine);
        self.shared.load.fetch_sub(left, Ordering::Relaxed);
        self.stats.requests_cancelled += left as u64;
        if !self.groups.values().any(Group::is_cancelled) {
            return;
        }
        let before = self.groups.len();
        self.groups.retain(|_, group| !group.is_cancelled());
        self.stats.requests_cancelled += (before - self.groups.len()) as u64;
        self.drop_orphans();
    }

    /// Forgets the choices whose requests have ended.
    fn drop_orphans(&mut self) {
        let mut gone = Vec::new();
        for choice in std::mem::take(&mut self.running) {
            if self.groups.contains_key(&choice.group) {
                self.running.push(choice)
            } else {
                gone.push(choice)
            }
        }
        for choice in std::mem::take(&mut self.waiting) {
            if self.groups.contains_key(&choice.group) {
                self.waiting.push_back(choice);
            } else {
                gone.push(choice);
            }
        }
        gone.into_iter().for_each(|choice| self.retire(choice));
    }

    /// Lets a choice go. What it has in the cache is kept as a prefix.
    fn retire(&mut self, choice: Choice) {
        self.shared.load.fetch_sub(choice.width(), Ordering::Relaxed);
        if self.options.prefix_cache {
            self.prefixes.insert(choice.sequence, &mut self.engine);
        } else {
            self.engine.release(choice.sequence);
        }
    }

    /// Moves waiting sequences to the running ones, in order, as far as there are slots and pages.
    fn admit(&mut self) {
        // Texts that become vectors yield their pages, but are not kept waiting for ever.
        while !self.embeddings.is_starved()
            && let Some(next) = self.waiting.front()
        {
            let width: usize = self.running.iter().map(Choice::width).sum();
            if width + next.width() > self.options.parallel {
                return;
            }
            let Some(mut choice) = self.waiting.pop_front() else { return };
            if self.options.prefix_cache {
                let running = self.running.iter().map(|running| &running.sequence);
                choice.sequence = self.prefixes.find(&choice.tokens, running, &mut self.engine);
            }
            if !self.running.is_empty() && !self.fits(&choice) {
                let sequence = std::mem::replace(&mut choice.sequence, self.engine.sequence());
                self.prefixes.insert(sequence, &mut self.engine);
                self.waiting.push_front(choice);
                return;
            }
            if let Some(group) = self.groups.get_mut(&choice.group)
                && !std::mem::replace(&mut group.started, true)
            {
                let cached_tokens = choice.sequence.len();
                self.stats.prompt_tokens += choice.prompt_len as u64;
                self.stats.cached_tokens += cached_tokens as u64;
                group.tell(BatchEvent::Started { cached_tokens });
            }
            let at = self.running.partition_point(|running| running.group <= choice.group);
            self.running.insert(at, choice);
        }
    }

    /// Whether there are pages for the whole of a sequence's tokens and one page more for each sequence, within its share,
    /// when what the others have still to fill in is set aside. Pages of finished prefixes and of texts that become vectors count as
    /// free.
    fn fits(&self, choice: &Choice) -> bool {
        let all = || self.running.iter().chain([choice]);
        self.engine.pools.iter().enumerate().all(|(group, pool)| {
            let held = self.engine.pages_held(group, all().map(|choice| &choice.sequence));
            let missing: usize = all()
                .map(|choice| {
                    let (pages, width) =
                        (choice.tokens.len().div_ceil(self.engine.setup.cache.page_len), choice.width());
                    let own = self.engine.pages_held(group, [&choice.sequence].into_iter());
                    (pages + width).min(pool.share().saturating_mul(width)).saturating_sub(own)
                })
                .sum();
            held + missing <= pool.total()
        })
    }

    /// Decides what each running sequence contributes to the step and takes the pages for it. Where there are none,
    /// finished prefixes go first, and then the youngest sequences have to wait.
    fn reserve(&mut self) -> Result<Vec<usize>, Error> {
        let pending: Vec<usize> = self.running.iter().map(Choice::pending).collect();
        let mut shares = plan::shares(&pending, self.options.batch_tokens, self.turn);
        let mut room = self.options.batch_tokens.saturating_sub(shares.iter().sum());
        let mut at = 0;
        while at < self.running.len() {
            let choice = &mut self.running[at];
            choice.draft.clear();
            if self.options.lookup_tokens > 0 && shares[at] == choice.pending() && choice.siblings.is_empty()
            {
                let most = self.options.lookup_tokens.min(room).min(choice.answer.room().saturating_sub(1));
                let most = most.min(self.engine.context().saturating_sub(choice.tokens.len()));
                choice.draft.extend_from_slice(lookup::draft(&choice.tokens, most));
            }
            let added = shares[at] + choice.draft.len();
            match self.engine.reserve(&mut choice.sequence, added) {
                Ok(()) => {
                    room -= choice.draft.len();
                    at += 1;
                }
                Err(Error::OutOfPages { .. }) => {
                    if self.prefixes.evict(&mut self.engine) || self.embeddings.give_pages(&mut self.engine) {
                        continue;
                    }
                    if self.running.len() == 1 {
                        // Cannot be: a sequence alone has its share.
                        return Err(self
                            .engine
                            .reserve(&mut self.running[0].sequence, added)
                            .err()
                            .unwrap_or(Error::OutOfPages { needed: added, free: 0 }));
                    }
                    self.preempt();
                }
                Err(error) => return Err(error),
            }
        }
        shares.truncate(self.running.len());
        Ok(shares)
    }

    /// The youngest sequence gives its pages back and waits, in front of all others.
    fn preempt(&mut self) {
        let Some(mut choice) = self.running.pop() else { return };
        let sequence = std::mem::replace(&mut choice.sequence, self.engine.sequence());
        self.engine.release(sequence);
        choice.draft.clear();
        self.waiting.push_front(choice);
        self.stats.preemptions += 1;
    }

    /// Runs the step. For each sequence, the rows of its logits.
    fn forward(&mut self, shares: &[usize]) -> Result<Vec<std::ops::Range<usize>>, Error> {
        let mut rows = Vec::with_capacity(shares.len());
        let mut inputs = Vec::with_capacity(shares.len());
        let mut next = 0;
        for (choice, &share) in self.running.iter().zip(shares) {
            let cached = choice.sequence.len();
            let mut tokens = choice.tokens[cached..cached + share].to_vec();
            let wanted = if share < choice.pending() || share == 0 { 0 } else { 1 + choice.draft.len() };
            tokens.extend_from_slice(&choice.draft);
            rows.push(next..next + wanted);
            next += wanted;
            inputs.push(tokens);
        }
        let vocabulary = self.engine.model.vocabulary();
        let mut steps = Vec::with_capacity(shares.len());
        let mut needed = Vec::with_capacity(shares.len());
        for ((choice, tokens), rows) in self.running.iter_mut().zip(&inputs).zip(&rows) {
            if !tokens.is_empty() {
                needed.push(choice.needed(vocabulary));
                steps.push(Step { sequence: &mut choice.sequence, tokens, wanted: Wanted::End(rows.len()) });
            }
        }
        self.engine.forward_choosing(&mut steps, &needed)?;
        Ok(rows)
    }

    /// Reads the step's logits and goes on from them.
    fn read(&mut self, rows: &[std::ops::Range<usize>]) {
        let mut failed = Vec::new();
        for (mut choice, rows) in std::mem::take(&mut self.running).into_iter().zip(rows) {
            if rows.is_empty() {
                self.running.push(choice);
                continue;
            }
            let mut choices = choice.split(&mut self.engine);
            choices.insert(0, choice);
            for mut choice in choices {
                match self.advance(&mut choice, rows.clone()) {
                    Outcome::GoesOn => self.running.push(choice),
                    Outcome::Ended => {
                        let done = self.groups.get(&choice.group).is_some_and(|group| group.open == 0);
                        let group = choice.group;
                        self.retire(choice);
                        if done {
                            self.groups.remove(&group);
                            self.stats.requests_finished += 1;
                        }
                    }
                    Outcome::Failed(error) => {
                        failed.push((choice.group, error));
                        self.retire(choice);
                    }
                }
            }
        }
        if failed.is_empty() {
            return;
        }
        for (number, error) in failed {
            let Some(mut group) = self.groups.remove(&number) else { continue };
            group.tell(BatchEvent::Failed(error));
            self.stats.requests_failed += 1;
        }
        self.drop_orphans();
    }

    /// Chooses tokens from rows of logits: one, and as many more as were guessed right.
    fn advance(&mut self, choice: &mut Choice, rows: std::ops::Range<usize>) -> Outcome {
        let Some(group) = self.groups.get_mut(&choice.group) else { return Outcome::Ended };
        let draft = std::mem::take(&mut choice.draft);
        self.stats.drafted_tokens += draft.len() as u64;
        let mut outcome = Outcome::GoesOn;
        for (done, row) in rows.enumerate() {
            let before = choice.answer.generated();
            let (row, context) = (self.engine.choice_of(row), self.engine.context());
            // A panic of its constraint or sampler costs this request alone: nothing else has its state.
            match row.and_then(|row| caught(|| choice.advance(row, context, group))) {
                Ok(true) => {}
                Ok(false) => outcome = Outcome::Ended,
                Err(error) => outcome = Outcome::Failed(error),
            }
            self.stats.generated_tokens += (choice.answer.generated() - before) as u64;
            let confirmed = done < draft.len() && choice.tokens.last() == draft.get(done);
            self.stats.accepted_tokens += u64::from(confirmed);
            if !confirmed || !matches!(outcome, Outcome::GoesOn) {
                break;
            }
        }
        if !draft.is_empty() {
            // The last token was chosen, not computed, and what was guessed wrong lies after it.
            self.engine.truncate(&mut choice.sequence, choice.tokens.len() - 1);
        }
        outcome
    }

    /// Makes the snapshot that others read.
    fn publish(&mut self) {
        let groups = self.engine.pools.len();
        let sequences =
            || self.running.iter().map(|choice| &choice.sequence).chain(self.embeddings.sequences());
        let held = |group| self.engine.pages_held(group, sequences());
        let running: usize = (0..groups).map(held).sum();
        let free: usize = self.engine.pools.iter().map(|pool| pool.free()).sum();
        let name =
            |choice: &Choice| self.groups.get(&choice.group).map_or("", |group| &group.name).to_owned();
        let slots = self.running.iter().map(|choice| choice.slot(&name(choice)));
        self.stats.slots = slots.chain(self.embeddings.slots()).collect();
        self.stats.waiting =
            self.waiting.iter().map(Choice::width).sum::<usize>() + self.embeddings.waiting();
        self.stats.pages_running = running;
        self.stats.pages_cached = (self.stats.pages_total - free).saturating_sub(running);
        *lock(&self.shared.stats) = self.stats.clone();
    }
}

/// Does work; a panic of it is an error.
///
/// # Errors
/// Those of the work, and [`Error::Internal`].
pub(super) fn caught<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    // What it leaves half done is dropped by whoever gets the error.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(Error::Internal(text.unwrap_or("panic").to_owned()))
    })
}
