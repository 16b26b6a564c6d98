//! Counters and times, in the text format of Prometheus.

use crate::model::Model;
use axum::http::StatusCode;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Upper ends of the classes of times, in seconds.
const SECONDS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Routes that are told apart; whatever else is asked for is one class, since anybody can make up paths.
const ROUTES: [&str; 15] = [
    "/",
    "/openapi.json",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/models",
    "/v1/models/{name}",
    "/v1/responses",
    "/v1/responses/{id}",
    "/health",
    "/metrics",
    "/slots",
    "/tokenize",
    "/detokenize",
    "/apply-template",
];

/// What the server counts itself; the rest comes from the engine.
#[derive(Debug, Default)]
pub struct Metrics {
    responses: Mutex<BTreeMap<(&'static str, u16), u64>>,
    first_token: Histogram,
    between_tokens: Histogram,
    whole: Histogram,
}

/// Times of one kind.
#[derive(Debug, Default)]
struct Histogram(Mutex<Times>);

#[derive(Clone, Debug, Default)]
struct Times {
    /// In each class alone.
    classes: [u64; SECONDS.len()],
    count: u64,
    sum: f64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Histogram {
    fn add(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let mut times = lock(&self.0);
        times.count += 1;
        times.sum += seconds;
        if let Some(class) = SECONDS.iter().position(|&end| seconds <= end) {
            times.classes[class] += 1;
        }
    }

    fn render(&self, out: &mut String, name: &str, help: &str) {
        let times = lock(&self.0).clone();
        let mut below = 0;
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        for (end, count) in SECONDS.iter().zip(times.classes) {
            below += count;
            let _ = writeln!(out, "{name}_bucket{{le=\"{end}\"}} {below}");
        }
        let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {}", times.count);
        let _ = writeln!(out, "{name}_sum {}\n{name}_count {}", times.sum, times.count);
    }
}

/// Measures an answer, or several of one request, from the beginning to the end.
#[derive(Debug)]
pub struct WholeTime {
    metrics: Arc<Metrics>,
    start: Instant,
}

impl WholeTime {
    pub fn start(metrics: &Arc<Metrics>) -> WholeTime {
        WholeTime { metrics: Arc::clone(metrics), start: Instant::now() }
    }
}

impl Drop for WholeTime {
    fn drop(&mut self) {
        self.metrics.whole.add(self.start.elapsed());
    }
}

/// Measures the tokens of the answers to a prompt.
#[derive(Debug)]
pub struct TokenTimes {
    metrics: Arc<Metrics>,
    start: Instant,
    /// For each answer, when its last token came.
    last: Vec<Option<Instant>>,
}

impl TokenTimes {
    pub fn start(metrics: &Arc<Metrics>) -> TokenTimes {
        TokenTimes { metrics: Arc::clone(metrics), start: Instant::now(), last: Vec::new() }
    }

    /// A token of an answer has come.
    pub fn token(&mut self, choice: usize) {
        let now = Instant::now();
        if self.last.len() <= choice {
            self.last.resize(choice + 1, None);
        }
        match self.last[choice].replace(now) {
            None => self.metrics.first_token.add(now - self.start),
            Some(last) => self.metrics.between_tokens.add(now - last),
        }
    }
}

impl Metrics {
    /// Counts a response.
    pub fn response(&self, path: &str, status: StatusCode) {
        let is = |route: &str| match route.split_once('{') {
            Some((before, _)) => path.starts_with(before),
            None => path == route,
        };
        let route = ROUTES.iter().find(|route| is(route)).copied().unwrap_or("other");
        *lock(&self.responses).entry((route, status.as_u16())).or_default() += 1;
    }

    /// Everything.
    pub fn render(&self, model: Option<&Model>) -> String {
        let mut out = String::new();
        let name = "smelt_http_responses_total";
        let _ = writeln!(out, "# HELP {name} Responses by route and status.\n# TYPE {name} counter");
        for ((route, status), count) in lock(&self.responses).iter() {
            let _ = writeln!(out, "{name}{{route=\"{route}\",status=\"{status}\"}} {count}");
        }
        self.first_token.render(
            &mut out,
            "smelt_time_to_first_token_seconds",
            "From a request, once it is read, to the first token of each answer.",
        );
        self.between_tokens.render(
            &mut out,
            "smelt_time_between_tokens_seconds",
            "Between an answer's tokens.",
        );
        self.whole.render(&mut out, "smelt_request_seconds", "From a request to the end of its answer.");
        if let Some(model) = model {
            engine(&mut out, model);
        }
        out
    }
}

/// What the engine tells, under our names and those that routers look for.
fn engine(out: &mut String, model: &Model) {
    let stats = model.engine.stats();
    let label: String = model.name.chars().filter(|c| !matches!(c, '"' | '\\' | '\n')).collect();
    let label = format!("{{model_name=\"{label}\"}}");
    let mut put = |name: &str, kind: &str, help: &str, value: f64| {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{label} {value}");
    };
    let usage = stats.pages_running as f64 / stats.pages_total.max(1) as f64;
    let (running, waiting) = (stats.slots.len() as f64, stats.waiting as f64);
    for prefix in ["smelt_", "vllm:"] {
        put(&format!("{prefix}num_requests_running"), "gauge", "Sequences being computed.", running);
        put(&format!("{prefix}num_requests_waiting"), "gauge", "Sequences that wait.", waiting);
        put(
            &format!("{prefix}kv_cache_usage_perc"),
            "gauge",
            "Share of KV pages in use, from 0 to 1.",
            usage,
        );
    }
    put("smelt_kv_pages_running", "gauge", "KV pages in use.", stats.pages_running as f64);
    put("smelt_kv_pages_cached", "gauge", "KV pages that only keep prefixes.", stats.pages_cached as f64);
    put("smelt_kv_pages_total", "gauge", "KV pages.", stats.pages_total as f64);
    put(
        "smelt_healthy",
        "gauge",
        "Whether the engine runs.",
        f64::from(u8::from(model.engine.stopped().is_none())),
    );
    for (name, help, value) in [
        ("smelt_steps_total", "Forward passes.", stats.steps),
        ("smelt_requests_finished_total", "Requests that ended by themselves.", stats.requests_finished),
        ("smelt_requests_cancelled_total", "Requests whose client left.", stats.requests_cancelled),
        ("smelt_requests_failed_total", "Requests that failed.", stats.requests_failed),
        ("smelt_prompt_tokens_total", "Prompt tokens, cached ones too.", stats.prompt_tokens),
        ("smelt_cached_prompt_tokens_total", "Prompt tokens taken from the cache.", stats.cached_tokens),
        ("smelt_generated_tokens_total", "Tokens generated.", stats.generated_tokens),
        ("smelt_embedded_tokens_total", "Tokens of texts that became vectors.", stats.embedded_tokens),
        ("smelt_preemptions_total", "Sequences that gave their pages back for others.", stats.preemptions),
        ("smelt_drafted_tokens_total", "Tokens guessed by prompt lookup.", stats.drafted_tokens),
        ("smelt_accepted_tokens_total", "Guessed tokens that were right.", stats.accepted_tokens),
    ] {
        put(name, "counter", help, value as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_a_histogram_add_up() {
        let histogram = Histogram::default();
        for seconds in [0.001, 0.005, 0.3, 1000.0] {
            histogram.add(Duration::from_secs_f64(seconds));
        }
        let mut out = String::new();
        histogram.render(&mut out, "t", "Times.");
        for line in [
            "t_bucket{le=\"0.005\"} 2",
            "t_bucket{le=\"0.5\"} 3",
            "t_bucket{le=\"300\"} 3",
            "t_bucket{le=\"+Inf\"} 4",
            "t_count 4",
        ] {
            assert!(out.lines().any(|found| found == line), "{line}: {out}");
        }
    }

    #[test]
    fn each_answer_has_its_own_times() {
        let metrics = Arc::default();
        let mut times = TokenTimes::start(&metrics);
        for choice in [0, 2, 0, 2, 0] {
            times.token(choice);
        }
        drop(WholeTime::start(&metrics));
        let count = |histogram: &Histogram| lock(&histogram.0).count;
        let counts = [&metrics.first_token, &metrics.between_tokens, &metrics.whole].map(count);
        assert_eq!(counts, [2, 3, 1]);
    }

    #[test]
    fn made_up_paths_are_one_class() {
        let metrics = Metrics::default();
        metrics.response("/a", StatusCode::NOT_FOUND);
        metrics.response("/b", StatusCode::NOT_FOUND);
        metrics.response("/v1/responses/resp_1", StatusCode::OK);
        metrics.response("/v1/models", StatusCode::OK);
        let out = metrics.render(None);
        for (route, status, count) in
            [("other", 404, 2), ("/v1/responses/{id}", 200, 1), ("/v1/models", 200, 1)]
        {
            let line = format!("smelt_http_responses_total{{route=\"{route}\",status=\"{status}\"}} {count}");
            assert!(out.contains(&line), "{line}: {out}");
        }
    }

    #[test]
    fn the_routes_are_those_that_are_described() {
        let document: serde_json::Value = serde_json::from_str(include_str!("openapi.json")).unwrap();
        let mut described: Vec<_> =
            document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        let mut routes = ROUTES.to_vec();
        described.sort_unstable();
        routes.sort_unstable();
        assert_eq!(described, routes);
    }
}
