//! Where the time goes: the host's by operation, and the device's by phase.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

/// Lines of the table of operations.
const LINES: usize = 20;

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u64,
    time: Duration,
}

/// Times that were added up.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    operations: HashMap<&'static str, Sum>,
    phases: HashMap<String, Sum>,
    waited: Sum,
}

impl Profile {
    /// The host's time for one node.
    pub fn encoded(&mut self, operation: &'static str, time: Duration) {
        add(self.operations.entry(operation).or_default(), time);
    }

    /// The device's time for the dispatches between two barriers.
    pub fn phase(&mut self, name: &str, time: Duration) {
        // The name is only copied where it is new.
        match self.phases.get_mut(name) {
            Some(sum) => add(sum, time),
            None => add(self.phases.entry(name.to_owned()).or_default(), time),
        }
    }

    /// The host's wait for one submission.
    pub fn waited(&mut self, time: Duration) {
        add(&mut self.waited, time);
    }

    /// The tables, most time first; empty where nothing was measured.
    pub fn report(&self) -> String {
        let mut text = String::new();
        table(&mut text, "encoding, by operation", &self.operations);
        table(&mut text, "device, by phase", &self.phases);
        if self.waited.count > 0 {
            let Sum { count, time } = self.waited;
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "waited {:.3} ms for {count} submissions", milliseconds(time));
        }
        text
    }
}

fn add(sum: &mut Sum, time: Duration) {
    sum.count += 1;
    sum.time += time;
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn table<K: AsRef<str>>(text: &mut String, title: &str, sums: &HashMap<K, Sum>) {
    if sums.is_empty() {
        return;
    }
    let mut lines: Vec<_> = sums.iter().map(|(name, sum)| (name.as_ref(), *sum)).collect();
    lines.sort_by(|a, b| b.1.time.cmp(&a.1.time).then(a.0.cmp(b.0)));
    let total: Duration = lines.iter().map(|(_, sum)| sum.time).sum();
    // Writing to a `String` cannot fail.
    let _ = writeln!(text, "{title}: {:.3} ms", milliseconds(total));
    for (name, Sum { count, time }) in lines.into_iter().take(LINES) {
        let share = 100.0 * time.as_secs_f64() / total.as_secs_f64().max(f64::MIN_POSITIVE);
        let _ = writeln!(text, "{:>12.3} ms {share:>5.1} % {count:>8} x {name}", milliseconds(time));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted_by_time() {
        let mut profile = Profile::default();
        assert_eq!(profile.report(), "");
        profile.encoded("MatMul", Duration::from_millis(3));
        profile.encoded("RmsNorm", Duration::from_millis(1));
        profile.encoded("MatMul", Duration::from_millis(6));
        profile.phase("attn_q + attn_k", Duration::from_millis(5));
        profile.waited(Duration::from_millis(2));
        let expected = "\
encoding, by operation: 10.000 ms
       9.000 ms  90.0 %        2 x MatMul
       1.000 ms  10.0 %        1 x RmsNorm
device, by phase: 5.000 ms
       5.000 ms 100.0 %        1 x attn_q + attn_k
waited 2.000 ms for 1 submissions
";
        assert_eq!(profile.report(), expected);
    }
}
