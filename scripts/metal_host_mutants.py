"""Mutants of the host's side of the Metal backend, for mutate-metal.py: the guards of the encoder, the rounding of its
grids, and the dependency tracker.

All are built at once, from a copy of the sources in which each place asks whether it is the mutant's turn
(SMELT_MUTANT has its number), so that they take one build of the test programs, and the product has no such question in it.
"""

import re
import subprocess
from pathlib import Path

SOURCES = Path("crates/metal/src")

# Where guards are looked for, and which tests run for each file: test program, and a part of the tests' names.
INVARIANTS = [("ops", "invariants::"), ("ops", "errors::")]


def refusals(*parts):
    """The tests of what is refused: first those of these parts, then the others."""
    return [*(("ops", f"invariants::{part}") for part in parts), *INVARIANTS]


TESTS = {
    "tracker.rs": [("lib", "tracker::"), ("backend", ""), ("metal", "a_tiny_model")],
    "work.rs": [("lib", "work::"), ("submission", ""), ("ops", "cuts::")],
    "submit.rs": [("submission", ""), ("backend", "")],
    "recorder.rs": [
        ("lib", "recorder::"), ("submission", ""), ("ops", "barriers::"), ("backend", ""), ("ops", "cuts::"), ("graphs", ""),
        ("metal", "a_tiny_model"),
    ],
    "pass.rs": [
        *refusals("a_launch", "threadgroup_memory", "a_dispatch"),
        ("submission", ""), ("ops", "threads::"), ("ops", "cuts::"), ("backend", ""), ("graphs", ""),
    ],
    "backend.rs": [("backend", ""), ("weights", ""), ("ops", "threads::"), ("chains", ""), ("graphs", ""), ("metal", "a_tiny_model")],
    "pool.rs": [("backend", ""), ("ops", "errors::")],
    "states.rs": [("backend", ""), ("ops", "errors::")],
    "weights.rs": [("weights", ""), ("ops", "errors::")],
    "residency.rs": [("lib", "residency::"), ("weights", "residency"), ("backend", "states_are")],
    "requirements.rs": [("ops", "threads::a_device"), ("weights", "what_a_model")],
    "tensor.rs": [("backend", ""), ("weights", ""), *INVARIANTS],
    "device/bindings.rs": [("device", ""), ("lib", "device::")],
    "device/checks.rs": [("lib", "device::checks"), ("device", "")],
    "device/memory.rs": [("device", ""), ("lib", "device::")],
    "fusion.rs": [("lib", "fusion::"), ("chains", ""), ("experts", ""), ("graphs", ""), ("metal", "a_tiny_model")],
    "largest.rs": [("backend", ""), ("ops", "largest::")],
    "ops/mod.rs": [*refusals("results"), ("chains", ""), ("experts", "")],
    "ops/attention.rs": [
        *refusals("operands_of_attention", "indices_of_attention"),
        ("ops", "edges::heads"), ("ops", "edges::windows"), ("ops", "attention::pages"), ("ops", "attention::soft_caps"),
        ("ops", "cuts::"),
    ],
    "ops/cache.rs": [
        *refusals("operands_of_fused", "operands_of_gathers"),
        ("ops", "edges::values"), ("ops", "cache::"), ("ops", "fused::"),
    ],
    "ops/elementwise.rs": [*refusals("operands_of_elementwise"), ("ops", "elementwise::")],
    "ops/experts.rs": [
        *refusals("operands_of_products_with_experts", "choices_that"),
        ("experts", ""), ("ops", "experts_on_metal::"), ("ops", "experts::"), ("ops", "cuts::"),
    ],
    "ops/fused.rs": [*refusals("operands_of_fused"), ("lib", "ops::fused"), ("ops", "fused::"), ("metal", "a_tiny_model")],
    "ops/inputs.rs": refusals("indices_of_attention"),
    "ops/matmul.rs": [
        *refusals("operands_of_products"), ("ops", "edges::pro"), ("ops", "cuts::"), ("ops", "matmul::"), ("ops", "fused::"),
    ],
    "ops/norm.rs": [*refusals("operands_of_norms"), ("chains", ""), ("ops", "norm::")],
    "ops/rope.rs": [*refusals("operands_of_norms"), ("ops", "edges::heads_of_an_odd"), ("ops", "rope::")],
    "ops/rows.rs": [
        *refusals("operands_of_gathers", "rows_that"),
        ("ops", "edges::rows"), ("ops", "rows::"), ("ops", "cache::rows"),
    ],
    "ops/shape.rs": [*refusals("operands_of_windows", "operands_of_elementwise"), ("ops", "shape::")],
    "ops/softmax.rs": [*refusals("operands_of_elementwise"), ("ops", "norm::softmaxes")],
    "ops/topk.rs": [*refusals("operands_of_choices", "choices_that"), ("experts", ""), ("ops", "topk::")],
}

# What no rule finds: file, what stands there once, with the changed part in [[ ]], and what stands in its place; None for a
# statement that is left out.
CONFLICT = "other.access == Access::Write || touch.access == Access::Write"
OVERLAP = "other.bytes.start < touch.bytes.end && touch.bytes.start < other.bytes.end"
BESIDE = "(self.matrix, self.stride) == (other.matrix, other.stride) && apart"
APART = "self.bytes.end <= other.bytes.start || other.bytes.end <= self.bytes.start"
CHOSEN = [
    # The classes of dependencies: reads after writes, writes after reads, writes after writes; and reads after reads.
    ("tracker.rs", f"[[{CONFLICT}]]", "touch.access == Access::Write"),
    ("tracker.rs", f"[[{CONFLICT}]]", "other.access == Access::Write"),
    ("tracker.rs", f"[[{CONFLICT}]]", "other.access != touch.access"),
    ("tracker.rs", f"[[{CONFLICT}]]", "true"),
    # Ranges that overlap in part.
    ("tracker.rs", f"[[{OVERLAP}]]", "other.bytes.start == touch.bytes.start"),
    ("tracker.rs", f"[[{OVERLAP}]]", "touch.bytes.start < other.bytes.end"),
    ("tracker.rs", f"[[{OVERLAP}]]", "other.bytes.start < touch.bytes.end"),
    # Columns beside each other.
    ("tracker.rs", "[[writes && overlaps && !beside]]", "writes && overlaps"),
    ("tracker.rs", f"[[{BESIDE}]]", "apart"),
    ("tracker.rs", f"[[{BESIDE}]]", "self.matrix == other.matrix && apart"),
    ("tracker.rs", f"[[{BESIDE}]]", "self.stride == other.stride && apart"),
    ("tracker.rs", f"[[{APART}]]", "true"),
    ("tracker.rs", f"[[{APART}]]", "self.bytes.end <= other.bytes.start"),
    ("tracker.rs", f"[[{APART}]]", "other.bytes.end <= self.bytes.start"),
    # Which entry stands for another, and what a barrier makes of all.
    ("tracker.rs", "[[other.access == touch.access]]", "true"),
    ("tracker.rs", "[[(other.columns.is_none() || other.columns == touch.columns)]]", "true"),
    ("tracker.rs", "[[(other.columns.is_none() || other.columns == touch.columns)]]", "other.columns == touch.columns"),
    ("tracker.rs", "[[other.bytes.start <= touch.bytes.start]]", "true"),
    ("tracker.rs", "[[touch.bytes.end <= other.bytes.end]]", "true"),
    ("tracker.rs", "if barrier {\n            [[self.touched.clear();]]", None),
    ("tracker.rs", "pub fn reset(&mut self) {\n        [[self.touched.clear();]]", None),
    ("tracker.rs", "[[!touch.bytes.is_empty()]]\n", "true"),
    # What the recorder tells the tracker and the device.
    ("recorder.rs", "if [[!slice.memory.is_constant()]]", "true"),
    ("recorder.rs", "if [[!slice.memory.is_constant()]]", "false"),
    ("recorder.rs", "access: [[bound.access]],", "Access::Read"),
    ("recorder.rs", "columns: [[bound.columns.clone()]],", "None"),
    ("recorder.rs", "bytes: [[slice.offset]]..", "0"),
    ("recorder.rs", "bytes: slice.offset..slice.offset + [[slice.length]],", "1"),
    ("recorder.rs", "[[self.tracker.reset();]]\n        self.commands.push(Command::Copy(from, to));", None),
    ("recorder.rs", "self.bytes.clear();\n        [[self.tracker.reset();]]", None),
    ("recorder.rs", "if [[dispatch.barrier && !first]]", "dispatch.barrier"),
    ("recorder.rs", "if [[dispatch.barrier && !first]]", "!first"),
    ("recorder.rs", "if [[dispatch.barrier && !first]]", "false"),
    ("recorder.rs", "[[dispatch.buffers.iter().any(|bound| bound.slice.memory.id() == memory)]]", "false"),
    ("recorder.rs", "[[from.memory.id() == memory]] ||", "false"),
    ("recorder.rs", "|| [[to.memory.id() == memory]]", "false"),
    ("recorder.rs", "[[encoder.set_threadgroup_memory(*slot, 0)?;]]", None),
    ("pass.rs", "if [[size.to_array().contains(&0)]]", "false"),
    ("pass.rs", "[[threads.at_most(self.core.most_threads(self.kernel))]]", "threads"),
    ("pass.rs", ".min([[most / SIMD_WIDTH * SIMD_WIDTH]])", "most"),
    ("pass.rs", "self.core.most_threads(kernel).min([[SIMD_WIDTH * SIMD_WIDTH]])", "usize::MAX"),
    ("backend.rs", "[[own.min(self.device.limits().max_threads_per_threadgroup)]]", "self.device.limits().max_threads_per_threadgroup"),
    ("backend.rs", "[[own.min(self.device.limits().max_threads_per_threadgroup)]]", "own"),
    # Which rows the search for the largest elements takes.
    ("largest.rs", "let fits = [[rows > 0]]", "true"),
    ("largest.rs", "&& [[cols > 0]]", "true"),
    ("largest.rs", "&& [[i32::try_from(cols).is_ok()]]", "true"),
    ("largest.rs", "&& [[u32::try_from(rows).is_ok()]]", "true"),
    ("largest.rs", "[[best.buffer().length() >= bytes]]", "true"),
    ("pass.rs", "[[length.next_multiple_of(alignment)]]", "length"),
    # Ends of memory.
    ("pool.rs", "[[end <= *bytes]]", "true"),
    ("pool.rs", "[[memory.buffer().length() == class]]", "true"),
    ("weights.rs", "[[offset.is_multiple_of(OFFSET_ALIGNMENT)]]", "true"),
    ("tensor.rs", "[[(end <= self.buffer.length())]]", "true"),
    ("tensor.rs", "[[(end <= self.length)]]", "true"),
    ("tensor.rs", "[[(end <= stride)]]", "true"),
    # How long work is, where it is cut, and what is handed over and waited for.
    ("work.rs", "[[(limits.recommended_working_set as f64 / MEMORY).max(1.0)]]", "(limits.recommended_working_set as f64 / MEMORY)"),
    ("work.rs", "[[(limits.recommended_working_set as f64 / MEMORY).max(1.0)]]", "1.0"),
    ("work.rs", "[[(operations as f64 / self.operations).max(bytes as f64 / self.bytes)]]", "operations as f64 / self.operations"),
    ("work.rs", "[[(operations as f64 / self.operations).max(bytes as f64 / self.bytes)]]", "bytes as f64 / self.bytes"),
    ("work.rs", "[[((self.limit.as_secs_f64() * self.operations / operations as f64) as usize).max(1)]]", "0"),
    ("work.rs", "[[least.max(estimate.saturating_mul(PATIENCE))]]", "least"),
    ("work.rs", "[[least.max(estimate.saturating_mul(PATIENCE))]]", "estimate.saturating_mul(PATIENCE)"),
    ("work.rs", "if [[step.waits]] {", "true"),
    ("work.rs", "if [[step.waits]] {", "false"),
    ("work.rs", "&& [[time.saturating_add(step.time) > limit]]", "time > limit"),
    ("work.rs", "&& [[time.saturating_add(step.time) > limit]]", "true"),
    ("work.rs", "if [[wait > start]] {", "true"),
    ("work.rs", "(end, [[sum(end..i)]]);", "Duration::ZERO"),
    ("work.rs", "if [[start < steps.len()]] {", "true"),
    ("submit.rs", "if done.is_ok() && [[handed.len() == most]]", "true"),
    ("submit.rs", "if done.is_ok() && [[handed.len() == most]]", "false"),
    ("submit.rs", "if [[done.is_err()]] {", "false"),
    ("submit.rs", "done = [[done.and(self.wait(part, submission))]];", "done"),
    ("submit.rs", "if [[self.failed.is_some()]] {", "false"),
    ("submit.rs", "Some(asked) => [[asked]],", "self.timeout"),
    ("recorder.rs", "Step { time: dispatch.time, waits: [[dispatch.barrier]] }", "false"),
    ("recorder.rs", "Step { time: [[dispatch.time]], waits: dispatch.barrier }", "Duration::ZERO"),
    ("pass.rs", "self.core.work.time([[self.operations]], bytes)", "0"),
    ("pass.rs", "self.core.work.time(self.operations, [[bytes]])", "0"),
    ("ops/attention.rs", "if [[tokens == 1]] {", "false"),
    ("ops/attention.rs", ".operations([[part.operations]])", "0"),
    ("ops/experts.rs", ".operations([[of_tile.saturating_mul(number as u64).min(product.operations(y.shape.rows))]])", "0"),
    ("ops/matmul.rs", ".operations([[operations]])", "0"),
    ("ops/matmul.rs", ".operations([[operations(weight, tokens)]])", "0"),
    ("ops/attention.rs", 'first: int("first query", [[first]])', "0"),
    ("ops/attention.rs", "let number = [[at_once.min(count - first)]];", "at_once"),
    ("ops/attention.rs", "(0..count).step_by([[at_once]])", "usize::MAX"),
    ("ops/experts.rs", "let number = [[at_once.min(count - first)]];", "at_once"),
    ("ops/experts.rs", "(0..count).step_by([[at_once]])", "usize::MAX"),
    ("ops/matmul.rs", "let count = [[at_once.min(tokens - first)]];", "at_once"),
    ("ops/matmul.rs", "(0..tokens).step_by([[at_once]])", "usize::MAX"),
    # What is kept mapped for the GPU, and how long.
    ("submit.rs", "[[self.residency.used();]]", None),
    ("backend.rs", "[[self.residency.map(&mapped);]]", None),
    ("backend.rs", "[[self.residency.keep(&self.core.states.buffers(state), &[]);]]", None),
    ("backend.rs", "[[self.residency.keep(&[], &self.core.states.buffers(state));]]", None),
    ("residency.rs", "[[set.change(buffers, &[]);]]", None),
    ("residency.rs", "[[set.request();]]\n            shared.used();", None),
    ("residency.rs", "set.request();\n            [[shared.used();]]", None),
    ("residency.rs", "[[lock(&shared.set).change(added, removed);]]", None),
    ("residency.rs", "pub fn used(&self) {\n        if let Some(shared) = &self.shared {\n            [[shared.used();]]", None),
    ("residency.rs", "[[shared.changed.notify_one();]]", None),
    ("residency.rs", "[[let _ = thread.join();]]", None),
    ("residency.rs", "[[clock.used = Instant::now();]]", None),
    ("residency.rs", "if [[std::mem::take(&mut clock.sleeps)]] {", "false"),
    ("residency.rs", "[[clock.asked = now;]]", None),
    ("residency.rs", "[[lock(&self.set).request();]]", None),
    ("residency.rs", "[[clock.sleeps = true;]]", None),
    ("residency.rs", "if [[now.duration_since(self.used) >= times.keep]] {", "false"),
    ("residency.rs", "now.duration_since([[self.used]]) >= times.keep", "self.asked"),
    ("residency.rs", "[[self.used.max(self.asked)]]", "self.used"),
    ("residency.rs", "[[self.used.max(self.asked)]]", "self.asked"),
    # What a device must have, and what a model can have of it.
    ("requirements.rs", """[[needs("features of Metal's family Apple 7 or a later one")]]""", "Ok(())"),
    ("requirements.rs", '[[needs("memory in common with the host")]]', "Ok(())"),
    ("requirements.rs", '[[needs("reductions over SIMD-groups")]]', "Ok(())"),
    ("requirements.rs", "saturating_sub([[device.allocated_memory()]])", "0"),
    ("requirements.rs", "saturating_sub([[RESERVE]])", "0"),
    # Which kernel, and how large its grid is.
    ("ops/attention.rs", "[[tokens / tile_queries(op.head_dim) + sequences]]", "tokens.div_ceil(tile_queries(op.head_dim))"),
    ("ops/attention.rs", "if [[page_len.is_power_of_two()]]", "true"),
    ("ops/attention.rs", "[[dim == op.head_dim]] && dim == op.value_dim", "true"),
    ("ops/attention.rs", "dim == op.head_dim && [[dim == op.value_dim]]", "true"),
    ("ops/attention.rs", "[[(1..=CLASSIC_MOST_DIM).contains(&op.head_dim)]]", "true"),
    ("ops/attention.rs", "[[(1..=CLASSIC_MOST_DIM).contains(&op.value_dim)]]", "true"),
    ("ops/matmul.rs", "!tiled && [[a.format == b.format]]", "true"),
    ("ops/matmul.rs", "[[!tiled]] && a.format == b.format", "true"),
    ("ops/matmul.rs", "[[tokens <= most]]", "tokens < most"),
    ("ops/matmul.rs", "[[tiles.max(GEMM_ROWS * GEMM_TOKENS * 4)]]", "tiles"),
    ("ops/experts.rs", "choices / GEMM_TOKENS + [[choices.min(op.experts + 1)]]", "choices.min(op.experts)"),
    ("ops/experts.rs", "[[choices / GEMM_TOKENS + choices.min(op.experts + 1)]]", "choices.div_ceil(GEMM_TOKENS)"),
    ("ops/experts.rs", "&& [[experts <= ROUTE_MOST_EXPERTS]]", "true"),
    ("ops/topk.rs", "if [[cols <= TOPK_NARROW]] {", "true"),
    ("ops/topk.rs", "[[cols <= TOPK_NARROW]] &&", "true"),
    ("ops/topk.rs", "[[(1..=cols.min(ROUTER_MOST)).contains(&k)]]", "true"),
    # Heads that the store can take.
    ("ops/fused.rs", "[[query.is_multiple_of(head_dim)]]", "true"),
    ("ops/fused.rs", "[[key.is_multiple_of(head_dim)]]", "true"),
    ("ops/fused.rs", "[[key > 0]]\n            &&", "true"),
    ("ops/fused.rs", "[[head_dim.is_multiple_of(block)]]", "true"),
    ("ops/fused.rs", "[[value.is_multiple_of(key / head_dim)]]", "true"),
    ("ops/fused.rs", "[[(value / (key / head_dim)).is_multiple_of(block)]]", "true"),
    # Which nodes one dispatch computes.
    ("fusion.rs", "if [[fresh]] ||", "false"),
    ("fusion.rs", "|| [[self.order.last().is_some_and(|&last| last >= id)]]", "false"),
    ("fusion.rs", "[[!nodes.iter().any(taken)]]", "true"),
    ("fusion.rs", "[[held == node]] || last == node", "false"),
    ("fusion.rs", "held == node || [[last == node]]", "false"),
    ("fusion.rs", "[[matches!(graph.nodes()[between].op, Op::Input(_))]]", "true"),
    ("fusion.rs", "&& [[node.inputs.iter().all(whole)]]", "true"),
    ("fusion.rs", "&& [[node.inputs[0] != node.inputs[1]]]\n", "true"),
    ("fusion.rs", "is_sum(sum) && is_norm(norm) && [[reads(norm, sum)]]", "true"),
    ("fusion.rs", "&& [[reads(sum, first)]]", "true"),
    ("fusion.rs", "&& [[read_once(first)]]", "true"),
    ("fusion.rs", "&& [[reads(norm, sum)]]\n            }", "true"),
    ("fusion.rs", "[[readers == 1]]", "true"),
    ("fusion.rs", "[[!graph.outputs().contains(&id)]]", "true"),
    ("fusion.rs", "=> [[inputs(second) == [logits, top]]] &&", "true"),
    ("fusion.rs", "&& [[inputs(last) == [second]]],", "true"),
    ("fusion.rs", "=> [[inputs(second) == [logits]]] &&", "true"),
    ("fusion.rs", "&& [[inputs(last) == [second, top]]],", "true"),
    ("fusion.rs", "&& [[is_read_once(graph, second)]]", "true"),
    ("fusion.rs", "&& [[topk::routes(graph.node(logits).shape.cols, k)]]", "true"),
    ("fusion.rs", "&& [[graph.node(gate).inputs == graph.node(up).inputs]]", "true"),
    ("fusion.rs", "&& [[matrix(a) == matrix(b)]]", "true"),
    ("fusion.rs", "&& [[is_read_once(graph, gate)]]", "true"),
    ("fusion.rs", "&& [[is_read_once(graph, up)]]", "true"),
    ("fusion.rs", "[[graph.node(id).inputs[0] == before]]", "true"),
    ("fusion.rs", "&& [[is_read_once(graph, before)]]", "true"),
    ("fusion.rs", "([[(query.epsilon, query.head_dim) == (epsilon, head_dim)]])", "true"),
    ("fusion.rs", "if [[of_query == of_key]]", "true"),
    ("fusion.rs", "&& [[query.inputs[1] == key.inputs[1]]] =>", "true"),
    ("fusion.rs", "let fits = [[biased[0] == biased[1]]]\n        &&", "true"),
    ("fusion.rs", "&& [[biased[0] == biased[2]]]\n        &&", "true"),
    ("fusion.rs", "&& [[pairs.next().is_none()]]", "true"),
    ("fusion.rs", "&& [[graph.node(*store).inputs[..2] == [pair[1], *value]]]\n        &&", "true"),
    ("fusion.rs", "&& [[[pair[1], *value].into_iter().all(|id| is_read_once(graph, id))]]", "true"),
    ("fusion.rs", "&& [[fused::head_dim(rope, norm, cols, cache).is_some()]]", "true"),
    # A result over what the dispatch of a chain still reads.
    ("ops/mod.rs", "[[matches!(call.node.op, Op::RmsNorm(_) | Op::KvStore(_))]]", "true"),
    ("ops/mod.rs", "by_element && [[operand.offset == output.offset]]", "true"),
    ("ops/mod.rs", "&& [[operand.bytes() == output.bytes()]]", "true"),
    ("ops/mod.rs", "[[!inside(operand)]]", "true"),
    ("ops/mod.rs", "[[!inside(operand)]]", "false"),
    ("ops/mod.rs", "[[!read.any(|operand| meets(operand) && !in_place(operand))]]", "true"),
    # A result over an input.
    ("ops/mod.rs", "&& [[input.offset < output.offset + output.bytes()]]", "true"),
    ("ops/mod.rs", "&& [[output.offset < input.offset + input.bytes()]]", "true"),
    ("ops/mod.rs", "[[input.offset == output.offset]] && input.bytes()", "true"),
    ("ops/mod.rs", "&& [[input.bytes() == output.bytes()]]", "true"),
]

# Guards that no test can show to be needed, by file: the function, what stands there (its beginning), the replacement, and why it
# stays.
BUILDER = "the graph's builder refuses it first"
INSIDE = "nothing in this crate asks for it; an operation to come might"
SLOWER = "without it there are barriers more: slower, not wrong"
UNFUSED = "without it there may be dispatches more: slower, not wrong"
UNSEEN = {
    "tracker.rs": [
        ("dispatch", "(other.columns.is_none()", "other.columns == touch.columns", "more ranges are kept, none is lost"),
    ],
    "backend.rs": [
        ("most_threads", "own.min(", "own", "no kernel's own limit is above the device's"),
    ],
    "largest.rs": [
        ("new", "cols > 0", "true", "a row without columns has no chunk, so that nothing is launched"),
        ("new", "i32::try_from(cols)", "true", "differs where a row has 2^31 columns, more than any test computes"),
        ("new", "u32::try_from(rows)", "true", "differs where there are 2^32 rows, more than any test computes"),
    ],
    "fusion.rs": [
        ("prepare", "held == node", "false", "no chain that there is has nodes that another one holds; one to come might"),
    ],
    "recorder.rs": [
        ("add", "!slice.memory.is_constant()", "true", "what no kernel writes conflicts with nothing; it only takes longer to find out"),
        ("copy", "self.tracker.reset();", "", SLOWER),
        ("submit", "dispatch.barrier && !first", "dispatch.barrier", SLOWER),
        ("submit", "dispatch.barrier && !first", "!first", SLOWER),
        ("uses", "from.memory.id() == memory", "false", "what is copied for a trace is the result of a dispatch of the same recording"),
        ("uses", "to.memory.id() == memory", "false", "the host has no handle on the memory of a copy for a trace"),
    ],
    "pass.rs": [
        ("check", "checks::buffer_range(", "", "what begins at the end of its memory has no bytes, and launches nothing"),
        ("whole_simdgroups", ".next_multiple_of(SIMD_WIDTH)", "", "a SIMD-group that is not full joins what it has"),
        ("whole_simdgroups", "SIMD_WIDTH * SIMD_WIDTH", "usize::MAX", "no device has more threads in a threadgroup"),
    ],
    "tensor.rs": [
        ("columns", "(end <= stride)", "true", "products compare the columns of the result with the weights' rows first"),
    ],
    "ops/attention.rs": [
        ("check", "require(heads,", "", BUILDER),
        ("check", "require(op.window", "", BUILDER),
        ("check", 'equal("columns of the keys"', "", BUILDER),
        ("check", 'equal("columns of the values"', "", BUILDER),
        ("sinks", 'equal("sinks"', "", BUILDER),
    ],
    "ops/cache.rs": [
        ("of", 'equal("rows of the values", values.shape.rows, keys.shape.rows)', "", "a state has one number of rows"),
        ("qkv_finish", "require( head_dim.is_multiple_of(blocks)", "", "fused::head_dim has looked for such a width"),
        ("qkv_finish", 'equal("elements of the bias"', "", BUILDER),
        ("qkv_finish", 'equal("head dim of the rotation"', "", "the head dim comes from the rotation, where there is one"),
    ],
    "ops/elementwise.rs": [
        ("clamped_swiglu", "require(op.limit > 0.0", "", BUILDER),
    ],
    "ops/experts.rs": [
        ("operands", "require(whole", "", BUILDER),
        ("operands", "require(op.used > 0", "", BUILDER),
        ("operands", 'equal("bytes of the weight"', "", "weights are registered with as many bytes"),
        ("operands", 'equal("elements of the bias"', "", BUILDER),
    ],
    "ops/matmul.rs": [
        ("check", "require(product.weights.len() <= 3", "", INSIDE),
        ("check", 'equal("bytes of the weight"', "", "weights are registered with as many bytes"),
        ("check", "require( product.biases.is_empty()", "", INSIDE),
        ("check", 'equal("elements of the bias"', "", BUILDER),
        ("check", 'equal("weights of a gate"', "", INSIDE),
        ("check", "require( product.weights[1].format == first.format", "", INSIDE),
        ("check", 'equal("rows of the up projection"', "", BUILDER),
        ("matvec", "tokens <= most", "tokens < most", "the variant for more tokens computes the same, slower"),
        ("gemm_threadgroup_bytes", "tiles.max(", "tiles", "with these sizes the tiles take as much as the results"),
    ],
    "ops/mod.rs": [
        ("is_apart", "operand.bytes() == output.bytes()", "true", "what is read row by row has as many bytes as the result"),
        ("is_apart", "!inside(operand)", "true", UNFUSED),
    ],
    "ops/norm.rs": [
        ("normalise", "cols.div_ceil(PER_THREAD)", "cols / PER_THREAD", "fewer threads compute the same in more steps"),
    ],
    "ops/topk.rs": [
        ("top_k", "cols.div_ceil(PER_THREAD)", "cols / PER_THREAD", "fewer threads compute the same in more steps"),
    ],
    "ops/rows.rs": [
        ("gather", 'equal("bytes of the table"', "", "weights, operands and states have the bytes of their shape"),
    ],
    "ops/shape.rs": [
        ("reshape", 'equal("elements of the result", y.shape.elements(), x.shape.elements())', "", "of a reshape: the builder gives it as many"),
    ],
}


def unseen(mutant):
    """Why no test can show that this guard is needed, where that is so."""
    functions = re.findall(r"\bfn (\w+)", mutant.code[: mutant.start])
    for function, beginning, replacement, reason in UNSEEN.get(mutant.file, ()):
        if functions[-1:] == [function] and mutant.what.startswith(beginning) and mutant.replacement == replacement:
            return reason
    return None


GUARD = re.compile(r"(?m)^ *((?:require|equal|(?:limits\.|self\.|checks::)?(?:check_\w+|buffer_range|healthy|idle|check))\()")
INDEX = re.compile(r"(?<![\w.])(index\()\"")
ROUNDING = re.compile(r"\.(div_ceil|next_multiple_of)\(")
# Sizes in bytes, and what is only a hint.
NOT_ROUNDING = re.compile(r"alignment|fn ")

HELPERS = """
/// Whether it is this mutant's turn.
#[doc(hidden)]
pub fn mutant(number: u32) -> bool {
    std::env::var("SMELT_MUTANT").is_ok_and(|wanted| wanted == number.to_string())
}

/// Rounding that a mutant leaves out.
pub(crate) trait Mutated {
    fn mutated_div_ceil(self, number: u32, by: usize) -> usize;
    fn mutated_next_multiple_of(self, number: u32, by: usize) -> usize;
}

impl Mutated for usize {
    fn mutated_div_ceil(self, number: u32, by: usize) -> usize {
        if mutant(number) { self / by } else { self.div_ceil(by) }
    }
    fn mutated_next_multiple_of(self, number: u32, by: usize) -> usize {
        if mutant(number) { self } else { self.next_multiple_of(by) }
    }
}
"""


class HostMutant:
    """A change of a source file: texts to insert at offsets, which ask for the mutant's number where `{n}` stands."""

    kind = "host"

    def __init__(self, file, text, code, start, what, replacement, inserts):
        self.file, self.code, self.start, self.replacement, self.inserts = file, code, start, replacement, inserts
        self.line = text.count("\n", 0, start) + 1
        self.what = " ".join(what.split())
        self.unseen = unseen(self)

    def __str__(self):
        return f"{self.file}:{self.line} host: {self.what} -> {self.replacement or 'nothing'}"


def blank_rust(text):
    """The text with comments and strings blanked out and without its tests, so that offsets stay."""
    spaces = lambda found: re.sub(r"[^\n]", " ", found.group())
    quoted = lambda found: '"' + spaces(found)[1:-1] + '"' if found.group().startswith('"') else spaces(found)
    text = re.sub(r'"(?:\\.|[^"\\])*"|//[^\n]*', quoted, text, flags=re.S)
    tests = text.find("#[cfg(test)]")
    return text if tests < 0 else text[:tests] + re.sub(r"[^\n]", " ", text[tests:])


def host_mutants(root, closing, split):
    """All mutants of the host's side; `closing` and `split` find parentheses and parts of an expression."""
    found = []
    for file in TESTS:
        text = (root / SOURCES / file).read_text()
        code = blank_rust(text)

        def add(start, end, replacement, inserts):
            found.append(HostMutant(file, text, code, start, text[start:end], replacement, inserts))

        for match in GUARD.finditer(code):
            start, end = match.start(1), closing(code, match.end(1) - 1) + 1
            if code.startswith("?;", end):
                add(start, end, "", [(start, "if !crate::mutant({n}) { "), (end + 2, " }")])
        for match in INDEX.finditer(code):
            start, end = match.start(1), closing(code, match.end(1) - 1) + 1
            parts = split(code[match.end(1) : end - 1], [","])
            if len(parts) == 4:
                value = text[match.end(1) + parts[2][0] : match.end(1) + parts[2][1]].strip()
                unchecked = f"(if crate::mutant({{n}}) {{ Ok({value} as usize) }} else {{ "
                add(start, end, f"{value} as usize", [(start, unchecked), (end, " })")])
        # Conditions under which an error is returned.
        for match in re.finditer(r"\bif ([^{};]*) \{", code):
            end = closing(code, match.end() - 1)
            body = code[match.end() : end]
            if "return Err(" not in body or body.count("\n") > 8:
                continue
            condition = code[match.start(1) : match.end(1)]
            if "let " in condition:
                inserts = [(match.end(1), " && !crate::mutant({n})")]
            else:
                inserts = [(match.start(1), "("), (match.end(1), ") && !crate::mutant({n})")]
            add(match.start(1), match.end(1), "false", inserts)
        for match in ROUNDING.finditer(code) if file.startswith("ops/") or file in ("largest.rs", "pass.rs") else ():
            end = closing(code, match.end() - 1) + 1
            line = code.rfind("\n", 0, match.start()) + 1
            if NOT_ROUNDING.search(code[line:end]):
                continue
            by = text[match.end() : end - 1]
            start = match.start()
            while re.match(r"[\w.]", code[start - 1]):
                start -= 1
            replacement = f"{text[start:match.start()]} / {by}" if match.group(1) == "div_ceil" else text[start : match.start()]
            add(start, end, replacement, [(match.start() + 1, "mutated_"), (match.end(), "{n}, ")])
        for _, place, replacement in (chosen for chosen in CHOSEN if chosen[0] == file):
            before, what, after = re.split(r"\[\[|\]\](?!\])", place)
            if text.count(before + what + after) != 1:
                raise SystemExit(f"{file}: expected once, found {text.count(before + what + after)} times: {place}")
            start = text.index(before + what + after) + len(before)
            if replacement is None:
                inserts = [(start, "if !crate::mutant({n}) { "), (start + len(what), " }")]
            else:
                inserts = [(start, f"(if crate::mutant({{n}}) {{ {replacement} }} else {{ "), (start + len(what), " })")]
            add(start, start + len(what), replacement or "", inserts)
    return found


def mutated_tree(root, folder, mutants):
    """Copies the repository and puts the questions in. Files that do not change keep their times, so that cargo knows."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=root, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()
    for name in names:
        source, target = root / name, folder / name
        if source.is_symlink() or not source.is_file():
            continue
        content = source.read_bytes()
        inside = name.removeprefix(f"{SOURCES}/") if name.startswith(f"{SOURCES}/") else None
        if inside in TESTS:
            content = questions(content.decode(), [(n, m) for n, m in enumerate(mutants, 1) if m.file == inside]).encode()
        elif inside == "lib.rs":
            content = behind_comments(content.decode(), "#![allow(unused_parens)]\n") + HELPERS
            content = content.encode()
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def questions(text, numbered):
    """The text with every mutant's inserts. What begins at one place lies in one another, the first outside."""
    inserts = []
    for number, mutant in numbered:
        for order, (offset, insert) in enumerate(mutant.inserts):
            closes = order > 0
            inserts.append((offset, not closes, -number if closes else number, insert.replace("{n}", str(number))))
    for offset, _, _, insert in sorted(inserts, reverse=True):
        text = text[:offset] + insert + text[offset:]
    return behind_comments(text, "#[allow(unused_imports)]\nuse crate::Mutated as _;\n")


def behind_comments(text, insert):
    """The text with more after the comments of the file."""
    start = re.search(r"(?m)^(?!//|$)", text).start()
    return text[:start] + insert + text[start:]
