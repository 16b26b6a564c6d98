//! Accelerators take part as a whole or not at all, and say why not.

mod tiny;

use engine::{Activations, DType, Device, Engine, Error, LoadOptions, Step, Wanted};
use graph::testing::{Control, Event, Fault};
use metal::device::Limits;
use metal::{MetalBackend, MetalOptions, Switches};
use metal_sim::device::{Resident, Settings, SimDevice};
use metal_sim::profile::Profile;
use std::time::Duration;
use tiny::{Tiny, TinyFile};

const WEIGHT: &str = "blk.0.ffn_down.weight";

fn options(device: Device) -> LoadOptions {
    LoadOptions {
        device,
        activations: Some(Activations::F32),
        cache: Some(DType::F32),
        ..LoadOptions::default()
    }
}

/// Loads a model on the accelerator `test` of a control.
fn load(file: &TinyFile, control: &Control, options: &LoadOptions) -> Result<Engine, Error> {
    Engine::load_on(&file.beside("gguf"), options, vec![Box::new(control.backend("test"))], &mut |_, _| {})
}

fn logits(engine: &mut Engine) -> Vec<f32> {
    let mut sequence = engine.sequence();
    let step = Step { sequence: &mut sequence, tokens: &[1, 2, 3], wanted: Wanted::Last };
    engine.forward(&mut [step]).unwrap();
    engine.logits(0).to_vec()
}

/// Nodes that the accelerator was given.
fn executed(control: &Control) -> usize {
    control.take_log().iter().filter(|(_, event)| matches!(event, Event::Execute { .. })).count()
}

#[test]
fn a_model_runs_on_an_accelerator_that_takes_its_weights() {
    let file = TinyFile::new("accelerated", Tiny::default());
    let control = Control::new();
    let mut engine = load(&file, &control, &options(Device::Auto)).unwrap();
    assert_eq!(engine.device(), "test");
    assert!(engine.notices().is_empty(), "{:?}", engine.notices());
    let found = logits(&mut engine);
    assert!(executed(&control) > 10);
    let expected = logits(&mut file.load(&options(Device::Cpu)).unwrap());
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() <= 1e-5 * (1.0 + expected.abs()), "{found} {expected}");
    }
}

#[test]
fn an_accelerator_without_a_weight_takes_no_part() {
    let file = TinyFile::new("refused", Tiny::default());
    let control = Control::new();
    control.fail("test", Fault::Register(WEIGHT.into()));
    let mut engine = load(&file, &control, &options(Device::Auto)).unwrap();
    assert_eq!(engine.device(), "cpu");
    let [notice] = engine.notices() else { panic!("{:?}", engine.notices()) };
    assert!(notice.contains("'test' takes no part") && notice.contains(WEIGHT), "{notice}");
    logits(&mut engine);
    assert_eq!(executed(&control), 0);
}

#[test]
fn where_a_device_was_named_a_missing_weight_is_an_error() {
    let file = TinyFile::new("named", Tiny::default());
    let control = Control::new();
    control.fail("test", Fault::Register(WEIGHT.into()));
    let error = load(&file, &control, &options(Device::Cpu)).err().expect("a weight was refused");
    assert!(
        matches!(&error, Error::Device { name, message } if name == "test" && message.contains(WEIGHT)),
        "{error}"
    );
}

#[test]
fn a_model_that_does_not_fit_is_told_before_anything_is_copied() {
    let file = TinyFile::new("little", Tiny::default());
    let control = Control::new();
    control.fail("test", Fault::Memory(1 << 10));
    // Nothing may be registered: a refused weight would be another message.
    control.fail("test", Fault::Register(WEIGHT.into()));
    let mut engine = load(&file, &control, &options(Device::Auto)).unwrap();
    assert_eq!(engine.device(), "cpu");
    let [notice] = engine.notices() else { panic!("{:?}", engine.notices()) };
    assert!(notice.contains("'test' takes no part: the model needs 0 MiB: 0 MiB of weights"), "{notice}");
    logits(&mut engine);
    let error = load(&file, &control, &options(Device::Cpu)).err().expect("a device was named");
    assert!(
        matches!(&error, Error::Device { name, message } if name == "test" && message.contains("--gpu-layers")),
        "{error}"
    );
}

/// Loads a model on a simulated GPU with limits of its own.
fn load_on_gpu(
    file: &TinyFile,
    options: &LoadOptions,
    change: impl FnOnce(&mut Limits),
) -> (Result<Engine, Error>, SimDevice) {
    let mut profile = Profile::default();
    change(&mut profile.limits);
    let device = SimDevice::new(profile, Settings::default()).unwrap();
    let metal =
        MetalOptions { name: "metal-sim", timeout: Duration::from_secs(100), switches: Switches::default() };
    let backend = MetalBackend::new(device.clone(), metal).unwrap();
    let loaded = Engine::load_on(&file.beside("gguf"), options, vec![Box::new(backend)], &mut |_, _| {});
    (loaded, device)
}

#[test]
fn a_gpu_is_asked_for_its_memory_before_it_is_given_any() {
    let file = TinyFile::new("gpu-memory", Tiny::default());
    let little = |limits: &mut Limits| limits.recommended_working_set = 512 << 20;
    let (engine, device) = load_on_gpu(&file, &options(Device::Auto), little);
    let engine = engine.unwrap();
    assert_eq!(engine.device(), "cpu");
    let [notice] = engine.notices() else { panic!("{:?}", engine.notices()) };
    assert!(notice.starts_with("device 'metal-sim' takes no part: the model needs"), "{notice}");
    assert!(notice.contains("0 MiB can be had") && notice.contains("--ctx"), "{notice}");
    assert_eq!(device.resident(), Resident::default(), "nothing was mapped");
    let error = load_on_gpu(&file, &options(Device::MetalSim), little).0.err().expect("a device was named");
    assert!(matches!(&error, Error::Device { name, .. } if name == "metal-sim"), "{error}");
}

#[test]
fn a_file_longer_than_a_gpus_buffers_is_read_where_it_is_mapped() {
    let file = TinyFile::new("gpu-windows", Tiny { layers: 2, ..Tiny::default() });
    let expected = logits(&mut file.load(&options(Device::Cpu)).unwrap());
    let pages =
        |count: usize| move |limits: &mut Limits| limits.max_buffer_length = count * limits.no_copy_alignment;
    let (engine, device) = load_on_gpu(&file, &options(Device::Auto), pages(4));
    let mut engine = engine.unwrap();
    assert_eq!((engine.device(), engine.notices()), ("metal-sim", &[][..]));
    assert!(device.resident().buffers > 1 && device.resident().sets == 1, "{:?}", device.resident());
    for (found, expected) in logits(&mut engine).iter().zip(&expected) {
        assert!((found - expected).abs() <= 1e-4 * (1.0 + expected.abs()), "{found} {expected}");
    }
    // The last matrix has two pages.
    let (engine, _) = load_on_gpu(&file, &options(Device::Auto), pages(1));
    let engine = engine.unwrap();
    assert_eq!(engine.device(), "cpu");
    let [notice] = engine.notices() else { panic!("{:?}", engine.notices()) };
    assert!(
        notice.contains("output.weight") && notice.contains("of 16384 bytes at most (32768 bytes)"),
        "{notice}"
    );
}

#[test]
fn layers_can_be_kept_from_an_accelerator() {
    let file = TinyFile::new("layers", Tiny::default());
    let control = Control::new();
    let none = LoadOptions { accelerated_layers: Some(0), ..options(Device::Auto) };
    let mut engine = load(&file, &control, &none).unwrap();
    assert_eq!(engine.device(), "cpu");
    logits(&mut engine);
    assert_eq!(executed(&control), 0);
}

/// Loads a model on two accelerators.
fn load_on_two(file: &TinyFile, control: &Control, options: &LoadOptions) -> Result<Engine, Error> {
    let backends = ["a", "b"].map(|name| Box::new(control.backend(name).linked()) as Box<dyn graph::Backend>);
    Engine::load_on(&file.beside("gguf"), options, backends.into(), &mut |_, _| {})
}

#[test]
fn several_accelerators_share_the_layers() {
    let file = TinyFile::new("shared", Tiny { layers: 2, ..Tiny::default() });
    let expected = logits(&mut file.load(&options(Device::Cpu)).unwrap());
    for (shares, layers, device) in [
        (vec![], None, "a,b"),
        (vec![1.0, 1.0], None, "a,b"),
        (vec![1.0, 0.0], None, "a"),
        (vec![0.0, 1.0], None, "b"),
        (vec![], Some(1), "b"),
    ] {
        let control = Control::new();
        let options =
            LoadOptions { shares: shares.clone(), accelerated_layers: layers, ..options(Device::Auto) };
        let mut engine = load_on_two(&file, &control, &options).unwrap();
        assert_eq!(engine.device(), device, "{shares:?} {layers:?}");
        let found = logits(&mut engine);
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() <= 1e-5 * (1.0 + expected.abs()), "{found} {expected}");
        }
        let log = control.take_log();
        for name in ["a", "b"] {
            let ran = log.iter().any(|(by, event)| by == name && matches!(event, Event::Execute { .. }));
            assert_eq!(ran, device.split(',').any(|used| used == name), "{shares:?} {layers:?}: {name}");
        }
    }
}

#[test]
fn an_accelerator_is_given_the_weights_of_its_layers_alone() {
    let file = TinyFile::new("own-weights", Tiny { layers: 2, ..Tiny::default() });
    let control = Control::new();
    // Of the first layer, which is the other's.
    control.fail("b", Fault::Register(WEIGHT.into()));
    let options = LoadOptions { shares: vec![1.0, 1.0], ..options(Device::Cpu) };
    let engine = load_on_two(&file, &control, &options).unwrap();
    assert_eq!(engine.device(), "a,b");
    control.fail("a", Fault::Register(WEIGHT.into()));
    let error = load_on_two(&file, &control, &options).err().expect("a weight was refused").to_string();
    assert!(error.contains("'a'") && error.contains(WEIGHT), "{error}");
}

#[test]
fn shares_are_one_for_each_accelerator() {
    let file = TinyFile::new("shares", Tiny { layers: 2, ..Tiny::default() });
    for shares in [vec![1.0], vec![1.0; 3], vec![0.0, 0.0], vec![1.0, -1.0], vec![f64::NAN, 1.0]] {
        let options = LoadOptions { shares: shares.clone(), ..options(Device::Auto) };
        let error = load_on_two(&file, &Control::new(), &options).err().expect("no shares");
        assert!(
            matches!(&error, Error::Option { name: "shares of the layers", message }
                if message.contains("expected 2 numbers") && message.contains("a, b")),
            "{shares:?}: {error}"
        );
    }
}

#[test]
fn layers_that_do_not_fit_are_told_with_how_many_would() {
    let file = TinyFile::new("layers-need", Tiny { layers: 2, ..Tiny::default() });
    let control = Control::new();
    control.fail("test", Fault::Memory(1 << 10));
    let options = LoadOptions { accelerated_layers: Some(1), ..options(Device::Cpu) };
    let error = load(&file, &control, &options).err().expect("there is no room").to_string();
    assert!(
        error.contains("the last 1 of 2 layers need") && error.contains("Not even one layer would fit"),
        "{error}"
    );
}
