//! What the engine tells about itself.

/// What a sequence is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its prompt, or after a preemption all of its tokens, are going into the cache.
    Prefill,
    /// It gets a token a step.
    Decode,
    /// It is a text that becomes a vector.
    Embed,
}

/// A sequence that is being computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The request's name.
    pub name: String,
    /// Which of its answers.
    pub choice: usize,
    /// What it is doing.
    pub phase: Phase,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens in the cache.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: usize,
}

/// A snapshot, made after every step, and totals since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sequences that are being computed.
    pub slots: Vec<Slot>,
    /// Sequences that wait, those that were preempted among them.
    pub waiting: usize,
    /// KV pages held by sequences that are being computed, all groups together.
    pub pages_running: usize,
    /// KV pages that only hold finished prefixes, which are given up when others need them.
    pub pages_cached: usize,
    /// KV pages.
    pub pages_total: usize,
    /// Forwards.
    pub steps: u64,
    /// Requests that ended by themselves.
    pub requests_finished: u64,
    /// Requests that were cancelled.
    pub requests_cancelled: u64,
    /// Requests that failed.
    pub requests_failed: u64,
    /// Prompt tokens of admitted requests, those taken from the cache among them.
    pub prompt_tokens: u64,
    /// Prompt tokens taken from the cache.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Tokens of texts that became vectors.
    pub embedded_tokens: u64,
    /// Times that a sequence gave its pages back for others.
    pub preemptions: u64,
    /// Tokens proposed by prompt lookup.
    pub drafted_tokens: u64,
    /// Those of them that the model confirmed.
    pub accepted_tokens: u64,
}
