//! Opening a model: the file, its weights on a device, and the KV cache.

use crate::forward::Logits;
use crate::pages::PagePool;
use crate::placement::{Placed, place, place_tensor_parallel, without_accelerators};
use crate::repack::RepackCache;
use crate::setup::Setup;
use crate::{Device, Error, Sequence, Split, readable};
use bytes::Bytes;
use cpu::{Activations, CpuBackend, CpuOptions};
use gguf::{File, TensorInfo};
use graph::{
    Backend, Batch, DType, GraphError, GraphParams, Participation, Prepared, Release, Scheduler, WeightData,
};
use models::Model;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokenizer::Tokenizer;

/// Takes a text about a graph.
pub type TraceSink = Box<dyn FnMut(&str) + Send>;

/// What [`Engine::set_trace`] reports.
#[derive(Default)]
pub struct Trace {
    /// Gets the split table and the census of operations by backend whenever a graph is built.
    pub graph: Option<TraceSink>,
    /// Write the first graph that is built to this file, as Graphviz. Where that fails, so does the forward that the
    /// graph was built for, with [`Error::GraphFile`]; the next one does not try again.
    pub dot: Option<PathBuf>,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("graph", &self.graph.is_some()).field("dot", &self.dot).finish()
    }
}

/// How a model is loaded.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Where it runs.
    pub device: Device,
    /// Layers on the accelerator, counted from the last, for models that it has no memory for as a whole; by default
    /// all layers or none. The rest is run by the CPU.
    pub accelerated_layers: Option<usize>,
    /// How several GPUs share a model; by default by layers, and only where one has no room for it or several were
    /// named.
    pub split: Option<Split>,
    /// Shares of the layers, one for each GPU; by default by the memory that is free.
    pub shares: Vec<f64>,
    /// Tokens that a sequence can have; by default the model's context, up to 32768.
    pub context: Option<usize>,
    /// Threads; by default one per physical core that the process may use. Taken exactly as given: more threads than
    /// processors make every forward many times slower, since each operation waits for all of them.
    pub threads: Option<usize>,
    /// Element type of the KV cache; by default `SMELT_CACHE_TYPE`, else, on the CPU, f16, or f32 where activations are,
    /// and on a GPU f16 for models with many columns of keys, f32 for small ones.
    pub cache: Option<DType>,
    /// Whether activations are quantised before products (the CPU's default) or left in f32.
    pub activations: Option<Activations>,
    /// Whether the CPU brings weights into the order of its kernels at load, which takes time and memory once and makes
    /// every forward faster, or in passing; by default `SMELT_CPU_REPACK`, else at load. The results have the same bits.
    pub repack: Option<bool>,
    /// Files to keep such weights in for the next start: the first that is there and fits the model is used, else the
    /// first that can be written is written. What cannot be used or written is told by [`Engine::notices`].
    pub repack_cache: Vec<PathBuf>,
    /// Most tokens of one forward.
    pub batch: usize,
    /// Sequences that can be resident at the same time, each with a whole context.
    pub sequences: usize,
    /// Tokens that the KV cache holds for all sequences together, in place of a whole context for each of them; at
    /// least one context.
    pub cache_tokens: Option<usize>,
}

impl Default for LoadOptions {
    fn default() -> LoadOptions {
        LoadOptions {
            device: Device::Auto,
            accelerated_layers: None,
            split: None,
            shares: Vec::new(),
            context: None,
            threads: None,
            cache: None,
            activations: None,
            repack: None,
            repack_cache: Vec::new(),
            batch: 512,
            sequences: 1,
            cache_tokens: None,
        }
    }
}

/// Bytes that an engine holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Weights, mapped from the file. Where they were packed, their pages were given back to the system.
    pub weights: usize,
    /// Copies of weights in the order of the kernels.
    pub packed: usize,
    /// The whole KV cache; pages that were never used take no memory.
    pub cache: usize,
    /// Activations of the largest graph so far.
    pub activations: usize,
}

/// A loaded model, ready to run sequences.
pub struct Engine {
    pub(crate) file: Arc<File>,
    pub(crate) model: Model,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) scheduler: Scheduler,
    pub(crate) participation: Participation,
    device: String,
    pub(crate) setup: Setup,
    pub(crate) pools: Vec<PagePool>,
    pub(crate) batch: Batch,
    pub(crate) logits: Logits,
    trace: Trace,
    /// The current graph was not reported to `trace` yet.
    untraced: bool,
    notices: Vec<String>,
    load_time: Duration,
}

/// A part of a mapped file, kept alive by whoever holds bytes of it.
struct MappedPart {
    file: Arc<File>,
    part: usize,
}

impl AsRef<[u8]> for MappedPart {
    fn as_ref(&self) -> &[u8] {
        self.file.parts()[self.part].bytes()
    }
}

impl Engine {
    /// Opens a GGUF file and makes it ready. `progress` is told how many steps of how many are done: weights that were
    /// registered, and then nodes of the graph that were prepared. How many there are can become fewer, not more.
    ///
    /// # Errors
    /// Whatever keeps a graph from being built is told here, not at the first forward.
    pub fn load(
        path: &Path,
        options: &LoadOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Engine, Error> {
        let mut notices = Vec::new();
        let accelerators = options.device.accelerators(&mut notices)?;
        let mut engine = Engine::load_from(path, options, accelerators, &Device::all_gpus, progress)?;
        engine.notices.splice(..0, notices);
        Ok(engine)
    }

    /// The same with backends of the caller's in place of those of [`LoadOptions::device`], in order of priority; what
    /// none of them supports is run by the CPU. Those that cannot take every weight that they would read take no part:
    /// a notice where the device is [`Device::Auto`], else an error. Several share the layers.
    ///
    /// # Errors
    /// As for [`load`](Engine::load).
    pub fn load_on(
        path: &Path,
        options: &LoadOptions,
        accelerators: Vec<Box<dyn Backend>>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Engine, Error> {
        Engine::load_from(path, options, accelerators, &|| Ok(Vec::new()), progress)
    }

    /// The same; `more` opens all of the GPUs, of which `accelerators` has the first.
    fn load_from(
        path: &Path,
        options: &LoadOptions,
        accelerators: Vec<Box<dyn Backend>>,
        more: &dyn Fn() -> Result<Vec<Box<dyn Backend>>, Error>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Engine, Error> {
        let start = Instant::now();
        let file = Arc::new(File::open(path)?);
        let model = Model::load(&file).map_err(|source| Error::Model { path: path.to_path_buf(), source })?;
        let tokenizer = Tokenizer::from_metadata(file.metadata())
            .map_err(|source| Error::Tokenizer { path: path.to_path_buf(), source })?;
        if tokenizer.vocab_size() > model.vocabulary() {
            return Err(Error::Vocabulary {
                path: path.to_path_buf(),
                tokens: tokenizer.vocab_size(),
                rows: model.vocabulary(),
            });
        }

        let cpu_options = CpuOptions {
            threads: options.threads,
            activations: options.activations,
            repack: options.repack,
            ..CpuOptions::default()
        };
        let mut cpu = CpuBackend::new(cpu_options)
            .map_err(|error| Error::Device { name: "cpu".into(), message: error.to_string() })?;
        let setup = Setup::new(&model, options, !accelerators.is_empty(), cpu.activations())?;

        let mut notices = Vec::new();
        let repack_cache = if options.repack_cache.is_empty() || !cpu.repacks() {
            None
        } else {
            let opened = RepackCache::open(&file, &options.repack_cache);
            opened.inspect_err(|error| notices.push(format!("packed weights cannot be kept: {error}"))).ok()
        };
        if let Some(repack_cache) = &repack_cache {
            cpu.set_pack_cache(repack_cache.cache());
        }
        let placed = if accelerators.is_empty() {
            notices.extend(without_accelerators(options));
            Placed::default()
        } else if options.split == Some(Split::Tensor) {
            place_tensor_parallel((&model, &setup, path), options, accelerators, more)?
        } else {
            place(&setup.need(&model, None)?, options, accelerators, more, &mut notices)?
        };
        let Placed { accelerators: mut backends, participation: wanted, cuts } = placed;
        backends.push(Box::new(cpu));
        let mut scheduler = Scheduler::new(backends);
        let parts: Vec<Bytes> = (0..file.parts().len())
            .map(|part| Bytes::from_owner(MappedPart { file: Arc::clone(&file), part }))
            .collect();
        // An accelerator is given what it will read: with a part of the layers it has no room for more.
        let graph = model.graph(&setup.params(1, 1, 1, &wanted))?;
        let readers = Scheduler::readers(&graph);
        let bytes_of = |info: &TensorInfo| info.offset as usize..(info.offset + info.len) as usize;
        for (number, part) in parts.iter().enumerate() {
            scheduler.register_part(part, |accelerator| {
                let names = readers.get(accelerator).into_iter().flatten();
                let tensors = names.filter_map(|name| file.tensor(name)).filter(|info| info.part == number);
                tensors.map(bytes_of).collect()
            })?;
        }
        // Every weight under its own name, and once more under that by which a part of it is known.
        let again = cuts.iter().filter(|cut| cut.name != cut.tensor);
        let again =
            again.filter_map(|cut| Some((&cut.name, model.weights().iter().find(|w| w.name == cut.tensor)?)));
        let weights: Vec<_> =
            model.weights().iter().map(|weight| (&weight.name, weight)).chain(again).collect();
        let total = weights.len();
        // Nodes that are made one count as one later: what is done is then a larger part than was told, never a smaller.
        let all = total + graph.nodes().len();
        for (done, (name, weight)) in weights.into_iter().enumerate() {
            progress(done, all);
            let Some(info) = file.tensor(&weight.name) else {
                let source = models::Error::MissingTensor { name: weight.name.clone() };
                return Err(Error::Model { path: path.to_path_buf(), source });
            };
            let data = WeightData {
                format: weight.format,
                rows: weight.rows,
                cols: weight.cols,
                bytes: parts[info.part].slice(bytes_of(info)),
                release: Some(Release::new({
                    let (file, info) = (Arc::clone(&file), info.clone());
                    move || file.release(&info)
                })),
            };
            scheduler.register_weight_where(name, data, |accelerator| {
                readers.get(accelerator).is_some_and(|weights| weights.contains(name))
            })?;
        }
        let mut engine = Engine {
            file,
            model,
            tokenizer: Arc::new(tokenizer),
            scheduler,
            participation: wanted,
            device: String::new(),
            pools: setup.pools(),
            setup,
            batch: Batch::default(),
            logits: Logits::default(),
            trace: Trace::default(),
            untraced: true,
            notices,
            load_time: Duration::ZERO,
        };
        engine.pass_gate(options.device)?;
        let copied = engine.scheduler.unmapped_bytes();
        let copied =
            copied.filter(|(name, _)| engine.participation.accelerators.iter().any(|used| used == name));
        let told = copied.map(|(name, bytes)| {
            let bytes = readable(bytes);
            format!("device '{name}' has copied {bytes} of the weights, which it could not read where the file is mapped")
        });
        engine.notices.extend(told.collect::<Vec<_>>());
        engine.device = match engine.participation.accelerators.as_slice() {
            [] => "cpu".to_owned(),
            accelerators => accelerators.join(","),
        };
        // The graph of a decode step: what cannot be built is told now, and backends do now what they do once.
        let params = engine.params(1, 1, 1);
        engine.scheduler.prepare_with(&params, |params| engine.model.graph(params), &mut |done, nodes| {
            progress(total + done, total + nodes);
        })?;
        if let Some(repack_cache) = repack_cache {
            let told = repack_cache.finish(&engine.file);
            engine.notices.extend(told);
        }
        engine.load_time = start.elapsed();
        Ok(engine)
    }

    /// Leaves out the accelerators that lack a weight that they would read.
    fn pass_gate(&mut self, device: Device) -> Result<(), Error> {
        let wanted = std::mem::take(&mut self.participation);
        if !wanted.gpu() {
            return Ok(());
        }
        self.participation = wanted.clone();
        let graph = self.model.graph(&self.params(1, 1, 1))?;
        self.participation = self.scheduler.participation(&graph);
        let left_out = |name: &&String| !self.participation.accelerators.contains(name);
        let refused = self.scheduler.refused_weights();
        for name in wanted.accelerators.iter().filter(left_out) {
            let of_this =
                |error: &&GraphError| matches!(error, GraphError::Backend { backend, .. } if backend == name);
            let message = match refused.iter().find(of_this) {
                Some(error) => error.to_string(),
                None => "it was given no layers".to_owned(),
            };
            if device != Device::Auto && wanted.layers != Some(0) {
                return Err(Error::Device { name: name.clone(), message });
            }
            self.notices.push(format!("device '{name}' takes no part: {message}"));
        }
        Ok(())
    }

    /// The identity of a forward's graph.
    pub(crate) fn params(&self, tokens: usize, outputs: usize, sequences: usize) -> GraphParams {
        self.setup.params(tokens, outputs, sequences, &self.participation)
    }

    /// The file that the model came from.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Tokens that a sequence can have.
    pub fn context(&self) -> usize {
        self.setup.context
    }

    /// The device that runs the model; several with commas between them.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// What each backend counted since the model was loaded, by name, in order of priority: dispatches, barriers, bytes.
    pub fn counters(&self) -> Vec<(&str, Vec<(&'static str, u64)>)> {
        self.scheduler.counters()
    }

    /// What happened at load that a user should know, a line each, and that was no reason to fail.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// How long loading took.
    pub fn load_time(&self) -> Duration {
        self.load_time
    }

    /// What to report about the graphs that are built from now on, and of the current one if a forward uses it.
    pub fn set_trace(&mut self, trace: Trace) {
        self.trace = trace;
    }

    /// An empty sequence.
    pub fn sequence(&self) -> Sequence {
        Sequence::new(self.pools.len())
    }

    /// Forgets what lies after a sequence's first `len` tokens and returns how many are left: `len`, or 0 if a
    /// sliding window has already dropped keys that would be needed to go on from there.
    pub fn truncate(&mut self, sequence: &mut Sequence, len: usize) -> usize {
        sequence.truncate(len, self.model.cache_groups(), &mut self.pools, self.setup.cache.page_len)
    }

    /// Gives a sequence's pages back.
    pub fn release(&mut self, mut sequence: Sequence) {
        self.truncate(&mut sequence, 0);
    }

    /// The memory held.
    pub fn memory(&self) -> MemoryUse {
        let row = |cols: usize, dtype: DType| dtype.row_bytes(cols).unwrap_or(0);
        let cache = self.model.cache_cols().map(|(group, key, value)| {
            let rows = self.pools[usize::from(group.0)].total() * self.setup.cache.page_len;
            rows * (row(key, self.setup.cache.key) + row(value, self.setup.cache.value))
        });
        let weights = self.model.weights().iter();
        let weights = weights.map(|w| w.format.row_bytes(w.cols).unwrap_or(0) * w.rows);
        MemoryUse {
            weights: weights.sum(),
            packed: self.scheduler.packed_bytes(),
            cache: cache.sum(),
            activations: self.scheduler.stats().peak_bytes.iter().sum(),
        }
    }

    pub(crate) fn trace_build(&mut self, prepared: &Prepared) -> Result<(), Error> {
        let untraced = std::mem::take(&mut self.untraced);
        if *prepared == Prepared::Reused && !untraced {
            return Ok(());
        }
        if let Some(sink) = &mut self.trace.graph {
            sink(&self.scheduler.census());
        }
        match self.trace.dot.take() {
            Some(path) => std::fs::write(&path, self.scheduler.dot())
                .map_err(|source| Error::GraphFile { path, source }),
            None => Ok(()),
        }
    }
}
