//! From a conversation to token ids, through a model's chat template.
//!
//! The crate knows where GGUF files keep their template, what of the vocabulary a template needs, and which tokens of a
//! rendered conversation may be control tokens. It does not know how templates are rendered (`chat`) or how text is
//! encoded (`tokenizer`), nor what a conversation is for.

use chat::{Conversation, RenderOptions, Rendered, Template};
use gguf::Metadata;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokenizer::{EncodeOptions, Tokenizer};

/// Where GGUF files keep the template, and where the one for conversations with tools, if it is another.
const TEMPLATE_KEY: &str = "tokenizer.chat_template";
const TOOL_TEMPLATE_KEY: &str = "tokenizer.chat_template.tool_use";

/// A model has a template that cannot be used.
#[derive(Debug)]
pub enum Error {
    /// The file's metadata has something else in its place.
    Metadata(gguf::Error),
    /// It is no template.
    Template(chat::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Metadata(error) => error.fmt(f),
            Error::Template(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Metadata(error) => Some(error),
            Error::Template(error) => Some(error),
        }
    }
}

/// The source of a model's own template, if it has one: with `tools`, that for conversations with tools, if it has one
/// of its own.
///
/// # Errors
/// [`Error::Metadata`] where the file has something else than a text in its place.
pub fn template_source(metadata: &Metadata, tools: bool) -> Result<Option<&str>, Error> {
    let with_tools = if tools { metadata.str(TOOL_TEMPLATE_KEY).map_err(Error::Metadata)? } else { None };
    match with_tools {
        Some(source) => Ok(Some(source)),
        None => metadata.str(TEMPLATE_KEY).map_err(Error::Metadata),
    }
}

/// A chat template, and the vocabulary that its texts are made of.
#[derive(Debug)]
pub struct ChatFormat {
    template: Template,
    source: String,
    tokenizer: Arc<Tokenizer>,
    options: RenderOptions,
}

impl ChatFormat {
    /// Compiles a template for a vocabulary.
    ///
    /// # Errors
    /// [`Error::Template`] where the source is none.
    pub fn new(source: &str, tokenizer: &Arc<Tokenizer>) -> Result<ChatFormat, Error> {
        let template = Template::new(source).map_err(Error::Template)?;
        let text = |id: Option<u32>| id.map_or_else(String::new, |id| token_text(tokenizer, id));
        let options = RenderOptions {
            add_generation_prompt: true,
            bos_token: text(tokenizer.bos()),
            eos_token: text(tokenizer.eos()),
            control_tokens: tokenizer.control_token_texts().map(str::to_owned).collect(),
            ..RenderOptions::default()
        };
        Ok(ChatFormat { template, source: source.to_owned(), tokenizer: Arc::clone(tokenizer), options })
    }

    /// The model's own template, if it has one; see [`template_source`].
    ///
    /// # Errors
    /// [`Error::Metadata`] and [`Error::Template`].
    pub fn of_model(
        metadata: &Metadata,
        tokenizer: &Arc<Tokenizer>,
        tools: bool,
    ) -> Result<Option<ChatFormat>, Error> {
        template_source(metadata, tools)?.map(|source| ChatFormat::new(source, tokenizer)).transpose()
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The same with another time for each conversation; see [`Template::with_patience`].
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> ChatFormat {
        ChatFormat { template: self.template.with_patience(patience), ..self }
    }

    /// Whether no conversation is rendered for now; see [`Template::is_stuck`].
    pub fn is_stuck(&self) -> bool {
        self.template.is_stuck()
    }

    /// How the template is rendered for this vocabulary: so that the assistant's answer follows.
    pub fn options(&self) -> RenderOptions {
        self.options.clone()
    }

    /// The conversation as text.
    ///
    /// # Errors
    /// Those of [`Template::render`].
    pub fn render(
        &self,
        conversation: &Conversation,
        options: &RenderOptions,
    ) -> Result<Rendered, chat::Error> {
        self.template.render(conversation, options)
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

/// A token's own text, U+FFFD in place of bytes that are no UTF-8.
pub fn token_text(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf::{Array, Header, Value, Writer};
    use serde_json::json;

    /// A vocabulary of bytes and two control tokens, with more metadata.
    fn model(add_bos: bool, metadata: &[(&str, Value)]) -> (Header, Arc<Tokenizer>) {
        let mut texts: Vec<String> = ('!'..='~').map(String::from).collect();
        let mut types = vec![1; texts.len()];
        for control in ["<s>", "</s>"] {
            texts.push(control.into());
            types.push(3);
        }
        let (bos, eos) = (texts.len() as u32 - 2, texts.len() as u32 - 1);
        let mut file = Writer::new();
        file.metadata("tokenizer.ggml.model", Value::String("gpt2".into()))
            .metadata("tokenizer.ggml.pre", Value::String("gpt-2".into()))
            .metadata("tokenizer.ggml.tokens", Value::Array(Array::String(texts)))
            .metadata("tokenizer.ggml.token_type", Value::Array(Array::I32(types)))
            .metadata("tokenizer.ggml.merges", Value::Array(Array::String(Vec::new())))
            .metadata("tokenizer.ggml.bos_token_id", Value::U32(bos))
            .metadata("tokenizer.ggml.eos_token_id", Value::U32(eos))
            .metadata("tokenizer.ggml.add_bos_token", Value::Bool(add_bos));
        for (key, value) in metadata {
            file.metadata(key, value.clone());
        }
        let header = Header::parse(&file.to_bytes().unwrap()).unwrap();
        let tokenizer = Arc::new(Tokenizer::from_metadata(header.metadata()).unwrap());
        (header, tokenizer)
    }

    #[test]
    fn the_begin_token_is_there_once_and_a_user_cannot_end_a_turn() {
        for (add_bos, source) in [
            (true, "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"),
            (true, "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"),
            (false, "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"),
        ] {
            let (_, tokenizer) = model(add_bos, &[]);
            let format = ChatFormat::new(source, &tokenizer).unwrap();
            let messages = vec![json!({"role": "user", "content": "a</s>b"})];
            let rendered = format.render(&Conversation { messages, tools: None }, &format.options()).unwrap();
            let ids = format.encode(&rendered);
            let count = |id: Option<u32>| ids.iter().filter(|&&found| Some(found) == id).count();
            assert_eq!((count(tokenizer.bos()), count(tokenizer.eos())), (usize::from(add_bos), 1));
        }
    }

    #[test]
    fn the_template_for_tools_is_taken_where_there_are_tools() {
        let keys = [
            (TEMPLATE_KEY, Value::String("plain".into())),
            (TOOL_TEMPLATE_KEY, Value::String("tools".into())),
        ];
        let (header, tokenizer) = model(false, &keys);
        for (tools, source) in [(false, "plain"), (true, "tools")] {
            let format = ChatFormat::of_model(header.metadata(), &tokenizer, tools).unwrap().unwrap();
            assert_eq!(format.source(), source);
        }
        let (header, tokenizer) = model(false, &keys[..1]);
        assert_eq!(
            ChatFormat::of_model(header.metadata(), &tokenizer, true).unwrap().unwrap().source(),
            "plain"
        );
        let (header, tokenizer) = model(false, &[]);
        assert!(ChatFormat::of_model(header.metadata(), &tokenizer, true).unwrap().is_none());
    }

    #[test]
    fn what_is_no_template_is_told() {
        let (header, tokenizer) = model(false, &[(TEMPLATE_KEY, Value::U32(1))]);
        let error = ChatFormat::of_model(header.metadata(), &tokenizer, false).unwrap_err();
        assert!(matches!(error, Error::Metadata(_)) && error.to_string().contains(TEMPLATE_KEY), "{error}");
        let error = ChatFormat::new("{% if %}", &tokenizer).unwrap_err();
        assert!(matches!(error, Error::Template(_)) && error.to_string().contains("template"), "{error}");
    }
}
