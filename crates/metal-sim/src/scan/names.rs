//! Names of the language: parameter attributes, and what the simulator refuses.

/// Attributes of kernel parameters that the launch fills in; the shim has a type of the same name for each.
const BUILTINS: [&str; 20] = [
    "dispatch_quadgroups_per_threadgroup",
    "dispatch_simdgroups_per_threadgroup",
    "dispatch_threads_per_threadgroup",
    "grid_origin",
    "grid_size",
    "quadgroup_index_in_threadgroup",
    "quadgroups_per_threadgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "thread_execution_width",
    "thread_index_in_quadgroup",
    "thread_index_in_simdgroup",
    "thread_index_in_threadgroup",
    "thread_position_in_grid",
    "thread_position_in_threadgroup",
    "threadgroup_position_in_grid",
    "threadgroups_per_grid",
    "threads_per_grid",
    "threads_per_simdgroup",
    "threads_per_threadgroup",
];

/// The built-in attribute of that name.
pub(super) fn builtin(name: &str) -> Option<&'static str> {
    BUILTINS.iter().find(|&&builtin| builtin == name).copied()
}

/// Why a word cannot occur in a kernel source that the simulator runs.
pub(super) fn refusal(word: &str) -> Option<&'static str> {
    Some(match word {
        "double" => "MSL has no double",
        "goto" => "MSL has no goto",
        "new" | "delete" => "MSL has no dynamic memory",
        "try" | "catch" | "throw" => "MSL has no exceptions",
        "virtual" | "dynamic_cast" | "typeid" => "MSL has no virtual functions and no run-time types",
        "thread_local" => "MSL has no thread_local",
        "vertex" | "fragment" | "object" | "mesh" => return None,
        "imageblock"
        | "visible_function_table"
        | "intersection_function_table"
        | "command_buffer"
        | "render_pipeline_state"
        | "acceleration_structure"
        | "intersector"
        | "cooperative_tensor"
        | "tensor_inline"
        | "tensor_handle" => "outside the subset that the simulator runs",
        "sampler" => "samplers are outside the subset that the simulator runs",
        word if is_texture(word) => "textures are outside the subset that the simulator runs",
        _ => return None,
    })
}

fn is_texture(word: &str) -> bool {
    ["texture1d", "texture2d", "texture3d", "texturecube", "depth2d", "depthcube"].iter().any(|prefix| {
        word.strip_prefix(prefix).is_some_and(|rest| matches!(rest, "" | "_array" | "_ms" | "_ms_array"))
    }) || word == "texture_buffer"
}

/// Whether a member name picks several vector components.
pub(super) fn is_swizzle(name: &str) -> bool {
    (2..=4).contains(&name.len())
        && (name.bytes().all(|byte| b"xyzw".contains(&byte))
            || name.bytes().all(|byte| b"rgba".contains(&byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builtins_are_sorted_and_found() {
        assert!(BUILTINS.is_sorted());
        assert_eq!(builtin("thread_position_in_grid"), Some("thread_position_in_grid"));
        assert_eq!(builtin("stage_in"), None);
    }

    #[test]
    fn textures_are_refused_by_every_name() {
        for name in ["texture2d", "texture2d_array", "depth2d_ms_array", "texture_buffer", "sampler"] {
            assert!(refusal(name).is_some(), "{name}");
        }
        assert!(refusal("texture2d_size").is_none());
    }

    #[test]
    fn swizzles_do_not_mix_the_two_alphabets() {
        assert!(is_swizzle("xy") && is_swizzle("rgba") && is_swizzle("wwww"));
        assert!(!is_swizzle("x") && !is_swizzle("xg") && !is_swizzle("xyzwx"));
    }
}
