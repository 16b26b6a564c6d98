//! The model that is served, and what of it every request needs.

use crate::error::Error;
use crate::tools::ToolSyntax;
use chat_format::ChatFormat;
use engine::{BatchEngine, BatchOptions, Engine, MemoryUse, Pooling};
use grammar::Grammars;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokenizer::Tokenizer;

/// A model, ready to answer.
#[derive(Debug)]
pub struct Model {
    /// What clients call it.
    pub(crate) name: String,
    /// What else they may call it.
    pub(crate) aliases: Vec<String>,
    pub(crate) engine: BatchEngine,
    pub(crate) format: Option<ChatFormat>,
    /// The template for conversations with tools, where it is another.
    pub(crate) tool_format: Option<ChatFormat>,
    pub(crate) architecture: &'static str,
    pub(crate) trained_context: usize,
    /// How texts become vectors, or why they do not.
    pub(crate) pooling: Result<Pooling, String>,
    /// Columns of a vector.
    pub(crate) embedding_size: usize,
    pub(crate) device: String,
    pub(crate) memory: MemoryUse,
    pub(crate) created: u64,
    grammars: OnceLock<Result<Grammars, grammar::Error>>,
}

/// How a model is served.
#[derive(Debug, Default)]
pub struct ModelOptions {
    /// What clients call it.
    pub name: String,
    /// What else they may call it.
    pub aliases: Vec<String>,
    /// A chat template in place of the model's own.
    pub template: Option<String>,
    /// Longest time to render a conversation; by default a minute. Renderings are bounded by their work, so this is for what
    /// escapes that.
    pub template_patience: Option<Duration>,
    /// How requests share the device.
    pub batch: BatchOptions,
}

impl Model {
    /// Takes a loaded engine into service.
    ///
    /// # Errors
    /// [`Error::Template`] and [`Error::Engine`].
    pub fn new(engine: Engine, options: ModelOptions) -> Result<Model, Error> {
        let tokenizer = Arc::clone(engine.tokenizer());
        let metadata = engine.file().metadata();
        let (format, tool_format) = match &options.template {
            Some(source) => (Some(ChatFormat::new(source, &tokenizer).map_err(Error::Template)?), None),
            None => {
                let of_model =
                    |tools| ChatFormat::of_model(metadata, &tokenizer, tools).map_err(Error::Template);
                let format = of_model(false)?;
                let with_tools = of_model(true)?;
                let same =
                    format.as_ref().map(ChatFormat::source) == with_tools.as_ref().map(ChatFormat::source);
                (format, with_tools.filter(|_| !same))
            }
        };
        let patient = |format: ChatFormat| match options.template_patience {
            Some(patience) => format.with_patience(patience),
            None => format,
        };
        let (format, tool_format) = (format.map(patient), tool_format.map(patient));
        Ok(Model {
            name: options.name,
            aliases: options.aliases,
            architecture: engine.model().architecture(),
            trained_context: engine.model().context_length(),
            pooling: Pooling::of_model(metadata).map_err(|error| error.to_string()),
            embedding_size: engine.model().hidden_size(),
            device: engine.device().to_owned(),
            memory: engine.memory(),
            engine: BatchEngine::start(engine, options.batch).map_err(Error::Engine)?,
            format,
            tool_format,
            created: crate::http::unix_time(),
            grammars: OnceLock::new(),
        })
    }

    pub(crate) fn tokenizer(&self) -> &Arc<Tokenizer> {
        self.engine.tokenizer()
    }

    /// Whether a client means this model.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }

    /// The template for a conversation.
    pub(crate) fn format(&self, tools: bool) -> Option<&ChatFormat> {
        self.tool_format.as_ref().filter(|_| tools).or(self.format.as_ref())
    }

    /// Whether conversations are refused for now, since renderings of a template do not end.
    pub(crate) fn is_stuck(&self) -> bool {
        self.format.iter().chain(&self.tool_format).any(ChatFormat::is_stuck)
    }

    /// How the model writes a call of a tool, if its template has a place for tools.
    pub(crate) fn tool_syntax(&self) -> Option<ToolSyntax> {
        self.format(true).and_then(|format| ToolSyntax::of_template(format.source()))
    }

    /// Whether the model thinks before it answers.
    pub(crate) fn thinks(&self) -> bool {
        self.format(false).is_some_and(|format| format.source().contains("</think>"))
    }

    /// Grammars for the vocabulary, made when the first request needs one.
    pub(crate) fn grammars(&self) -> Result<&Grammars, grammar::Error> {
        self.grammars.get_or_init(|| Grammars::new(self.tokenizer())).as_ref().map_err(Clone::clone)
    }

    /// A line about the memory that the KV cache has, which does not grow.
    pub fn cache_line(&self) -> String {
        let mebibytes = self.memory.cache as f64 / f64::from(1 << 20);
        format!(
            "KV cache: {mebibytes:.0} MiB in {} pages, fixed; context of {} tokens, {} sequences at a time",
            self.engine.stats().pages_total,
            self.engine.context(),
            self.engine.options().parallel
        )
    }
}
