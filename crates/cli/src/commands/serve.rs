//! `smelt serve`: answers many users over HTTP.

use crate::args::{BatchingArgs, ListenArgs, LogArg, ServeArgs};
use crate::error::{Error, Result};
use crate::output::Output;
use crate::{input, interrupt, load};
use engine::{BatchOptions, DEFAULT_CONTEXT, LoadOptions, cache_tokens_within};
use gguf::File;
use hub::Spec;
use server::{LogFormat, Model, ModelOptions, Server, ServerOptions, init_logs};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// Runs the command.
pub fn run(args: &ServeArgs, output: &Output) -> Result<()> {
    init_logs(match args.listen.log {
        LogArg::Text => LogFormat::Text,
        LogArg::Json => LogFormat::Json,
    });
    let template = args.template.as_deref().map(input::file).transpose()?;
    let batch = batch_options(&args.batching);
    batch.validate()?;
    // What is wrong with the model, as far as that needs no download, is told without a server's log.
    Spec::parse(&args.model)?;
    if Path::new(&args.model).is_file() {
        File::open(Path::new(&args.model))?;
    }
    // Before the model: whoever starts it learns at once that the port is taken, and probes that it is loading.
    let server = Server::bind(listen_options(&args.listen))?;
    let path = load::resolve(&args.model, output)?;
    // Each layer with a window needs the pages of as many windows as there are sequences.
    let options = LoadOptions { sequences: batch.parallel, ..args.load.options() };
    let cache_tokens = cache_tokens(args, &options, &path)?;
    let options = LoadOptions { cache_tokens: Some(cache_tokens), ..options };
    let engine = load::engine_of(&args.model, &args.load, options, output)?;
    let mut names = names(args, &path).into_iter();
    let options = ModelOptions {
        name: names.next().unwrap_or_default(),
        aliases: names.collect(),
        template,
        template_patience: None,
        batch,
    };
    server.ready(Model::new(engine, options)?);
    // Ctrl-C is the server's: the first one lets answers end.
    let _polled = interrupt::polled();
    Ok(server.wait()?)
}

fn listen_options(args: &ListenArgs) -> ServerOptions {
    let from_env = || std::env::var("SMELT_API_KEY").ok().filter(|key| !key.is_empty() && !args.no_auth);
    ServerOptions {
        address: SocketAddr::new(args.host, args.port),
        api_key: args.api_key.clone().or_else(from_env),
        no_auth: args.no_auth,
        cors_origins: args.cors_origin.clone(),
        max_request_bytes: args.max_request as usize * (1 << 20),
        request_timeout: Duration::from_secs(args.timeout.into()),
        drain_timeout: Duration::from_secs(args.drain.into()),
        ..ServerOptions::default()
    }
}

fn batch_options(args: &BatchingArgs) -> BatchOptions {
    BatchOptions {
        parallel: args.parallel,
        batch_tokens: args.batch_tokens,
        queue: args.queue,
        prefix_cache: !args.no_prefix_cache,
        lookup_tokens: args.lookup,
    }
}

/// What clients call the model: as they were told, or else as it was called here, and by the name of its file.
fn names(args: &ServeArgs, path: &Path) -> Vec<String> {
    if !args.name.is_empty() {
        return args.name.clone();
    }
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    if Path::new(&args.model).exists() { vec![stem] } else { vec![args.model.clone(), stem] }
}

/// Tokens of the KV cache: as many as asked for, or four contexts, fewer where a quarter of the memory that the weights
/// leave does not hold them, and always one.
fn cache_tokens(args: &ServeArgs, options: &LoadOptions, path: &Path) -> Result<usize> {
    if let Some(tokens) = args.batching.cache_tokens {
        return Ok(tokens);
    }
    let file = File::open(path)?;
    let model = models::Model::load(&file)
        .map_err(|source| Error::Engine(engine::Error::Model { path: path.to_path_buf(), source }))?;
    let context = options.context.unwrap_or(model.context_length().min(DEFAULT_CONTEXT));
    let weights: u64 = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let room = available_memory()
        .map_or(usize::MAX, |bytes| usize::try_from(bytes.saturating_sub(weights) / 4).unwrap_or(usize::MAX));
    Ok(cache_tokens_within(&model, options, room, context.saturating_mul(4)).max(context))
}

/// Bytes that can be had without swapping, where the system tells.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
