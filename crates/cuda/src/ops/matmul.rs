//! Matrix products: one row of activations as fast as weights come from memory, several on the tensor cores.

use super::hopper::Gate;
use super::{Lowering, device_error, elementwise};
use crate::driver::{Launch, argument};
use crate::kernels::{GemmConfig, Kernels, MatvecShape, NormKind, Spec};
use crate::program::Work;
use crate::scratch::Region;
use crate::step::{Step, typed};
use crate::tiled;
use crate::weights::Tiled;
use graph::ops::FusedFfn;
use graph::{BackendError, DType, NodeId, Op, Operand};
use quant::Format;

/// A norm that products do on the way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm {
    /// What is normed.
    pub(crate) x: Operand,
    /// Address of the weight, or 0.
    pub(crate) weight: u64,
    pub(crate) epsilon: f32,
}

/// The rows that are multiplied: in memory, or the norm of what is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activations {
    /// The value that is multiplied.
    pub(super) id: NodeId,
    /// What is in memory.
    pub(super) x: Operand,
    /// The norm, if one comes first.
    pub(super) norm: Option<Norm>,
    /// The gate, if one comes first: on compute capability 9.0, for several rows.
    pub(super) gate: Option<Gate>,
}

/// A matrix, and where its product goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) weight: Tiled,
    /// Addresses, or 0.
    pub(super) bias: u64,
    pub(super) residual: u64,
    pub(super) out: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    weight: u64,
    bias: u64,
    out: u64,
    tiles: u32,
    rows: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct MatvecArgs {
    x: u64,
    norm: u64,
    residual: u64,
    parts: [Part; 3],
    tiles: u32,
    epsilon: f32,
    matrices: u32,
    products_per_row: u32,
    chosen: u64,
    largest: u64,
}

/// A product of one row that was launched, and how it would also find its largest result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowProduct {
    /// Address of the results.
    pub(crate) out: u64,
    /// How many they are.
    pub(crate) cols: usize,
    spec: Spec,
    args: MatvecArgs,
}

impl RowProduct {
    /// The launch that also finds the largest result of each block, in place of the one that was made: with the address of the
    /// place for what the blocks find.
    pub(crate) fn with_largest(
        &self,
        plain: &Launch,
        kernels: &mut Kernels,
        largest: u64,
    ) -> Result<Launch, BackendError> {
        let mut spec = self.spec;
        if let Spec::Matvec { largest, .. } = &mut spec {
            *largest = true;
        }
        let function = kernels.get(spec).map_err(device_error)?;
        let args = MatvecArgs { largest, ..self.args };
        Ok(Launch { function, argument: argument(args), ..plain.clone() })
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct HalvesArgs {
    x: u64,
    norm: u64,
    halves: u64,
    unscale: u64,
    cols: u32,
    padded: u32,
    normed: u32,
    epsilon: f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct GemmArgs {
    weight: u64,
    halves: u64,
    unscale: u64,
    bias: u64,
    residual: u64,
    out: u64,
    rows: u32,
    tokens: u32,
    padded: u32,
    tiles: u32,
    units: u32,
    units_per_split: u32,
    matrices: u32,
    products_per_row: u32,
    order: u64,
    work: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CombineArgs {
    parts: u64,
    bias: u64,
    residual: u64,
    out: u64,
    rows: u32,
    elements: u32,
    splits: u32,
}

/// Warps of a team of `matvec.cu`, at most.
const MOST_WARPS: usize = 20;
/// More warps than this in a block leave no room for a second.
const HALF_WARPS: usize = 16;
/// Memory of a multiprocessor that each block takes for itself.
const BLOCK_RESERVE: usize = 1024;
/// Columns up to which each thread has a sum of squares of its own, as in `matvec.cu`.
const FEW_COLUMNS: usize = 1024;
/// Columns are padded to this, which every format's unit divides.
pub(super) const PADDING: usize = 256;
/// The most sums that the columns of a product are shared out into.
const MOST_SPLITS: usize = 32;

/// How the kernel for one row runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatvecPlan {
    formats: [Option<Format>; 3],
    shape: MatvecShape,
    shared: usize,
    /// Blocks for each product, at most.
    blocks: u32,
}

/// A matrix for each row of results: one of several of the shape of [`Product::weight`], which lie below each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chosen {
    /// Matrices.
    pub(super) matrices: u32,
    /// Results of each row that is multiplied.
    pub(super) per_row: u32,
    /// Results; with an order, blocks of them.
    pub(super) choices: usize,
    /// Address of the numbers of matrices.
    pub(super) indices: u64,
    /// Addresses of the order of results by their matrices, and of the blocks, as `experts.cu` makes them.
    pub(super) order: u64,
    pub(super) work: u64,
}

/// The formats of up to three matrices.
fn formats_of(products: &[Product]) -> [Option<Format>; 3] {
    let mut formats = [None; 3];
    formats.iter_mut().zip(products).for_each(|(format, product)| *format = Some(product.weight.format));
    formats
}

/// The tiles of all matrices.
fn tiles_of(products: &[Product]) -> u32 {
    products.iter().map(|product| product.weight.shape.tiles).sum()
}

impl Lowering<'_> {
    /// What a product reads: the value, or what a norm that was put off reads.
    pub(super) fn activations(&self, operand: Operand) -> Result<Activations, BackendError> {
        let operand = typed("input 0", operand, DType::F32)?;
        let norm = self.norms.get(&operand.producer).copied();
        let gate = self.gates.get(&operand.producer).copied();
        let x = norm.map(|norm| norm.x).or(gate.map(|gate| gate.x)).unwrap_or(operand);
        Ok(Activations { id: operand.producer, x, norm, gate })
    }

    pub(super) fn tiled(&mut self, name: &str) -> Result<Tiled, BackendError> {
        self.weights.tiled(name, self.stream, self.kernels)
    }

    /// How the kernel for one row runs with these matrices in so many blocks, or one for each multiprocessor; `None` if it
    /// cannot.
    pub(super) fn matvec_plan(
        &self,
        formats: [Option<Format>; 3],
        cols: usize,
        tiles: u32,
        gated: bool,
        blocks: Option<u32>,
    ) -> Option<MatvecPlan> {
        let most_blocks = blocks.unwrap_or(self.device.multiprocessors);
        let given: Vec<Format> = formats.into_iter().flatten().collect();
        let is_float = |format: &Format| tiled::sums(*format).span == 0;
        if given.iter().any(is_float) != given.iter().all(is_float) {
            return None;
        }
        let records = given.iter().map(|&format| tiled::record(format).map(|record| record.bytes));
        let slot = records.collect::<Option<Vec<_>>>()?.into_iter().max()?;
        let sets = cols.next_multiple_of(PADDING) / 128;
        let activations = sets * tiled::set_bytes(&given);
        // Sums of squares, of few columns those of each thread, and largest values.
        let sums = if cols <= FEW_COLUMNS { (128 + 32) * 4 } else { (32 + 32) * 4 };
        let units =
            given.iter().filter_map(|&format| tiled::record(format)).map(|r| cols.div_ceil(r.unit)).max()?;
        let block_warps = self.kernels.matvec_warps;
        let blocks = if block_warps > HALF_WARPS { 1 } else { 2 };
        let most = (self.device.shared_memory as usize / blocks).saturating_sub(BLOCK_RESERVE);
        let mut best: Option<(f64, MatvecPlan)> = None;
        // No team without a tile: what its warps do before is in the way of the others.
        let tiles_each = tiles.div_ceil(most_blocks).max(1) as usize;
        for warps in 4..=MOST_WARPS.min(block_warps) {
            for teams in 1..=(block_warps / warps).min(tiles_each) {
                // No more units ahead than a team takes in all.
                let stages = tiles_each.div_ceil(teams) * units.div_ceil(warps) * if gated { 2 } else { 1 };
                let fits = |depth: usize| {
                    let depth = depth.min(stages.max(1));
                    let shared = teams * warps * (depth * slot + 4 * 16 * 4) + activations + sums;
                    (shared <= most).then_some((depth, shared))
                };
                let Some((depth, shared)) = [4, 3, 2].into_iter().find_map(fits) else { continue };
                // Warps that have work, on average over their time, where there is the most of it.
                let rounds = tiles_each.div_ceil(teams) * units.div_ceil(warps);
                let score = (tiles_each * units) as f64 / rounds as f64;
                if best.is_none_or(|(other, _)| score > other * 1.02) {
                    let shape = MatvecShape { warps: warps as u32, depth: depth as u32, teams: teams as u32 };
                    best = Some((score, MatvecPlan { formats, shape, shared, blocks: most_blocks }));
                }
            }
        }
        best.map(|(_, plan)| plan)
    }

    /// One row times up to three matrices, or several with a chosen one each; the first two are a gated pair where `gate` has
    /// the activation.
    pub(super) fn matvec(
        &mut self,
        x: Activations,
        products: &[Product],
        gate: Option<i32>,
        plan: MatvecPlan,
        chosen: Option<Chosen>,
    ) -> Result<(), BackendError> {
        let mut parts = [Part::default(); 3];
        for (part, product) in parts.iter_mut().zip(products) {
            *part = Part {
                weight: product.weight.address,
                bias: product.bias,
                out: product.out,
                tiles: product.weight.shape.tiles,
                rows: product.weight.rows as u32,
            };
        }
        let tiles = match gate {
            Some(_) => parts[0].tiles,
            None => parts.iter().map(|part| part.tiles).sum(),
        };
        let args = MatvecArgs {
            x: self.floats(&x.x)?,
            norm: x.norm.map_or(0, |norm| norm.weight),
            residual: products[0].residual,
            parts,
            tiles,
            epsilon: x.norm.map_or(0.0, |norm| norm.epsilon),
            matrices: chosen.map_or(0, |chosen| chosen.matrices),
            products_per_row: chosen.map_or(0, |chosen| chosen.per_row),
            chosen: chosen.map_or(0, |chosen| chosen.indices),
            largest: 0,
        };
        let MatvecPlan { formats, shape, shared, blocks } = plan;
        let norm = match x.norm {
            None => NormKind::None,
            Some(norm) if norm.weight == 0 => NormKind::Plain,
            Some(_) => NormKind::Weighted,
        };
        let cols = x.x.shape.cols as u32;
        let spec =
            Spec::Matvec { formats, shape, cols, norm, gate, chosen: chosen.is_some(), largest: false };
        let threads = shape.teams * shape.warps * 32;
        let grid = [tiles.min(blocks) as usize, chosen.map_or(1, |chosen| chosen.choices), 1];
        let launch = self.make(spec, grid, threads, shared, args)?;
        let is_plain = products.len() == 1 && chosen.is_none();
        self.out.row_product =
            is_plain.then(|| RowProduct { out: products[0].out, cols: products[0].weight.rows, spec, args });
        self.out.launches.push(Work::Kernel(launch));
        Ok(())
    }

    /// Activations as halves; they stay until the next.
    fn halves(&mut self, x: Activations) -> Result<(u64, u64, usize), BackendError> {
        let (tokens, cols) = (x.x.shape.rows, x.x.shape.cols);
        let padded = cols.next_multiple_of(PADDING);
        let halves = self.scratch(Region::Halves, tokens * padded * 2)?;
        let unscale = self.scratch(Region::Unscale, tokens * 4)?;
        if self.halves != Some((x.id, 0)) {
            let args = HalvesArgs {
                x: self.floats(&x.x)?,
                norm: x.norm.map_or(0, |norm| norm.weight),
                halves,
                unscale,
                cols: cols as u32,
                padded: padded as u32,
                normed: u32::from(x.norm.is_some()),
                epsilon: x.norm.map_or(0.0, |norm| norm.epsilon),
            };
            self.launch(Spec::Plain("halves.cu", "halves"), [tokens, 1, 1], 256, 0, args)?;
            self.halves = Some((x.id, 0));
        }
        Ok((halves, unscale, padded))
    }

    /// Several rows times a matrix, or each times a chosen one in blocks that have an order.
    pub(super) fn gemm(
        &mut self,
        x: Activations,
        product: &Product,
        config: GemmConfig,
        chosen: Option<Chosen>,
    ) -> Result<(), BackendError> {
        let (halves, unscale, padded) = self.halves(x)?;
        let (tokens, weight) = (x.x.shape.rows, product.weight);
        let record = tiled::record(weight.format)
            .ok_or_else(|| crate::step::invariant("weight", "a format with products", weight.format))?;
        let row_blocks = weight.shape.tiles.div_ceil(config.block_tiles()) as usize;
        let token_blocks = match chosen {
            Some(chosen) => chosen.choices,
            None => tokens.div_ceil(config.tokens() as usize),
        };
        let units = weight.shape.units as usize;
        // Enough blocks for every multiprocessor to have two, where the columns allow.
        let wanted = (2 * self.device.multiprocessors as usize).div_ceil(row_blocks * token_blocks);
        let is_small = chosen.is_none() && row_blocks * token_blocks < self.device.multiprocessors as usize;
        let splits = if is_small { wanted.clamp(1, units.min(MOST_SPLITS)) } else { 1 };
        let per_split = units.div_ceil(splits);
        let splits = units.div_ceil(per_split);
        let elements = tokens * weight.rows;
        let out = match splits {
            1 => product.out,
            _ => self.scratch(Region::Partial, splits * elements * 4)?,
        };
        let args = GemmArgs {
            weight: weight.address,
            halves,
            unscale,
            bias: product.bias,
            residual: product.residual,
            out,
            rows: weight.rows as u32,
            tokens: tokens as u32,
            padded: padded as u32,
            tiles: weight.shape.tiles,
            units: units as u32,
            units_per_split: per_split as u32,
            matrices: chosen.map_or(0, |chosen| chosen.matrices),
            products_per_row: chosen.map_or(0, |chosen| chosen.per_row),
            order: chosen.map_or(0, |chosen| chosen.order),
            work: chosen.map_or(0, |chosen| chosen.work),
        };
        let spec = Spec::Gemm { format: weight.format, config, chosen: chosen.is_some() };
        let shared = config.shared(record) as usize;
        self.launch(spec, [token_blocks, row_blocks, splits], config.threads(), shared, args)?;
        if splits > 1 {
            let args = CombineArgs {
                parts: out,
                bias: product.bias,
                residual: product.residual,
                out: product.out,
                rows: weight.rows as u32,
                elements: elements as u32,
                splits: splits as u32,
            };
            let grid = self.elements_grid(elements);
            self.launch(Spec::Plain("combine.cu", "combine"), grid, 256, 0, args)?;
        }
        Ok(())
    }

    /// The products of the same rows with several matrices, in one launch where that is possible. Their results lie in
    /// other memory than the rows.
    pub(super) fn multiply(&mut self, x: Activations, products: &[Product]) -> Result<(), BackendError> {
        if x.x.shape.rows == 1 {
            let is_float = |p: &Product| tiled::sums(p.weight.format).span == 0;
            let alike = products.iter().all(|p| is_float(p) == is_float(&products[0]));
            let together = alike && products.len() <= 3 && products.iter().skip(1).all(|p| p.residual == 0);
            let groups = if together { vec![products] } else { products.chunks(1).collect() };
            let cols = x.x.shape.cols;
            let plans = groups
                .iter()
                .map(|group| self.matvec_plan(formats_of(group), cols, tiles_of(group), false, None));
            if let Some(plans) = plans.collect::<Option<Vec<_>>>() {
                let mut groups = groups.into_iter().zip(plans);
                return groups.try_for_each(|(group, plan)| self.matvec(x, group, None, plan, None));
            }
        }
        if self.kernels.hopper {
            return self.multiply_hopper(x, products);
        }
        let config = GemmConfig::of(x.x.shape.rows);
        products.iter().try_for_each(|product| self.gemm(x, product, config, None))
    }

    /// A product and what follows it: the sum with the residual stream, or more products of the same row.
    pub(super) fn products(&mut self, steps: &[Step]) -> Result<usize, BackendError> {
        let x = self.activations(steps[0].input(0)?)?;
        if self.gated_hopper(x, steps)? {
            return Ok(3);
        }
        let mut products = vec![self.product(&steps[0])?];
        if let Some(next) = steps.get(1)
            && let Some(residual) = residual_of(&steps[0], next, x.x)
        {
            products[0].residual = self.floats(&residual)?;
            products[0].out = self.floats(&next.output)?;
            self.multiply(x, &products)?;
            return Ok(2);
        }
        let mut taken = 1;
        if x.x.shape.rows == 1 || self.kernels.hopper {
            for (later, next) in steps.iter().enumerate().skip(1).take(2) {
                let same = matches!(next.node.op, Op::MatMul(_))
                    && next.inputs.first().map(|input| input.producer) == Some(x.id)
                    && next.output.buffer != x.x.buffer;
                // One that takes a residual is left to itself.
                let summed = steps.get(later + 1).is_some_and(|sum| residual_of(next, sum, x.x).is_some());
                if !same || summed || steps[0].output.buffer == x.x.buffer {
                    break;
                }
                products.push(self.product(next)?);
                taken += 1;
            }
        }
        self.multiply(x, &products)?;
        Ok(taken)
    }

    pub(super) fn product(&mut self, step: &Step) -> Result<Product, BackendError> {
        let name = step.weight(0)?.name.clone();
        let bias = match step.weights.get(1).map(|bias| bias.name.clone()) {
            Some(bias) => self.vector(&bias)?,
            None => 0,
        };
        let out = self.floats(&step.output)?;
        Ok(Product { weight: self.tiled(&name)?, bias, residual: 0, out })
    }

    /// `activation(gate x) * (up x)`.
    pub(super) fn fused_ffn(&mut self, step: &Step, op: &FusedFfn) -> Result<(), BackendError> {
        let x = self.activations(step.input(0)?)?;
        let out = self.floats(&step.output)?;
        let names = [step.weight(0)?.name.clone(), step.weight(1)?.name.clone()];
        let mut products = Vec::with_capacity(2);
        for name in &names {
            products.push(Product { weight: self.tiled(name)?, bias: 0, residual: 0, out });
        }
        let formats = formats_of(&products);
        if x.x.shape.rows == 1
            && let Some(plan) =
                self.matvec_plan(formats, x.x.shape.cols, products[0].weight.shape.tiles, true, None)
        {
            return self.matvec(x, &products, Some(elementwise::activation(op.activation)), plan, None);
        }
        if self.kernels.hopper && formats[0] == formats[1] {
            return self.gemm_hopper(x, &products, Some(op.activation));
        }
        let elements = step.output.shape.elements();
        let scratch = self.scratch(Region::Products, 2 * elements * 4)?;
        products[0].out = scratch;
        products[1].out = scratch + elements as u64 * 4;
        self.multiply(x, &products)?;
        self.gated_at([products[0].out, products[1].out, out], elements, op.activation)
    }
}

/// The other operand of a sum, if it can be added where the product is written: the sum alone reads the product, and its
/// result lies apart from the rows that are multiplied.
fn residual_of(product: &Step, sum: &Step, x: Operand) -> Option<Operand> {
    if sum.node.op != Op::Add || product.uses != 1 || sum.output.buffer == x.buffer {
        return None;
    }
    let [a, b] = sum.inputs.as_slice() else { return None };
    let other = match (a.producer == product.id, b.producer == product.id) {
        (true, false) => b,
        (false, true) => a,
        _ => return None,
    };
    (other.shape == sum.output.shape && other.dtype == DType::F32).then_some(*other)
}
