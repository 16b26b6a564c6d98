//! What lies between the projections and attention: biases, norms of heads, rotation, and the store.

use super::{Lowering, device_error};
use crate::buffers::cache_type;
use crate::checks::Check;
use crate::inputs::AnglesArgs;
use crate::kernels::Spec;
use crate::ops::matmul::Product;
use crate::scratch::Region;
use crate::step::{Step, invariant};
use graph::ops::{FusedQkv, QkvBiasRopeStore, Rope, RopeStyle};
use graph::{BackendError, NodeId, Op, Operand, StateId, StatePart};

/// Heads of one kind: where they come from, what is done to them, and where they go.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Heads {
    pub(super) x: u64,
    pub(super) bias: u64,
    pub(super) norm: u64,
    pub(super) out: u64,
    pub(super) cache: u64,
    pub(super) heads: u32,
    pub(super) width: u32,
    pub(super) x_stride: u32,
    pub(super) out_stride: u32,
    pub(super) turned: u32,
    pub(super) kind: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct HeadsArgs {
    pub(super) kinds: [Heads; 3],
    pub(super) angles: u64,
    pub(super) cache_rows: u64,
    pub(super) tokens: u32,
    pub(super) cache_rows_limit: u32,
    pub(super) pairs: u32,
    pub(super) interleaved: u32,
    pub(super) epsilon: f32,
}

/// Warps of a block.
const WARPS: usize = 4;

impl Lowering<'_> {
    /// The address of the cosines and sines, made once for a table and its positions.
    fn angles(&mut self, rope: &Rope, positions: Operand) -> Result<u64, BackendError> {
        let pairs = rope.table.inv_freq.len();
        let table = self.kernels.rope_table(&rope.table, self.stream).map_err(device_error)?;
        let key = (table as usize, positions.producer);
        if let Some(&address) = self.angles.get(&key) {
            return Ok(address);
        }
        let tokens = positions.shape.rows;
        let out = self.scratch(Region::Angles(self.angles.len()), tokens * pairs.max(1) * 8)?;
        self.check(Check::Below { what: "position", values: positions, limit: i32::MAX as usize });
        let args = AnglesArgs {
            positions: self.ints(&positions)?,
            inv_freq: table,
            out,
            tokens: tokens as u32,
            pairs: pairs as u32,
            magnitude: rope.table.magnitude,
        };
        if pairs > 0 {
            self.out.angles.push(args);
        }
        self.angles.insert(key, out);
        Ok(out)
    }

    fn turn(&mut self, args: &mut HeadsArgs, rope: &Rope, positions: Operand) -> Result<(), BackendError> {
        args.angles = self.angles(rope, positions)?;
        args.pairs = rope.table.inv_freq.len() as u32;
        args.interleaved = u32::from(rope.style == RopeStyle::Interleaved);
        Ok(())
    }

    /// Makes a kind go to a part of the cache.
    fn send_to_cache(
        &mut self,
        args: &mut HeadsArgs,
        index: usize,
        state: Option<StateId>,
        part: StatePart,
        rows: Operand,
    ) -> Result<(), BackendError> {
        let state = self.states.get(state.ok_or_else(|| invariant("state", "that of a layer", "none"))?)?;
        let (limit, _, dtype) =
            state.spec.part(part).ok_or_else(|| invariant("state", format!("{part:?}"), "none"))?;
        args.kinds[index].cache = state.part(part)?.address();
        args.kinds[index].kind =
            cache_type(dtype).ok_or_else(|| invariant("cache", "a type that is known", dtype))?;
        args.cache_rows = self.ints(&rows)?;
        args.cache_rows_limit = limit as u32;
        self.check(Check::Below { what: "cache row", values: rows, limit });
        Ok(())
    }

    fn launch_heads(&mut self, args: HeadsArgs) -> Result<(), BackendError> {
        let heads: usize = args.kinds.iter().map(|kind| kind.heads as usize).sum();
        let widest = args.kinds.iter().map(|kind| kind.width as usize).max().unwrap_or(0);
        let shared = WARPS * (widest + 32) * 4;
        let grid = [heads.div_ceil(WARPS), args.tokens as usize, 1];
        self.launch(Spec::Plain("cache.cu", "heads"), grid, WARPS as u32 * 32, shared, args)
    }

    /// Norms of heads, rotations and a store: as many of the steps as one launch does.
    pub(super) fn heads(&mut self, steps: &[Step]) -> Result<usize, BackendError> {
        let taken = Chain::length(steps);
        let mut args = HeadsArgs::default();
        let mut chain = Chain::default();
        for step in &steps[..taken] {
            match &step.node.op {
                Op::QkNorm(op) => {
                    let index = chain.place(step, op.head_dim, &mut args)?;
                    let name = step.weight(0)?.name.clone();
                    args.kinds[index].norm = self.vector(&name)?;
                    args.epsilon = op.epsilon;
                }
                Op::Rope(rope) => {
                    let index = chain.place(step, rope.head_dim, &mut args)?;
                    args.kinds[index].turned = 1;
                    self.turn(&mut args, rope, step.input(1)?)?;
                }
                Op::KvStore(_) => {
                    for (input, part) in [StatePart::Key, StatePart::Value].into_iter().enumerate() {
                        let operand = step.input(input)?;
                        let index = chain.store(operand, &mut args)?;
                        self.send_to_cache(&mut args, index, step.state, part, step.input(2)?)?;
                    }
                }
                other => return Err(invariant("operation", "one of heads", other.name())),
            }
        }
        for (index, end) in chain.ends.iter().enumerate() {
            let Some(operand) = end else { continue };
            args.kinds[index].x = self.floats(&chain.starts[index])?;
            if args.kinds[index].cache == 0 {
                args.kinds[index].out = self.floats(operand)?;
            }
            args.tokens = operand.shape.rows as u32;
        }
        self.launch_heads(args)?;
        let queries = args.kinds.iter().position(|kind| kind.heads > 0 && kind.cache == 0);
        if let Some(step) = queries
            .and_then(|index| chain.ends.get(index).copied().flatten())
            .and_then(|end| steps[..taken].iter().find(|step| step.id == end.producer))
        {
            self.note_heads(args, step.id, step.uses);
        }
        Ok(taken)
    }

    /// Three projections side by side, in memory of their own, and all that follows.
    pub(super) fn fused_qkv(&mut self, step: &Step, op: &FusedQkv) -> Result<(), BackendError> {
        let x = self.activations(step.input(0)?)?;
        let tokens = x.x.shape.rows;
        let rows = [step.weight(0)?.rows, step.weight(1)?.rows, step.weight(2)?.rows];
        let total: usize = rows.iter().sum();
        let scratch = self.scratch(Region::Products, tokens * total * 4)?;
        let mut products = Vec::with_capacity(3);
        let mut out = scratch;
        for (index, rows) in rows.into_iter().enumerate() {
            let name = step.weight(index)?.name.clone();
            let bias = match op.biases {
                Some(_) => {
                    let name = step.weight(3 + index)?.name.clone();
                    self.vector(&name)?
                }
                None => 0,
            };
            products.push(Product { weight: self.tiled(&name)?, bias, residual: 0, out });
            out += (tokens * rows) as u64 * 4;
        }
        self.multiply(x, &products)?;
        let mut args = HeadsArgs::default();
        for (index, product) in products.iter().enumerate() {
            let kind = &mut args.kinds[index];
            (kind.x, kind.x_stride) = (product.out, rows[index] as u32);
        }
        let mut next = if op.biases.is_some() { 6 } else { 3 };
        if let Some((_, epsilon)) = op.norms {
            for index in 0..2 {
                let name = step.weight(next)?.name.clone();
                args.kinds[index].norm = self.vector(&name)?;
                next += 1;
            }
            args.epsilon = epsilon;
        }
        let head_dim = match (&op.rope, op.norms) {
            (Some(rope), _) => Some(rope.head_dim),
            (None, Some(_)) => step.weights.last().map(|norm| norm.rows.max(norm.cols)),
            (None, None) => None,
        };
        self.finish_qkv(step, args, rows, head_dim, op.rope.as_ref())
    }

    /// What follows the concatenated product.
    pub(super) fn qkv_bias_rope_store(
        &mut self,
        step: &Step,
        op: &QkvBiasRopeStore,
    ) -> Result<(), BackendError> {
        let x = step.input(0)?;
        let base = self.floats(&x)?;
        let state =
            self.states.get(step.state.ok_or_else(|| invariant("state", "that of a layer", "none"))?)?;
        let cols = |part| state.spec.part(part).map_or(0, |(_, cols, _)| cols);
        let rows = [op.query_cols, cols(StatePart::Key), cols(StatePart::Value)];
        let mut args = HeadsArgs::default();
        let mut first = 0;
        for (index, rows) in rows.into_iter().enumerate() {
            args.kinds[index].x = base + first as u64 * 4;
            args.kinds[index].x_stride = x.shape.cols as u32;
            first += rows;
            if op.biases.is_some() {
                let name = step.weight(index)?.name.clone();
                args.kinds[index].bias = self.vector(&name)?;
            }
        }
        let head_dim = op.rope.as_ref().map(|rope| rope.head_dim);
        self.finish_qkv(step, args, rows, head_dim, op.rope.as_ref())
    }

    /// The rotation and the store of query, key and value. Values, and what neither turns nor is normed, is one wide
    /// head.
    fn finish_qkv(
        &mut self,
        step: &Step,
        mut args: HeadsArgs,
        rows: [usize; 3],
        head_dim: Option<usize>,
        rope: Option<&Rope>,
    ) -> Result<(), BackendError> {
        for (index, rows) in rows.into_iter().enumerate() {
            let width = head_dim.filter(|&width| width > 0 && rows.is_multiple_of(width)).unwrap_or(rows);
            args.kinds[index].width = width as u32;
            args.kinds[index].heads = (rows / width.max(1)) as u32;
            args.kinds[index].turned = u32::from(rope.is_some() && index < 2);
        }
        if let Some(rope) = rope {
            self.turn(&mut args, rope, step.input(1)?)?;
        }
        args.kinds[0].out = self.floats(&step.output)?;
        args.kinds[0].out_stride = rows[0] as u32;
        self.send_to_cache(&mut args, 1, step.state, StatePart::Key, step.input(2)?)?;
        self.send_to_cache(&mut args, 2, step.state, StatePart::Value, step.input(2)?)?;
        args.tokens = step.output.shape.rows as u32;
        self.launch_heads(args)?;
        self.note_heads(args, step.id, step.uses);
        Ok(())
    }
}

/// Values that pass through norms, rotations and the store of one launch.
#[derive(Default)]
struct Chain {
    /// What each value began as.
    starts: Vec<Operand>,
    /// What it is now.
    ends: Vec<Option<Operand>>,
}

impl Chain {
    /// How many of the steps can be one launch: norms and rotations of at most two values, up to a store that takes one
    /// of them; or the first step alone. A value between two of the steps is read by nothing else.
    fn length(steps: &[Step]) -> usize {
        let Some(store) = steps.iter().take(5).position(|step| matches!(step.node.op, Op::KvStore(_))) else {
            return 1;
        };
        let mut values: Vec<(NodeId, usize)> = Vec::new();
        let mut settings: (Option<f32>, Option<&Rope>, usize) = (None, None, 0);
        for step in &steps[..store] {
            let width = match &step.node.op {
                Op::QkNorm(op) if settings.0.is_none_or(|epsilon| epsilon == op.epsilon) => {
                    settings.0 = Some(op.epsilon);
                    op.head_dim
                }
                Op::Rope(rope)
                    if settings
                        .1
                        .is_none_or(|other| other.style == rope.style && other.table == rope.table) =>
                {
                    settings.1 = Some(rope);
                    rope.head_dim
                }
                _ => return 1,
            };
            if settings.2 != 0 && settings.2 != width {
                return 1;
            }
            settings.2 = width;
            let Some(input) = step.inputs.first() else { return 1 };
            match values.iter_mut().find(|(id, _)| *id == input.producer) {
                // A norm after a rotation is no chain that the kernel knows.
                Some((_, uses)) if *uses != 1 || matches!(step.node.op, Op::QkNorm(_)) => return 1,
                Some(value) => *value = (step.id, step.uses),
                None => values.push((step.id, step.uses)),
            }
        }
        let inputs = &steps[store].inputs;
        let (Some(key), Some(value)) = (inputs.first(), inputs.get(1)) else { return 1 };
        let stored = |operand: &Operand| values.iter().find(|(id, _)| *id == operand.producer);
        // Rows of values that are no heads of this width go with the rest as one wide head.
        let key_only = stored(key).is_some_and(|(_, uses)| *uses == 1) && stored(value).is_none();
        let fits = values.len() <= 2 && (store == 0 || key_only);
        if fits { store + 1 } else { 1 }
    }

    /// The number of the value that a step changes, as it is after the step.
    fn place(&mut self, step: &Step, head_dim: usize, args: &mut HeadsArgs) -> Result<usize, BackendError> {
        let input = step.input(0)?;
        let known = self.ends.iter().position(|end| end.is_some_and(|end| end.producer == input.producer));
        let index = match known {
            Some(index) => index,
            None => self.add(input, head_dim, args)?,
        };
        self.ends[index] = Some(step.output);
        Ok(index)
    }

    /// The number of the value that is stored.
    fn store(&mut self, operand: Operand, args: &mut HeadsArgs) -> Result<usize, BackendError> {
        let known = self.ends.iter().position(|end| end.is_some_and(|end| end.producer == operand.producer));
        match known {
            // The same value as key and as value is two kinds.
            Some(index) if args.kinds[index].cache == 0 => Ok(index),
            _ => self.add(operand, operand.shape.cols, args),
        }
    }

    fn add(&mut self, operand: Operand, width: usize, args: &mut HeadsArgs) -> Result<usize, BackendError> {
        let index = self.starts.len();
        let kind =
            args.kinds.get_mut(index).ok_or_else(|| invariant("values of heads", "at most 3", index + 1))?;
        let cols = operand.shape.cols;
        kind.width = width as u32;
        kind.heads = (cols / width.max(1)) as u32;
        (kind.x_stride, kind.out_stride) = (cols as u32, cols as u32);
        self.starts.push(operand);
        self.ends.push(Some(operand));
        Ok(index)
    }
}
