//! `smelt devices`: lists the devices that can run models, and what a model needs of them.

use crate::args::DevicesArgs;
use crate::error::Result;
use crate::load::resolve;
use crate::output::{Output, print, print_json};
use engine::{Device, Fit, readable};
use serde::Serialize;
use std::fmt::Write;

#[derive(Serialize)]
struct Entry {
    name: String,
    description: String,
    #[serde(flatten)]
    need: Option<Need>,
}

/// What a model needs of a device, in bytes.
#[derive(Serialize)]
struct Need {
    weights: usize,
    cache: usize,
    activations: usize,
    /// What can be had; `null` where it is the host's.
    usable: Option<usize>,
    layers: usize,
    fitting_layers: usize,
    fits: bool,
}

/// Runs the command.
pub fn run(args: &DevicesArgs, output: &Output) -> Result<()> {
    let fits = match &args.model {
        Some(model) => Fit::of(&resolve(model, output)?, &args.load.options())?,
        None => Device::available().into_iter().map(|(name, description)| known(name, description)).collect(),
    };
    if args.json {
        return print_json(&fits.into_iter().map(entry).collect::<Vec<_>>());
    }
    let mut text = String::new();
    for fit in &fits {
        let _ = writeln!(text, "{:<10} {}", fit.name, fit.description);
        if let Some(need) = fit.need {
            let _ = writeln!(text, "{:<10} needs {need}; {}", "", verdict(fit));
        }
    }
    print(&text)
}

/// A device of which no model was asked.
fn known(name: String, description: String) -> Fit {
    Fit { name, description, need: None, usable: None, layers: 0, fitting: 0 }
}

fn verdict(fit: &Fit) -> String {
    let Some(usable) = fit.usable else { return "of the machine's memory, taken as it fills".into() };
    let usable = readable(usable);
    match fit.fitting {
        all if all == fit.layers => format!("fits into {usable}"),
        0 => format!("no layer fits into {usable}"),
        some => format!(
            "does not fit into {usable}: the last {some} of {} layers do (--gpu-layers {some})",
            fit.layers
        ),
    }
}

fn entry(fit: Fit) -> Entry {
    let need = fit.need.map(|need| Need {
        weights: need.weights,
        cache: need.cache,
        activations: need.activations,
        usable: fit.usable,
        layers: fit.layers,
        fitting_layers: fit.fitting,
        fits: fit.fitting == fit.layers,
    });
    Entry { name: fit.name, description: fit.description, need }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_says_what_fits() {
        let fit =
            |fitting, usable| Fit { layers: 28, fitting, usable, ..known("cuda".into(), String::new()) };
        for (fit, expected) in [
            (fit(28, Some(3 << 29)), "fits into 1.5 GiB"),
            (
                fit(12, Some(1 << 30)),
                "does not fit into 1.0 GiB: the last 12 of 28 layers do (--gpu-layers 12)",
            ),
            (fit(0, Some(0)), "no layer fits into 0 MiB"),
            (fit(28, None), "of the machine's memory, taken as it fills"),
        ] {
            assert_eq!(verdict(&fit), expected);
        }
    }
}
