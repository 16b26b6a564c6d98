//! Tiny random models of every architecture and RoPE scaling against their reference implementations, and properties
//! that hold for any model.

use cpu::{CpuBackend, CpuOptions};
use engine::{Activations, Device, Engine, LoadOptions, Split, Step, Wanted};
use quant::Format;
use smelt_tests::tiny::{Reference, Tiny, VOCAB};
use std::ops::ControlFlow;

fn load(tiny: &Tiny, options: &LoadOptions) -> Engine {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    tiny.write(&path);
    // What is tested here holds on the CPU, also where there is a GPU.
    let options = &LoadOptions { device: Device::Cpu, ..options.clone() };
    Engine::load(&path, options, &mut |_, _| {}).unwrap()
}

fn all_logits(engine: &mut Engine, ids: &[u32]) -> Vec<Vec<f32>> {
    let mut sequence = engine.sequence();
    let mut rows = Vec::new();
    let fed = engine.prefill(&mut sequence, ids, Wanted::All, &mut |_, logits| {
        rows.extend(logits.map(<[f32]>::to_vec));
        Ok(ControlFlow::Continue(()))
    });
    let _ = fed.unwrap();
    engine.release(sequence);
    rows
}

#[test]
fn every_architecture_equals_its_reference() {
    let reference = Reference::read();
    for (name, tiny) in reference.models() {
        let options = LoadOptions { activations: Some(Activations::F32), ..LoadOptions::default() };
        let mut engine = load(&tiny, &options);
        assert_eq!(engine.model().unused_tensors(), [] as [String; 0], "{name}");
        let found = all_logits(&mut engine, &reference.ids);
        for &position in &reference.positions {
            reference.check(name, position, &found[position]);
        }
    }
}

/// Loads a model on so many devices that share every layer, all of them the CPU.
fn share(tiny: &Tiny, devices: usize) -> Result<Engine, engine::Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    tiny.write(&path);
    let options = LoadOptions {
        device: Device::Cpu,
        activations: Some(Activations::F32),
        split: Some(Split::Tensor),
        ..LoadOptions::default()
    };
    let cpu = || {
        let options =
            CpuOptions { threads: Some(1), activations: Some(Activations::F32), ..CpuOptions::default() };
        Box::new(CpuBackend::new(options).unwrap()) as Box<dyn graph::Backend>
    };
    Engine::load_on(&path, &options, (0..devices).map(|_| cpu()).collect(), &mut |_, _| {})
}

#[test]
fn two_devices_that_share_every_layer_equal_the_reference() {
    let reference = Reference::read();
    for (name, tiny) in reference.models().into_iter().filter(|(_, tiny)| tiny.experts == 0) {
        let mut engine = share(&tiny, 2).unwrap();
        assert_eq!(engine.device(), "cpu+cpu", "{name}");
        let found = all_logits(&mut engine, &reference.ids);
        let mut sequence = engine.sequence();
        for (position, id) in reference.ids.iter().enumerate() {
            reference.check(name, position, &found[position]);
            let tokens = [*id];
            let step = Step { sequence: &mut sequence, tokens: &tokens, wanted: Wanted::Last };
            engine.forward(&mut [step]).unwrap();
            reference.check(name, position, engine.logits(0));
        }
    }
}

#[test]
fn a_model_that_devices_cannot_share_is_told() {
    let reference = Reference::read();
    for (name, tiny) in reference.models() {
        let (devices, what) = match tiny.experts {
            0 => (3, "4 heads over 2 KV heads, which 3 devices cannot share"),
            _ => (2, "a mixture of experts, which 2 devices cannot share"),
        };
        let error = share(&tiny, devices).err().expect("it cannot be shared").to_string();
        assert!(error.contains("layer 0: ") && error.contains(what), "{name}: {error}");
    }
}

#[test]
fn r19_frequency_factors_and_scaling_change_the_result() {
    let reference = Reference::read();
    let llama = Tiny { architecture: "llama", ..Tiny::default() };
    let ones = Tiny { rope_freqs: Some(vec![1.0; 8]), ..llama.clone() };
    let eights = Tiny { rope_freqs: Some(vec![8.0; 8]), ..llama.clone() };
    let options = LoadOptions::default();
    let plain = all_logits(&mut load(&llama, &options), &reference.ids);
    assert_eq!(all_logits(&mut load(&ones, &options), &reference.ids), plain);
    let scaled = all_logits(&mut load(&eights, &options), &reference.ids);
    assert_eq!(scaled[0], plain[0], "position 0 turns by no angle");
    assert_ne!(scaled[1], plain[1]);
}

/// Contract: on the CPU a sequence's logits have the same bits whatever is beside it in the batch, however its prompt
/// is cut, and on however many threads.
#[test]
fn r17_results_do_not_depend_on_batch_chunks_or_threads() {
    let reference = Reference::read();
    let ids = &reference.ids;
    for (name, tiny) in reference.models() {
        let whole =
            all_logits(&mut load(&tiny, &LoadOptions { threads: Some(1), ..LoadOptions::default() }), ids);
        for threads in [2, 3] {
            let options = LoadOptions { threads: Some(threads), batch: 7, ..LoadOptions::default() };
            assert!(
                all_logits(&mut load(&tiny, &options), ids) == whole,
                "{name}: {threads} threads, chunks of 7"
            );
        }
        let mut engine =
            load(&tiny, &LoadOptions { sequences: 3, threads: Some(2), ..LoadOptions::default() });
        let mut sequences = [engine.sequence(), engine.sequence(), engine.sequence()];
        let strangers: Vec<u32> = ids.iter().rev().copied().collect();
        let mut found = Vec::new();
        for (at, &id) in ids.iter().enumerate() {
            let [first, second, third] = &mut sequences;
            let id = [id];
            // A stranger before, one token at a time, and one behind that is fed in pieces of growing length.
            let mut steps = vec![
                Step { sequence: first, tokens: &strangers[at..=at], wanted: Wanted::Last },
                Step { sequence: second, tokens: &id, wanted: Wanted::Last },
            ];
            if at < 8 {
                steps.push(Step { sequence: third, tokens: &strangers[..at + 1], wanted: Wanted::None });
            }
            assert_eq!(engine.forward(&mut steps).unwrap(), 2);
            found.push(engine.logits(1).to_vec());
        }
        assert!(found == whole, "{name}: one by one beside strangers");
    }
}

/// Experts' weights in the order of the kernels or as they lie in the file, one token or many at a time: the same bits.
#[test]
fn packed_experts_give_the_same_bits() {
    let reference = Reference::read();
    for format in [Format::MXFP4, Format::Q8_0, Format::Q5_1] {
        for (name, tiny) in reference.models().into_iter().filter(|(_, tiny)| tiny.experts > 0) {
            let tiny = Tiny { expert_format: Some(format), ..tiny };
            let options =
                |repack, batch| LoadOptions { repack: Some(repack), batch, ..LoadOptions::default() };
            let mut engine = load(&tiny, &options(true, 40));
            let whole = all_logits(&mut engine, &reference.ids);
            let one_by_one = all_logits(&mut load(&tiny, &options(true, 1)), &reference.ids);
            assert!(one_by_one == whole, "{name} {format}, one by one");
            let unpacked = all_logits(&mut load(&tiny, &options(false, 40)), &reference.ids);
            assert!(unpacked == whole, "{name} {format}, not packed");
            // And near what whole numbers give.
            let exact = LoadOptions { activations: Some(Activations::F32), ..LoadOptions::default() };
            let exact = all_logits(&mut load(&tiny, &exact), &reference.ids);
            let square =
                |a: &[f32], b: &[f32]| -> f32 { a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum() };
            let (error, size) = (square(&whole[39], &exact[39]), square(&exact[39], &[0.0; VOCAB]));
            assert!(error < 1e-2 * size, "{name} {format}: {error} of {size}");
        }
    }
}

#[test]
fn an_unknown_scaling_type_is_an_error_and_an_unread_tensor_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    let scaling = ("rope.scaling.type", gguf::Value::String("magic".into()));
    Tiny { architecture: "llama", keys: vec![scaling], ..Tiny::default() }.write(&path);
    let error = Engine::load(&path, &LoadOptions::default(), &mut |_, _| {}).err().unwrap().to_string();
    assert!(error.contains("llama.rope.scaling.type") && error.contains("magic"), "{error}");

    let mut writer = Tiny { architecture: "llama", ..Tiny::default() }.writer();
    writer.tensor("blk.0.mystery.weight", &[4], Format::F32, vec![0; 16]);
    std::fs::write(&path, writer.to_bytes().unwrap()).unwrap();
    let engine = Engine::load(&path, &LoadOptions::default(), &mut |_, _| {}).unwrap();
    assert_eq!(engine.model().unused_tensors(), ["blk.0.mystery.weight"]);
}

#[test]
fn an_unknown_architecture_is_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    Tiny { architecture: "nonsense", ..Tiny::default() }.write(&path);
    let error = Engine::load(&path, &LoadOptions::default(), &mut |_, _| {}).err().unwrap().to_string();
    assert!(error.contains("unknown model architecture 'nonsense'; supported: llama, qwen2"), "{error}");
}

#[test]
fn conversations_can_be_cut_back_and_continued() {
    let reference = Reference::read();
    for (name, tiny) in reference.models() {
        let mut engine = load(&tiny, &LoadOptions::default());
        let whole = all_logits(&mut engine, &reference.ids);
        let mut sequence = engine.sequence();
        let detour: Vec<u32> = reference.ids[..20].iter().chain(&[9; 15]).copied().collect();
        engine
            .forward(&mut [Step { sequence: &mut sequence, tokens: &detour, wanted: Wanted::None }])
            .unwrap();
        assert_eq!(engine.truncate(&mut sequence, 20), 20, "{name}");
        let rest = &reference.ids[20..];
        engine.forward(&mut [Step { sequence: &mut sequence, tokens: rest, wanted: Wanted::Last }]).unwrap();
        assert!(engine.logits(0) == whole[39], "{name}");
    }
}

/// A token reads the matrices of the experts that it chose, not of all.
#[test]
fn what_a_token_reads_counts_the_chosen_experts() {
    let reference = Reference::read();
    let (_, tiny) = reference.models().into_iter().find(|(name, _)| *name == "qwen3moe").unwrap();
    let engine = load(&tiny, &LoadOptions::default());
    let bytes = |is_expert: bool| -> usize {
        let weights = engine.model().weights().iter().filter(|w| w.name != "token_embd.weight");
        weights.filter(|w| w.name.contains("_exps") == is_expert).map(|w| 4 * w.rows * w.cols).sum()
    };
    assert_eq!(engine.weight_bytes_per_token().unwrap(), bytes(false) + bytes(true) / 8 * 3);
}
