use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use minijinja::{Environment, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use crate::environment::{self, NAME, Raised};
use crate::guard;
use crate::objects::{Named, from_json};
use crate::{Error, LocalTime, source};

/// Work allowed for any conversation. About one per instruction and one per 64 bytes of data made.
const BASE_FUEL: u64 = 2_000_000;
/// Work allowed on top for each byte of the conversation.
const FUEL_PER_BYTE: u64 = 16;
/// Bytes of text allowed for any conversation.
const BASE_OUTPUT: usize = 4 << 20;
/// Bytes of text allowed on top for each byte of the conversation.
const OUTPUT_PER_BYTE: usize = 8;

/// Names under which a message carries its reasoning; the first is the one that templates read.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Time for a conversation. Nearly all work is counted, and the budget ends it long before; but when two lists are
/// compared, the engine asks nobody, and lists whose parts are shared take time without end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Parts that time is counted in. While the whole process is stopped (by a signal, or with its container) time passes for
/// nobody; it shall cost no more than the part in which that happened.
const PARTS: u32 = 60;

/// Renderings that were given up and may still run, each of which takes a processor: beyond, none is begun.
const MAX_RUNAWAYS: usize = 4;

/// A chat template, compiled.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    source: String,
    /// [`PATIENCE`], but in tests.
    patience: Duration,
    /// Renderings that were given up and still run.
    runaways: Arc<AtomicUsize>,
    /// [`MAX_RUNAWAYS`], but in tests.
    max_runaways: usize,
}

/// What was said so far, and the tools that the model may call.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// Messages in the form of the OpenAI API: objects with `role`, `content` (a text or a list of parts), and
    /// where it applies `tool_calls`, `reasoning_content`, `name` and `tool_call_id`.
    pub messages: Vec<Json>,
    /// A list of tool definitions, each an object with `type` and `function`.
    pub tools: Option<Json>,
}

/// How to render.
#[derive(Debug, Clone, Default)]
pub struct RenderOptions {
    /// Whether the prompt ends with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Text of the token that begins a sequence; empty if the model has none.
    pub bos_token: String,
    /// Text of the token that ends a sequence; empty if the model has none.
    pub eos_token: String,
    /// Texts that must never arise from the conversation: the model's control tokens.
    pub control_tokens: Vec<String>,
    /// More variables for the template, such as `enable_thinking` or `documents`. They count as part of the
    /// conversation, except those whose name ends in `_token`.
    pub extra: Map<String, Json>,
    /// The time that `strftime_now` tells; `None` is now.
    pub now: Option<LocalTime>,
}

/// A rendered prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rendered {
    /// The text, byte for byte as Python renders it.
    pub text: String,
    /// Byte ranges of `text`, ascending and apart, that may not take part in the match of a control token: a
    /// match that overlaps one of them is plain text.
    pub literal: Vec<Range<usize>>,
}

impl Rendered {
    /// Whether the bytes of `range` overlap a literal range, so that a control token there is plain text.
    pub fn is_literal(&self, range: Range<usize>) -> bool {
        let next = self.literal.partition_point(|literal| literal.end <= range.start);
        self.literal.get(next).is_some_and(|literal| literal.start < range.end)
    }
}

impl Template {
    /// Compiles a template.
    ///
    /// # Errors
    /// [`Error::Syntax`] where Jinja would refuse it too.
    pub fn new(source: &str) -> Result<Self, Error> {
        if source.len() > MAX_SOURCE {
            let message = format!("expected at most {MAX_SOURCE} bytes of template, found {}", source.len());
            return Err(Error::Syntax { line: 0, message });
        }
        let source = source::prepare(source);
        let environment = on_deep_stack(|| environment::compile(source.clone()))
            .map_err(|e| Error::Syntax { line: e.line().unwrap_or(0), message: describe(&e) })?;
        let runaways = Arc::default();
        Ok(Self { environment, source, patience: PATIENCE, runaways, max_runaways: MAX_RUNAWAYS })
    }

    /// The same template, with another time for each conversation than a minute. Work is counted beside; this is for what
    /// cannot be.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Whether no conversation is rendered for now, since too many were given up and still take processors.
    pub fn is_stuck(&self) -> bool {
        self.runaways.load(Ordering::SeqCst) >= self.max_runaways
    }

    /// Renders a conversation.
    ///
    /// As in transformers, message fields that are null count as missing, and reasoning is found under any of
    /// the names `reasoning_content`, `thinking` and `reasoning`.
    ///
    /// A template that itself looks for a control token in a message, as templates of reasoning models look for
    /// `</think>` in what the assistant said, finds it; what it writes then counts as the template's own.
    ///
    /// # Errors
    /// [`Error::Raised`] if the template refuses the conversation, [`Error::Failed`] if it fails, as it would in
    /// Python; [`Error::OutOfFuel`], [`Error::TooLong`], [`Error::TooDeep`] and [`Error::TooSlow`] if it does not behave, and
    /// [`Error::Stuck`] after several of the last; [`Error::NotAnObject`] and [`Error::Empty`] for what is no conversation.
    pub fn render(&self, conversation: &Conversation, options: &RenderOptions) -> Result<Rendered, Error> {
        let inputs = Inputs::new(conversation, options)?;
        let now = options.now.unwrap_or_else(LocalTime::now);
        let left = Cell::new(self.patience);
        let render = |inputs: &Inputs| self.render_once(inputs, options, now, &left);
        guard::render(&inputs, &self.source, &options.control_tokens, render)
    }

    /// Renders in the time that is `left`, which gets less.
    fn render_once(
        &self,
        inputs: &Inputs,
        options: &RenderOptions,
        now: LocalTime,
        left: &Cell<Duration>,
    ) -> Result<String, Error> {
        if self.is_stuck() {
            return Err(Error::Stuck { renderings: self.max_runaways });
        }
        let too_slow = || Error::TooSlow { seconds: self.patience.as_secs() };
        if left.get().is_zero() {
            return Err(too_slow());
        }
        // The thread may outlive this call, so it has everything to itself.
        let (environment, inputs, options) = (self.environment.clone(), inputs.clone(), options.clone());
        let work = move || render_here(environment.clone(), &inputs, &options, now);
        let part = self.patience / PARTS;
        on_deep_stack_within(left, part, &self.runaways, work).unwrap_or_else(|| Err(too_slow()))
    }
}

fn render_here(
    mut environment: Environment<'static>,
    inputs: &Inputs,
    options: &RenderOptions,
    now: LocalTime,
) -> Result<String, Error> {
    let size = inputs.size();
    let fuel = BASE_FUEL.saturating_add(FUEL_PER_BYTE.saturating_mul(size as u64));
    let limit = BASE_OUTPUT.saturating_add(OUTPUT_PER_BYTE.saturating_mul(size));
    environment.set_fuel(Some(fuel));
    let context = inputs.context(options, now);
    let mut out = Bounded { text: Vec::new(), limit, full: false };
    let result =
        environment.get_template(NAME).and_then(|t| t.render_captured_to(context, &mut out).map(drop));
    if out.full {
        return Err(Error::TooLong { limit });
    }
    result.map_err(|error| failure(&error, fuel))?;
    // Only whole texts are written.
    Ok(String::from_utf8_lossy(&out.text).into_owned())
}

/// Longest template, in bytes: ten times the longest in circulation. The parser's recursion grows with the template.
const MAX_SOURCE: usize = 1 << 20;

/// Stack for parsing and rendering. Values can be nested as deep as the step budget allows, and comparing, hashing,
/// printing or dropping them recurses; chains of operators in a template do so when it is parsed. Memory is only taken
/// as the stack is used.
const STACK: usize = 1 << 30;

/// Runs `work` on a thread with so much stack that neither a template's length nor its step budget can exhaust it; on
/// the caller's own where no such thread can be started.
fn on_deep_stack<T: Send>(work: impl Fn() -> T + Sync) -> T {
    std::thread::scope(|scope| {
        // A system that limits address space may refuse the large stack.
        for stack in [STACK, STACK / 16] {
            let builder = std::thread::Builder::new().name("template".into()).stack_size(stack);
            if let Ok(thread) = builder.spawn_scoped(scope, &work) {
                return thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            }
        }
        work()
    })
}

/// The same, but waits no longer than the time that is `left`: then the thread is left to itself, and is one of the
/// `runaways` for as long as it runs.
fn on_deep_stack_within<T: Send + 'static>(
    left: &Cell<Duration>,
    part: Duration,
    runaways: &Arc<AtomicUsize>,
    work: impl Fn() -> T + Send + Sync + 'static,
) -> Option<T> {
    let work = Arc::new(work);
    for stack in [STACK, STACK / 16] {
        let (result, waiting) = mpsc::sync_channel(1);
        let over = Arc::new(AtomicBool::new(false));
        let ending = Ending { over: Arc::clone(&over), runaways: Arc::clone(runaways) };
        let task = Arc::clone(&work);
        let builder = std::thread::Builder::new().name("template".into()).stack_size(stack);
        let thread = builder.spawn(move || {
            let _ending = ending;
            // Nobody waits any more where sending fails.
            let _ = result.send(task());
        });
        let Ok(thread) = thread else { continue };
        return match wait(&waiting, left, part) {
            Ok(result) => Some(result),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                runaways.fetch_add(1, Ordering::SeqCst);
                if over.swap(true, Ordering::SeqCst) {
                    // It has just ended.
                    runaways.fetch_sub(1, Ordering::SeqCst);
                }
                waiting.try_recv().ok()
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let panic = thread.join().expect_err("a thread that sends nothing has panicked");
                std::panic::resume_unwind(panic)
            }
        };
    }
    Some(work())
}

/// Waits for a message no longer than the time that is `left`, part by part.
fn wait<T>(
    waiting: &mpsc::Receiver<T>,
    left: &Cell<Duration>,
    part: Duration,
) -> Result<T, mpsc::RecvTimeoutError> {
    loop {
        let (start, part) = (Instant::now(), part.min(left.get()));
        let received = waiting.recv_timeout(part);
        left.set(left.get() - start.elapsed().min(part));
        if !matches!(received, Err(mpsc::RecvTimeoutError::Timeout)) || left.get().is_zero() {
            return received;
        }
    }
}

/// Takes note at its end that a rendering is over, whether somebody waits for it or not.
struct Ending {
    /// Set by the rendering that ends and by whoever gives it up; the second of them knows of both.
    over: Arc<AtomicBool>,
    runaways: Arc<AtomicUsize>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        if self.over.swap(true, Ordering::SeqCst) {
            self.runaways.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// Everything that comes from the caller, in the form that templates see.
#[derive(Debug, Clone)]
pub(crate) struct Inputs {
    pub(crate) messages: Json,
    pub(crate) tools: Json,
    pub(crate) extra: Map<String, Json>,
}

impl Inputs {
    pub(crate) fn new(conversation: &Conversation, options: &RenderOptions) -> Result<Self, Error> {
        if conversation.messages.is_empty() {
            return Err(Error::Empty);
        }
        let messages = conversation.messages.iter().enumerate();
        let messages = messages.map(|(index, message)| normalised(index, message));
        Ok(Self {
            messages: Json::Array(messages.collect::<Result<_, _>>()?),
            tools: conversation.tools.clone().unwrap_or_default(),
            extra: options.extra.clone(),
        })
    }

    /// Bytes of all texts, and one for each other value.
    fn size(&self) -> usize {
        let extra: usize = self.extra.values().map(json_size).sum();
        json_size(&self.messages) + json_size(&self.tools) + extra
    }

    fn context(&self, options: &RenderOptions, now: LocalTime) -> Value {
        let tokens = [("bos_token", &options.bos_token), ("eos_token", &options.eos_token)];
        let tokens = tokens.into_iter().filter(|(_, token)| !token.is_empty());
        let extra = self.extra.iter().map(|(name, value)| (name.as_str(), from_json(value)));
        // Of equal names the last counts.
        let strftime_now = Value::from_function(move |format: &str| now.strftime(format));
        let pairs = std::iter::once(("documents", Value::from(())))
            .chain(tokens.map(|(name, token)| (name, Value::from(&**token))))
            .chain(extra)
            .chain([
                ("messages", from_json(&self.messages)),
                ("tools", from_json(&self.tools)),
                ("add_generation_prompt", Value::from(options.add_generation_prompt)),
                ("strftime_now", Named::value("<function strftime_now>", strftime_now)),
            ]);
        Value::from_pairs(pairs)
    }
}

fn json_size(value: &Json) -> usize {
    match value {
        Json::String(text) => 1 + text.len(),
        Json::Array(items) => 1 + items.iter().map(json_size).sum::<usize>(),
        Json::Object(map) => 1 + map.iter().map(|(key, value)| key.len() + json_size(value)).sum::<usize>(),
        _ => 1,
    }
}

/// A message without its null fields, its reasoning under the names that templates read.
fn normalised(index: usize, message: &Json) -> Result<Json, Error> {
    let Json::Object(message) = message else {
        let found = match message {
            Json::Null => "null",
            Json::Bool(_) => "a boolean",
            Json::Number(_) => "a number",
            Json::String(_) => "a string",
            _ => "a list",
        };
        return Err(Error::NotAnObject { index, found });
    };
    let fields = message.iter().filter(|(_, value)| !value.is_null());
    let mut fields: Map<_, _> = fields.map(|(key, value)| (key.clone(), value.clone())).collect();
    if let Some(reasoning) = REASONING.iter().find_map(|name| fields.get(*name)).cloned() {
        let mut first = Map::new();
        first.insert("thinking".to_owned(), reasoning.clone());
        first.append(&mut fields);
        first.insert(REASONING[0].to_owned(), reasoning);
        fields = first;
    }
    Ok(Json::Object(fields))
}

/// A text that takes no more than `limit` bytes.
struct Bounded {
    text: Vec<u8>,
    limit: usize,
    full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if data.len() > self.limit - self.text.len() {
            self.full = true;
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.text.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn failure(error: &minijinja::Error, fuel: u64) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Raised(message)) = current.downcast_ref() {
            return Error::Raised(message.clone());
        }
        if let Some(inner) = current.downcast_ref::<minijinja::Error>() {
            if inner.kind() == ErrorKind::OutOfFuel {
                return Error::OutOfFuel { limit: fuel };
            }
            if inner.detail().is_some_and(|detail| detail.contains("recursion limit exceeded")) {
                return Error::TooDeep { line: inner.line().unwrap_or(0) };
            }
        }
        cause = current.source();
    }
    Error::Failed { line: error.line().unwrap_or(0), message: describe(error) }
}

/// The engine's words without the place, which stands elsewhere.
fn describe(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Instant;

    /// Two lists of forty steps, each of which holds the one before twice: 2^40 comparisons.
    const ENDLESS: &str = "{% set ns = namespace(a=[1], b=[1]) %}\
        {% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}\
        {{ ns.a == ns.b }}";

    fn conversation(text: &str) -> Conversation {
        Conversation { messages: vec![json!({"role": "user", "content": text})], tools: None }
    }

    #[test]
    fn a_comparison_without_end_is_given_up_and_others_are_not_begun() {
        let mut template = Template::new(ENDLESS).unwrap();
        (template.patience, template.max_runaways) = (Duration::from_secs(2), 1);
        let start = Instant::now();
        let error = template.render(&conversation("hi"), &RenderOptions::default()).unwrap_err();
        assert_eq!(error, Error::TooSlow { seconds: 2 });
        for _ in 0..100 {
            assert!(template.is_stuck());
            let error = template.render(&conversation("hi"), &RenderOptions::default()).unwrap_err();
            assert_eq!(error, Error::Stuck { renderings: 1 });
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    }

    #[test]
    fn a_late_rendering_leaves_the_template_as_it_was() {
        let steps = |steps: u32| ENDLESS.replace("40", &steps.to_string());
        let source = format!("{{% if messages[0].content == 'slow' %}}{}{{% endif %}}ok", steps(20));
        let mut template = Template::new(&source).unwrap();
        (template.patience, template.max_runaways) = (Duration::from_millis(1), 1);
        let error = template.render(&conversation("slow"), &RenderOptions::default()).unwrap_err();
        assert_eq!(error, Error::TooSlow { seconds: 0 });
        let start = Instant::now();
        while template.is_stuck() {
            assert!(start.elapsed() < Duration::from_secs(100), "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        template.patience = PATIENCE;
        let rendered = template.render(&conversation("quick"), &RenderOptions::default()).unwrap();
        assert_eq!((&*rendered.text, template.is_stuck()), ("ok", false));
    }

    #[test]
    fn a_conversation_has_its_time_for_all_of_its_renderings() {
        let (left, part) = (Cell::new(Duration::from_millis(40)), Duration::from_millis(10));
        let (sender, waiting) = mpsc::channel();
        sender.send(1).unwrap();
        assert_eq!(wait(&waiting, &left, part), Ok(1));
        assert!(left.get() > Duration::from_millis(20), "at most one part: {left:?}");
        assert_eq!(wait(&waiting, &left, part), Err(mpsc::RecvTimeoutError::Timeout));
        assert_eq!(left.get(), Duration::ZERO);
        let template = Template::new("{{ messages[0].content }}").unwrap();
        let inputs = Inputs::new(&conversation("hi"), &RenderOptions::default()).unwrap();
        let rendered = template.render_once(&inputs, &RenderOptions::default(), LocalTime::now(), &left);
        assert_eq!(rendered, Err(Error::TooSlow { seconds: 60 }));
    }

    #[test]
    fn a_panic_of_a_template_is_the_callers() {
        let left = Cell::new(PATIENCE);
        let runaways = Arc::default();
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            on_deep_stack_within(&left, PATIENCE, &runaways, || panic!("words"))
        }));
        assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"words"));
    }
}
