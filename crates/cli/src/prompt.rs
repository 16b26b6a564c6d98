//! From messages to token ids, through a chat template.

use crate::error::{Error, Result};
use crate::input;
use chat::{Conversation, RenderOptions, Rendered, Template};
use gguf::Metadata;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizer::{EncodeOptions, Tokenizer};

pub use chat_format::token_text;

/// A model's chat format, and the file that it came from, for errors.
pub struct ChatFormat {
    format: chat_format::ChatFormat,
    source: PathBuf,
}

/// What a model file brings for chatting.
pub struct Model<'a> {
    /// The file, for messages.
    pub path: &'a Path,
    /// Its metadata.
    pub metadata: &'a Metadata,
    /// Its vocabulary.
    pub tokenizer: &'a Arc<Tokenizer>,
}

impl ChatFormat {
    /// The template in `file`, or else the model's own; `None` if it has none.
    pub fn new(model: &Model<'_>, file: Option<&Path>, tools: bool) -> Result<Option<ChatFormat>> {
        let (format, source) = match file {
            Some(path) => (
                chat_format::ChatFormat::new(&input::file(path)?, model.tokenizer).map(Some),
                input::name(path),
            ),
            None => (chat_format::ChatFormat::of_model(model.metadata, model.tokenizer, tools), model.path),
        };
        let source = source.to_path_buf();
        match format {
            Ok(format) => Ok(format.map(|format| ChatFormat { format, source })),
            Err(chat_format::Error::Metadata(error)) => {
                Err(Error::Content { path: source, message: error.to_string() })
            }
            Err(chat_format::Error::Template(error)) => Err(Error::Template { path: source, source: error }),
        }
    }

    /// The conversation as the text of a prompt that the assistant's answer continues.
    pub fn render(&self, conversation: &Conversation) -> Result<Rendered> {
        self.render_with(conversation, &self.options())
    }

    /// The same with other options than [`ChatFormat::options`].
    pub fn render_with(&self, conversation: &Conversation, options: &RenderOptions) -> Result<Rendered> {
        self.format
            .render(conversation, options)
            .map_err(|error| Error::Template { path: self.source.clone(), source: error })
    }

    /// How templates are rendered for this vocabulary.
    pub fn options(&self) -> RenderOptions {
        self.format.options()
    }

    /// The ids of a rendered conversation; see [`chat_format::ChatFormat::encode`].
    pub fn encode(&self, rendered: &Rendered) -> Vec<u32> {
        self.format.encode(rendered)
    }
}

/// Parses a template; `source` is named in errors.
pub fn template(text: &str, source: &Path) -> Result<Template> {
    Template::new(text).map_err(|error| Error::Template { path: source.to_path_buf(), source: error })
}

/// Renders a template; `source` is named in errors.
pub fn render(
    template: &Template,
    source: &Path,
    conversation: &Conversation,
    options: &RenderOptions,
) -> Result<Rendered> {
    template
        .render(conversation, options)
        .map_err(|error| Error::Template { path: source.to_path_buf(), source: error })
}

/// The ids of text that is continued as it is, with the model's begin token.
pub fn encode_raw(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, EncodeOptions { add_special: true, parse_special: true })
}

/// A message as templates take it.
pub fn message(role: &str, content: &str) -> serde_json::Value {
    serde_json::json!({ "role": role, "content": content })
}
