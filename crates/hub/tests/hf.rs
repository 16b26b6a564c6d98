//! Models from the Hugging Face hub, against a local server that speaks its language.
#![cfg(unix)]

mod common;

use std::fs;

use common::hf_server::HfServer;
use common::{Heard, World, gguf};
use hub::Error;

fn world(files: &[(&str, &[u8])]) -> (World, HfServer) {
    let server = HfServer::start(files);
    let mut world = World::new();
    world.options.hf_endpoint = Some(server.endpoint.clone());
    (world, server)
}

#[test]
fn a_file_is_fetched_once_into_the_shared_cache() {
    let model = gguf(1, 300_000);
    let (world, server) =
        world(&[("README.md", b"#"), ("m-Q8_0.gguf", &gguf(2, 10)), ("m-Q4_K_M.gguf", &model)]);
    let mut heard = Heard::default();
    let path = hub::resolve("hf:owner/repo", &world.options, &mut heard).unwrap();
    assert!(path.starts_with(world.root.path().join("hf/hub/models--owner--repo/snapshots")), "{path:?}");
    assert!(path.ends_with("m-Q4_K_M.gguf"));
    assert_eq!(fs::read(&path).unwrap(), model);
    assert!(heard.messages.iter().any(|m| m == "downloading m-Q4_K_M.gguf"), "{:?}", heard.messages);
    assert!(heard.bytes.contains(&(300_000, Some(300_000))), "{:?}", heard.bytes);

    server.take_requests();
    assert_eq!(world.resolve("hf:owner/repo").unwrap(), path);
    assert_eq!(hub::cached("hf:owner/repo", &world.options), Some(path.clone()));
    assert!(server.take_requests().is_empty(), "no network for what is there");
    assert_eq!(hub::list_cached(&world.options).unwrap()[0].path, path);
}

#[test]
fn what_another_client_fetched_is_used() {
    let (world, server) = world(&[("m-Q4_K_M.gguf", &gguf(1, 1000))]);
    world.resolve("hf:owner/repo").unwrap();
    server.take_requests();
    // Under another spec our own record does not help, the shared cache does.
    world.resolve("hf:owner/repo:q4_k_m").unwrap();
    assert_eq!(server.take_requests(), ["/api/models/owner/repo/revision/main"]);
}

#[test]
fn all_shards_are_fetched() {
    let shards = [gguf(1, 5000), gguf(2, 6000)];
    let (world, _server) = world(&[
        ("Q8_0/m-Q8_0-00001-of-00002.gguf", &shards[0]),
        ("Q8_0/m-Q8_0-00002-of-00002.gguf", &shards[1]),
    ]);
    let path = world.resolve("hf:owner/repo:Q8_0").unwrap();
    assert!(path.ends_with("Q8_0/m-Q8_0-00001-of-00002.gguf"));
    assert_eq!(fs::read(&path).unwrap(), shards[0]);
    assert_eq!(fs::read(path.with_file_name("m-Q8_0-00002-of-00002.gguf")).unwrap(), shards[1]);
}

#[test]
fn a_transfer_that_breaks_off_goes_on_where_it_was() {
    let model = gguf(1, 300_000);
    let (world, server) = world(&[("m.gguf", &model)]);
    server.set(|s| s.cut = Some((2, 100_000)));
    let path = world.resolve("hf:owner/repo").unwrap();
    assert_eq!(fs::read(path).unwrap(), model);
    let ranges: Vec<String> = server
        .take_requests()
        .into_iter()
        .filter_map(|r| r.strip_prefix("/cdn/m.gguf bytes=").map(str::to_owned))
        .filter(|r| r != "0-0")
        .collect();
    assert_eq!(ranges, ["0-", "100000-", "200000-"]);
}

#[test]
fn a_later_process_goes_on_too() {
    let model = gguf(1, 300_000);
    let (world, server) = world(&[("m.gguf", &model)]);
    let blobs = world.root.path().join("hf/hub/models--owner--repo/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{}.part", common::sha256(&model))), &model[..123_456]).unwrap();
    assert_eq!(fs::read(world.resolve("hf:owner/repo").unwrap()).unwrap(), model);
    assert!(server.take_requests().contains(&"/cdn/m.gguf bytes=123456-".to_owned()));
}

#[test]
fn a_complete_or_overlong_partial_file_does_not_block() {
    let model = gguf(1, 3000);
    for len in [3000, 4000] {
        let (world, _server) = world(&[("m.gguf", &model)]);
        let blobs = world.root.path().join("hf/hub/models--owner--repo/blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(format!("{}.part", common::sha256(&model))), vec![7; len]).unwrap();
        assert_eq!(fs::read(world.resolve("hf:owner/repo").unwrap()).unwrap(), model);
    }
}

#[test]
fn corrupt() {
    let model = gguf(1, 3000);
    let (world, server) = world(&[("m.gguf", &model)]);
    server.set(|s| s.damage = true);
    let error = world.resolve("hf:owner/repo").unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
    assert!(error.to_string().contains(&common::sha256(&model)), "{error}");
    assert_eq!(hub::cached("hf:owner/repo", &world.options), None);
    server.set(|s| s.damage = false);
    assert_eq!(fs::read(world.resolve("hf:owner/repo").unwrap()).unwrap(), model);
}

#[test]
fn a_server_that_ignores_ranges_is_noticed() {
    let model = gguf(1, 3000);
    let (world, server) = world(&[("m.gguf", &model)]);
    let blobs = world.root.path().join("hf/hub/models--owner--repo/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{}.part", common::sha256(&model))), &model[..1000]).unwrap();
    server.set(|s| s.ignore_ranges = true);
    assert!(matches!(world.resolve("hf:owner/repo"), Err(Error::Corrupt { .. })));
    assert_eq!(fs::read(world.resolve("hf:owner/repo").unwrap()).unwrap(), model, "afresh, without a range");
}

#[test]
fn verify_mends_a_damaged_file() {
    let model = gguf(1, 3000);
    let (mut world, _server) = world(&[("m.gguf", &model)]);
    let path = world.resolve("hf:owner/repo").unwrap();
    fs::write(&path, gguf(9, 3000)).unwrap();
    world.options.verify = true;
    assert_eq!(world.resolve("hf:owner/repo").unwrap(), path);
    assert_eq!(fs::read(path).unwrap(), model);
}

#[test]
fn repo_not_found() {
    let (world, _server) = world(&[("m.gguf", &gguf(1, 10))]);
    let error = world.resolve("hf:owner/other").unwrap_err();
    assert!(matches!(&error, Error::RepoNotFound { repo } if repo == "owner/other"), "{error:?}");
    assert!(error.to_string().contains("HF_TOKEN"));
}

#[test]
fn access_denied_without_the_token() {
    let (mut world, server) = world(&[("m.gguf", &gguf(1, 10))]);
    server.set(|s| s.token = Some("secret".into()));
    let error = world.resolve("hf:owner/repo").unwrap_err();
    assert!(matches!(&error, Error::AccessDenied { repo, .. } if repo == "owner/repo"), "{error:?}");
    assert!(error.to_string().contains("HF_TOKEN"));
    world.options.hf_token = Some("secret".into());
    world.resolve("hf:owner/repo").unwrap();
}

#[test]
fn no_such_quant() {
    let (world, _server) = world(&[("m-Q8_0.gguf", &gguf(1, 10))]);
    let error = world.resolve("hf:owner/repo:Q2_K").unwrap_err();
    assert!(matches!(error, Error::NoSuchQuant { .. }), "{error:?}");
    assert_eq!(error.to_string(), "owner/repo has no GGUF file for `Q2_K`; it has m-Q8_0.gguf");
}

#[test]
fn hf() {
    let (world, server) = world(&[("m.gguf", &gguf(1, 100_000))]);
    // A transfer that never gets any further ends, and says what it was.
    server.set(|s| s.cut = Some((usize::MAX, 0)));
    let error = world.resolve("hf:owner/repo").unwrap_err();
    assert!(matches!(&error, Error::Hf { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("`owner/repo`: downloading m.gguf failed: "), "{text}");
    assert!(text.ends_with(&format!("(HF_ENDPOINT is {})", server.endpoint)), "{text}");
}

#[test]
fn settings_that_cannot_be_used_are_named() {
    let mut world = World::new();
    for endpoint in ["hub.example", "ftp://hub.example", "https://", "https://hub example"] {
        world.options.hf_endpoint = Some(endpoint.into());
        let error = world.resolve("hf:owner/repo").unwrap_err();
        assert!(matches!(&error, Error::Setting { variable: "HF_ENDPOINT", .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.starts_with("HF_ENDPOINT: ") && text.contains(endpoint), "{text}");
    }
    world.options.hf_endpoint = None;
    world.options.hf_token = Some("secret\n".into());
    let error = world.resolve("hf:owner/repo").unwrap_err();
    assert!(matches!(&error, Error::Setting { variable: "HF_TOKEN", .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.starts_with("HF_TOKEN: ") && text.contains("byte 6") && !text.contains("secret"), "{text}");
}

#[test]
fn hf_unreachable() {
    let mut world = World::new();
    // Nobody listens on the port of a socket that is gone.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    world.options.hf_endpoint = Some(format!("http://127.0.0.1:{port}"));
    let error = world.resolve("hf:owner/repo").unwrap_err();
    assert!(matches!(error, Error::HfUnreachable { .. }), "{error:?}");
    let expected = format!(
        "no connection to the Hugging Face hub at http://127.0.0.1:{port} (HF_ENDPOINT), which `owner/repo` comes from; \
         check the network and its proxy: "
    );
    assert!(error.to_string().starts_with(&expected), "{error}");
}
