//! A device with the sanitizer, and what it finds.
#![allow(dead_code, reason = "every test file uses another part")]

use std::time::Duration;

use metal::device::*;
use metal_sim::device::{Settings, SimDevice};
use metal_sim::profile::Profile;
use metal_sim::sanitize::{self, Kind, Report};

use super::Lab;

/// The seeds that every test tries: the order of threads must not decide what is found.
pub const SEEDS: [u64; 3] = [1, 2, 3];

pub fn device(seed: u64) -> SimDevice {
    with_steps(seed, 4_000_000)
}

fn with_steps(seed: u64, steps: u64) -> SimDevice {
    with(sanitize::Settings { seed, steps, ..sanitize::Settings::default() })
}

pub fn with(sanitizer: sanitize::Settings) -> SimDevice {
    let settings = Settings { threads: 2, budget: Duration::from_millis(100) };
    match SimDevice::with_sanitizer(Profile::default(), settings, sanitizer) {
        Ok(device) => device,
        Err(error) => panic!("these tests need clang: {error}"),
    }
}

pub fn lab(name: &str, source: &str, seed: u64) -> Lab {
    Lab::on(device(seed), name, source, &CompileOptions::default())
}

/// Without the small number of steps.
pub fn lab_for_speed(name: &str, source: &str) -> Lab {
    Lab::on(with_steps(1, 1 << 40), name, source, &CompileOptions::default())
}

/// `file:line` of the line that ends with the comment `@mark`.
pub fn place((name, source): (&str, &str), mark: &str) -> String {
    let mark = format!("// @{mark}");
    let mut lines = source.lines().enumerate().filter(|(_, line)| line.ends_with(&mark));
    let Some((line, _)) = lines.next() else { panic!("{name}: no line ends with {mark}") };
    assert!(lines.next().is_none(), "{name}: two lines end with {mark}");
    format!("{name}:{}", line + 1)
}

/// Runs with every seed; what is found must be one class of faults, at these marks.
pub fn finds(
    (name, source): (&str, &str),
    run: impl Fn(&Lab) -> Result<GpuInterval>,
    kind: Kind,
    mark: &str,
    other: Option<&str>,
) -> Vec<Report> {
    let place = &*place((name, source), mark);
    let other = other.map(|mark| self::place((name, source), mark));
    let other = other.as_deref();
    let mut last = Vec::new();
    for seed in SEEDS {
        let lab = lab(name, source, seed);
        let result = run(&lab);
        let reports = lab.device.sanitizer().unwrap().take_reports();
        let all: Vec<String> = reports.iter().map(ToString::to_string).collect();
        let text = all.join("\n");
        assert!(result.is_err(), "{place}: {text}");
        let here = |side: &metal_sim::sanitize::Party, place: &str| side.place.as_deref() == Some(place);
        let found = reports.iter().any(|report| {
            let sides = |first, second: Option<&str>| {
                here(&report.party, first)
                    && second
                        .is_none_or(|second| report.other.as_ref().is_some_and(|other| here(other, second)))
            };
            report.kind == kind
                && (sides(place, other) || other.is_some_and(|other| sides(other, Some(place))))
        });
        assert!(found, "{kind} at {place} and {other:?} with seed {seed}: found {text}");
        assert!(reports.iter().all(|report| report.kind == kind), "only {kind}: {text}");
        assert!(reports.iter().all(|report| report.seed == seed));
        last = reports;
    }
    last
}

/// Runs with every seed; nothing may be found.
pub fn clean((name, source): (&str, &str), run: impl Fn(&Lab) -> Result<GpuInterval>) {
    for seed in SEEDS {
        let lab = lab(name, source, seed);
        if let Err(error) = run(&lab) {
            panic!("seed {seed}: {error}");
        }
        assert_eq!(lab.device.sanitizer().unwrap().reports(), []);
    }
}
