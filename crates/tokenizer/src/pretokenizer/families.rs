//! The pre-tokenizers of model families: the names that files call them by, and their patterns.
//!
//! The patterns are those that the families were trained with, save for one thing: their look-ahead `\s+(?!\S)`
//! (white space up to the last character before a word) is not in them, see [`super::Stage`].

use super::WholePieces;

/// A family of models that split text alike.
pub(super) struct Family {
    /// The names it has in files.
    pub names: &'static [&'static str],
    /// Each is applied to the pieces that the ones before left.
    pub patterns: &'static [&'static str],
    pub whole_pieces: WholePieces,
    /// Whether a begin token is put first where a file does not say.
    pub adds_bos: bool,
}

const fn family(names: &'static [&'static str], patterns: &'static [&'static str]) -> Family {
    Family { names, patterns, whole_pieces: WholePieces::Merged, adds_bos: false }
}

const fn whole(names: &'static [&'static str], patterns: &'static [&'static str]) -> Family {
    Family { names, patterns, whole_pieces: WholePieces::Token, adds_bos: false }
}

/// A pattern that groups the digits of a number in threes, from the right: the stage does the grouping.
pub(super) const DIGITS_FROM_RIGHT: &str = r"\d+\b";

/// Contractions, words with a blank before, numbers, other signs, white space (GPT-2).
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";

macro_rules! contractions {
    () => {
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    };
}

/// As GPT-2's, with words that may begin with any sign, and line ends with what precedes them. The pattern of digits
/// differs between families.
macro_rules! words {
    ($digits:literal) => {
        concat!(r"[^\r\n\p{L}\p{N}]?\p{L}+|", $digits, r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+")
    };
}

/// The same after contractions (cl100k, Llama 3).
macro_rules! llama3 {
    ($digits:literal) => {
        concat!(contractions!(), "|", words!($digits))
    };
}

/// Words in runs of capitals, then small letters (o200k, tekken). A tail may follow a word.
macro_rules! cased {
    ($tail:expr, $digits:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            $tail,
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            $tail,
            "|",
            $digits,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
        )
    };
}

macro_rules! o200k {
    ($digits:literal) => {
        cased!(concat!(contractions!(), "?"), $digits)
    };
}

const QWEN35: &str = concat!(
    contractions!(),
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
);

/// Words after a sign of ASCII, words, runs of signs: DeepSeek's, with what may follow signs.
macro_rules! deepseek3 {
    ($line_ends:literal) => {
        concat!(
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
            r"| ?[\p{P}\p{S}]+",
            $line_ends,
            r"|\s+"
        )
    };
}

/// Letters with case as of an old version of Unicode, without the mathematical ones, Georgian and some others.
macro_rules! deepseek_letters {
    () => {
        concat!(
            r"A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}",
            r"\u{295}-\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}",
            r"\u{38e}-\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}",
            r"\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}",
            r"\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}",
            r"\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}",
            r"\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}",
            r"\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}",
            r"\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}",
            r"\u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}",
            r"\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}",
            r"\u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}",
            r"\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}",
            r"\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\u{1e900}-\u{1e943}",
        )
    };
}

const CJK_DEEPSEEK: &str = r"[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+";
const CJK_DEEPSEEK3: &str = r"[\u{4e00}-\u{9fa5}\u{3040}-\u{30ff}]+";
const BLOOM: &str = r" ?[^(\s|.,!?…。，、\u{964}\u{6d4}\u{60c})]+";
const LINES: &str = r"[^\n]+|\n+";

/// Text is not split but at runs of line ends.
pub(super) static LINES_ONLY: Family =
    Family { names: &[], patterns: &[LINES], whole_pieces: WholePieces::LineEnds, adds_bos: true };

pub(super) static FAMILIES: &[Family] = &[
    family(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
        ],
        &[GPT2],
    ),
    family(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
    Family {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        patterns: &[llama3!(r"\p{N}{1,3}")],
        whole_pieces: WholePieces::Token,
        adds_bos: true,
    },
    family(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[llama3!(r"\p{N}{1,3}")]),
    whole(&["glm4", "glm5"], &[llama3!(r"\p{N}{1,3}")]),
    whole(&["minicpm5"], &[r"\p{N}{1,3}", llama3!(r"\p{N}+")]),
    family(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "megrez",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        &[llama3!(r"\p{N}")],
    ),
    family(&["laguna"], &[LINES, llama3!(r"\p{N}")]),
    family(&["ufakzeka"], &[words!(r"\p{N}")]),
    family(
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        &[concat!(r"'(?i:[sdmt]|ll|ve|re)|", words!(r"\p{N}"))],
    ),
    family(&["qwen35"], &[QWEN35]),
    family(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[r"\p{N}", GPT2],
    ),
    family(
        &["exaone-moe"],
        &[concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]+|\s+"
        )],
    ),
    family(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    family(
        &["deepseek-llm"],
        &[
            r"[\r\n]",
            concat!(r"\s?[", deepseek_letters!(), "]+"),
            r"\s?[!-/:-~！-／：-～‘-‟\u{3000}-\u{3002}]+",
            r"\s+$",
            CJK_DEEPSEEK,
            r"\p{N}+",
        ],
    ),
    family(&["deepseek-coder"], &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK_DEEPSEEK, r"\p{N}"]),
    family(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[r"\p{N}{1,3}", CJK_DEEPSEEK3, deepseek3!(r"[\r\n]*|\s*[\r\n]+")],
    ),
    family(&["spark2_5"], &[r"\p{N}{1,3}", CJK_DEEPSEEK3, deepseek3!(r"|[\r\n]"), r"\p{N}"]),
    Family {
        names: &["tekken"],
        patterns: &[cased!("", r"\p{N}")],
        whole_pieces: WholePieces::Token,
        adds_bos: true,
    },
    family(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[o200k!(r"\p{N}{1,3}")]),
    whole(&["granite-embed-multi-97m"], &[o200k!(r"\p{N}{1,3}")]),
    family(&["tiny_aya", "cohere2moe"], &[DIGITS_FROM_RIGHT, o200k!(r"\p{N}{1,3}")]),
    whole(
        &["youtu"],
        &[
            concat!(
                r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿\u{fe30}-\u{fe4f}]+|[ㄅ-ㄯ]+",
                r"|[\u{4e00}-\u{9fa5}\u{3040}-\u{30ff}]+"
            ),
            o200k!(r"\p{N}"),
        ],
    ),
    family(
        &["seed-coder"],
        &[concat!(contractions!(), r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+")],
    ),
    family(&["bloom", "poro-chat", "gpt3-finnish"], &[BLOOM]),
    family(&["viking"], &[BLOOM, r"\p{N}"]),
    Family {
        names: &["chameleon"],
        patterns: &[
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ],
        whole_pieces: WholePieces::Merged,
        adds_bos: true,
    },
];
