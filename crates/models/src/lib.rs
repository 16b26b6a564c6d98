//! Model architectures: hyper-parameters, tensor names and graph builders.
//!
//! [`Model::load`] reads an architecture's hyper-parameters and checks every tensor that it needs;
//! [`Model::graph`] describes one forward pass as a pure function of [`GraphParams`]. Adding an architecture is one
//! file in `arch/` and one line in its registry.
//!
//! This crate does not know devices, threads or text, and of a file it knows only the header (and the few numbers of
//! `rope_freqs.weight`, which are hyper-parameters in all but name).

mod arch;
mod error;
mod keys;
mod rope;
mod tensors;
mod transformer;

pub use arch::{Architecture, architectures};
pub use error::Error;
pub use rope::{RopeScaling, YarnScaling, rope_table};
pub use transformer::{
    Attention, Dense, ExpertLinear, Experts, FeedForward, Gating, Layer, Linear, Network, Norm, Routing,
    SharedExpert, Transformer, WeightCut,
};

use gguf::File;
use graph::{CacheGroup, Graph, GraphError, GraphParams, WeightInfo};

/// An architecture's description of one model, ready to build graphs.
#[derive(Debug, Clone)]
pub struct Model {
    architecture: &'static str,
    context_length: usize,
    transformer: Transformer,
    weights: Vec<WeightInfo>,
    unused: Vec<String>,
}

impl Model {
    /// Reads the hyper-parameters and checks the tensors of a file.
    ///
    /// Fails if the architecture is unknown, a key is missing, of the wrong type or out of range, or a tensor is
    /// missing, has the wrong shape, or is a norm or a bias in a packed format.
    pub fn load(file: &File) -> Result<Model, Error> {
        let name = file.metadata().require_str("general.architecture")?;
        let architecture = arch::find(name)?;
        let keys = keys::Keys::new(file.metadata(), architecture.name);
        let mut tensors = tensors::Tensors::new(file);
        let transformer = (architecture.load)(&keys, &mut tensors)?;
        transformer.check()?;
        let context_length = keys.length("context_length")?;
        let (weights, unused) = tensors.finish();
        Ok(Model { architecture: architecture.name, context_length, transformer, weights, unused })
    }

    /// The architecture's name in GGUF files.
    pub fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// Tokens that the model was trained to attend to.
    pub fn context_length(&self) -> usize {
        self.context_length
    }

    /// Rows of the embedding.
    pub fn vocabulary(&self) -> usize {
        self.transformer.embedding.rows
    }

    /// Decoder layers.
    pub fn layers(&self) -> usize {
        self.transformer.layers.len()
    }

    /// Width of the residual stream.
    pub fn hidden_size(&self) -> usize {
        self.transformer.embedding.cols
    }

    /// Columns of a key row and of a value row of each layer's cache.
    pub fn cache_cols(&self) -> impl Iterator<Item = (graph::GroupId, usize, usize)> + '_ {
        self.transformer.layers.iter().map(|layer| {
            let a = &layer.attention;
            (a.group, a.kv_heads * a.head_dim, a.kv_heads * a.value_dim)
        })
    }

    /// The groups that share a page table; [`graph::CacheParams::pages`] has an entry for each.
    pub fn cache_groups(&self) -> &[CacheGroup] {
        &self.transformer.groups
    }

    /// All weights that graphs of this model read.
    pub fn weights(&self) -> &[WeightInfo] {
        &self.weights
    }

    /// Tensors of the file that nothing reads. Worth a warning: a file with more than the architecture knows may
    /// need something that is not done.
    pub fn unused_tensors(&self) -> &[String] {
        &self.unused
    }

    /// The parts of the model.
    pub fn transformer(&self) -> &Transformer {
        &self.transformer
    }

    /// How the weights are cut for so many devices that share every layer
    /// ([`tensor_parallel`](graph::Participation::tensor_parallel)); those that are not listed every device has whole.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a model that so many devices cannot share.
    pub fn cuts(&self, devices: usize) -> Result<Vec<WeightCut>, Error> {
        Ok(self.transformer.shard(devices)?.1)
    }

    /// Builds the graph of one forward pass. Its outputs are the logits `[outputs, vocabulary]`, or without the head the
    /// hidden states `[outputs, hidden_size]`, or nothing when no outputs are asked for.
    pub fn graph(&self, params: &GraphParams) -> Result<Graph, GraphError> {
        match params.participation.tensor_parallel {
            None => self.transformer.graph(params),
            Some(devices) => {
                let shard = self.transformer.shard(devices);
                let build =
                    |error: Error| GraphError::Build { node: "shard".into(), message: error.to_string() };
                shard.map_err(build)?.0.graph(params)
            }
        }
    }
}
