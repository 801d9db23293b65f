r"""How a byte-level BPE vocabulary splits text into words: one row a `tokenizer.ggml.pre`.

The patterns are those of the tokenizers that the models were trained with, in Oniguruma's syntax.
Patterns of one row are applied one after another, each to the pieces the one before left; what a
pattern does not match stays a piece of its own. Where llama.cpp writes a pattern differently,
because its regular expressions know no Unicode classes, the original stands here: the two differ
on letters outside ASCII that have case, and on a few characters that `(?i:...)` folds.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantcli.errors import UnsupportedModel
from quantcli.text.vocabulary import described

# No pattern looks back, and those that look ahead look at white space or digits. So text may be cut
# after a letter where white space begins; where words are joined over spaces, less often.
BEFORE_SPACE = r"(?<=[A-Za-z])(?=[ \n])"
BEFORE_LINE_END = r"(?<=[A-Za-z])(?=\n)"
BEFORE_NUMBER = r"(?<=[A-Za-z])(?=[0-9])"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """A way to split text into words.

    patterns       regular expressions, applied in turn
    ignore_merges  a word that is in the vocabulary is that token, whatever the merges say
    add_bos        whether a prompt starts with BOS when the file does not say
    nfc            text is brought to Unicode normal form C before it is split
    cut            where long text may be cut: at these places every word ends
    groups_digits  digits are grouped by three from the right, which looks ahead over a number
    groups_words   they are so even where a letter follows; otherwise, then, from the left
    all_numbers    so are fractions and other numbers that are no decimal digits
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False
    cut: str = BEFORE_SPACE
    groups_digits: bool = False
    groups_words: bool = False
    all_numbers: bool = False


_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_DIGIT = r"\p{N}"
_DIGITS_OF_THREE = r"\p{N}{1,3}"

_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+|{_SYMBOLS}|\s+(?!\S)|\s+"


def _words(numbers: str, letters: str = r"\p{L}+", contraction: str = _CONTRACTION + "|") -> str:
    """Return the pattern of Llama 3 with another rule for numbers, letters or contractions."""
    return rf"{contraction}{_LEAD}{letters}|{numbers}|{_SYMBOLS}[\r\n]*|{_SPACES}"


def _cased_words(numbers: str, contraction: str = "") -> str:
    """Return the pattern of o200k, which splits words where a capital follows a small letter."""
    capitalized = rf"{_LEAD}[{_UPPER}]*[{_LOWER}]+{contraction}"
    capitals = rf"{_LEAD}[{_UPPER}]+[{_LOWER}]*{contraction}"
    return rf"{capitalized}|{capitals}|{numbers}|{_SYMBOLS}[\r\n/]*|{_SPACES}"


_LLAMA3 = _words(_DIGITS_OF_THREE)
_QWEN2 = _words(_DIGIT)
_O200K = _cased_words(_DIGITS_OF_THREE, _CONTRACTION + "?")
_DEEPSEEK3_WORDS = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
_DEEPSEEK3 = rf"{_ASCII_PUNCTUATION}[A-Za-z]+|{_DEEPSEEK3_WORDS}|{_SPACES}"
_SPARK = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_JAIS2_SPACES = "|".join([r"\s*[\r\n]+", *(rf"\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1))])
_JAIS2 = (
    rf"{_CONTRACTION}|{_LEAD}\p{{L}}+|{_DIGITS_OF_THREE}|{_SYMBOLS}[\r\n]*"
    rf"|{_JAIS2_SPACES}|\s{{1,2}}(?!\S)|\s{{1}}"
)
_EXAONE_WORDS = r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"
_EXAONE_MOE = (
    rf"{_CONTRACTION}|{_LEAD}{_EXAONE_WORDS}|{_DIGIT}|{_SYMBOLS}[\r\n/]?"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SEED_CODER = rf"{_CONTRACTION}|{_LEAD}\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|{_LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
# Digits grouped from the right; scripts that are written without spaces, as Trinity has them.
_AFMOE_DIGITS = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_AFMOE_SCRIPTS = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af"
    "\u1100-\u11ff]+"
)
_NOT_HAN = r"&&[^\p{Han}]"
_KIMI = "|".join(
    (
        r"\p{Han}+",
        rf"{_LEAD}[{_UPPER}{_NOT_HAN}]*[{_LOWER}{_NOT_HAN}]+{_CONTRACTION}?",
        rf"{_LEAD}[{_UPPER}{_NOT_HAN}]+[{_LOWER}{_NOT_HAN}]*{_CONTRACTION}?",
        rf"{_DIGITS_OF_THREE}|{_SYMBOLS}[\r\n]*|{_SPACES}",
    )
)
_YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+"  # Hangul
    "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    f"|[\u3105-\u312f]+|{_CJK}"  # Bopomofo, Han and kana
)
_CHAMELEON = (
    "<sentinel:[0-9]+>",
    "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    "([\\t\\n]|    |  )",
    _DIGIT,
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)
# Letters with case, as the tokenizer of DeepSeek LLM lists them.
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
_DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

_DIGITS_THEN_GPT2 = PreTokenizer((_DIGIT, _GPT2))
_LLAMA3_ROW = PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_ROW = PreTokenizer((_QWEN2,), nfc=True)
_DEEPSEEK3_ROW = PreTokenizer((_DIGITS_OF_THREE, _CJK, _DEEPSEEK3))
_O200K_ROW = PreTokenizer((_O200K,))
_TINY_AYA_ROW = PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _O200K), groups_digits=True)

DEFAULT = "default"
PRETOKENIZERS: dict[str, PreTokenizer] = {
    "a.x-4.0": PreTokenizer((_GPT2,)),
    "afmoe": PreTokenizer(
        (_AFMOE_DIGITS, _AFMOE_SCRIPTS, _DEEPSEEK3),
        groups_digits=True,
        groups_words=True,
        all_numbers=True,
    ),
    "bailingmoe": PreTokenizer((_BAILING,)),
    "bailingmoe2": PreTokenizer((_BAILING,)),
    "bloom": PreTokenizer((_BLOOM,)),
    "chameleon": PreTokenizer(_CHAMELEON, add_bos=True),
    "chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "codeshell": _DIGITS_THEN_GPT2,
    "cohere2moe": _TINY_AYA_ROW,
    "command-r": PreTokenizer((_DIGIT, _GPT2), nfc=True),
    "dbrx": PreTokenizer((_LLAMA3,)),
    "deepseek-coder": PreTokenizer(
        ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, _DIGIT),
    ),
    "deepseek-llm": PreTokenizer(
        (
            "[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            r"\s?[!-/:-~" + "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            _DEEPSEEK_CJK,
            _DIGIT,
        ),
    ),
    "deepseek-r1-qwen": _QWEN2_ROW,
    "deepseek-v3": _DEEPSEEK3_ROW,
    # What llama.cpp does for files that do not say; it is right for none of today's models.
    DEFAULT: PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "exaone": _DIGITS_THEN_GPT2,
    "exaone-moe": PreTokenizer((_EXAONE_MOE,), cut=BEFORE_LINE_END),
    "exaone4": PreTokenizer((_GPT2,)),
    "f2llmv2": _QWEN2_ROW,
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "falcon-h1": _LLAMA3_ROW,
    "falcon3": _LLAMA3_ROW,
    "gigachat": PreTokenizer((_GPT2,)),
    "glm4": PreTokenizer((_LLAMA3,), ignore_merges=True),
    "glm5": PreTokenizer((_LLAMA3,), ignore_merges=True),
    "gpt-2": PreTokenizer((_GPT2,)),
    "gpt-4o": _O200K_ROW,
    "gpt3-finnish": PreTokenizer((_BLOOM,)),
    "granite-docling": PreTokenizer((_GPT2,)),
    "granite-embed-multi-97m": PreTokenizer((_O200K,), ignore_merges=True),
    "grok-2": PreTokenizer((_QWEN2,)),
    "hunyuan": PreTokenizer((_QWEN2,), nfc=True),
    "hunyuan-dense": _DEEPSEEK3_ROW,
    "hy_v4": _DEEPSEEK3_ROW,
    "jais": PreTokenizer((_GPT2,)),
    "jais-2": PreTokenizer((_JAIS2,)),
    "jina-de": PreTokenizer((_GPT2,)),
    "jina-es": PreTokenizer((_GPT2,)),
    "jina-v1-en": PreTokenizer((_GPT2,)),
    "jina-v2-code": PreTokenizer((_GPT2,)),
    "jina-v2-de": PreTokenizer((_GPT2,)),
    "jina-v2-es": PreTokenizer((_GPT2,)),
    "jina-v5-nano": _LLAMA3_ROW,
    "joyai-llm": _DEEPSEEK3_ROW,
    "kanana2": _O200K_ROW,
    "kimi-k2": PreTokenizer((_KIMI,)),
    "kormo": _QWEN2_ROW,
    "laguna": PreTokenizer(("[^\n]+|[\n]+", _QWEN2)),
    "lfm2": _LLAMA3_ROW,
    "llada-moe": PreTokenizer((_BAILING,)),
    "llama-bpe": _LLAMA3_ROW,
    "llama-v3": _LLAMA3_ROW,
    "llama3": _LLAMA3_ROW,
    "llama4": _O200K_ROW,
    "megrez": _QWEN2_ROW,
    "mellum": PreTokenizer((_GPT2,)),
    "mellum2": _DIGITS_THEN_GPT2,
    "midm-2.0": _LLAMA3_ROW,
    "minerva-7b": _DIGITS_THEN_GPT2,
    "minicpm5": PreTokenizer((_DIGITS_OF_THREE, _words(r"\p{N}+")), ignore_merges=True),
    "minimax-m2": _O200K_ROW,
    "modern-bert": PreTokenizer((_GPT2,), nfc=True),
    "mpt": PreTokenizer((_GPT2,), nfc=True),
    "olmo": PreTokenizer((_GPT2,), nfc=True),
    "phi-2": PreTokenizer((_GPT2,)),
    "pixtral": _LLAMA3_ROW,
    "poro-chat": PreTokenizer((_BLOOM,)),
    "qwen2": _QWEN2_ROW,
    "qwen35": PreTokenizer((_QWEN35,), nfc=True),
    "refact": _DIGITS_THEN_GPT2,
    "roberta-bpe": PreTokenizer((_GPT2,)),
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "smollm": _DIGITS_THEN_GPT2,
    "solar-open": PreTokenizer((_QWEN2,)),
    "spark2_5": PreTokenizer((_DIGITS_OF_THREE, _CJK, _SPARK, _DIGIT)),
    "stablelm2": PreTokenizer((_QWEN2,), nfc=True),
    "starcoder": _DIGITS_THEN_GPT2,
    "superbpe": PreTokenizer(
        (r"\p{N}+", r"(?=(\d{3})+(?!\d))"), cut=BEFORE_NUMBER, groups_digits=True, groups_words=True
    ),
    "talkie": _O200K_ROW,
    "tekken": PreTokenizer((_cased_words(_DIGIT),), ignore_merges=True, add_bos=True),
    "tiny_aya": _TINY_AYA_ROW,
    "trillion": PreTokenizer((_GPT2,)),
    "ufakzeka": PreTokenizer((_words(_DIGIT, contraction=""),)),
    "viking": PreTokenizer((_BLOOM, _DIGIT)),
    "youtu": PreTokenizer(
        (_YOUTU_SCRIPTS, _cased_words(_DIGIT, _CONTRACTION + "?")), ignore_merges=True
    ),
}


def pretokenizer(name: str) -> PreTokenizer:
    """Return the row of a `tokenizer.ggml.pre`; raise UnsupportedModel if there is none."""
    row = PRETOKENIZERS.get(name)
    if row is None:
        known = ", ".join(sorted(PRETOKENIZERS))
        raise UnsupportedModel(
            f"tokenizer.ggml.pre is {described(name)}, a way to split text that quantcli does not "
            f"know. Known: {known}."
        )
    return row
