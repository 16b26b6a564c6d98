use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

use crate::Error;

/// Where to look and what is allowed. The default ignores the environment; a program wants
/// [`Options::from_env`].
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Folder of the downloaded models; `None` is `smelt/models` in the user's cache folder.
    pub cache_dir: Option<PathBuf>,
    /// Never touch the network: the flag or variable that says so, for messages. `None` allows it.
    pub offline: Option<&'static str>,
    /// Hash a cached model again before using it.
    pub verify: bool,
    /// The Python to run pip with; `None` looks for `python3`, `python`, `pip3` and `pip`.
    pub python: Option<PathBuf>,
    /// Folder that the Hugging Face clients share; `None` is their default in the home folder.
    pub hf_home: Option<PathBuf>,
    /// Address of the Hugging Face hub or of a mirror; `None` is the client's default.
    pub hf_endpoint: Option<String>,
    /// Access token for gated or private repositories; `None` uses the one in the shared folder, if any.
    pub hf_token: Option<String>,
}

impl Options {
    /// Reads `SMELT_CACHE`, `SMELT_OFFLINE`, `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE`.
    /// An empty variable counts as unset; offline is on unless the variable is empty, `0` or `false`.
    pub fn from_env() -> Self {
        Self::from_lookup(|name| env::var_os(name))
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name| lookup(name).filter(|value| !value.is_empty());
        // What is no Unicode cannot be used, and is refused where it would be: ignoring it would hide a mistake.
        let text = |name| set(name).map(|value| value.to_string_lossy().into_owned());
        let flag =
            |name: &&'static str| set(*name).is_some_and(|v| v != "0" && !v.eq_ignore_ascii_case("false"));
        Self {
            cache_dir: set("SMELT_CACHE").map(PathBuf::from),
            offline: ["SMELT_OFFLINE", "HF_HUB_OFFLINE"].into_iter().find(flag),
            verify: false,
            python: None,
            hf_home: set("HF_HOME").map(PathBuf::from),
            hf_endpoint: text("HF_ENDPOINT"),
            hf_token: text("HF_TOKEN"),
        }
    }

    /// The folder of the downloaded models.
    ///
    /// # Errors
    /// [`Error::NoCacheDir`] where neither a setting nor a home folder says where it is.
    pub fn models_dir(&self) -> Result<PathBuf, Error> {
        if let Some(dir) = &self.cache_dir {
            return Ok(dir.clone());
        }
        let base = user_cache_dir(|name| env::var_os(name), env::home_dir()).ok_or(Error::NoCacheDir)?;
        Ok(base.join("smelt").join("models"))
    }
}

/// The user's cache folder by the custom of the system.
fn user_cache_dir(lookup: impl Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    let home = home.filter(|h| !h.as_os_str().is_empty());
    if cfg!(target_os = "macos") {
        return home.map(|h| h.join("Library").join("Caches"));
    }
    if cfg!(windows) {
        return lookup("LOCALAPPDATA").map(PathBuf::from).filter(|p| p.is_absolute());
    }
    // The XDG base directory specification has relative paths ignored.
    let xdg = lookup("XDG_CACHE_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    xdg.or_else(|| home.map(|h| h.join(".cache")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup<'a>(vars: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        |name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v))
    }

    #[test]
    fn the_environment_is_read() {
        let options = Options::from_lookup(lookup(&[
            ("SMELT_CACHE", "/models"),
            ("SMELT_OFFLINE", "1"),
            ("HF_HOME", "/hf"),
            ("HF_ENDPOINT", "http://mirror"),
            ("HF_TOKEN", "secret"),
        ]));
        assert_eq!(options.models_dir().unwrap(), PathBuf::from("/models"));
        assert!(options.offline == Some("SMELT_OFFLINE") && !options.verify);
        assert_eq!(options.hf_home, Some("/hf".into()));
        assert_eq!(options.hf_endpoint.as_deref(), Some("http://mirror"));
        assert_eq!(options.hf_token.as_deref(), Some("secret"));
    }

    #[test]
    fn empty_zero_and_false_are_off() {
        for value in ["", "0", "false", "False"] {
            let vars = [("SMELT_OFFLINE", value), ("SMELT_CACHE", "")];
            let options = Options::from_lookup(lookup(&vars));
            assert!(options.offline.is_none() && options.cache_dir.is_none(), "{value:?}");
        }
        let options = Options::from_lookup(lookup(&[("HF_HUB_OFFLINE", "true"), ("SMELT_OFFLINE", "0")]));
        assert_eq!(options.offline, Some("HF_HUB_OFFLINE"));
    }

    #[cfg(unix)]
    #[test]
    fn a_setting_that_is_no_unicode_is_not_taken_for_unset() {
        use std::os::unix::ffi::OsStringExt;
        let broken = |name: &str| (name == "HF_TOKEN").then(|| OsString::from_vec(b"a\xff".to_vec()));
        assert_eq!(Options::from_lookup(broken).hf_token.as_deref(), Some("a\u{fffd}"));
    }

    #[cfg(all(unix, not(target_os = "macos")))]
    #[test]
    fn the_cache_folder_follows_xdg() {
        let home = || Some(PathBuf::from("/home/me"));
        let dir = |vars| user_cache_dir(lookup(vars), home());
        assert_eq!(dir(&[("XDG_CACHE_HOME", "/xdg")]), Some("/xdg".into()));
        assert_eq!(dir(&[("XDG_CACHE_HOME", "relative")]), Some("/home/me/.cache".into()));
        assert_eq!(dir(&[]), Some("/home/me/.cache".into()));
        assert_eq!(user_cache_dir(lookup(&[]), None), None);
    }
}
