//! Replays the fuzzer's corpus (`fuzz/seeds`) against the promises that the fuzz target checks.

mod support;

#[test]
fn every_seed_keeps_the_promises() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds");
    let mut seeds = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        support::promises::check(&std::fs::read(&path).unwrap());
        seeds += 1;
    }
    assert!(seeds > 100, "{dir} has {seeds} seeds");
}
