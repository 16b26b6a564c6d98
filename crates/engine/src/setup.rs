//! What follows from a model and the options before any device is touched: context, pages and types of the cache, and
//! the identity of the graphs.

use crate::levers::{Levers, gpu_cache_type};
use crate::memory::Need;
use crate::pages::PagePool;
use crate::{Error, LoadOptions};
use cpu::Activations;
use graph::{CacheGroup, CacheParams, DType, GraphError, GraphParams, Participation};
use models::Model;

/// Tokens per KV page.
const PAGE_LEN: usize = 64;

/// The default context is the model's own, up to this. The cache takes memory only as it fills.
pub const DEFAULT_CONTEXT: usize = 32_768;

/// Tokens that a sliding window's pages hold beyond window and batch, so that a conversation can be cut back a
/// little (an answer that is tokenised anew) and still go on from there.
const WINDOW_SLACK: usize = 512;

/// Most rows of a KV cache: they are 32-bit numbers, and the last page is a whole one.
const MAX_ROWS: usize = (1 << 31) - (1 << 20);

/// The cache and the sizes of forwards.
pub(crate) struct Setup {
    levers: Levers,
    pub(crate) cache: CacheParams,
    pub(crate) context: usize,
    pub(crate) max_pages: usize,
    pub(crate) batch_size: usize,
    sequences: usize,
    /// Whether there is an accelerator.
    gpu: bool,
    /// Pages of one sequence in each cache group.
    shares: Vec<usize>,
}

impl Setup {
    /// The setup of a model with these options, on the CPU or an accelerator.
    ///
    /// # Errors
    /// [`Error::Option`] for options that do not go with the model or mean nothing.
    pub(crate) fn new(
        model: &Model,
        options: &LoadOptions,
        gpu: bool,
        activations: Activations,
    ) -> Result<Setup, Error> {
        let context = options.context.unwrap_or(model.context_length().min(DEFAULT_CONTEXT));
        let levers = Levers::from_environment()?;
        let cache_type = options.cache.or(levers.cache).unwrap_or_else(|| match activations {
            _ if gpu => gpu_cache_type(model.cache_cols().map(|(_, key_columns, _)| key_columns).sum()),
            Activations::F32 => DType::F32,
            Activations::Quantized => DType::F16,
        });
        check_options(options, context, cache_type, model)?;
        let batch_size = options.batch.min(context);
        let max_pages = context.div_ceil(PAGE_LEN);
        let groups = model.cache_groups();
        let shares: Vec<usize> = groups.iter().map(|group| share(group, context, batch_size)).collect();
        let pages = groups
            .iter()
            .zip(&shares)
            .map(|(group, &share)| pages(group, share, options.sequences, options.cache_tokens));
        let cache =
            CacheParams { key: cache_type, value: cache_type, page_len: PAGE_LEN, pages: pages.collect() };
        let sequences = options.sequences;
        Ok(Setup { levers, cache, context, max_pages, batch_size, sequences, gpu, shares })
    }

    /// The pages, all free.
    pub(crate) fn pools(&self) -> Vec<PagePool> {
        let pools = self.shares.iter().zip(&self.cache.pages);
        pools.map(|(&share, &total)| PagePool::new(share, total)).collect()
    }

    /// The identity of a forward's graph.
    pub(crate) fn params(
        &self,
        tokens: usize,
        outputs: usize,
        sequences: usize,
        participation: &Participation,
    ) -> GraphParams {
        // On the CPU a fused node saves regions and passes over memory at any length; on a GPU its kernels are for one
        // token.
        let fused = tokens == 1 || !participation.gpu();
        GraphParams {
            tokens,
            outputs,
            sequences,
            max_pages: self.max_pages,
            cache: self.cache.clone(),
            participation: participation.clone(),
            head: true,
            fuse_qkv: fused && !self.levers.no_fuse_qkv,
            fuse_ffn: fused && !self.levers.no_fuse_ffn,
        }
    }

    /// What the model needs of a device's memory, or of each of several that share every layer.
    ///
    /// # Errors
    /// Whatever keeps the largest graph from being built.
    pub(crate) fn need(&self, model: &Model, tensor_parallel: Option<usize>) -> Result<Need, GraphError> {
        let accelerators = if self.gpu { vec!["any".to_owned()] } else { Vec::new() };
        let participation = Participation { accelerators, tensor_parallel, ..Participation::default() };
        let sequences = self.sequences.min(self.batch_size);
        Need::of(&model.graph(&self.params(self.batch_size, sequences, sequences, &participation))?)
    }
}

/// Pages that a sequence can count on in a group.
fn share(group: &CacheGroup, context: usize, batch_size: usize) -> usize {
    let max_pages = context.div_ceil(PAGE_LEN);
    let pages = group.window.map_or(max_pages, |window| {
        window.saturating_add(batch_size + WINDOW_SLACK).div_ceil(PAGE_LEN).saturating_add(1)
    });
    pages.min(max_pages)
}

/// Pages of a group for so many sequences, which have `tokens` together or else a whole context each.
fn pages(group: &CacheGroup, share: usize, sequences: usize, tokens: Option<usize>) -> usize {
    let all = share.saturating_mul(sequences);
    match tokens {
        // A windowed group needs no more than its sequences' shares.
        Some(tokens) if group.window.is_some() => all.min(tokens.div_ceil(PAGE_LEN)).max(share),
        Some(tokens) => tokens.div_ceil(PAGE_LEN),
        None => all,
    }
}

/// Most tokens, up to `most`, for [`LoadOptions::cache_tokens`] with which the KV cache of `options` takes no more than
/// `bytes`: 0 where not even the windows of [`LoadOptions::sequences`] do. The type of its elements is that of the
/// options, else f16.
pub fn cache_tokens_within(model: &Model, options: &LoadOptions, bytes: usize, most: usize) -> usize {
    let context = options.context.unwrap_or(model.context_length().min(DEFAULT_CONTEXT));
    let element = options.cache.unwrap_or(DType::F16);
    let row = |columns| element.row_bytes(columns).unwrap_or(0);
    let groups = model.cache_groups();
    let mut token = vec![0; groups.len()];
    for (group, key, value) in model.cache_cols() {
        token[usize::from(group.0)] += row(key) + row(value);
    }
    let cost = |tokens| {
        let costs = groups.iter().zip(&token).map(|(group, token)| {
            let share = share(group, context, options.batch.min(context));
            let pages = pages(group, share, options.sequences, Some(tokens));
            pages.saturating_mul(PAGE_LEN).saturating_mul(*token)
        });
        costs.fold(0, usize::saturating_add)
    };
    // The cost grows with the tokens: the last number of tokens that fits is between these.
    let (mut fits, mut too_many) = (0, most.saturating_add(1));
    while fits + 1 < too_many {
        let middle = fits + (too_many - fits) / 2;
        if cost(middle) <= bytes { fits = middle } else { too_many = middle }
    }
    fits
}

fn check_options(
    options: &LoadOptions,
    context: usize,
    cache_type: DType,
    model: &Model,
) -> Result<(), Error> {
    let in_range = |name: &'static str, value: usize, limit: usize| {
        if (1..=limit).contains(&value) {
            Ok(())
        } else {
            Err(Error::Option { name, message: format!("expected 1 to {limit}, found {value}") })
        }
    };
    in_range("context", context, 1 << 24)?;
    // A forward cannot be interrupted: this many rows take seconds, not minutes.
    in_range("batch", options.batch, 2048)?;
    in_range("sequences", options.sequences, 1 << 12)?;
    // A windowed group's pages are bounded by window and batch, well below.
    match options.cache_tokens {
        None => in_range("context of all sequences", context.saturating_mul(options.sequences), MAX_ROWS)?,
        Some(tokens) if (context..=MAX_ROWS).contains(&tokens) => {}
        Some(tokens) => {
            let message = format!("expected {context} (the context) to {MAX_ROWS}, found {tokens}");
            return Err(Error::Option { name: "tokens of the KV cache", message });
        }
    }
    for layer in &model.transformer().layers {
        let (key, value) = (layer.attention.head_dim, layer.attention.value_dim);
        if cache_type.row_bytes(key).is_none() || cache_type.row_bytes(value).is_none() {
            let message = format!(
                "{cache_type} needs heads of whole blocks, this model's have {key} and {value} columns"
            );
            return Err(Error::Option { name: "cache type", message });
        }
    }
    Ok(())
}
