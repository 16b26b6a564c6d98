//! Texts that become vectors, beside the answers under way.

use super::events::{EmbedRequest, EmbedSink};
use super::stats::{Phase, Slot};
use super::{plan, prefixes::Prefixes};
use crate::embedding::Pooler;
use crate::{Engine, Error, Sequence, Step, Wanted};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A request for embeddings, and what of it is done.
struct Job {
    number: u64,
    request: EmbedRequest,
    sink: EmbedSink,
    cancelled: Arc<AtomicBool>,
    /// Texts to be begun, by their place in the request.
    waiting: VecDeque<usize>,
    /// Vectors of the texts that are done, by their place in the request.
    vectors: Vec<Vec<f32>>,
    /// Texts that are not done.
    open: usize,
}

/// A text that is being computed.
struct Text {
    job: u64,
    index: usize,
    sequence: Sequence,
    pooler: Pooler,
}

/// How a step went.
#[derive(Debug, Default)]
pub(super) struct Embedded {
    /// A forward was run.
    pub stepped: bool,
    /// Requests that ended by themselves.
    pub finished: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Tokens of texts that are done.
    pub tokens: u64,
}

/// All requests for embeddings. Each step takes some tokens of theirs, of one request after the other, so that a long
/// list does not hold up a short one. Where pages are short, they give theirs back and begin anew.
#[derive(Default)]
pub(super) struct Embeddings {
    /// Whose turn it is comes first.
    jobs: VecDeque<Job>,
    texts: Vec<Text>,
    submitted: u64,
    /// Hidden states of the last forward.
    states: Vec<f32>,
    /// A text had to give its pages back, and none was done since: no new answers until one is.
    starved: bool,
}

impl Embeddings {
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    pub fn is_starved(&self) -> bool {
        self.starved && !self.jobs.is_empty()
    }

    /// Texts that were not begun.
    pub fn waiting(&self) -> usize {
        self.jobs.iter().map(|job| job.waiting.len()).sum()
    }

    /// The sequences that hold pages.
    pub fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.texts.iter().map(|text| &text.sequence)
    }

    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        self.texts.iter().filter_map(|text| {
            let job = self.job(text.job)?;
            Some(Slot {
                name: job.request.name.clone(),
                choice: text.index,
                phase: Phase::Embed,
                prompt_tokens: job.request.inputs[text.index].len(),
                cached_tokens: text.sequence.len(),
                generated_tokens: 0,
            })
        })
    }

    pub fn push(&mut self, request: EmbedRequest, sink: EmbedSink, cancelled: Arc<AtomicBool>) {
        self.submitted += 1;
        let texts = request.inputs.len();
        self.jobs.push_back(Job {
            number: self.submitted,
            request,
            sink,
            cancelled,
            waiting: (0..texts).collect(),
            vectors: vec![Vec::new(); texts],
            open: texts,
        });
    }

    /// Forgets the requests whose callers have left; how many there were.
    pub fn drop_cancelled(&mut self, engine: &mut Engine) -> usize {
        let before = self.jobs.len();
        self.jobs.retain(|job| !job.cancelled.load(Ordering::Relaxed));
        if self.jobs.len() < before {
            self.drop_orphans(engine);
        }
        before - self.jobs.len()
    }

    /// Cancels all requests.
    pub fn cancel(&self) {
        self.jobs.iter().for_each(|job| job.cancelled.store(true, Ordering::Relaxed));
    }

    /// Tells all requests that they failed; how many there were.
    pub fn fail(&mut self, error: impl Fn() -> Error) -> usize {
        self.texts.clear();
        let jobs = std::mem::take(&mut self.jobs);
        let failed = jobs.len();
        jobs.into_iter().for_each(|job| (job.sink)(Err(error())));
        failed
    }

    /// Gives the pages of the youngest text back; false if there is none. It begins anew.
    pub fn give_pages(&mut self, engine: &mut Engine) -> bool {
        let Some(text) = self.texts.pop() else { return false };
        self.starved = true;
        engine.release(text.sequence);
        if let Some(job) = self.jobs.iter_mut().find(|job| job.number == text.job) {
            job.waiting.push_front(text.index);
        }
        true
    }

    /// Computes at most `budget` tokens of at most `parallel` texts. `alone` tells that nobody else has pages to give.
    ///
    /// # Errors
    /// Those of the device, after which nothing can be computed.
    pub fn step(
        &mut self,
        engine: &mut Engine,
        prefixes: &mut Prefixes,
        (parallel, budget): (usize, usize),
        alone: bool,
    ) -> Result<Embedded, Error> {
        self.begin(engine, parallel, budget);
        let pending: Vec<usize> =
            self.texts.iter().map(|text| self.tokens(text).len() - text.sequence.len()).collect();
        let mut shares = plan::shares(&pending, budget, 0);
        let mut at = 0;
        while at < self.texts.len() {
            match engine.reserve(&mut self.texts[at].sequence, shares[at]) {
                Ok(()) => at += 1,
                Err(Error::OutOfPages { .. }) if prefixes.evict(engine) => {}
                // Cannot be: a text alone has its share.
                Err(error @ Error::OutOfPages { .. }) if alone && self.texts.len() == 1 => return Err(error),
                Err(Error::OutOfPages { .. }) => {
                    self.give_pages(engine);
                }
                Err(error) => return Err(error),
            }
        }
        shares.truncate(self.texts.len());
        if self.texts.is_empty() {
            return Ok(Embedded::default());
        }
        let rows = self.forward(engine, &shares)?;
        Ok(self.read(engine, &rows))
    }

    /// Begins texts, one of each request in turn, while there are tokens to be had in a step.
    fn begin(&mut self, engine: &Engine, parallel: usize, budget: usize) {
        let mut tokens: usize =
            self.texts.iter().map(|text| self.tokens(text).len() - text.sequence.len()).sum();
        let mut idle = 0;
        while self.texts.len() < parallel && tokens < budget && idle < self.jobs.len() {
            let Some(mut job) = self.jobs.pop_front() else { return };
            idle += 1;
            if let Some(index) = job.waiting.pop_front() {
                idle = 0;
                tokens += job.request.inputs[index].len();
                let pooler = Pooler::new(job.request.pooling);
                self.texts.push(Text { job: job.number, index, sequence: engine.sequence(), pooler });
            }
            self.jobs.push_back(job);
        }
    }

    /// Runs the step. For each text, the rows of its hidden states.
    fn forward(
        &mut self,
        engine: &mut Engine,
        shares: &[usize],
    ) -> Result<Vec<std::ops::Range<usize>>, Error> {
        let mut states = std::mem::take(&mut self.states);
        let mut rows = Vec::with_capacity(shares.len());
        let mut steps = Vec::with_capacity(shares.len());
        let mut next = 0;
        for (text, &share) in self.texts.iter_mut().zip(shares) {
            let job = self.jobs.iter().find(|job| job.number == text.job);
            let all = job.map_or(&[][..], |job| &job.request.inputs[text.index]);
            let cached = text.sequence.len();
            let wanted = text.pooler.wanted(share, cached + share == all.len());
            rows.push(next..next + wanted);
            next += wanted;
            if share > 0 {
                let tokens = &all[cached..cached + share];
                steps.push(Step { sequence: &mut text.sequence, tokens, wanted: Wanted::End(wanted) });
            }
        }
        engine.hidden_states(&mut steps, &mut states)?;
        self.states = states;
        Ok(rows)
    }

    /// Takes the step's hidden states, and tells the requests that are done.
    fn read(&mut self, engine: &mut Engine, rows: &[std::ops::Range<usize>]) -> Embedded {
        let mut done = Embedded { stepped: true, ..Embedded::default() };
        let columns = engine.model().hidden_size();
        for (mut text, rows) in std::mem::take(&mut self.texts).into_iter().zip(rows) {
            rows.clone().for_each(|row| text.pooler.push(&self.states[row * columns..][..columns]));
            let Some(at) = self.jobs.iter().position(|job| job.number == text.job) else {
                // Its request has just failed.
                engine.release(text.sequence);
                continue;
            };
            let tokens = self.jobs[at].request.inputs[text.index].len();
            if text.sequence.len() < tokens {
                self.texts.push(text);
                continue;
            }
            engine.release(text.sequence);
            match text.pooler.finish() {
                Ok(vector) => {
                    self.starved = false;
                    done.tokens += tokens as u64;
                    let job = &mut self.jobs[at];
                    job.vectors[text.index] = vector;
                    job.open -= 1;
                    if job.open == 0
                        && let Some(job) = self.jobs.remove(at)
                    {
                        done.finished += 1;
                        (job.sink)(Ok(job.vectors));
                    }
                }
                Err(error) => {
                    if let Some(job) = self.jobs.remove(at) {
                        done.failed += 1;
                        (job.sink)(Err(error));
                    }
                }
            }
        }
        if done.failed > 0 {
            self.drop_orphans(engine);
        }
        done
    }

    /// Forgets the texts whose requests have ended.
    fn drop_orphans(&mut self, engine: &mut Engine) {
        for text in std::mem::take(&mut self.texts) {
            if self.job(text.job).is_some() {
                self.texts.push(text);
            } else {
                engine.release(text.sequence);
            }
        }
    }

    fn job(&self, number: u64) -> Option<&Job> {
        self.jobs.iter().find(|job| job.number == number)
    }

    fn tokens(&self, text: &Text) -> &[u32] {
        self.job(text.job).map_or(&[], |job| &job.request.inputs[text.index])
    }
}
