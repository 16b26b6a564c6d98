//! From what the user typed to a file, a vocabulary, or a model that is ready.

use crate::args::LoadArgs;
use crate::error::{Error, Result};
use crate::input;
use crate::output::{Download, Output, stderr_line};
use engine::{Engine, LoadOptions, MemoryUse, Trace, TraceSink};
use gguf::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizer::Tokenizer;

/// Names of unused tensors that a warning lists.
const LISTED: usize = 3;

/// Where a model's file is, after fetching it if need be.
pub fn resolve(model: &str, output: &Output) -> Result<PathBuf> {
    Ok(hub::resolve(model, &hub_options(output), &mut Download::new(output))?)
}

/// Where models are kept and whether they may be fetched: by the environment, and by the flag.
pub fn hub_options(output: &Output) -> hub::Options {
    let mut options = hub::Options::from_env();
    if output.offline {
        options.offline = Some("--offline");
    }
    options
}

/// A model's header and vocabulary: enough to turn text into ids, even where a file has nothing else.
pub fn vocabulary(path: &Path) -> Result<(File, Arc<Tokenizer>)> {
    let file = File::open(path)?;
    let tokenizer = Tokenizer::from_metadata(file.metadata())
        .map_err(|source| Error::Tokenizer { path: path.to_path_buf(), source })?;
    Ok((file, Arc::new(tokenizer)))
}

/// A model that is ready to run.
pub fn engine(model: &str, args: &LoadArgs, output: &Output) -> Result<Engine> {
    engine_with(model, args, args.ctx, output)
}

/// The same with the context that a command needs.
pub fn engine_with(model: &str, args: &LoadArgs, context: Option<usize>, output: &Output) -> Result<Engine> {
    engine_of(model, args, LoadOptions { context, ..args.options() }, output)
}

/// The same with other options than `args` alone gives.
pub fn engine_of(model: &str, args: &LoadArgs, options: LoadOptions, output: &Output) -> Result<Engine> {
    let options = LoadOptions { threads: threads(args, output)?, ..options };
    if let Some(path) = &args.dump_graph {
        replaceable(path, "digraph", "a graph in Graphviz's language")?;
    }
    let path = resolve(model, output)?;
    let options = LoadOptions {
        repack_cache: if args.repack_cache { packed_files(&path) } else { Vec::new() },
        ..options
    };
    let bar = output.steps("loading", 0);
    let loaded = Engine::load(&path, &options, &mut |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let mut engine = loaded?;
    engine.notices().iter().for_each(|notice| output.warning(notice));
    warn_of_unused(&engine, output);
    let trained = engine.model().context_length();
    if let Some(asked) = args.ctx.filter(|&asked| asked > trained) {
        output.warning(format_args!(
            "--ctx {asked}: the model was trained with {trained} tokens; what is beyond may make no sense"
        ));
    }
    output.note(memory_line(engine.memory()));
    // What was asked for is not silenced by --quiet, which is about what was not.
    let graph = trace_from_env().then(|| -> TraceSink { Box::new(stderr_line) });
    engine.set_trace(Trace { graph, dot: args.dump_graph.clone() });
    Ok(engine)
}

/// The threads asked for, at most one per processor that the process may use: each operation waits for all threads, so
/// with more of them each waits for some that are not running, and a run takes ten times as long. The engine takes what
/// it is told; here a number is meant as "all there is".
pub fn threads(args: &LoadArgs, output: &Output) -> Result<Option<usize>> {
    let Some(asked) = args.threads else { return Ok(None) };
    if asked == 0 {
        return Err(Error::Usage("--threads: expected at least 1, found 0".into()));
    }
    // Takes affinity and quota into account. Where the system does not say, the user knows better.
    let available = std::thread::available_parallelism().map_or(usize::MAX, NonZeroUsize::get);
    if asked > available {
        let processors = if available == 1 { "processor is" } else { "processors are" };
        output
            .warning(format_args!("-t {asked}: only {available} {processors} available; using {available}"));
    }
    Ok(Some(asked.min(available)))
}

/// Where a model's packed weights can be kept: beside it, or in the cache folder, under a name that tells apart models
/// of the same name.
fn packed_files(model: &Path) -> Vec<PathBuf> {
    let mut name = model.file_name().unwrap_or_default().to_os_string();
    name.push(".smelt-packed");
    let beside = model.with_file_name(&name);
    let cache = hub::Options::from_env().models_dir().map(|folder| {
        let absolute = std::path::absolute(model).unwrap_or_else(|_| model.to_path_buf());
        let mut hasher = DefaultHasher::new();
        absolute.hash(&mut hasher);
        let mut distinct = std::ffi::OsString::from(format!("{:016x}-", hasher.finish()));
        distinct.push(&name);
        folder.join("packed").join(distinct)
    });
    [Some(beside), cache.ok()].into_iter().flatten().collect()
}

/// Refuses to write over a file that does not begin as `kind` does, so that a slip costs nobody a model or a text. The
/// model in use and its packed weights are among them: they are mapped, and what is cut off under a map ends the program.
pub fn replaceable(path: &Path, begin: &str, kind: &str) -> Result<()> {
    // Space may stand before.
    let start = match input::start(path, 64) {
        Ok(Some(start)) => start,
        // A pipe or a device: nothing is lost there.
        Ok(None) => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::file(path)(error)),
    };
    if start.is_empty() || start.trim_ascii_start().starts_with(begin.as_bytes()) {
        return Ok(());
    }
    let message = format!("{}: not written over: expected {kind} or no file, found another", path.display());
    Err(Error::Usage(message))
}

/// What the model takes.
fn memory_line(memory: MemoryUse) -> String {
    let mebibytes = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    format!(
        "weights {:.0} MiB mapped, {:.0} MiB packed; cache up to {:.0} MiB",
        mebibytes(memory.weights),
        mebibytes(memory.packed),
        mebibytes(memory.cache)
    )
}

/// `SMELT_GRAPH_TRACE`, off where it is empty or `0`.
fn trace_from_env() -> bool {
    std::env::var_os("SMELT_GRAPH_TRACE").is_some_and(|value| !value.is_empty() && value != "0")
}

/// A file with more than the architecture knows may need something that is not done.
fn warn_of_unused(engine: &Engine, output: &Output) {
    let unused = engine.model().unused_tensors();
    if unused.is_empty() {
        return;
    }
    let names = unused.iter().take(LISTED).map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    let more = if unused.len() > LISTED { ", ..." } else { "" };
    output.warning(format_args!(
        "{}: {} tensors that nothing reads: {names}{more}",
        engine.file().path().display(),
        unused.len()
    ));
}
