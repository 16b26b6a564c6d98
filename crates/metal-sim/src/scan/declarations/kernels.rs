//! Kernels, their parameters and their instantiations.

use std::ops::Range;

use super::super::body::ARGUMENT_BUFFERS;
use super::super::token::Kind;
use super::super::{Binding, Instantiation, Kernel, Parameter, lint, names};
use super::{Declaration, Scanner};

impl Scanner<'_> {
    pub(super) fn kernel(&mut self, declaration: &Declaration, name: usize) {
        let tokens = self.tokens;
        let Some(open) = self.parameter_list(name, tokens.all.len()) else { return };
        let close = tokens.closing(open);
        let mut parameters: Vec<(usize, String, Option<Binding>, bool)> = Vec::new();
        for range in self.split_parameters(open + 1, close) {
            let (name, binding, optional) = self.parameter(range.clone());
            if binding.is_none() {
                self.by_value(range.clone());
            }
            if !matches!(binding, Some(Binding::Threadgroup(_) | Binding::Builtin(_))) {
                self.argument_buffer(range.clone());
            }
            parameters.push((range.start, name, binding, optional));
        }
        let mut taken: Vec<u32> = parameters
            .iter()
            .filter_map(|(_, _, binding, _)| match binding {
                Some(Binding::Buffer(slot)) => Some(*slot),
                _ => None,
            })
            .collect();
        let parameters = parameters
            .into_iter()
            .map(|(_, name, binding, optional)| {
                // Without an attribute a pointer gets the next free buffer slot.
                let binding = binding.unwrap_or_else(|| {
                    let slot = (0..).find(|slot| !taken.contains(slot)).unwrap_or(0);
                    taken.push(slot);
                    Binding::Buffer(slot)
                });
                Parameter { name, binding, optional }
            })
            .collect();
        let body = declaration.body.unwrap_or(close);
        let attributes = |wanted: &str| {
            (declaration.start..open)
                .chain(close..body)
                .find(|&index| tokens.get(index) == wanted && tokens.get(index + 1) == "(")
        };
        let host_name = attributes("host_name").map(|index| self.string_literal(index + 2));
        let max_threads = attributes("max_total_threads_per_threadgroup")
            .and_then(|index| self.integers.evaluate(tokens, index + 2..tokens.closing(index + 1)))
            .and_then(|threads| u32::try_from(threads).ok())
            .unwrap_or(0);
        let mut qualified = self.namespaces.join("::");
        if !qualified.is_empty() {
            qualified.push_str("::");
        }
        qualified.push_str(tokens.get(name));
        self.kernel_names.push(name);
        self.scan.kernels.push(Kernel {
            name: qualified,
            host_name,
            parameters,
            is_template: declaration.is_template,
            max_threads,
            required_constants: Vec::new(),
            line: tokens.all[name].line,
        });
    }

    pub(in crate::scan) fn split_parameters(&self, from: usize, to: usize) -> Vec<Range<usize>> {
        let tokens = self.tokens;
        let (mut ranges, mut start, mut at) = (Vec::new(), from, from);
        while at < to {
            match tokens.get(at) {
                "(" | "[" | "{" => at = tokens.closing(at),
                "<" => at = tokens.closing_angle(at).unwrap_or(at),
                "," => {
                    ranges.push(start..at);
                    start = at + 1;
                }
                _ => {}
            }
            at += 1;
        }
        if start < to && !(ranges.is_empty() && tokens.slice(start..to) == "void") {
            ranges.push(start..to);
        }
        ranges
    }

    /// Refuses a parameter without an attribute that is no pointer and no reference.
    fn by_value(&mut self, parameter: Range<usize>) {
        let tokens = self.tokens;
        let is_indirect = parameter.clone().any(|index| matches!(tokens.get(index), "*" | "&" | "["));
        let type_word = parameter.clone().map(|index| tokens.get(index)).find(|&word| word != "const");
        // Another name may be an alias of a pointer.
        let is_value =
            type_word.is_some_and(|word| lint::is_builtin_type(word) || self.record_names.contains(word));
        if is_value && !is_indirect {
            self.report(parameter.start, "a kernel parameter needs an attribute");
        }
    }

    /// Refuses a buffer of pointers: nothing here gives the host an address to fill in. For Apple's compiler it is right.
    fn argument_buffer(&mut self, parameter: Range<usize>) {
        let pointer = parameter.clone().find_map(|index| self.pointers.get(self.tokens.get(index)));
        if let Some(&pointer) = pointer.filter(|_| !self.is_lint()) {
            let message = format!("{ARGUMENT_BUFFERS}: kernel parameter '{}'", self.tokens.slice(parameter));
            self.report(pointer, message);
        }
    }

    /// The slot of `buffer(...)` or `threadgroup(...)`.
    fn slot(&mut self, attribute: usize) -> Option<u32> {
        let tokens = self.tokens;
        let argument = attribute + 2..tokens.closing(attribute + 1);
        let value = if tokens.get(attribute + 1) == "(" {
            self.integers.evaluate(tokens, argument.clone())
        } else {
            None
        };
        let slot = value.and_then(|value| u32::try_from(value).ok()).filter(|&slot| slot < 31);
        if slot.is_none() {
            let what = if value.is_none() { ", a number or the name of one" } else { "" };
            let found = tokens.slice(argument).to_owned();
            self.report(attribute, format!("expected a slot from 0 to 30{what}, found '{found}'"));
        }
        slot
    }

    /// Name, binding and optionality of one kernel parameter.
    fn parameter(&mut self, range: Range<usize>) -> (String, Option<Binding>, bool) {
        let tokens = self.tokens;
        let (mut name, mut binding, mut optional) = (String::new(), None, false);
        let mut at = range.start;
        while at < range.end {
            if tokens.get(at) == "[" && tokens.get(at + 1) == "[" {
                let close = tokens.closing(at);
                for inner in at + 2..close.saturating_sub(1) {
                    match tokens.get(inner) {
                        "buffer" | "threadgroup" => {
                            let Some(slot) = self.slot(inner) else { continue };
                            binding = Some(if tokens.get(inner) == "buffer" {
                                Binding::Buffer(slot)
                            } else {
                                Binding::Threadgroup(slot)
                            });
                        }
                        "function_constant" => optional = true,
                        word => {
                            if let Some(builtin) = names::builtin(word) {
                                binding = Some(Binding::Builtin(builtin));
                            } else if tokens.kind(inner) == Some(Kind::Word)
                                && matches!(tokens.get(inner - 1), "[" | ",")
                                && binding.is_none()
                                && !matches!(word, "maybe_unused" | "texture" | "sampler")
                            {
                                self.report(inner, format!("parameter attribute '{word}' is outside the subset that the simulator runs"));
                                binding = Some(Binding::Builtin("thread_position_in_grid"));
                            }
                        }
                    }
                }
                at = close;
            } else if tokens.kind(at) == Some(Kind::Word) && binding.is_none() {
                tokens.get(at).clone_into(&mut name);
            }
            at += 1;
        }
        (name, binding, optional)
    }

    /// `template [[host_name("...")]] kernel ... name<arguments>(...);`
    pub(super) fn instantiation(&mut self, declaration: &Declaration) {
        let tokens = self.tokens;
        let mut host_name = None;
        let mut kernel = None;
        let mut at = declaration.head + 1;
        let mut is_kernel = false;
        while at + 1 < declaration.end {
            match tokens.get(at) {
                "[" => {
                    let close = tokens.closing(at);
                    for inner in at..close {
                        match tokens.get(inner) {
                            "host_name" => host_name = Some(self.string_literal(inner + 2)),
                            "kernel" => is_kernel = true,
                            _ => {}
                        }
                    }
                    at = close;
                }
                "kernel" => is_kernel = true,
                "<" => {
                    let Some(close) = tokens.closing_angle(at) else { break };
                    if tokens.kind(at - 1) == Some(Kind::Word) {
                        let mut first = at - 1;
                        while first >= 2
                            && tokens.get(first - 1) == "::"
                            && tokens.kind(first - 2) == Some(Kind::Word)
                        {
                            first -= 2;
                        }
                        kernel = Some((
                            tokens.slice(first..at).to_owned(),
                            tokens.slice(at..close + 1).to_owned(),
                        ));
                    }
                    at = close;
                }
                "(" => {
                    if kernel.is_some() {
                        break;
                    }
                    let close = tokens.closing(at);
                    if tokens.kind(at - 1) == Some(Kind::Word) && tokens.get(at - 1) != "decltype" {
                        // Without template arguments the types of the parameters select the instance.
                        kernel =
                            Some((tokens.get(at - 1).to_owned(), self.without_attributes(at..close + 1)));
                        break;
                    }
                    at = close;
                }
                _ => {}
            }
            at += 1;
        }
        match (host_name, kernel) {
            (Some(host_name), Some((kernel, arguments))) => {
                self.scan.instantiations.push(Instantiation { host_name, kernel, arguments });
            }
            (Some(_), None) => {
                self.report(declaration.head, "instantiation with a host name but without a kernel")
            }
            (None, _) if !is_kernel => return,
            (None, _) => {}
        }
        self.replace(declaration.start, declaration.end - 1, String::new());
    }
}
