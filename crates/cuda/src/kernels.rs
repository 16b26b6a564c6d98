//! The kernels in use: compiled when they are first asked for.

use crate::CudaError;
use crate::compiler::Compiler;
use crate::driver::{Device, Function, Module};
use crate::driver::{DeviceMemory, Pinned, Stream};
use crate::tiled;
use graph::ops::RopeTable;
use quant::Format;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The shape of a block's work in `gemm.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GemmConfig {
    /// Tiles of 16 rows for each warp.
    pub(crate) tiles: u32,
    /// Groups of 8 tokens for each warp.
    pub(crate) groups: u32,
    /// Warps side by side over the rows.
    pub(crate) row_warps: u32,
    /// Warps side by side over the tokens.
    pub(crate) token_warps: u32,
    /// Units that are in shared memory at a time.
    pub(crate) stages: u32,
}

impl GemmConfig {
    /// One for each range of batches: tokens up to 8, 16, 32, 64, and more.
    pub(crate) const ALL: [GemmConfig; 5] = [
        GemmConfig { tiles: 1, groups: 1, row_warps: 8, token_warps: 1, stages: 3 },
        GemmConfig { tiles: 1, groups: 2, row_warps: 8, token_warps: 1, stages: 3 },
        GemmConfig { tiles: 1, groups: 4, row_warps: 8, token_warps: 1, stages: 3 },
        GemmConfig { tiles: 1, groups: 8, row_warps: 8, token_warps: 1, stages: 2 },
        GemmConfig { tiles: 2, groups: 8, row_warps: 4, token_warps: 2, stages: 2 },
    ];

    /// The one for this many tokens.
    pub(crate) fn of(tokens: usize) -> GemmConfig {
        let index = match tokens {
            0..=8 => 0,
            9..=16 => 1,
            17..=32 => 2,
            33..=64 => 3,
            _ => 4,
        };
        GemmConfig::ALL[index]
    }

    /// Tokens of a block.
    pub(crate) fn tokens(self) -> u32 {
        self.groups * 8 * self.token_warps
    }

    /// Tiles of a block.
    pub(crate) fn block_tiles(self) -> u32 {
        self.tiles * self.row_warps
    }

    /// Threads of a block.
    pub(crate) fn threads(self) -> u32 {
        self.row_warps * self.token_warps * 32
    }

    /// Shared memory of a block, for records of this format.
    pub(crate) fn shared(self, record: tiled::Record) -> u32 {
        // Rows of activations are 64 bytes further apart than they are long, as in the kernel.
        let activations = self.tokens() as usize * (record.unit * 2 + 64);
        let stage = self.block_tiles() as usize * record.bytes + activations;
        (stage * self.stages as usize) as u32
    }
}

/// The shape of a block's work in `gemm_hopper.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HopperConfig {
    /// Rows of activations.
    pub(crate) tokens: u32,
    /// Units of weights that are in shared memory at a time.
    pub(crate) weight_stages: u32,
    /// Panels of activations that are, or where they are few, units of them.
    pub(crate) panel_stages: u32,
    /// Blocks of a multiprocessor.
    pub(crate) blocks: u32,
    /// Whether two matrices make one result.
    pub(crate) gated: bool,
}

impl HopperConfig {
    /// Tiles of a block.
    const TILES: usize = 8;
    /// What `tokens` can be: operands that the tensor cores take, and whole numbers of them.
    const TOKENS: [usize; 7] = [8, 16, 32, 64, 128, 192, 256];
    /// Up to so many, a result takes few registers, and two blocks fit a multiprocessor.
    const FEW: usize = 64;
    /// Up to so many, warps multiply alone, and take the panels of a unit at once.
    const ALONE: usize = 32;
    /// Bytes of panels that are under way, in each of one block and of two.
    const PANEL_BYTES: [usize; 2] = [96 << 10, 24 << 10];
    /// Shared memory for what is not in a ring, and for panels to begin at a multiple of 1024 bytes: without a gate, and
    /// with one for few tokens and for more.
    const ROOM: [usize; 3] = [7 << 10, 12 << 10, 22 << 10];

    /// The one for this many rows of activations, weights of such records, and this much shared memory.
    pub(crate) fn of(tokens: usize, record: tiled::Record, gated: bool, shared: usize) -> HopperConfig {
        let most = HopperConfig::TOKENS[HopperConfig::TOKENS.len() - 1];
        let each = tokens.div_ceil(tokens.div_ceil(most).max(1));
        let tokens = HopperConfig::TOKENS.into_iter().find(|&tokens| tokens >= each).unwrap_or(most);
        let blocks = if tokens <= HopperConfig::FEW { 2 } else { 1 };
        let stage = HopperConfig::stage(tokens, record);
        let fewest = if tokens <= HopperConfig::ALONE { 2 } else { 4 };
        let panel_stages = (HopperConfig::PANEL_BYTES[blocks - 1] / stage).clamp(fewest, 16);
        // The system keeps 1024 bytes for every block.
        let each = (shared + 1024) / blocks - 1024;
        let room = HopperConfig::ROOM[usize::from(gated) + usize::from(gated && tokens > HopperConfig::FEW)];
        let left = each.saturating_sub(room + panel_stages * stage);
        let weight_stages = (left / (HopperConfig::TILES * record.bytes)).clamp(2, 10);
        HopperConfig {
            tokens: tokens as u32,
            weight_stages: weight_stages as u32,
            panel_stages: panel_stages as u32,
            blocks: blocks as u32,
            gated,
        }
    }

    /// Bytes of a stage of panels.
    fn stage(tokens: usize, record: tiled::Record) -> usize {
        tokens * 128 * if tokens <= HopperConfig::ALONE { record.unit / 64 } else { 1 }
    }

    /// Threads of a block: two warpgroups that multiply, and who brings them what.
    pub(crate) fn threads(self) -> u32 {
        256 + if self.blocks == 2 { 32 } else { 128 }
    }

    /// Shared memory of a block.
    pub(crate) fn shared(self, record: tiled::Record) -> usize {
        let weights = self.weight_stages as usize * HopperConfig::TILES * record.bytes;
        let panels = self.panel_stages as usize * HopperConfig::stage(self.tokens as usize, record);
        1024 + panels + weights
    }
}

/// What comes before the attention of a decode step, and is part of its launch besides the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct HeadsBefore {
    /// Norms: 1 of queries, 2 of keys.
    pub(crate) norms: u32,
    /// Pairs that are turned.
    pub(crate) pairs: u32,
    /// Whether these are neighbours.
    pub(crate) interleaved: bool,
}

/// What comes before a product of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NormKind {
    /// Nothing.
    None,
    /// A norm without weight.
    Plain,
    /// A norm with one.
    Weighted,
}

/// The shape of a block's work in `matvec.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MatvecShape {
    /// Warps of a team, which share the columns of a tile.
    pub(crate) warps: u32,
    /// Units that each warp has under way.
    pub(crate) depth: u32,
    /// Teams of them in a block, each with a tile of its own.
    pub(crate) teams: u32,
}

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Spec {
    /// One without definitions: source and name.
    Plain(&'static str, &'static str),
    /// The largest magnitude of a matrix.
    Largest(Format),
    /// From blocks to tiles.
    Repack(Format),
    /// Rows of a table.
    GetRows(Format),
    /// One row of activations times up to three matrices.
    Matvec {
        /// Their formats.
        formats: [Option<Format>; 3],
        /// Warps and blocks.
        shape: MatvecShape,
        /// Columns.
        cols: u32,
        /// What comes before.
        norm: NormKind,
        /// The number of the activation of a gate, where the first two make one result.
        gate: Option<i32>,
        /// Whether each product chooses among several matrices.
        chosen: bool,
        /// Whether the largest result is wanted.
        largest: bool,
    },
    /// Several rows of activations times a matrix.
    Gemm {
        /// Of the matrix.
        format: Format,
        /// Shape.
        config: GemmConfig,
        /// Whether each row chooses among several matrices.
        chosen: bool,
    },
    /// Products of any shape with the matrices of chosen experts.
    ExpertRows(Format),
    /// Attention of a decode step.
    DecodeAttention {
        /// Width of queries and keys.
        head_dim: u32,
        /// Width of values.
        value_dim: u32,
        /// Of the cache.
        cache: Format,
        /// Warps of a block.
        warps: u32,
        /// Query heads.
        heads: u32,
        /// KV heads.
        kv_heads: u32,
        /// Rows of the cache in a page.
        page_len: u32,
        /// Whether scores have a soft cap.
        soft_cap: bool,
        /// Whether there is a window.
        window: bool,
        /// Whether there are sinks.
        sinks: bool,
        /// What comes before, if it is part of the launch.
        before: Option<HeadsBefore>,
    },
    /// The same on compute capability 9.0.
    Hopper(Format, HopperConfig),
    /// Attention of prompts.
    Flash {
        /// Width of queries and keys.
        head_dim: u32,
        /// Width of values.
        value_dim: u32,
        /// Of the cache.
        cache: Format,
        /// Warps of a block.
        warps: u32,
        /// Whether warpgroups multiply: compute capability 9.0.
        hopper: bool,
    },
    /// Attention.
    Attention {
        /// Query heads of a block.
        group: u32,
        /// Width of queries and keys.
        head_dim: u32,
        /// Width of values.
        value_dim: u32,
    },
}

impl Spec {
    /// What it is compiled for: some use what only their architecture has.
    fn target(self, architecture: &str) -> String {
        let own = match self {
            Spec::Hopper(..) | Spec::Flash { hopper: true, .. } => "a",
            _ => "",
        };
        format!("{architecture}{own}")
    }

    /// Source, definitions and name.
    fn parts(self) -> (&'static str, Vec<String>, String) {
        match self {
            Spec::Plain(source, name) => (source, Vec::new(), name.into()),
            Spec::Largest(format) => {
                ("repack.cu", vec![format!("FORMAT={format}")], format!("largest_{format}"))
            }
            Spec::Repack(format) => {
                ("repack.cu", vec![format!("FORMAT={format}")], format!("repack_{format}"))
            }
            Spec::GetRows(format) => ("rows.cu", Vec::new(), format!("get_rows_{format}")),
            Spec::Matvec { formats, shape, cols, norm, gate, chosen, largest } => {
                let names =
                    formats.map(|format| format.map_or("-1".to_string(), |format| format.to_string()));
                let definitions = vec![
                    "NAME=matvec_kernel".into(),
                    format!("FORMATS={}", names.join(",")),
                    format!("GATED_PAIR={}", gate.is_some()),
                    format!("ACTIVATION={}", gate.unwrap_or(0)),
                    format!("COLS={cols}"),
                    format!("NORM={}", norm as u32),
                    format!("CHOSEN={}", u32::from(chosen)),
                    format!("DEPTH={}", shape.depth),
                    format!("WARPS={}", shape.warps),
                    format!("TEAMS={}", shape.teams),
                    format!("LARGEST={}", u32::from(largest)),
                ];
                ("matvec.cu", definitions, "matvec_kernel".into())
            }
            Spec::Gemm { format, config: c, chosen } => {
                let config = [c.tiles, c.groups, c.row_warps, c.token_warps, c.stages].map(|n| n.to_string());
                let definitions = vec![
                    "NAME=gemm_kernel".into(),
                    format!("FORMAT={format}"),
                    format!("CONFIG={}", config.join(",")),
                    format!("CHOSEN={}", u32::from(chosen)),
                ];
                ("gemm.cu", definitions, "gemm_kernel".into())
            }
            Spec::ExpertRows(format) => {
                ("experts.cu", vec![format!("FORMAT={format}")], "expert_rows_kernel".into())
            }
            Spec::Hopper(format, c) => {
                let definitions = vec![
                    format!("FORMAT={format}"),
                    format!("TOKENS={}", c.tokens),
                    format!("WEIGHT_STAGES={}", c.weight_stages),
                    format!("PANEL_STAGES={}", c.panel_stages),
                    format!("BLOCKS={}", c.blocks),
                    format!("GATED={}", u32::from(c.gated)),
                ];
                ("gemm_hopper.cu", definitions, "gemm_hopper".into())
            }
            Spec::Flash { head_dim, value_dim, cache, warps, hopper } => {
                let definitions = vec![
                    format!("HEAD_DIM={head_dim}"),
                    format!("VALUE_DIM={value_dim}"),
                    format!("CACHE_TYPE={cache}"),
                    format!("WARPS={warps}"),
                    format!("HOPPER={}", u32::from(hopper)),
                ];
                ("flash.cu", definitions, "flash".into())
            }
            Spec::DecodeAttention {
                head_dim,
                value_dim,
                cache,
                warps,
                heads,
                kv_heads,
                page_len,
                soft_cap,
                window,
                sinks,
                before,
            } => {
                let HeadsBefore { norms, pairs, interleaved } = before.unwrap_or_default();
                let definitions = vec![
                    format!("HEAD_DIM={head_dim}"),
                    format!("VALUE_DIM={value_dim}"),
                    format!("CACHE_TYPE={cache}"),
                    format!("WARPS={warps}"),
                    format!("ALL_HEADS={heads}"),
                    format!("KV_HEADS={kv_heads}"),
                    format!("PAGE_LEN={page_len}"),
                    format!("SOFT_CAP={}", u32::from(soft_cap)),
                    format!("WINDOWED={}", u32::from(window)),
                    format!("SINKS={}", u32::from(sinks)),
                    format!("BEFORE={}", u32::from(before.is_some())),
                    format!("NORMS={norms}"),
                    format!("PAIRS={pairs}"),
                    format!("INTERLEAVED={}", u32::from(interleaved)),
                ];
                ("decode_attention.cu", definitions, "decode_attention".into())
            }
            Spec::Attention { group, head_dim, value_dim } => {
                let definitions = vec![
                    format!("GROUP={group}"),
                    format!("HEAD_DIM={head_dim}"),
                    format!("VALUE_DIM={value_dim}"),
                ];
                ("attention.cu", definitions, "attention".into())
            }
        }
    }
}

/// What was compiled and loaded.
pub(crate) struct Kernels {
    device: Arc<Device>,
    compiler: Compiler,
    /// Whether products of several rows run the kernels of compute capability 9.0.
    pub(crate) hopper: bool,
    modules: HashMap<(&'static str, Vec<String>), Module>,
    functions: HashMap<Spec, Function>,
    /// Warps of a block of the product of one row, at most.
    pub(crate) matvec_warps: usize,
    /// The angles per position of each rotation. The table is kept, so that its address stands for it.
    rope_tables: Vec<(Arc<RopeTable>, DeviceMemory)>,
}

impl Kernels {
    pub(crate) fn new(device: &Arc<Device>, hopper: bool, matvec_warps: usize) -> Result<Kernels, CudaError> {
        let compiler = Compiler::load()?;
        Ok(Kernels {
            device: Arc::clone(device),
            compiler,
            hopper: hopper && device.capability == (9, 0),
            modules: HashMap::new(),
            functions: HashMap::new(),
            matvec_warps,
            rope_tables: Vec::new(),
        })
    }

    /// The address of a rotation's angles per position, on the device.
    pub(crate) fn rope_table(&mut self, table: &Arc<RopeTable>, stream: &Stream) -> Result<u64, CudaError> {
        let known = self.rope_tables.iter().find(|(known, _)| Arc::ptr_eq(known, table) || known == table);
        if let Some((_, memory)) = known {
            return Ok(memory.address());
        }
        let bytes: Vec<u8> = table.inv_freq.iter().flat_map(|angle| angle.to_le_bytes()).collect();
        let memory = DeviceMemory::new(&self.device, bytes.len())?;
        if !bytes.is_empty() {
            let mut pinned = Pinned::new(&self.device, bytes.len())?;
            pinned.bytes().copy_from_slice(&bytes);
            stream.copy_to(memory.address(), &pinned, 0, bytes.len())?;
            // The copy reads `pinned`, which ends here.
            stream.wait(Duration::from_secs(60))?;
        }
        let address = memory.address();
        self.rope_tables.push((Arc::clone(table), memory));
        Ok(address)
    }

    /// The kernel, compiled and loaded if it was not.
    pub(crate) fn get(&mut self, spec: Spec) -> Result<Function, CudaError> {
        if let Some(&function) = self.functions.get(&spec) {
            return Ok(function);
        }
        let (source, definitions, name) = spec.parts();
        let architecture = spec.target(&self.device.architecture());
        let key = (source, definitions);
        if !self.modules.contains_key(&key) {
            let code = self.compiler.compile(source, &key.1, &architecture)?;
            self.modules.insert(key.clone(), Module::load(&self.device, &code)?);
        }
        let function = self.modules[&key].function(&name)?;
        self.functions.insert(spec, function);
        Ok(function)
    }
}

/// Compiles every kernel for an architecture such as `sm_90`, without a GPU and without the cache, and returns how many
/// sources with definitions there were: every kernel in every format, and each shape of the products in one.
///
/// # Errors
/// [`CudaError::NoCompiler`], and the first [`CudaError::Compile`].
pub fn compile_all(architecture: &str) -> Result<usize, CudaError> {
    let compiler = &Compiler::load()?;
    let mut units: Vec<(&'static str, Vec<String>, String)> = Vec::new();
    for spec in all_specs() {
        let (source, definitions, _) = spec.parts();
        let unit = (source, definitions, spec.target(architecture));
        if !units.contains(&unit) {
            units.push(unit);
        }
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let compile = |units: &[(&'static str, Vec<String>, String)]| {
        units.iter().try_for_each(|(source, definitions, target)| {
            compiler.compile_fresh(source, definitions, target).map(|_| ())
        })
    };
    std::thread::scope(|scope| {
        let parts: Vec<_> = units
            .chunks(units.len().div_ceil(threads).max(1))
            .map(|part| scope.spawn(move || compile(part)))
            .collect();
        let failed = |_| CudaError::NoCompiler { message: "a thread that compiled ended early".into() };
        parts.into_iter().try_for_each(|part| part.join().map_err(failed).and_then(|result| result))
    })?;
    Ok(units.len())
}

/// A kernel of each source, or more where definitions make them.
fn all_specs() -> Vec<Spec> {
    let mut specs: Vec<Spec> = [
        ("cache.cu", "heads"),
        ("combine.cu", "combine"),
        ("elementwise.cu", "elementwise"),
        ("experts.cu", "top_k"),
        ("halves.cu", "halves"),
        ("inputs.cu", "inputs"),
        ("largest.cu", "largest"),
        ("norm.cu", "rms_norm"),
        ("panels.cu", "panels"),
        ("rows.cu", "get_rows_F32"),
    ]
    .map(|(source, name)| Spec::Plain(source, name))
    .to_vec();
    let matvec = |formats: [Option<Format>; 3], gate| {
        let shape = MatvecShape { warps: 7, depth: 3, teams: 2 };
        let norm = NormKind::Weighted;
        Spec::Matvec { formats, shape, cols: 3584, norm, gate, chosen: false, largest: gate.is_none() }
    };
    let hopper = |format, tokens, gated| {
        tiled::record(format)
            .map(|record| Spec::Hopper(format, HopperConfig::of(tokens, record, gated, 227 << 10)))
    };
    for format in Format::ALL.into_iter().filter(|&format| tiled::record(format).is_some()) {
        specs.push(Spec::Repack(format));
        specs.push(Spec::ExpertRows(format));
        specs.push(matvec([Some(format), None, None], None));
        specs.push(Spec::Gemm { format, config: GemmConfig::ALL[0], chosen: false });
        specs.extend(hopper(format, 8, false));
    }
    specs.extend([16, 64, 128, 256].into_iter().filter_map(|tokens| hopper(Format::Q4_K, tokens, false)));
    specs.extend([32, 64, 128].into_iter().filter_map(|tokens| hopper(Format::Q4_K, tokens, true)));
    specs.extend(GemmConfig::ALL.map(|config| Spec::Gemm { format: Format::Q4_K, config, chosen: false }));
    let mixed = [Format::Q4_K, Format::Q4_K, Format::Q6_K].map(Some);
    specs.push(matvec(mixed, None));
    specs.push(matvec([mixed[0], mixed[1], None], Some(0)));
    // Experts.
    let shape = MatvecShape { warps: 8, depth: 2, teams: 3 };
    specs.extend([Format::Q4_K, Format::MXFP4, Format::F32].map(|format| Spec::Matvec {
        formats: [Some(format), None, None],
        shape,
        cols: 2048,
        norm: NormKind::None,
        gate: None,
        chosen: true,
        largest: false,
    }));
    // Columns that are no whole number of loads, or more than a thread has at a time.
    let shape = MatvecShape { warps: 13, depth: 2, teams: 2 };
    specs.extend([30, 18_944].map(|cols| Spec::Matvec {
        formats: [mixed[0], None, None],
        shape,
        cols,
        norm: NormKind::Plain,
        gate: None,
        chosen: false,
        largest: false,
    }));
    let shapes = [
        (80, 80, Format::F16, 8, false),
        (256, 256, Format::F16, 8, false),
        (64, 64, Format::F16, 8, true),
        (128, 128, Format::Q8_0, 12, true),
        (192, 128, Format::F16, 8, true),
        (256, 256, Format::F16, 8, true),
    ];
    specs.extend(shapes.map(|(head_dim, value_dim, cache, warps, hopper)| Spec::Flash {
        head_dim,
        value_dim,
        cache,
        warps,
        hopper,
    }));
    let shapes = [(1, 80, 80), (2, 20, 12), (4, 256, 256), (8, 128, 128)];
    specs.extend(shapes.map(|(group, head_dim, value_dim)| Spec::Attention { group, head_dim, value_dim }));
    let shapes = [(64, 64, 8), (80, 96, 8), (128, 128, 8), (256, 256, 4)];
    let decode = |cache, (head_dim, value_dim, warps)| Spec::DecodeAttention {
        head_dim,
        value_dim,
        cache: if value_dim == 96 { Format::F16 } else { cache },
        warps,
        heads: 28,
        kv_heads: if head_dim == 80 { 2 } else { 4 },
        page_len: 64,
        soft_cap: head_dim == 256,
        window: head_dim == 256,
        sinks: head_dim == 64,
        before: (head_dim != 80).then_some(HeadsBefore {
            norms: if head_dim == 256 { 3 } else { 0 },
            pairs: head_dim / 2,
            interleaved: head_dim == 64,
        }),
    };
    specs.extend(shapes.map(|shape| decode(Format::F16, shape)));
    specs.extend(shapes.map(|shape| decode(Format::Q8_0, shape)));
    specs
}
