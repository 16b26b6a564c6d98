//! Choosing among the files of a package or repository by their names.

use std::cmp::Ordering;

use crate::Error;

/// What to take when nothing was asked for, best first: 4 bits with K-quants as the usual compromise,
/// then its nearest neighbours, then whatever is larger, then smaller.
const PREFERENCE: &[&str] = &[
    "Q4_K_M", "Q4_K_S", "Q4_K", "IQ4_XS", "IQ4_NL", "Q4_1", "Q4_0", "MXFP4", "Q5_K_M", "Q5_K_S", "Q5_K",
    "Q5_1", "Q5_0", "Q6_K", "Q8_0", "BF16", "F16", "F32", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q3_K", "Q2_K",
];

/// One model: a single file, or the shards of a split one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    /// The name without `-00001-of-00003.gguf`, or the whole name.
    stem: String,
    /// How many shards there should be; `None` for a single file.
    of: Option<u32>,
    files: Vec<String>,
}

impl Group {
    /// All the files in order.
    ///
    /// # Errors
    /// [`Error::MissingShards`].
    pub(crate) fn complete(self, source: &str) -> Result<Vec<String>, Error> {
        let Some(of) = self.of else { return Ok(self.files) };
        let mut files = Vec::new();
        let mut missing = Vec::new();
        for number in 1..=of {
            let name = format!("{}-{number:05}-of-{of:05}.gguf", self.stem);
            match self.files.iter().find(|f| f.eq_ignore_ascii_case(&name)) {
                Some(file) => files.push(file.clone()),
                None => missing.push(name),
            }
        }
        if missing.is_empty() {
            Ok(files)
        } else {
            Err(Error::MissingShards { source: source.to_owned(), missing })
        }
    }
}

/// `name-00002-of-00003.gguf` is shard 2 of 3 of `name`.
fn shard_of(file: &str) -> Option<(&str, u32)> {
    let lower = file.to_ascii_lowercase();
    let stem = &file[..lower.strip_suffix(".gguf")?.len()];
    let number = |text: &str| {
        (text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse::<u32>().ok())?
    };
    let (stem, of) = stem.rsplit_once("-of-")?;
    let (stem, index) = stem.rsplit_once('-')?;
    let (of, index) = (number(of)?, number(index)?);
    (1 <= index && index <= of).then_some((stem, of))
}

/// Puts the shards of one model together. The order is that of the first file of each.
pub(crate) fn group_shards(files: &[String]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for file in files {
        let (stem, of) = match shard_of(file) {
            Some((stem, of)) => (stem, Some(of)),
            None => (file.as_str(), None),
        };
        match groups.iter_mut().find(|g| g.stem == stem && g.of == of) {
            Some(group) => group.files.push(file.clone()),
            None => groups.push(Group { stem: stem.to_owned(), of, files: vec![file.clone()] }),
        }
    }
    groups
}

/// Chooses the model files of a repository: those of `quant`, or the best by [`PREFERENCE`].
///
/// # Errors
/// [`Error::NoModel`], [`Error::NoSuchQuant`], [`Error::Ambiguous`] and [`Error::MissingShards`].
pub(crate) fn choose(files: &[String], quant: Option<&str>, repo: &str) -> Result<Vec<String>, Error> {
    let is_model = |file: &&String| {
        let lower = file.to_ascii_lowercase();
        // Vision projectors and importance matrices are GGUF files too, but not language models.
        lower.ends_with(".gguf") && !lower.contains("mmproj") && !lower.contains("imatrix")
    };
    let models: Vec<String> = files.iter().filter(is_model).cloned().collect();
    let groups = group_shards(&models);
    if groups.is_empty() {
        return Err(Error::NoModel { source: repo.to_owned(), expected: "a *.gguf file" });
    }
    let of_quant = |quant: &str| -> Option<Group> {
        let matching = groups.iter().filter(|g| names_quant(&g.files[0], quant));
        // The plainest name: `model-Q4_K_M` before `model-UD-Q4_K_M`.
        matching.min_by(|a, b| a.stem.len().cmp(&b.stem.len()).then_with(|| a.stem.cmp(&b.stem))).cloned()
    };
    let chosen = match quant {
        Some(quant) => of_quant(quant).ok_or_else(|| Error::NoSuchQuant {
            repo: repo.to_owned(),
            quant: quant.to_owned(),
            available: models.clone(),
        })?,
        None => match PREFERENCE.iter().find_map(|quant| of_quant(quant)) {
            Some(group) => group,
            None if groups.len() == 1 => groups[0].clone(),
            None => return Err(Error::Ambiguous { source: repo.to_owned(), candidates: models }),
        },
    };
    chosen.complete(repo)
}

/// Whether a file name says `quant` as a word of its own: `Q4_K` is not in `model-Q4_K_M.gguf`.
fn names_quant(file: &str, quant: &str) -> bool {
    let (file, quant) = (file.to_ascii_lowercase(), quant.to_ascii_lowercase());
    file.match_indices(&quant).any(|(at, _)| {
        let before = file[..at].chars().next_back();
        let after = file[at + quant.len()..].chars().next();
        !before.is_some_and(|c| c.is_ascii_alphanumeric())
            && !after.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// Orders names as a person would: digits by their value, so that `part9` comes before `part10`.
pub(crate) fn natural_order(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        let (Some(x), Some(y)) = (a.chars().next(), b.chars().next()) else { return a.len().cmp(&b.len()) };
        let order = if x.is_ascii_digit() && y.is_ascii_digit() {
            let digits = |s: &str| s.len() - s.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let (i, j) = (digits(a), digits(b));
            let (m, n) = (a[..i].trim_start_matches('0'), b[..j].trim_start_matches('0'));
            (a, b) = (&a[i..], &b[j..]);
            m.len().cmp(&n.len()).then_with(|| m.cmp(n))
        } else {
            (a, b) = (&a[x.len_utf8()..], &b[y.len_utf8()..]);
            x.cmp(&y)
        };
        if order.is_ne() {
            return order;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|&s| s.to_owned()).collect()
    }

    #[test]
    fn the_preferred_quantisation_is_chosen() {
        let files = names(&["README.md", "m-F16.gguf", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-Q4_K_M.gguf"]);
        assert_eq!(choose(&files, None, "o/r").unwrap(), ["m-Q4_K_M.gguf"]);
        assert_eq!(choose(&files, Some("q8_0"), "o/r").unwrap(), ["m-Q8_0.gguf"]);
        assert_eq!(choose(&files[..3], None, "o/r").unwrap(), ["m-Q8_0.gguf"]);
    }

    #[test]
    fn a_quantisation_is_a_whole_word() {
        assert!(names_quant("model.Q4_K.gguf", "q4_k"));
        assert!(names_quant("model_q4_0.gguf", "Q4_0"));
        assert!(names_quant("Q4_K_M/model-00001-of-00002.gguf", "Q4_K_M"));
        assert!(!names_quant("model-Q4_K_M.gguf", "Q4_K"));
        assert!(!names_quant("model-IQ4_XS.gguf", "Q4_XS"));
        assert!(!names_quant("model-BF16.gguf", "F16"));
    }

    #[test]
    fn the_plainest_name_wins() {
        let files = names(&["m-UD-Q4_K_M.gguf", "m-Q4_K_M.gguf"]);
        assert_eq!(choose(&files, None, "o/r").unwrap(), ["m-Q4_K_M.gguf"]);
        assert_eq!(choose(&files, Some("UD-Q4_K_M"), "o/r").unwrap(), ["m-UD-Q4_K_M.gguf"]);
    }

    #[test]
    fn all_shards_are_chosen_in_order() {
        let files = names(&[
            "Q8_0/m-Q8_0-00003-of-00003.gguf",
            "Q8_0/m-Q8_0-00001-of-00003.gguf",
            "Q8_0/m-Q8_0-00002-of-00003.gguf",
        ]);
        let chosen = choose(&files, Some("Q8_0"), "o/r").unwrap();
        assert_eq!(chosen, [files[1].clone(), files[2].clone(), files[0].clone()]);
        match choose(&files[..2], Some("Q8_0"), "o/r") {
            Err(Error::MissingShards { missing, .. }) => assert_eq!(missing, [files[2].clone()]),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_cannot_be_chosen_is_listed() {
        let odd = names(&["a.gguf", "b.gguf"]);
        assert!(
            matches!(choose(&odd, None, "o/r"), Err(Error::Ambiguous { candidates, .. }) if candidates == odd)
        );
        assert_eq!(choose(&odd[..1], None, "o/r").unwrap(), ["a.gguf"]);
        let none = names(&["model.safetensors", "mmproj-F16.gguf"]);
        assert!(matches!(choose(&none, None, "o/r"), Err(Error::NoModel { .. })));
        let wrong = choose(&odd, Some("Q2_K"), "o/r").unwrap_err();
        assert!(matches!(&wrong, Error::NoSuchQuant { available, .. } if *available == odd), "{wrong:?}");
    }

    #[test]
    fn numbers_in_names_count_by_value() {
        let mut list = names(&["part10", "part9", "part09b", "part1", "apart"]);
        list.sort_by(|a, b| natural_order(a, b));
        assert_eq!(list, ["apart", "part1", "part9", "part09b", "part10"]);
    }
}
