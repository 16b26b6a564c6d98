//! `smelt bench --counts`: what an accelerator is given for a prompt and for a token, in numbers.

use super::bench::{Work, check_interrupt, feed, next_token};
use crate::error::{Error, Result};
use crate::output::{print, print_json};
use engine::{Engine, Step, Wanted};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The counts of one test on one device.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Counted {
    device: String,
    test: String,
    /// What the counts are for: the whole `prompt`, or one `token` of those generated.
    per: &'static str,
    counts: BTreeMap<&'static str, f64>,
}

/// Runs each test once.
pub(super) fn count(engine: &mut Engine, works: &[Work], depths: &[usize]) -> Result<Vec<Counted>> {
    let mut rows = Vec::new();
    for &depth in depths {
        for &work in works {
            let mut sequence = engine.sequence();
            feed(engine, &mut sequence, depth)?;
            let before = totals(engine);
            match work {
                Work::Prompt(tokens) => feed(engine, &mut sequence, tokens)?,
                Work::Generate(tokens) => {
                    for _ in 0..tokens {
                        let tokens = [next_token(engine, sequence.len())];
                        let step = Step { sequence: &mut sequence, tokens: &tokens, wanted: Wanted::Last };
                        engine.forward(&mut [step])?;
                        check_interrupt()?;
                    }
                }
            }
            let after = totals(engine);
            engine.release(sequence);
            let (per, units) = match work {
                Work::Prompt(_) => ("prompt", 1),
                Work::Generate(tokens) => ("token", tokens),
            };
            for ((device, before), (_, after)) in before.into_iter().zip(after) {
                let difference =
                    |(name, after)| (name, (after - before.get(name).unwrap_or(&0.0)) / units as f64);
                let counts = after.into_iter().map(difference).collect();
                rows.push(Counted { device, test: work.name(depth), per, counts });
            }
        }
    }
    if rows.is_empty() {
        return Err(Error::Usage("--counts: the device counts nothing".into()));
    }
    Ok(rows)
}

/// Every counter of every backend that has any.
fn totals(engine: &Engine) -> Vec<(String, BTreeMap<&'static str, f64>)> {
    let backends = engine.counters().into_iter().filter(|(_, counters)| !counters.is_empty());
    backends
        .map(|(name, counters)| {
            let counters = counters.into_iter().map(|(counter, value)| (counter, value as f64)).collect();
            (name.to_owned(), counters)
        })
        .collect()
}

/// Prints the rows as a Markdown table or as JSON.
pub(super) fn show(rows: &[Counted], json: bool) -> Result<()> {
    if json { print_json(&rows) } else { print(&markdown(rows)) }
}

fn markdown(rows: &[Counted]) -> String {
    let mut text = String::new();
    // Writing to a `String` cannot fail.
    for (index, row) in rows.iter().enumerate() {
        if index == 0 || !row.counts.keys().eq(rows[index - 1].counts.keys()) {
            let _ = write!(text, "| device | test | per |");
            for name in row.counts.keys() {
                let _ = write!(text, " {name} |");
            }
            let _ = write!(text, "\n|---|---|---|");
            text.push_str(&"---:|".repeat(row.counts.len()));
            text.push('\n');
        }
        let _ = write!(text, "| {} | {} | {} |", row.device, row.test, row.per);
        for count in row.counts.values() {
            let digits = if count.fract() == 0.0 { 0 } else { 1 };
            let _ = write!(text, " {count:.digits$} |");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_a_column_for_every_counter() {
        let row = |test: &str, per, counts: &[(&'static str, f64)]| Counted {
            device: "metal".into(),
            test: test.into(),
            per,
            counts: counts.iter().copied().collect(),
        };
        let rows = [
            row("pp8", "prompt", &[("barriers", 3.0), ("dispatches", 5.0)]),
            row("tg2", "token", &[("barriers", 1.5), ("dispatches", 4.0)]),
        ];
        let expected = "\
| device | test | per | barriers | dispatches |
|---|---|---|---:|---:|
| metal | pp8 | prompt | 3 | 5 |
| metal | tg2 | token | 1.5 | 4 |
";
        assert_eq!(markdown(&rows), expected);
    }
}
