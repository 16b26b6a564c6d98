//! One forward pass over a ragged batch, and the loop that prefills a prompt in chunks.

use crate::sequence::NO_PAGE;
use crate::{Engine, Error, Sequence};
use graph::{Batch, GraphParams, Largest};
use std::ops::ControlFlow;

/// The positions whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// None: the tokens only go into the cache.
    None,
    /// The last.
    Last,
    /// All.
    All,
    /// This many at the end, at most all.
    End(usize),
}

impl Wanted {
    fn count(self, tokens: usize) -> usize {
        match self {
            Wanted::None => 0,
            Wanted::Last => 1,
            Wanted::All => tokens,
            Wanted::End(rows) => rows.min(tokens),
        }
    }
}

/// What a token is chosen by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Row<'a> {
    /// All logits, one number per token of the vocabulary.
    Logits(&'a [f32]),
    /// The tokens with the highest logits, in order, the lowest of several that are equal first.
    Highest(&'a [Largest]),
}

/// What choosing a token needs of its row of logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needed {
    /// All.
    All,
    /// So many of the highest, at least one.
    Highest(usize),
}

impl Needed {
    /// What serves both.
    #[must_use]
    pub fn and(self, other: Needed) -> Needed {
        match (self, other) {
            (Needed::Highest(a), Needed::Highest(b)) => Needed::Highest(a.max(b)),
            _ => Needed::All,
        }
    }
}

/// The logits of the last forward, as far as they are on the host.
#[derive(Debug, Default)]
pub(crate) struct Logits {
    pub(crate) rows: usize,
    /// `[rows, vocabulary]`, where rows were read.
    all: Vec<f32>,
    /// The rows that were not.
    left: Vec<bool>,
    /// The highest of each row, where one was not read.
    highest: Vec<Largest>,
}

impl Logits {
    /// Forgets all rows.
    fn clear(&mut self) {
        self.rows = 0;
        self.left.clear();
        self.highest.clear();
    }
}

/// What [`Engine::prefill`] calls for every position that is wanted, with its logits, and after every chunk, without.
pub type PrefillSink<'a> = &'a mut dyn FnMut(usize, Option<&[f32]>) -> Result<ControlFlow<()>, Error>;

/// What one sequence contributes to a batch.
#[derive(Debug)]
pub struct Step<'a> {
    /// The sequence; its length grows by the tokens.
    pub sequence: &'a mut Sequence,
    /// At least one token.
    pub tokens: &'a [u32],
    /// The positions whose logits are wanted.
    pub wanted: Wanted,
}

impl Engine {
    /// Runs one forward pass over all steps together and returns the number of logit rows, in the order of the steps
    /// and their tokens; read them with [`logits`](Engine::logits).
    ///
    /// On the CPU, a sequence's logits have the same bits whatever else is in the batch, and however its tokens are
    /// spread over forwards.
    pub fn forward(&mut self, steps: &mut [Step<'_>]) -> Result<usize, Error> {
        self.forward_for(steps, &[])
    }

    /// The same where choosing a token needs no more of each row than `needed` says, for each step: a device that finds the
    /// highest logits by itself does not copy all to the host. Read rows with [`choice_of`](Engine::choice_of);
    /// [`logits`](Engine::logits) may not be there.
    ///
    /// # Panics
    /// Unless there are as many needs as steps.
    pub fn forward_choosing(&mut self, steps: &mut [Step<'_>], needed: &[Needed]) -> Result<usize, Error> {
        assert_eq!(steps.len(), needed.len(), "a need for each step");
        self.forward_for(steps, needed)
    }

    fn forward_for(&mut self, steps: &mut [Step<'_>], needed: &[Needed]) -> Result<usize, Error> {
        self.logits.clear();
        let (rows, columns) = (self.run(steps, true)?, self.model.vocabulary());
        let logits = &mut self.logits;
        let most = needed.iter().filter_map(|needed| match needed {
            Needed::Highest(most) => Some(*most),
            Needed::All => None,
        });
        if let Some(most) = most.max().filter(|_| rows > 0)
            && let Some(highest) = self.scheduler.largest_of_output(0, 0..rows, most)?
        {
            logits.highest = highest;
            for (step, &needed) in steps.iter().zip(needed) {
                let count = step.wanted.count(step.tokens.len());
                logits.left.extend(std::iter::repeat_n(needed != Needed::All, count));
            }
        }
        logits.left.resize(rows, false);
        if logits.left.contains(&false) {
            logits.all.resize(rows * columns, 0.0);
        }
        // Runs of rows that are read.
        let mut first = 0;
        for run in logits.left.chunk_by(|a, b| a == b) {
            let range = first..first + run.len();
            first = range.end;
            if !run[0] {
                let to = &mut logits.all[range.start * columns..range.end * columns];
                self.scheduler.read_output(0, range, to)?;
            }
        }
        logits.rows = rows;
        Ok(rows)
    }

    /// The same without the output head: `states` gets the rows of the hidden states after the last norm, `[rows,
    /// hidden_size]`, instead of logits. There are no logits to read after it.
    pub fn hidden_states(&mut self, steps: &mut [Step<'_>], states: &mut Vec<f32>) -> Result<usize, Error> {
        self.logits.clear();
        let rows = self.run(steps, false)?;
        states.resize(rows * self.model.hidden_size(), 0.0);
        if rows > 0 {
            self.scheduler.read_output(0, 0..rows, states)?;
        }
        Ok(rows)
    }

    /// Runs one forward pass over all steps together, with or without the output head, and returns the number of rows
    /// that can be read.
    fn run(&mut self, steps: &mut [Step<'_>], head: bool) -> Result<usize, Error> {
        let tokens: usize = steps.iter().map(|step| step.tokens.len()).sum();
        if steps.is_empty() || steps.iter().any(|step| step.tokens.is_empty()) {
            return Err(Error::EmptyPrompt);
        }
        for step in steps.iter_mut() {
            let len = step.sequence.len() + step.tokens.len();
            if len > self.setup.context {
                return Err(Error::ContextExceeded { tokens: len, context: self.setup.context });
            }
            self.reserve(step.sequence, step.tokens.len())?;
        }
        let outputs = steps.iter().map(|step| step.wanted.count(step.tokens.len())).sum();
        let params = GraphParams { head, ..self.params(tokens, outputs, steps.len()) };
        self.fill_batch(steps);
        self.batch.validate(&params, self.model.vocabulary())?;
        let prepared = self.scheduler.prepare(&params, |params| self.model.graph(params))?;
        self.trace_build(&prepared)?;
        self.scheduler.run(&self.batch)?;
        for step in steps.iter_mut() {
            step.sequence.push(step.tokens);
        }
        Ok(outputs)
    }

    /// A row of the logits of the last [`forward`](Engine::forward), one number per token of the vocabulary.
    ///
    /// # Panics
    /// If the last forward had no such row, or [left it on the device](Engine::forward_choosing).
    pub fn logits(&self, row: usize) -> &[f32] {
        let Logits { rows, all, left, .. } = &self.logits;
        assert!(row < *rows && !left[row], "logit row {row} of {rows}");
        let vocabulary = self.model.vocabulary();
        &all[row * vocabulary..][..vocabulary]
    }

    /// What is known of a row after the last forward, to choose a token by, or [`Error::NotFinite`].
    ///
    /// # Panics
    /// If the last forward had no such row.
    pub fn choice_of(&self, row: usize) -> Result<Row<'_>, Error> {
        let Logits { rows, left, highest, .. } = &self.logits;
        if !left.get(row).is_some_and(|&left| left) {
            return self.finite_logits(row).map(Row::Logits);
        }
        let each = highest.len() / rows;
        let highest = &highest[row * each..][..each];
        // What is no finite number comes first.
        match highest.first() {
            Some(&Largest { index, value }) if !value.is_finite() => {
                Err(Error::NotFinite { token: index, logit: value, vocabulary: self.model.vocabulary() })
            }
            _ => Ok(Row::Highest(highest)),
        }
    }

    /// The same row, or [`Error::NotFinite`]: for measurements, which mean nothing where a model is broken.
    ///
    /// # Panics
    /// If the last forward had no such row.
    pub fn finite_logits(&self, row: usize) -> Result<&[f32], Error> {
        finite(self.logits(row))
    }

    /// Feeds tokens to a sequence in chunks of at most the batch size. `sink` gets the index (among `tokens`) and the
    /// logits of every position wanted, and is asked after each chunk, with no logits, whether to go on.
    pub fn prefill(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        wanted: Wanted,
        sink: PrefillSink<'_>,
    ) -> Result<ControlFlow<()>, Error> {
        if tokens.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let len = sequence.len() + tokens.len();
        if len > self.setup.context {
            return Err(Error::ContextExceeded { tokens: len, context: self.setup.context });
        }
        let chunk = match wanted {
            Wanted::All => self.setup.batch_size.min(self.rows_of_logits()),
            _ => self.setup.batch_size,
        };
        let mut done = 0;
        for part in tokens.chunks(chunk) {
            let last = done + part.len() == tokens.len();
            let wanted = if wanted == Wanted::Last && !last { Wanted::None } else { wanted };
            let rows = self.forward(&mut [Step { sequence, tokens: part, wanted }])?;
            for row in 0..rows {
                let index = done + part.len() - rows + row;
                if sink(index, Some(self.logits(row)))?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            done += part.len();
            if sink(done - 1, None)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Rows of logits that fit in 64 MiB, at least one: prompts whose every position is wanted go in such chunks.
    fn rows_of_logits(&self) -> usize {
        ((64 << 20) / (4 * self.model.vocabulary())).max(1)
    }

    /// A sequence of another's first `len` tokens, at no cost: they share pages until one of them writes. `None` if a
    /// sliding window has already dropped keys that would be needed to go on from there.
    pub fn fork(&mut self, sequence: &Sequence, len: usize) -> Option<Sequence> {
        sequence.fork(len, self.model.cache_groups(), &mut self.pools, self.setup.cache.page_len)
    }

    /// Pages of a group that some sequences hold, shared ones counted once.
    pub(crate) fn pages_held<'a>(
        &self,
        group: usize,
        sequences: impl Iterator<Item = &'a Sequence>,
    ) -> usize {
        let mut held = vec![false; self.pools[group].total()];
        sequences.flat_map(|sequence| sequence.table(group)).filter(|&&page| page != NO_PAGE).for_each(
            |&page| {
                held[page as usize] = true;
            },
        );
        held.into_iter().filter(|&held| held).count()
    }

    /// Takes the pages for `added` more tokens of a sequence, and copies a page that it shares and would write to.
    pub(crate) fn reserve(&mut self, sequence: &mut Sequence, added: usize) -> Result<(), Error> {
        let mut copies = Vec::new();
        let page_len = self.setup.cache.page_len;
        let reserved =
            sequence.reserve(added, self.model.cache_groups(), &mut self.pools, page_len, &mut copies);
        for copy in copies {
            let row = |page: i32| page as usize * page_len;
            self.scheduler.copy_rows(copy.group, row(copy.from), row(copy.to), copy.rows)?;
        }
        reserved
    }

    fn fill_batch(&mut self, steps: &[Step<'_>]) {
        let page_len = self.setup.cache.page_len;
        let groups = self.model.cache_groups().len();
        let batch = &mut self.batch;
        clear(batch, groups);
        batch.query_ranges.push(0);
        for step in steps {
            let start = step.sequence.len();
            let positions = start..start + step.tokens.len();
            let first_row = batch.tokens.len();
            batch.tokens.extend(step.tokens.iter().map(|&token| token as i32));
            batch.positions.extend(positions.clone().map(|position| position as i32));
            batch.query_ranges.push(batch.tokens.len() as i32);
            batch.kv_lens.push(positions.end as i32);
            for group in 0..groups {
                let rows = positions.clone().map(|position| step.sequence.row(group, position, page_len));
                batch.cache_rows[group].extend(rows);
                let table = step.sequence.table(group);
                let missing = self.setup.max_pages - table.len();
                batch.page_tables[group].extend_from_slice(table);
                batch.page_tables[group].extend(std::iter::repeat_n(NO_PAGE, missing));
            }
            let wanted = step.wanted.count(step.tokens.len());
            let end = batch.tokens.len();
            batch.out_rows.extend((end - wanted..end).map(|row| row as i32));
            debug_assert!(first_row <= end - wanted);
        }
    }
}

/// Logits that are all finite numbers.
pub(crate) fn finite(logits: &[f32]) -> Result<&[f32], Error> {
    match logits.iter().position(|logit| !logit.is_finite()) {
        None => Ok(logits),
        Some(token) => Err(Error::NotFinite { token, logit: logits[token], vocabulary: logits.len() }),
    }
}

fn clear(batch: &mut Batch, groups: usize) {
    batch.tokens.clear();
    batch.positions.clear();
    batch.query_ranges.clear();
    batch.kv_lens.clear();
    batch.out_rows.clear();
    batch.cache_rows.resize(groups, Vec::new());
    batch.page_tables.resize(groups, Vec::new());
    batch.cache_rows.iter_mut().chain(&mut batch.page_tables).for_each(Vec::clear);
}
