//! From messages to token ids, through a chat template.

use crate::error::{Error, Result};
use crate::input;
use chat::{Conversation, RenderOptions, Rendered, Template};
use gguf::Metadata;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokenizer::{EncodeOptions, Tokenizer};

/// Where GGUF files keep the template, and where the one for conversations with tools, if it is another.
const TEMPLATE_KEY: &str = "tokenizer.chat_template";
const TOOL_TEMPLATE_KEY: &str = "tokenizer.chat_template.tool_use";

/// A chat template, and the vocabulary that its texts are made of.
pub struct ChatFormat {
    template: Template,
    tokenizer: Arc<Tokenizer>,
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
        let (text, source) = match file {
            Some(path) => (input::file(path)?, input::name(path).to_path_buf()),
            None => {
                let at_path = |error: gguf::Error| Error::Content {
                    path: model.path.to_path_buf(),
                    message: error.to_string(),
                };
                let with_tools =
                    if tools { model.metadata.str(TOOL_TEMPLATE_KEY).map_err(at_path)? } else { None };
                let own = match with_tools {
                    Some(text) => Some(text),
                    None => model.metadata.str(TEMPLATE_KEY).map_err(at_path)?,
                };
                let Some(text) = own else { return Ok(None) };
                (text.to_owned(), model.path.to_path_buf())
            }
        };
        let template = template(&text, &source)?;
        Ok(Some(ChatFormat { template, tokenizer: Arc::clone(model.tokenizer), source }))
    }

    /// The conversation as the text of a prompt that the assistant's answer continues.
    pub fn render(&self, conversation: &Conversation) -> Result<Rendered> {
        self.render_with(conversation, &self.options())
    }

    /// The same with other options than [`ChatFormat::options`].
    pub fn render_with(&self, conversation: &Conversation, options: &RenderOptions) -> Result<Rendered> {
        render(&self.template, &self.source, conversation, options)
    }

    /// How templates are rendered for this vocabulary.
    pub fn options(&self) -> RenderOptions {
        let text = |id: Option<u32>| id.map_or_else(String::new, |id| token_text(&self.tokenizer, id));
        RenderOptions {
            add_generation_prompt: true,
            bos_token: text(self.tokenizer.bos()),
            eos_token: text(self.tokenizer.eos()),
            control_tokens: self.tokenizer.control_token_texts().map(str::to_owned).collect(),
            ..RenderOptions::default()
        }
    }

    /// The ids of a rendered conversation. Text of the template can be control tokens, text of messages cannot. A
    /// model that wants a begin token gets it even if the template leaves it out.
    pub fn encode(&self, rendered: &Rendered) -> Vec<u32> {
        let options = EncodeOptions { add_special: false, parse_special: true };
        let mut ids = self.tokenizer.encode_rendered(&rendered.text, &rendered.literal, options);
        if let Some(bos) = self.tokenizer.bos()
            && self.tokenizer.add_bos()
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
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

/// A token's own text, U+FFFD in place of bytes that are no UTF-8.
pub fn token_text(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned()
}

/// A message as templates take it.
pub fn message(role: &str, content: &str) -> serde_json::Value {
    serde_json::json!({ "role": role, "content": content })
}
