//! The registry: one file and one line per architecture.

mod gemma3;
mod gpt_oss;
mod llama;
mod muse_glimmer;
mod qwen2;
mod qwen2moe;
mod qwen3;
mod qwen3moe;

use crate::{Error, Transformer, keys::Keys, tensors::Tensors};

/// An entry of the registry.
pub struct Architecture {
    /// `general.architecture` in files.
    pub name: &'static str,
    /// One line about which models it covers.
    pub about: &'static str,
    pub(crate) load: fn(&Keys<'_>, &mut Tensors<'_>) -> Result<Transformer, Error>,
}

static ARCHITECTURES: &[Architecture] = &[
    Architecture { name: "llama", about: "Llama 2 and 3, Mistral, Mixtral, SmolLM2", load: llama::load },
    Architecture { name: "qwen2", about: "Qwen 2 and 2.5", load: qwen2::load },
    Architecture { name: "qwen3", about: "Qwen 3 (dense)", load: qwen3::load },
    Architecture { name: "qwen2moe", about: "Qwen 1.5 and 2 with experts", load: qwen2moe::load },
    Architecture { name: "qwen3moe", about: "Qwen 3 with experts", load: qwen3moe::load },
    Architecture { name: "gemma3", about: "Gemma 3 (text)", load: gemma3::load },
    Architecture { name: "gpt-oss", about: "gpt-oss", load: gpt_oss::load },
    Architecture { name: "muse-glimmer", about: "Muse Glimmer (text)", load: muse_glimmer::load },
];

/// Every supported architecture.
pub fn architectures() -> &'static [Architecture] {
    ARCHITECTURES
}

/// Looks an architecture up by its name in a file.
pub(crate) fn find(name: &str) -> Result<&'static Architecture, Error> {
    ARCHITECTURES.iter().find(|a| a.name == name).ok_or_else(|| Error::UnknownArchitecture {
        name: name.into(),
        supported: ARCHITECTURES.iter().map(|a| a.name).collect(),
    })
}
