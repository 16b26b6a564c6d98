//! Mixtures of experts: the choice, products with the matrices of chosen experts, and their weighted sum.

use super::Lowering;
use super::matmul::{Chosen, Product};
use crate::kernels::{GemmConfig, Spec};
use crate::scratch::Region;
use crate::step::Step;
use crate::tiled::{self, TILE_ROWS};
use crate::weights::Tiled;
use graph::ops::ExpertMatMul;
use graph::{BackendError, NodeId, Operand};

#[repr(C)]
#[derive(Clone, Copy)]
struct TopKArgs {
    x: u64,
    out: u64,
    rows: u32,
    cols: u32,
    k: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct GatherArgs {
    x: u64,
    columns: u64,
    out: u64,
    elements: u32,
    cols: u32,
    k: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CombineArgs {
    y: u64,
    weights: u64,
    out: u64,
    elements: u32,
    cols: u32,
    used: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RouteArgs {
    experts: u64,
    order: u64,
    work: u64,
    choices: u32,
    count: u32,
    tokens: u32,
    most: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ExpertRowsArgs {
    weight: u64,
    bias: u64,
    x: u64,
    experts: u64,
    out: u64,
    rows: u32,
    cols: u32,
    count: u32,
    choices_per_row: u32,
}

/// Choices up to which each is a product of its own: more are brought into the order of their experts.
const FEW_CHOICES: usize = 64;
/// Warps of a block of `top_k` and `expert_rows`, as in `experts.cu`.
const WARPS: usize = 4;

/// Whether products run from tiles: no tile has rows of two experts.
pub(crate) fn is_tiled(rows: usize, experts: usize) -> bool {
    rows.checked_div(experts).is_some_and(|rows| rows.is_multiple_of(TILE_ROWS))
}

/// The order that choices were brought into last.
#[derive(Clone, Copy)]
pub(super) struct Routed {
    /// The choices, and how many there are in a block of products at most.
    of: (NodeId, u32),
    /// What the blocks are, and how many.
    work: u64,
    most: usize,
    order: u64,
}

impl Lowering<'_> {
    pub(super) fn top_k(&mut self, step: &Step, k: usize) -> Result<(), BackendError> {
        let x = step.input(0)?;
        let args = TopKArgs {
            x: self.floats(&x)?,
            out: self.ints(&step.output)?,
            rows: x.shape.rows as u32,
            cols: x.shape.cols as u32,
            k: k as u32,
        };
        let grid = [x.shape.rows.div_ceil(WARPS), 1, 1];
        self.launch(Spec::Plain("experts.cu", "top_k"), grid, WARPS as u32 * 32, 0, args)
    }

    pub(super) fn gather_cols(&mut self, step: &Step) -> Result<(), BackendError> {
        let (x, columns) = (step.input(0)?, step.input(1)?);
        let args = GatherArgs {
            x: self.floats(&x)?,
            columns: self.ints(&columns)?,
            out: self.floats(&step.output)?,
            elements: columns.shape.elements() as u32,
            cols: x.shape.cols as u32,
            k: columns.shape.cols as u32,
        };
        let grid = self.elements_grid(columns.shape.elements());
        self.launch(Spec::Plain("experts.cu", "gather_cols"), grid, 256, 0, args)
    }

    pub(super) fn combine_experts(&mut self, step: &Step) -> Result<(), BackendError> {
        let (y, weights) = (step.input(0)?, step.input(1)?);
        let elements = step.output.shape.elements();
        let args = CombineArgs {
            y: self.floats(&y)?,
            weights: self.floats(&weights)?,
            out: self.floats(&step.output)?,
            elements: elements as u32,
            cols: y.shape.cols as u32,
            used: weights.shape.cols as u32,
        };
        let grid = self.elements_grid(elements);
        self.launch(Spec::Plain("experts.cu", "combine_experts"), grid, 256, 0, args)
    }

    /// Products of few choices one by one, of many with those that chose the same expert.
    pub(super) fn expert_matmul(&mut self, step: &Step, op: &ExpertMatMul) -> Result<(), BackendError> {
        let (x, indices) = (self.activations(step.input(0)?)?, step.input(1)?);
        let info = step.weight(0)?.clone();
        let bias = match step.weights.get(1).map(|bias| bias.name.clone()) {
            Some(bias) => self.vector(&bias)?,
            None => 0,
        };
        let out = self.floats(&step.output)?;
        let choices = indices.shape.elements();
        let per_row = (choices / x.x.shape.rows.max(1)).max(1);
        let rows = info.rows / op.experts.max(1);
        if !is_tiled(info.rows, op.experts) {
            let args = ExpertRowsArgs {
                weight: self.weights.raw(&info.name, self.stream)?,
                bias,
                x: self.floats(&x.x)?,
                experts: self.ints(&indices)?,
                out,
                rows: rows as u32,
                cols: info.cols as u32,
                count: op.experts as u32,
                choices_per_row: per_row as u32,
            };
            let grid = [choices, rows.div_ceil(WARPS), 1];
            return self.launch(Spec::ExpertRows(info.format), grid, WARPS as u32 * 32, 0, args);
        }
        let whole = self.tiled(&info.name)?;
        let shape = tiled::Shape { tiles: (rows / TILE_ROWS) as u32, ..whole.shape };
        let product = Product { weight: Tiled { rows, shape, ..whole }, bias, residual: 0, out };
        let mut chosen = Chosen {
            matrices: op.experts as u32,
            per_row: per_row as u32,
            choices,
            indices: self.ints(&indices)?,
            order: 0,
            work: 0,
        };
        if choices <= FEW_CHOICES {
            let formats = [Some(info.format), None, None];
            let blocks = (self.device.multiprocessors as usize / choices).max(1) as u32;
            if let Some(plan) = self.matvec_plan(formats, info.cols, shape.tiles, false, Some(blocks)) {
                return self.matvec(x, &[product], None, plan, Some(chosen));
            }
        }
        // Twice as many tokens as come to an expert on average, since they do not come evenly.
        let config = GemmConfig::of((2 * choices).div_ceil(op.experts.max(1)));
        let routed = self.route(indices, op.experts, config.tokens())?;
        (chosen.order, chosen.work, chosen.choices) = (routed.order, routed.work, routed.most);
        self.gemm(x, &product, config, Some(chosen))
    }

    /// Brings choices into the order of their experts, unless the last ones were the same.
    fn route(&mut self, indices: Operand, experts: usize, tokens: u32) -> Result<Routed, BackendError> {
        let of = (indices.producer, tokens);
        if let Some(routed) = self.routed.filter(|routed| routed.of == of) {
            return Ok(routed);
        }
        let choices = indices.shape.elements();
        // A block for each expert that is not whole, and one for what is no expert's.
        let most = choices.min(choices / tokens as usize + experts + 1);
        let shared = 2 * (experts + 1) * 4;
        let order = self.scratch(Region::Order, choices * 4)?;
        let work = self.scratch(Region::Work, most * 16)?;
        let args = RouteArgs {
            experts: self.ints(&indices)?,
            order,
            work,
            choices: choices as u32,
            count: experts as u32,
            tokens,
            most: most as u32,
        };
        self.launch(Spec::Plain("experts.cu", "route"), [1, 1, 1], 1024, shared, args)?;
        let routed = Routed { of, work, most, order };
        self.routed = Some(routed);
        Ok(routed)
    }
}
