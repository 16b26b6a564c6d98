//! Which devices run which layers, by what these need and what those have room for.

use crate::memory::{Need, readable};
use crate::setup::Setup;
use crate::{Device, Error, LoadOptions, device};
use graph::{Backend, Participation, TensorParallel};
use models::{Model, WeightCut};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// How several GPUs share a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// One GPU has all of it.
    None,
    /// Each has layers of its own, with their caches; a token goes through them one after the other.
    Layer,
    /// Each has a part of every layer, of the same size: they work on a token together.
    Tensor,
}

impl Split {
    /// All of them.
    pub const ALL: [Split; 3] = [Split::None, Split::Layer, Split::Tensor];

    /// The name that [`FromStr`] reads.
    pub fn name(self) -> &'static str {
        match self {
            Split::None => "none",
            Split::Layer => "layer",
            Split::Tensor => "tensor",
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Split {
    type Err = Error;

    /// Reads a name. [`Error::Option`] names those that there are.
    fn from_str(name: &str) -> Result<Split, Error> {
        Split::ALL.into_iter().find(|split| split.name() == name).ok_or_else(|| {
            let names = Split::ALL.map(Split::name).join(", ");
            Error::Option { name: "split", message: format!("expected one of {names}, found '{name}'") }
        })
    }
}

/// The accelerators that are to run a model, and what each is to run.
#[derive(Default)]
pub(crate) struct Placed {
    pub(crate) accelerators: Vec<Box<dyn Backend>>,
    pub(crate) participation: Participation,
    /// How weights are cut, where each device has a part of every layer.
    pub(crate) cuts: Vec<WeightCut>,
}

/// Lets the accelerators share every layer. `more` opens all GPUs.
///
/// # Errors
/// [`Error::Model`] for a model that so many devices cannot share, [`Error::Option`] for options that do not go with
/// this, [`Error::Device`] for devices that cannot work together, or have no room.
pub(crate) fn place_tensor_parallel(
    (model, setup, path): (&Model, &Setup, &Path),
    options: &LoadOptions,
    mut accelerators: Vec<Box<dyn Backend>>,
    more: &dyn Fn() -> Result<Vec<Box<dyn Backend>>, Error>,
) -> Result<Placed, Error> {
    let option = |message: &str| Err(Error::Option { name: "split", message: message.into() });
    if options.accelerated_layers.is_some_and(|layers| layers < model.layers()) {
        return option("tensor needs all layers on the GPUs, and does not go with a number of them");
    }
    if !options.shares.is_empty() {
        return option("tensor gives each GPU a part of the same size, and does not go with shares");
    }
    if accelerators.len() == 1 && matches!(options.device, Device::Auto | Device::Cuda) {
        let all = more()?;
        if all.len() > 1 {
            accelerators = all;
        }
    }
    let devices = accelerators.len();
    if devices < 2 {
        return option(&format!("tensor needs at least 2 GPUs, found {devices}"));
    }
    let cuts = model.cuts(devices);
    let cuts = cuts.map_err(|source| Error::Model { path: path.to_path_buf(), source })?;
    let need = setup.need(model, Some(devices))?.of_last(model.layers());
    for accelerator in &accelerators {
        let Some(usable) = accelerator.usable_memory().filter(|&usable| need.total() > usable) else {
            continue;
        };
        let message = format!(
            "each of {devices} devices needs {need}; {} can be had. A shorter context (--ctx) needs less",
            readable(usable)
        );
        return Err(Error::Device { name: accelerator.name().into(), message });
    }
    device::connect(&mut accelerators)?;
    let by_name = cuts.iter().map(|cut| (cut.name.clone(), cut.cut)).collect();
    let group: Box<dyn Backend> = Box::new(TensorParallel::new(accelerators, by_name));
    let participation = Participation {
        accelerators: vec![group.name().to_owned()],
        tensor_parallel: Some(devices),
        ..Participation::default()
    };
    Ok(Placed { accelerators: vec![group], participation, cuts })
}

/// What is told where no accelerator takes part, and options ask for one.
pub(crate) fn without_accelerators(options: &LoadOptions) -> Option<String> {
    let asked = [
        ("--gpu-layers", options.accelerated_layers.is_some_and(|layers| layers > 0)),
        ("--split-mode", options.split.is_some_and(|split| split != Split::None)),
        ("--tensor-split", !options.shares.is_empty()),
    ];
    let names: Vec<&str> = asked.into_iter().filter_map(|(name, asked)| asked.then_some(name)).collect();
    let why = if options.device == Device::Cpu { "the CPU was chosen" } else { "no GPU was found" };
    (!names.is_empty()).then(|| format!("{} without effect: {why}", names.join(", ")))
}

/// Chooses among accelerators. `more` opens all GPUs, where the first has no room or several were asked for.
///
/// # Errors
/// [`Error::Device`] where a device was named and has no room: a notice otherwise, and the CPU runs all.
/// [`Error::Option`] for shares that are not those of the devices.
pub(crate) fn place(
    need: &Need,
    options: &LoadOptions,
    mut accelerators: Vec<Box<dyn Backend>>,
    more: &dyn Fn() -> Result<Vec<Box<dyn Backend>>, Error>,
    notices: &mut Vec<String>,
) -> Result<Placed, Error> {
    if options.split == Some(Split::None) {
        accelerators.truncate(1);
    }
    let layers = options.accelerated_layers.unwrap_or(need.layers()).min(need.layers());
    let open = matches!(options.device, Device::Auto | Device::Cuda)
        && matches!(accelerators.as_slice(), [only] if only.usable_memory().is_some());
    let asked = matches!(options.split, Some(Split::Layer)) || !options.shares.is_empty();
    if open && options.split != Some(Split::None) && (asked || !fits(need, layers, accelerators[0].as_ref()))
    {
        match more() {
            Ok(all) if all.len() > 1 => accelerators = all,
            Ok(_) => {}
            // One that nobody asked for does not work: the first may do with a part.
            Err(error) if !asked => notices.push(error.to_string()),
            Err(error) => return Err(error),
        }
    }
    let mut split = match share(need, layers, &accelerators, &options.shares) {
        Ok(split) => split,
        Err(Error::Device { name, message }) if options.device == Device::Auto => {
            notices.push(format!("device '{name}' takes no part: {message}"));
            return Ok(Placed::default());
        }
        Err(error) => return Err(error),
    };
    // Who has no layers takes no part; one that has all of them needs no split.
    let mut counts = split.iter();
    accelerators.retain(|_| layers == 0 || counts.next().is_none_or(|&count| count > 0));
    split.retain(|&count| count > 0);
    if accelerators.len() == 1 {
        split.clear();
    }
    let participation = Participation {
        accelerators: names(&accelerators),
        layers: options.accelerated_layers,
        split,
        tensor_parallel: None,
    };
    Ok(Placed { accelerators, participation, cuts: Vec::new() })
}

fn names(accelerators: &[Box<dyn Backend>]) -> Vec<String> {
    accelerators.iter().map(|accelerator| accelerator.name().to_owned()).collect()
}

fn fits(need: &Need, layers: usize, accelerator: &dyn Backend) -> bool {
    accelerator.usable_memory().is_none_or(|usable| need.of_last(layers).total() <= usable)
}

/// How many of the last layers each accelerator has.
fn share(
    need: &Need,
    layers: usize,
    accelerators: &[Box<dyn Backend>],
    shares: &[f64],
) -> Result<Vec<usize>, Error> {
    let range = need.layers() - layers..need.layers();
    if !shares.is_empty() {
        let usable = shares.iter().all(|share| share.is_finite() && *share >= 0.0);
        if shares.len() != accelerators.len() || !usable || shares.iter().sum::<f64>() <= 0.0 {
            let message = format!(
                "expected {} numbers that are not negative nor all 0, one for each of {}; found {shares:?}",
                accelerators.len(),
                names(accelerators).join(", ")
            );
            return Err(Error::Option { name: "shares of the layers", message });
        }
    }
    // A device without memory of its own takes what it is given.
    let room: Vec<usize> =
        accelerators.iter().map(|accelerator| accelerator.usable_memory().unwrap_or(usize::MAX)).collect();
    let by_room: Vec<f64> = room.iter().map(|&bytes| bytes as f64).collect();
    let split = need.split(range.clone(), if shares.is_empty() { &by_room } else { shares });
    let mut start = range.start;
    let short = split.iter().zip(&room).position(|(&count, &room)| {
        let part = start..start + count;
        start += count;
        need.of_layers(part).total() > room
    });
    let Some(short) = short else { return Ok(split) };
    if shares.is_empty()
        && let Some(filled) = need.fill(range.clone(), &room)
    {
        return Ok(filled);
    }
    let name = names(accelerators).join(",");
    let most = (1..need.layers()).rev().find(|&n| {
        let range = need.layers() - n..need.layers();
        need.fill(range, &room).is_some()
    });
    let advice = match most {
        Some(most) => format!(
            "The last {most} of {} layers would fit (--gpu-layers {most}); a shorter context (--ctx) needs less",
            need.layers()
        ),
        None => {
            "Not even one layer would fit (--gpu-layers); a shorter context (--ctx) needs less".to_owned()
        }
    };
    let part = if layers == need.layers() {
        "the model needs".to_owned()
    } else {
        format!("the last {layers} of {} layers need", need.layers())
    };
    let of_each = if room.len() == 1 {
        format!("{} can be had", readable(room[0]))
    } else if shares.is_empty() {
        format!("{} can be had", room.iter().map(|&room| readable(room)).collect::<Vec<_>>().join(" + "))
    } else {
        format!(
            "{} can be had on '{}', too little for its share",
            readable(room[short]),
            accelerators[short].name()
        )
    };
    let message = format!("{part} {}; {of_each}. {advice}", need.of_last(layers));
    Err(Error::Device { name, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::testing::{Control, Fault};

    /// Devices with so much room for four layers of 12 bytes, an embedding of 4 and a head of 6.
    fn placed(room: &[usize], options: &LoadOptions) -> (Result<Placed, Error>, Vec<String>) {
        let control = Control::new();
        let backend = |index: usize| {
            let name = format!("cuda:{index}");
            control.fail(&name, Fault::Memory(room[index]));
            Box::new(control.backend(&name)) as Box<dyn Backend>
        };
        let all = || Ok((0..room.len()).map(backend).collect());
        let mut notices = Vec::new();
        let placed = place(&Need::for_tests(), options, vec![backend(0)], &all, &mut notices);
        (placed, notices)
    }

    fn split(room: &[usize], options: &LoadOptions) -> (Vec<String>, Vec<usize>) {
        let (placed, notices) = placed(room, options);
        assert!(notices.is_empty(), "{notices:?}");
        let Participation { accelerators, split, .. } = placed.unwrap().participation;
        (accelerators, split)
    }

    #[test]
    fn one_gpu_has_all_if_it_has_room_and_no_other_was_asked_for() {
        let automatic = LoadOptions::default();
        let cuda = LoadOptions { device: Device::Cuda, ..LoadOptions::default() };
        let layers = LoadOptions { split: Some(Split::Layer), ..LoadOptions::default() };
        let shares = LoadOptions { shares: vec![3.0, 1.0], ..LoadOptions::default() };
        let both = || vec!["cuda:0".to_owned(), "cuda:1".to_owned()];
        let one = || vec!["cuda:0".to_owned()];
        for (options, room, expected) in [
            (&automatic, [59, 59], (one(), vec![])),
            (&cuda, [59, 59], (one(), vec![])),
            (&cuda, [58, 58], (both(), vec![2, 2])),
            (&automatic, [40, 40], (both(), vec![2, 2])),
            // By room alone the first would have three layers, with the embedding one byte too many.
            (&automatic, [40, 31], (both(), vec![2, 2])),
            (&layers, [100, 100], (both(), vec![2, 2])),
            (&shares, [100, 100], (both(), vec![3, 1])),
        ] {
            assert_eq!(split(&room, options), expected, "{:?} {room:?}", options.device);
        }
        let some = LoadOptions { accelerated_layers: Some(2), ..LoadOptions::default() };
        assert_eq!(split(&[31, 0], &some), (one(), vec![]));
        assert_eq!(split(&[19, 19], &some), (both(), vec![1, 1]));
    }

    #[test]
    fn what_nobody_has_room_for_is_told_with_what_would_fit() {
        let (result, notices) = placed(&[30, 30], &LoadOptions::default());
        assert!(result.unwrap().accelerators.is_empty());
        let [notice] = notices.as_slice() else { panic!("{notices:?}") };
        assert!(notice.starts_with("device 'cuda:0,cuda:1' takes no part: the model needs"), "{notice}");
        assert!(notice.contains("+") && notice.contains("The last 3 of 4 layers would fit (--gpu-layers 3)"));

        let cuda = LoadOptions { device: Device::Cuda, split: Some(Split::None), ..LoadOptions::default() };
        let error = placed(&[43, 100], &cuda).0.err().expect("there is no room").to_string();
        assert!(error.contains("'cuda:0'") && error.contains("--gpu-layers 3"), "{error}");
        let shares = LoadOptions { device: Device::Cuda, shares: vec![1.0, 1.0], ..LoadOptions::default() };
        let error = placed(&[29, 10], &shares).0.err().expect("there is no room").to_string();
        assert!(error.contains("'cuda:1', too little for its share"), "{error}");
    }

    #[test]
    fn options_for_gpus_that_there_are_not_are_told() {
        assert_eq!(without_accelerators(&LoadOptions::default()), None);
        let none =
            LoadOptions { split: Some(Split::None), accelerated_layers: Some(0), ..LoadOptions::default() };
        assert_eq!(without_accelerators(&none), None);
        let cpu = LoadOptions { accelerated_layers: Some(20), device: Device::Cpu, ..LoadOptions::default() };
        let told = without_accelerators(&cpu).unwrap();
        assert_eq!(told, "--gpu-layers without effect: the CPU was chosen");
        let both =
            LoadOptions { split: Some(Split::Tensor), shares: vec![1.0, 2.0], ..LoadOptions::default() };
        let told = without_accelerators(&both).unwrap();
        assert_eq!(told, "--split-mode, --tensor-split without effect: no GPU was found");
    }

    #[test]
    fn ways_to_share_have_names() {
        for split in Split::ALL {
            assert_eq!(split.to_string().parse::<Split>().unwrap(), split);
        }
        let error = "rows".parse::<Split>().unwrap_err().to_string();
        assert!(error.contains("none, layer, tensor") && error.contains("'rows'"), "{error}");
    }
}
