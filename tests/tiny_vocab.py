"""Vocabularies for tiny models: every byte, a few merges, the usual control tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TURNS = (
    "{{ bos_token }}{% for m in messages %}{% set role = 'model' if m['role'] == 'assistant' else "
    "m['role'] %}{{ '<start_of_turn>' + role + '\n' + m['content'] + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
WORDS = ("t h", "th e", "i n", "e r", "a n", "r e", "o n", "a t", "e n", "in g")


@dataclass
class Vocabulary:
    """Tokens, their kinds, and the other keys of `tokenizer.*`."""

    tokens: list[str] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    keys: dict[str, object] = field(default_factory=dict)

    def add(self, token: str, kind: int = NORMAL) -> None:
        """Append a token."""
        self.tokens.append(token)
        self.types.append(kind)

    def metadata(self) -> dict[str, object]:
        """Return the keys of a file."""
        lists = {"ggml.tokens": self.tokens, "ggml.token_type": self.types}
        return {f"tokenizer.{key}": value for key, value in (lists | self.keys).items()}


def byte_alphabet() -> list[str]:
    """Return the character that GPT-2's vocabulary writes for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(b) if b in printable else chr(256 + others.index(b)) for b in range(256)]


def byte_level_bpe(pre: str = "") -> Vocabulary:
    """Return a byte-level BPE vocabulary of 256 bytes, merges, and three control tokens."""
    vocabulary = Vocabulary()
    for character in byte_alphabet():
        vocabulary.add(character)
    merges = [*WORDS, "\u0120 the", "\u0120 a", "\u0120 s", "\u0120 an"]
    for merge in merges:
        vocabulary.add(merge.replace(" ", ""))
    for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"):
        vocabulary.add(token, CONTROL)
    n = len(vocabulary.tokens)
    vocabulary.keys = {
        "ggml.model": "gpt2",
        "ggml.pre": pre or "smollm",
        "ggml.merges": merges,
        "ggml.bos_token_id": n - 3,
        "ggml.eos_token_id": n - 1,
        "ggml.padding_token_id": n - 3,
        "ggml.add_bos_token": False,
        "chat_template": CHATML,
    }
    return vocabulary


def spm() -> Vocabulary:
    """Return a SentencePiece vocabulary: four specials, 256 bytes, letters, pieces, two turns."""
    vocabulary = Vocabulary()
    for token in ("<pad>", "<eos>", "<bos>"):
        vocabulary.add(token, CONTROL)
    vocabulary.add("<unk>", UNKNOWN)
    for byte in range(256):
        vocabulary.add(f"<0x{byte:02X}>", BYTE)
    pieces = [word.replace(" ", "") for word in WORDS]
    space = "\u2581"
    for piece in (*pieces, space + "the", space + "a", space + "t", space + "th"):
        vocabulary.add(piece)
    for letter in space + "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,!?'":
        vocabulary.add(letter)
    for token in ("<start_of_turn>", "<end_of_turn>"):
        vocabulary.add(token, CONTROL)
    n_ranked = 4 + 256
    vocabulary.keys = {
        "ggml.model": "llama",
        "ggml.pre": "default",
        "ggml.scores": [float(min(0, n_ranked - i)) for i in range(len(vocabulary.tokens))],
        "ggml.bos_token_id": 2,
        "ggml.eos_token_id": 1,
        "ggml.unknown_token_id": 3,
        "ggml.padding_token_id": 0,
        "ggml.add_bos_token": True,
        "ggml.add_space_prefix": False,
        "chat_template": TURNS,
    }
    return vocabulary
