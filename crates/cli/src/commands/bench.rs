//! `smelt bench`: measures the speed of prompts and of generation.

use super::counts;
use crate::args::{BenchArgs, BenchOutput};
use crate::error::{Error, Result};
use crate::output::{Output, print, print_json};
use crate::{interrupt, load};
use engine::{Engine, Needed, Sequence, Step, Wanted};
use serde::Serialize;
use std::ops::ControlFlow;
use std::time::Instant;

/// What is measured in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// A prompt of so many tokens.
    Prompt(usize),
    /// So many tokens, one after another.
    Generate(usize),
}

/// One line.
#[derive(Debug, Serialize)]
struct Row {
    model: String,
    architecture: &'static str,
    device: String,
    threads: usize,
    test: String,
    /// Tokens per second: the median of the repetitions, and the extremes.
    median: f64,
    min: f64,
    max: f64,
    reps: usize,
    /// Generation: bytes of weights and cache that were read per second, in units of 10^9.
    #[serde(skip_serializing_if = "Option::is_none")]
    read_gb_per_s: Option<f64>,
    /// The same, as a share of what a plain loop reads with as many threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    of_memory: Option<f64>,
}

/// Runs the command.
pub fn run(args: &BenchArgs, output: &Output) -> Result<()> {
    let prompts = args.prompt.iter().filter(|&&n| n > 0).map(|&n| Work::Prompt(n));
    let works: Vec<Work> =
        prompts.chain(args.generate.iter().filter(|&&n| n > 0).map(|&n| Work::Generate(n))).collect();
    if works.is_empty() {
        return Err(Error::Usage("nothing to measure: -p and -n are both 0".into()));
    }
    let mut load = args.load.clone();
    let longest = longest(&works, &args.depth)?;
    let context = load.ctx.unwrap_or(longest.tokens);
    longest.check("context (--ctx)", context)?;
    // For the table: what is really used.
    let threads = load::threads(&load, output)?.unwrap_or_else(cpu::default_threads);
    load.threads = Some(threads);
    let mut engine = load::engine_with(&args.model.model, &load, Some(context), output)?;
    if load.ctx.is_none() {
        longest.check("model's context", engine.model().context_length())?;
    }
    let _polled = interrupt::polled();
    if args.counts {
        let rows = counts::count(&mut engine, &works, &args.depth)?;
        return counts::show(&rows, args.output == BenchOutput::Json);
    }
    let total = works.len() * args.depth.len() * (args.reps as usize + 1);
    let bar = output.steps("bench", total as u64);
    let tests = works.len() * args.depth.len();
    // What generation is measured against: every token reads all weights.
    let memory = if works.iter().any(|work| matches!(work, Work::Generate(_))) && engine.device() == "cpu" {
        Some(engine::read_bandwidth(Some(threads))?)
    } else {
        None
    };
    let mut rows = Vec::new();
    for &depth in &args.depth {
        for &work in &works {
            output.step(format_args!("[{}/{tests}] {}", rows.len() + 1, work.name(depth)));
            let mut rates = measure(&mut engine, work, depth, args.reps, &mut || bar.inc(1))?;
            rates.sort_by(f64::total_cmp);
            let read = match work {
                Work::Prompt(_) => None,
                // The cache grows on the way: its middle stands for all.
                Work::Generate(tokens) => {
                    let cache = engine.cache_bytes_per_token(depth + tokens / 2);
                    Some((engine.weight_bytes_per_token()? + cache) as f64 * median(&rates))
                }
            };
            let row = Row {
                model: args.model.model.clone(),
                architecture: engine.model().architecture(),
                device: engine.device().to_owned(),
                threads,
                test: work.name(depth),
                median: median(&rates),
                min: rates[0],
                max: rates[rates.len() - 1],
                reps: rates.len(),
                read_gb_per_s: read.map(|read| read / 1e9),
                of_memory: read.zip(memory).map(|(read, memory)| read / memory),
            };
            if args.output == BenchOutput::Md {
                // At once: the next one may take minutes, or never end.
                let head = if rows.is_empty() { HEAD } else { "" };
                bar.suspend(|| print(&format!("{head}{}", row.markdown())))?;
            }
            rows.push(row);
        }
    }
    bar.finish_and_clear();
    match args.output {
        BenchOutput::Md => Ok(()),
        BenchOutput::Json => print_json(&rows),
    }
}

/// The test that needs the largest context.
struct Longest {
    test: String,
    tokens: usize,
}

fn longest(works: &[Work], depths: &[usize]) -> Result<Longest> {
    let deepest = depths.iter().copied().max().unwrap_or(0);
    let Some(&work) = works.iter().max_by_key(|work| work.tokens()) else {
        return Err(Error::Usage("nothing to measure".into()));
    };
    let tokens = work.tokens().checked_add(deepest);
    let tokens = tokens.ok_or_else(|| Error::Usage(format!("-d {deepest} is too deep")))?;
    Ok(Longest { test: work.name(deepest), tokens })
}

impl Longest {
    /// Refuses what `limit` has no room for.
    fn check(&self, what: &str, limit: usize) -> Result<()> {
        if self.tokens <= limit {
            return Ok(());
        }
        let Longest { test, tokens } = self;
        Err(Error::Usage(format!("{test} needs {tokens} tokens, more than the {what} of {limit}")))
    }
}

/// Tokens per second of each repetition, after one that is not counted.
fn measure(
    engine: &mut Engine,
    work: Work,
    depth: usize,
    reps: u32,
    done: &mut dyn FnMut(),
) -> Result<Vec<f64>> {
    let mut sequence = engine.sequence();
    feed(engine, &mut sequence, depth)?;
    let mut rates = Vec::new();
    for rep in 0..=reps {
        // A window may have dropped what lies before: then it has to be fed again.
        let kept = engine.truncate(&mut sequence, depth);
        feed(engine, &mut sequence, depth - kept)?;
        let start = Instant::now();
        match work {
            Work::Prompt(tokens) => feed(engine, &mut sequence, tokens)?,
            Work::Generate(tokens) => {
                for _ in 0..tokens {
                    let tokens = [next_token(engine, sequence.len())];
                    let mut steps = [Step { sequence: &mut sequence, tokens: &tokens, wanted: Wanted::Last }];
                    engine.forward_choosing(&mut steps, &[Needed::Highest(1)])?;
                    check_interrupt()?;
                }
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        // The speed of a broken model means nothing. Of every repetition: a model can break in the middle.
        engine.choice_of(0)?;
        if rep > 0 {
            rates.push(work.tokens() as f64 / seconds);
        }
        done();
    }
    engine.release(sequence);
    Ok(rates)
}

/// Feeds a prompt of `count` tokens.
pub(super) fn feed(engine: &mut Engine, sequence: &mut Sequence, count: usize) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let start = sequence.len();
    let end = start.saturating_add(count);
    if end > engine.context() {
        return Err(engine::Error::ContextExceeded { tokens: end, context: engine.context() }.into());
    }
    let tokens: Vec<u32> = (start..end).map(|position| next_token(engine, position)).collect();
    let run = engine.prefill(sequence, &tokens, Wanted::Last, &mut |_, _| {
        Ok(if interrupt::requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    if run.is_break() { Err(Error::Interrupted) } else { Ok(()) }
}

/// Some token: scattered over the vocabulary, as those of real text are, and the same in every run.
pub(super) fn next_token(engine: &Engine, position: usize) -> u32 {
    // Knuth's multiplicative hash.
    let scattered = (position as u32).wrapping_mul(2_654_435_761);
    ((u64::from(scattered) * engine.model().vocabulary() as u64) >> 32) as u32
}

pub(super) fn check_interrupt() -> Result<()> {
    if interrupt::requested() { Err(Error::Interrupted) } else { Ok(()) }
}

impl Work {
    fn tokens(self) -> usize {
        match self {
            Work::Prompt(tokens) | Work::Generate(tokens) => tokens,
        }
    }

    /// The test's name at a depth, as in the field.
    pub(super) fn name(self, depth: usize) -> String {
        let name = match self {
            Work::Prompt(tokens) => format!("pp{tokens}"),
            Work::Generate(tokens) => format!("tg{tokens}"),
        };
        if depth == 0 { name } else { format!("{name} @ d{depth}") }
    }
}

/// Of sorted numbers, at least one.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// Of the Markdown table.
const HEAD: &str = "\
| model | device | threads | test | tokens/s | min | max | GB/s read | of memory speed |
|---|---|---:|---|---:|---:|---:|---:|---:|
";

impl Row {
    fn markdown(&self) -> String {
        let Row { model, device, threads, test, median, min, max, .. } = self;
        let read = self.read_gb_per_s.map(|read| format!("{read:.1}")).unwrap_or_default();
        let share = self.of_memory.map(|share| format!("{:.0} %", 100.0 * share)).unwrap_or_default();
        format!(
            "| {model} | {device} | {threads} | {test} | {median:.2} | {min:.2} | {max:.2} | {read} | {share} |\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[1.0, 2.0, 9.0]), 2.0);
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), 3.0);
    }

    #[test]
    fn lines_are_named_as_in_the_field() {
        assert_eq!(Work::Prompt(512).name(0), "pp512");
        assert_eq!(Work::Generate(128).name(4096), "tg128 @ d4096");
    }

    #[test]
    fn every_line_fits_in_the_context() {
        let works = [Work::Prompt(512), Work::Generate(128)];
        let found = longest(&works, &[0, 4096]).unwrap();
        assert_eq!((found.test.as_str(), found.tokens), ("pp512 @ d4096", 4608));
        assert!(found.check("context", 4608).is_ok() && found.check("context", 4607).is_err());
        assert!(longest(&works, &[usize::MAX]).is_err());
    }
}
