//! What the scheduler tells about the current graph: the split table, the census of operations, and a drawing.

use crate::passes::split::executes;
use crate::{NodeId, Scheduler};
use std::collections::BTreeMap;
use std::fmt::Write;

impl Scheduler {
    /// A table of the splits and one of operations by backend, for `SMELT_GRAPH_TRACE=1`; empty before the first
    /// build.
    pub fn census(&self) -> String {
        let mut text = String::new();
        let Some(built) = &self.built else { return text };
        let names: Vec<&str> = self.backends().collect();
        let params = built.graph.params();
        let _ = writeln!(
            text,
            "graph: {} nodes, {} splits ({} tokens, {} outputs, {} sequences)",
            built.graph.nodes().len(),
            built.splits.len(),
            params.tokens,
            params.outputs,
            params.sequences
        );
        for (index, split) in built.splits.iter().enumerate() {
            let label = |step: Option<&super::build::Step>| {
                step.map_or(String::new(), |step| built.graph.node(step.id).label.clone())
            };
            let _ = writeln!(
                text,
                "  split {index}: {:6} {:4} nodes, {} copies in, {} .. {}",
                names[split.backend],
                split.steps.len(),
                split.copies.len(),
                label(split.steps.first()),
                label(split.steps.last())
            );
        }
        let mut counts: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (id, node) in built.graph.nodes().iter().enumerate() {
            if executes(&built.graph, NodeId(id)) {
                counts.entry(node.op.name()).or_insert_with(|| vec![0; names.len()])[built.assigned[id]] += 1;
            }
        }
        let _ = write!(text, "  {:18}", "op");
        names.iter().for_each(|name| {
            let _ = write!(text, "{name:>8}");
        });
        for (op, counts) in counts {
            let _ = write!(text, "\n  {op:18}");
            counts.iter().for_each(|count| {
                let _ = write!(text, "{count:>8}");
            });
        }
        text
    }

    /// The current graph in Graphviz's language: a cluster per split, nodes coloured by backend. Inputs
    /// have the colour of their first reader, views that of their base.
    pub fn dot(&self) -> String {
        const COLOURS: [&str; 4] = ["#d0e4ff", "#d9f2d0", "#ffe3c2", "#eadcf7"];
        let mut text =
            String::from("digraph smelt {\n  node [shape=box, style=filled, fontname=monospace];\n");
        let Some(built) = &self.built else { return text + "}\n" };
        let names: Vec<&str> = self.backends().collect();
        let graph = &built.graph;
        let node = |id: NodeId, colour: &str| {
            let node = graph.node(id);
            let (op, label) = (node.op.name(), node.label.escape_default());
            format!(
                "n{} [label=\"{label}\\n{op} {} {}\", fillcolor=\"{colour}\"];\n",
                id.0, node.dtype, node.shape
            )
        };
        for (index, split) in built.splits.iter().enumerate() {
            let name = names[split.backend];
            let _ = writeln!(text, "  subgraph cluster_{index} {{\n    label=\"split {index}: {name}\";");
            for step in &split.steps {
                text += "    ";
                text += &node(step.id, COLOURS[split.backend % COLOURS.len()]);
            }
            text += "  }\n";
        }
        for (id, info) in graph.nodes().iter().enumerate() {
            if !executes(graph, NodeId(id)) {
                text += "  ";
                text += &node(NodeId(id), COLOURS[built.assigned[id] % COLOURS.len()]);
            }
            for input in &info.inputs {
                let _ = writeln!(text, "  n{} -> n{id};", input.0);
            }
        }
        text + "}\n"
    }
}
