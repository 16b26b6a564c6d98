//! Weights in the order of the kernels: made at load, the same bits as without.

mod tiny;

use engine::{Engine, LoadOptions, Step, Wanted};
use quant::Format;
use std::path::PathBuf;
use tiny::{Tiny, TinyFile, VOCABULARY};

/// The bits of the logits after each of some tokens: a prompt, then one after another.
fn logits(engine: &mut Engine) -> Vec<u32> {
    let mut sequence = engine.sequence();
    let mut bits = Vec::new();
    for tokens in [&[1, 2, 3, 4, 5, 6, 7, 8, 9][..], &[10], &[11], &[12, 13]] {
        let step = Step { sequence: &mut sequence, tokens, wanted: Wanted::Last };
        assert_eq!(engine.forward(&mut [step]).unwrap(), 1);
        bits.extend(engine.logits(0).iter().map(|logit| logit.to_bits()));
    }
    engine.release(sequence);
    bits
}

#[test]
fn logits_have_the_same_bits_with_and_without() {
    for format in [Format::Q4_0, Format::Q4_1, Format::Q5_0, Format::Q5_1, Format::Q8_0] {
        let file = TinyFile::new(&format!("repack-{format}"), Tiny { format, ..Tiny::default() });
        let load =
            |repack| file.load(&LoadOptions { repack: Some(repack), ..LoadOptions::default() }).unwrap();
        let (mut with, mut without) = (load(true), load(false));
        assert_eq!(without.memory().packed, 0);
        let expected = logits(&mut without);
        assert_eq!(expected.len(), 4 * VOCABULARY);
        let packed = with.memory().packed;
        assert_eq!(logits(&mut with), expected, "{format}");
        assert_eq!(with.memory().packed, packed, "{format}: all of it is packed at load");
    }
}

#[test]
fn progress_goes_on_through_the_graph_and_ends() {
    let file = TinyFile::new("repack-progress", Tiny { format: Format::Q8_0, ..Tiny::default() });
    let mut told = Vec::new();
    Engine::load(&file.beside("gguf"), &LoadOptions::default(), &mut |done, total| told.push((done, total)))
        .unwrap();
    assert!(told.is_sorted(), "{told:?}");
    let &(done, total) = told.last().unwrap();
    assert_eq!(done, total);
    // A bar never goes back.
    assert!(told.is_sorted_by(|(done, all), (more, fewer)| done * fewer <= more * all), "{told:?}");
    assert!(told.iter().any(|&(done, _)| 0 < done && done < total), "{told:?}");
}

/// Logits and notices of a start with a file for packed weights.
fn with_file(model: &TinyFile, packed: &[PathBuf]) -> (Vec<u32>, Vec<String>) {
    let options = LoadOptions { repack: Some(true), repack_cache: packed.to_vec(), ..LoadOptions::default() };
    let mut engine = model.load(&options).unwrap();
    (logits(&mut engine), engine.notices().to_vec())
}

fn plain(model: &TinyFile) -> Vec<u32> {
    logits(&mut model.load(&LoadOptions { repack: Some(false), ..LoadOptions::default() }).unwrap())
}

/// Whether this machine's kernels want packed weights at all.
fn packs(model: &TinyFile) -> bool {
    let options = LoadOptions { repack: Some(true), ..LoadOptions::default() };
    model.load(&options).unwrap().memory().packed > 0
}

#[test]
fn a_file_of_packed_weights_is_made_used_and_made_anew_but_never_wrong() {
    let tiny = Tiny { format: Format::Q4_1, ..Tiny::default() };
    let model = TinyFile::new("repack-file", tiny);
    if !packs(&model) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("packed");
    let files = [file.clone()];
    let expected = (plain(&model), Vec::new());
    assert_eq!(with_file(&model, &files), expected, "made");
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(with_file(&model, &files), expected, "used");
    assert_eq!(std::fs::read(&file).unwrap(), bytes, "not written again");
    let mut flipped = bytes.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for (damaged, words) in [
        (&flipped[..], "does not have its checksum"),
        (&bytes[..bytes.len() / 2], "expected"),
        (&bytes[..10], "expected 64 bytes, found 10"),
        (&[], "expected 64 bytes, found 0"),
        (&[b'x'; 4096], "no file of packed weights"),
    ] {
        std::fs::write(&file, damaged).unwrap();
        let (found, notices) = with_file(&model, &files);
        assert_eq!(found, expected.0, "{words}");
        assert!(notices.len() == 1 && notices[0].contains(words), "{notices:?}");
        assert_eq!(std::fs::read(&file).unwrap().len(), bytes.len(), "{words}: made anew");
        assert_eq!(with_file(&model, &files), expected, "{words}: used again");
    }
}

#[test]
fn a_model_that_changed_is_not_mistaken() {
    let tiny = Tiny { format: Format::Q4_1, ..Tiny::default() };
    let model = TinyFile::new("repack-changed", tiny);
    if !packs(&model) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let files = [folder.path().join("packed")];
    let old = with_file(&model, &files);
    let stat = std::fs::metadata(model.beside("gguf")).unwrap();
    // One byte in the last tensor of the layer, and the time of writing put back.
    let mut bytes = std::fs::read(model.beside("gguf")).unwrap();
    let info =
        gguf::File::open(model.beside("gguf")).unwrap().tensor("blk.0.ffn_down.weight").unwrap().clone();
    bytes[(info.offset + info.len / 2) as usize] ^= 0x10;
    std::fs::write(model.beside("gguf"), &bytes).unwrap();
    let handle = std::fs::File::options().write(true).open(model.beside("gguf")).unwrap();
    handle.set_modified(stat.modified().unwrap()).unwrap();
    let (found, notices) = with_file(&model, &files);
    assert_eq!(found, plain(&model));
    assert_ne!(found, old.0);
    assert!(notices.len() == 1 && notices[0].contains("before the model changed"), "{notices:?}");
    assert_eq!(with_file(&model, &files), (found, Vec::new()));
}

#[test]
fn what_cannot_be_written_is_a_notice_and_the_next_place_is_taken() {
    let model = TinyFile::new("repack-places", Tiny { format: Format::Q8_0, ..Tiny::default() });
    if !packs(&model) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let nowhere = model.beside("gguf").join("below-a-file");
    let (found, notices) = with_file(&model, std::slice::from_ref(&nowhere));
    assert_eq!(found, plain(&model));
    assert!(notices.len() == 1 && notices[0].contains("cannot be kept"), "{notices:?}");
    let second = folder.path().join("made").join("packed");
    let below_nothing = nowhere.join("folder").join("packed");
    let (_, notices) = with_file(&model, &[below_nothing]);
    assert!(notices.len() == 1 && notices[0].contains("Not a directory"), "{notices:?}");
    let (found, notices) = with_file(&model, &[nowhere, second.clone()]);
    assert!(second.is_file());
    assert_eq!((found, notices), (plain(&model), Vec::new()));
}
