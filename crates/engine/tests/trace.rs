//! What the engine tells of its graphs goes to the caller.

mod tiny;

use engine::{LoadOptions, Step, Trace, Wanted};
use std::sync::{Arc, Mutex};
use tiny::{Tiny, TinyFile};

#[test]
fn the_census_and_the_graph_are_handed_over_once_per_build() {
    let file = TinyFile::new("census", Tiny::default());
    let mut engine = file.load(&LoadOptions::default()).unwrap();
    let texts = Arc::new(Mutex::new(Vec::<String>::new()));
    let sink = Arc::clone(&texts);
    let dot = file.beside("dot");
    let graph: engine::TraceSink = Box::new(move |text| sink.lock().unwrap().push(text.to_owned()));
    engine.set_trace(Trace { graph: Some(graph), dot: Some(dot.clone()) });
    let mut sequence = engine.sequence();
    for _ in 0..3 {
        engine.forward(&mut [Step { sequence: &mut sequence, tokens: &[1], wanted: Wanted::Last }]).unwrap();
    }
    let drawn = std::fs::read_to_string(&dot).unwrap();
    std::fs::remove_file(&dot).unwrap();
    assert!(drawn.starts_with("digraph"), "{drawn}");
    let texts = texts.lock().unwrap();
    assert_eq!(texts.len(), 1, "the second and the third reuse the graph");
    assert!(texts[0].contains("cpu"), "{}", texts[0]);
}

#[test]
fn a_token_reads_every_weight_but_the_gathered_rows_and_the_cache_so_far() {
    let file = TinyFile::new("traffic", Tiny::default());
    let engine = file.load(&LoadOptions::default()).unwrap();
    let read = engine.weight_bytes_per_token().unwrap();
    let model = engine.model();
    let bytes = |name: &str| -> usize {
        let named = model.weights().iter().filter(|weight| weight.name == name);
        named.map(|weight| weight.format.row_bytes(weight.cols).unwrap() * weight.rows).sum()
    };
    // Where the embedding is the output matrix too, it is read whole; else only the token's row is.
    let gathered = if bytes("output.weight") > 0 { bytes("token_embd.weight") } else { 0 };
    assert_eq!(read, engine.memory().weights - gathered);
    let first = engine.cache_bytes_per_token(0);
    assert!(first > 0);
    assert_eq!(engine.cache_bytes_per_token(9), 10 * first);
}
