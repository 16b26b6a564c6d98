//! Speed of a whole model on the GPU, without tokenizer or sampling:
//!
//!     cargo run --release -p smelt-cuda --example bench -- MODEL.gguf tg:128 tg:128@4096 pp:2048 tg:64x32
//!
//! `tg:N@D` decodes N tokens after D others (whose keys are zeros), `tg:NxB` with B sequences, `pp:N` reads a prompt of N.
//! Medians of five. A decode step is greedy: its tokens come to the host, and the logits stay on the GPU. With `tk` instead of
//! `tg` the 40 highest of them come too, and `tl` copies all. With `layer:N` or `tensor:N` before
//! them, N GPUs share the layers, or every layer. The largest logit of the last forward's first row is printed, to compare.

use bytes::Bytes;
use cuda::CudaBackend;
use graph::{
    Backend, Batch, CacheParams, DType, GraphParams, Largest, Participation, Scheduler, TensorParallel,
    WeightData,
};
use models::Model;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const PAGE: usize = 64;
const RUNS: usize = 5;

struct Mapped(Arc<gguf::File>, usize);

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        self.0.parts()[self.1].bytes()
    }
}

struct Bench {
    model: Model,
    scheduler: Scheduler,
    participation: Participation,
    logits: Vec<f32>,
    largest: Option<Largest>,
}

/// The devices, and their parts in the model.
type Devices = (Vec<Box<dyn Backend>>, Participation);

/// The devices, and what they share: `one`, `layer:N` or `tensor:N`.
fn devices(on: &str, model: &Model) -> Result<Devices, Box<dyn Error>> {
    let (kind, count) = on.split_once(':').unwrap_or((on, "1"));
    let count: usize = count.parse()?;
    let mut gpus = (0..count).map(CudaBackend::open).collect::<Result<Vec<_>, _>>()?;
    gpus.iter().for_each(|gpu| println!("{}: {}", gpu.name(), gpu.description()));
    let tensor = kind == "tensor";
    if tensor {
        cuda::connect(&mut gpus.iter_mut().collect::<Vec<_>>())?;
    }
    let boxed = gpus.into_iter().map(|gpu| Box::new(gpu) as Box<dyn Backend>).collect();
    let backends: Vec<Box<dyn Backend>> = if tensor {
        let cuts = model.cuts(count)?.into_iter().map(|cut| (cut.name, cut.cut)).collect();
        vec![Box::new(TensorParallel::new(boxed, cuts))]
    } else {
        boxed
    };
    let layers = model.layers();
    let split = (0..count).map(|gpu| layers * (gpu + 1) / count - layers * gpu / count).collect();
    let participation = Participation {
        accelerators: backends.iter().map(|backend| backend.name().to_owned()).collect(),
        split: if tensor { Vec::new() } else { split },
        tensor_parallel: tensor.then_some(count),
        layers: None,
    };
    Ok((backends, participation))
}

impl Bench {
    fn load(path: &Path, on: &str) -> Result<Bench, Box<dyn Error>> {
        let start = Instant::now();
        let file = Arc::new(gguf::File::open(path)?);
        let model = Model::load(&file)?;
        let (backends, participation) = devices(on, &model)?;
        let mut scheduler = Scheduler::new(backends);
        let parts: Vec<Bytes> =
            (0..file.parts().len()).map(|part| Bytes::from_owner(Mapped(Arc::clone(&file), part))).collect();
        for weight in model.weights() {
            let info = file.tensor(&weight.name).ok_or("a weight is missing")?;
            let range = info.offset as usize..(info.offset + info.len) as usize;
            let (format, rows, cols) = (weight.format, weight.rows, weight.cols);
            let bytes = parts[info.part].slice(range);
            scheduler
                .register_weight(&weight.name, WeightData { format, rows, cols, bytes, release: None })?;
        }
        let mut bench = Bench { model, scheduler, participation, logits: Vec::new(), largest: None };
        bench.step(1, 1, 0, 4096, Some(1))?;
        println!("load to the first token: {:.2} s", start.elapsed().as_secs_f64());
        Ok(bench)
    }

    /// A forward of `sequences` sequences, each of `new` tokens after `depth` others. Logits of the last of each.
    fn step(
        &mut self,
        sequences: usize,
        new: usize,
        depth: usize,
        context: usize,
        highest: Option<usize>,
    ) -> Result<f64, Box<dyn Error>> {
        let pages_each = context.div_ceil(PAGE);
        let groups = self.model.cache_groups().len();
        let fused = new * sequences == 1;
        let params = GraphParams {
            tokens: sequences * new,
            outputs: sequences,
            sequences,
            max_pages: pages_each,
            cache: CacheParams {
                key: DType::F16,
                value: DType::F16,
                page_len: PAGE,
                pages: vec![pages_each * sequences; groups],
            },
            participation: self.participation.clone(),
            head: true,
            fuse_qkv: fused,
            fuse_ffn: fused,
        };
        let mut batch = Batch::default();
        let (mut rows, mut table) = (Vec::new(), Vec::new());
        batch.query_ranges.push(0);
        for sequence in 0..sequences {
            let page = |logical: usize| (sequence * pages_each + logical) as i32;
            for position in depth..depth + new {
                batch.tokens.push(((position * 7919 + sequence * 31) % 1000) as i32);
                batch.positions.push(position as i32);
                rows.push(page(position / PAGE) * PAGE as i32 + (position % PAGE) as i32);
            }
            batch.query_ranges.push(batch.tokens.len() as i32);
            batch.kv_lens.push((depth + new) as i32);
            table.extend((0..pages_each).map(page));
            batch.out_rows.push(batch.tokens.len() as i32 - 1);
        }
        (batch.cache_rows, batch.page_tables) = (vec![rows; groups], vec![table; groups]);
        batch.validate(&params, self.model.vocabulary())?;
        self.scheduler.prepare(&params, |params| self.model.graph(params))?;
        let start = Instant::now();
        self.scheduler.run(&batch)?;
        let ran = start.elapsed().as_secs_f64();
        if let Some(count) = highest {
            let tokens =
                self.scheduler.largest_of_output(0, 0..sequences, count)?.ok_or("no largest logits")?;
            assert!(tokens.iter().all(|largest| largest.value.is_finite()), "a logit is no number");
            self.largest = tokens.first().copied();
            return Ok(ran);
        }
        self.logits.resize(sequences * self.model.vocabulary(), 0.0);
        self.scheduler.read_output(0, 0..sequences, &mut self.logits)?;
        assert!(self.logits.iter().all(|logit| logit.is_finite()), "a logit is no number");
        Ok(ran)
    }

    fn run(&mut self, what: &str) -> Result<(), Box<dyn Error>> {
        let (kind, rest) = what.split_once(':').ok_or("expected tg:N or pp:N")?;
        let (rest, depth) = rest.split_once('@').unwrap_or((rest, "0"));
        let (count, sequences) = rest.split_once('x').unwrap_or((rest, "1"));
        let (count, sequences, depth): (usize, usize, usize) =
            (count.parse()?, sequences.parse()?, depth.parse()?);
        let context = (depth + count).next_multiple_of(4096);
        let mut rates = Vec::new();
        let mut kernels = Vec::new();
        for _ in 0..RUNS {
            if kind == "pp" {
                let mut seconds = 0.0;
                for first in (0..count).step_by(2048) {
                    seconds +=
                        self.step(sequences, (count - first).min(2048), depth + first, context, Some(1))?;
                }
                rates.push((count * sequences) as f64 / seconds);
                kernels.push(seconds);
            } else {
                let highest = match kind {
                    "tg" => Some(1),
                    "tk" => Some(40),
                    _ => None,
                };
                let start = Instant::now();
                let mut inside = 0.0;
                for token in 0..count {
                    inside += self.step(sequences, 1, depth + token, context, highest)?;
                }
                rates.push((count * sequences) as f64 / start.elapsed().as_secs_f64());
                kernels.push(inside / count as f64);
            }
        }
        rates.sort_by(f64::total_cmp);
        kernels.sort_by(f64::total_cmp);
        println!(
            "{what}: {:.1} tok/s (from {:.1} to {:.1}); forward {:.1} us",
            rates[RUNS / 2],
            rates[0],
            rates[RUNS - 1],
            kernels[RUNS / 2] * 1e6
        );
        if let Some(Largest { index, value }) = self.largest {
            println!("    largest logit {value:.5}, of token {index}");
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).peekable();
    let path = args.next().ok_or("expected a model and what to measure")?;
    let shared = args.next_if(|arg| arg.starts_with("layer:") || arg.starts_with("tensor:"));
    let mut bench = Bench::load(Path::new(&path), shared.as_deref().unwrap_or("one"))?;
    args.try_for_each(|what| bench.run(&what))
}
