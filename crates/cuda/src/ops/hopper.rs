//! Products of several rows on GPUs of compute capability 9.0: what `kernels/gemm_hopper.cu` runs.

use super::matmul::{Activations, PADDING, Product};
use super::{Lowering, elementwise};
use crate::kernels::{HopperConfig, Spec};
use crate::scratch::Region;
use crate::step::{Step, invariant};
use crate::tiled::{self, TILE_ROWS};
use graph::ops::Activation;
use graph::{BackendError, NodeId, Op, Operand};

/// Rows of weights that a block multiplies at a time.
const BLOCK_ROWS: usize = 128;
/// Matrices of one launch, at most.
const MOST_PARTS: usize = 3;
/// Threads of a block of `panels.cu`, at most.
const MOST_PANEL_THREADS: usize = 512;
/// The cost of a column, in those of adding one more part to a result: with `n` parts, a result of `k` columns takes
/// about `k / n + COLUMNS_PER_PART n`.
const COLUMNS_PER_PART: usize = 64;

/// Rows of activations up to which a gate is done where products are written. With more, exchanging results in shared memory
/// takes longer than reading them once more (2048 rows on an H200: 1124 us, instead of 908 and 79 more in `panels.cu`).
const MOST_GATED: usize = 128;

/// A gate that panels do on the way: `activation(by) * x`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate {
    pub(super) x: Operand,
    by: Operand,
    activation: Activation,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Part {
    weight: u64,
    bias: u64,
    residual: u64,
    out: u64,
    tiles: u32,
    rows: u32,
    blocks: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct GemmArgs {
    parts: [Part; MOST_PARTS],
    panels: u64,
    unscale: u64,
    partial: u64,
    done: u64,
    tokens: u32,
    padded_tokens: u32,
    token_blocks: u32,
    units: u32,
    whole: u32,
    shared_out: u32,
    sharers: u32,
    activation: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct PanelsArgs {
    x: u64,
    norm: u64,
    gate: u64,
    panels: u64,
    unscale: u64,
    cols: u32,
    padded: u32,
    padded_tokens: u32,
    normed: u32,
    holds: u32,
    activation: i32,
    epsilon: f32,
}

/// How the results of a launch are dealt out to its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Deal {
    /// Blocks.
    grid: usize,
    /// Results that one block each makes, in whole rounds.
    whole: usize,
    /// Results whose columns are shared out.
    shared_out: usize,
    /// Blocks among which.
    sharers: usize,
}

impl Deal {
    /// Results of so many units of so many columns, for this many blocks at a time.
    fn of(results: usize, units: usize, unit: usize, blocks: usize) -> Deal {
        let whole = results / blocks * blocks;
        let shared_out = results - whole;
        // The kernel counts them in 32 bits.
        let items = shared_out.checked_mul(units).filter(|items| *items < (1 << 31) / blocks.max(1));
        let Some(items) = items else {
            return Deal { grid: results.min(blocks), whole: results, shared_out: 0, sharers: 0 };
        };
        let parts = (units * unit / COLUMNS_PER_PART).isqrt().max(1);
        let sharers = blocks.min(items).min(shared_out * parts);
        let grid = if whole == 0 { sharers } else { blocks };
        Deal { grid, whole, shared_out, sharers }
    }
}

impl Lowering<'_> {
    /// Activations as panels; they stay until the next.
    fn panels(&mut self, x: Activations, config: HopperConfig) -> Result<(u64, u64, usize), BackendError> {
        let (tokens, cols) = (x.x.shape.rows, x.x.shape.cols);
        let padded = cols.next_multiple_of(PADDING);
        let padded_tokens = tokens.next_multiple_of(config.tokens as usize);
        let panels = self.scratch(Region::Halves, padded_tokens * padded * 2)?;
        let unscale = self.scratch(Region::Unscale, tokens * 4)?;
        if self.halves != Some((x.id, padded_tokens)) {
            let (gate, activation) = match x.gate {
                Some(gate) => (self.floats(&gate.by)?, elementwise::activation(gate.activation)),
                None => (0, 0),
            };
            // A row stays in shared memory if it fits, beside what the kernel needs for its sums.
            let fits = padded * 4 + 1024 <= self.device.shared_memory as usize;
            let held = if fits { padded * 4 } else { 0 };
            let args = PanelsArgs {
                x: self.floats(&x.x)?,
                norm: x.norm.map_or(0, |norm| norm.weight),
                gate,
                panels,
                unscale,
                cols: cols as u32,
                padded: padded as u32,
                padded_tokens: padded_tokens as u32,
                normed: u32::from(x.norm.is_some()),
                holds: u32::from(held > 0),
                activation,
                epsilon: x.norm.map_or(0.0, |norm| norm.epsilon),
            };
            let fours = padded / 4;
            let threads = fours.div_ceil(fours.div_ceil(MOST_PANEL_THREADS)).next_multiple_of(32);
            self.launch(Spec::Plain("panels.cu", "panels"), [tokens, 1, 1], threads as u32, held, args)?;
            self.halves = Some((x.id, padded_tokens));
        }
        Ok((panels, unscale, padded_tokens))
    }

    /// The gate, if the product that follows can do it when it prepares its rows, and nothing else reads it.
    pub(super) fn deferred_gate(
        &self,
        steps: &[Step],
        activation: Activation,
    ) -> Result<Option<Gate>, BackendError> {
        let step = &steps[0];
        let (by, x) = (step.input(0)?, step.input(1)?);
        let reads = |next: &&Step| {
            matches!(next.node.op, Op::MatMul(_))
                && next.inputs.first().map(|input| input.producer) == Some(step.id)
        };
        let suits = self.kernels.hopper && step.uses == 1 && x.shape.rows > 1 && by.shape == x.shape;
        Ok(steps.get(1).filter(reads).filter(|_| suits).map(|_| Gate { x, by, activation }))
    }

    /// Several rows times matrices: those of a format together.
    pub(super) fn multiply_hopper(
        &mut self,
        x: Activations,
        products: &[Product],
    ) -> Result<(), BackendError> {
        let mut left: Vec<Product> = products.to_vec();
        while let Some(first) = left.first().copied() {
            let format = first.weight.format;
            let (same, others): (Vec<_>, Vec<_>) = left.into_iter().partition(|p| p.weight.format == format);
            same.chunks(MOST_PARTS).try_for_each(|products| self.gemm_hopper(x, products, None))?;
            left = others;
        }
        Ok(())
    }

    /// `activation(gate x) * (other x)`, for two products and the gate that follows them and alone reads them: in one
    /// launch. `false` if it is something else that follows.
    pub(super) fn gated_hopper(&mut self, x: Activations, steps: &[Step]) -> Result<bool, BackendError> {
        let [gate, other, gated, ..] = steps else { return Ok(false) };
        let Op::Gated(activation) = gated.node.op else { return Ok(false) };
        let reads = |step: &Step, from: NodeId| step.inputs.first().map(|input| input.producer) == Some(from);
        let suits = self.kernels.hopper
            && (2..=MOST_GATED).contains(&x.x.shape.rows)
            && matches!(other.node.op, Op::MatMul(_))
            && reads(other, x.id)
            && (gate.uses, other.uses) == (1, 1)
            && reads(gated, gate.id)
            && gated.input(1)?.producer == other.id
            && other.output.shape == gate.output.shape;
        if !suits {
            return Ok(false);
        }
        let mut products = [self.product(gate)?, self.product(other)?];
        let has_bias = products.iter().any(|product| product.bias != 0);
        if has_bias || products[0].weight.format != products[1].weight.format {
            return Ok(false);
        }
        products[0].out = self.floats(&gated.output)?;
        self.gemm_hopper(x, &products, Some(activation)).map(|()| true)
    }

    /// Several rows times up to three matrices of one format; or times two of one shape, a gate with this activation and
    /// what it lets through.
    pub(super) fn gemm_hopper(
        &mut self,
        x: Activations,
        products: &[Product],
        gate: Option<Activation>,
    ) -> Result<(), BackendError> {
        let weight = products[0].weight;
        let tokens = x.x.shape.rows;
        let record = tiled::record(weight.format)
            .ok_or_else(|| invariant("weight", "a format with products", weight.format))?;
        let config = HopperConfig::of(tokens, record, gate.is_some(), self.device.shared_memory as usize);
        let (panels, unscale, padded_tokens) = self.panels(x, config)?;
        let mut parts = [Part::default(); MOST_PARTS];
        let mut row_blocks = 0;
        let result_rows = if gate.is_some() { BLOCK_ROWS / 2 } else { BLOCK_ROWS };
        for (part, product) in parts.iter_mut().zip(products) {
            let blocks = (product.weight.shape.tiles as usize).div_ceil(result_rows / TILE_ROWS);
            *part = Part {
                weight: product.weight.address,
                bias: product.bias,
                residual: product.residual,
                out: product.out,
                tiles: product.weight.shape.tiles,
                rows: product.weight.rows as u32,
                blocks: blocks as u32,
            };
            row_blocks += blocks;
        }
        if gate.is_some() {
            row_blocks /= 2;
        }
        let token_blocks = padded_tokens / config.tokens as usize;
        let units = weight.shape.units as usize;
        let blocks = (self.device.multiprocessors * config.blocks) as usize;
        let deal = Deal::of(row_blocks * token_blocks, units, record.unit, blocks);
        let (partial, done) = match deal.shared_out {
            0 => (0, 0),
            shared_out => {
                let bytes = deal.grid * 2 * config.tokens as usize * BLOCK_ROWS * 4;
                (self.scratch(Region::Partial, bytes)?, self.scratch(Region::Done, shared_out * 4)?)
            }
        };
        let args = GemmArgs {
            parts,
            panels,
            unscale,
            partial,
            done,
            tokens: tokens as u32,
            padded_tokens: padded_tokens as u32,
            token_blocks: token_blocks as u32,
            units: units as u32,
            whole: deal.whole as u32,
            shared_out: deal.shared_out as u32,
            sharers: deal.sharers as u32,
            activation: gate.map_or(0, elementwise::activation),
        };
        let spec = Spec::Hopper(weight.format, config);
        self.launch(spec, [deal.grid, 1, 1], config.threads(), config.shared(record), args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_results_are_dealt_out() {
        for (results, units, expected) in [
            (264, 14, Deal { grid: 132, whole: 264, shared_out: 0, sharers: 0 }),
            (224, 74, Deal { grid: 132, whole: 132, shared_out: 92, sharers: 132 }),
            (2, 3, Deal { grid: 6, whole: 0, shared_out: 2, sharers: 6 }),
            // Few parts, since one block adds them up.
            (4, 14, Deal { grid: 28, whole: 0, shared_out: 4, sharers: 28 }),
            (133, 1, Deal { grid: 132, whole: 132, shared_out: 1, sharers: 1 }),
            // More than the kernel can count.
            (131, 1 << 24, Deal { grid: 131, whole: 131, shared_out: 0, sharers: 0 }),
        ] {
            assert_eq!(Deal::of(results, units, 256, 132), expected, "{results} of {units}");
        }
    }
}
