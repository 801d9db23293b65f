"""Texts whose ids are stored in tests/goldens/tokens_*.json: one for each thing that goes wrong."""

from __future__ import annotations

TEXTS = {
    "empty": "",
    "space": " ",
    "words": "The quick brown fox jumps over the lazy dog.",
    "leading_space": " leading and trailing ",
    "contractions": "I'll say we've seen they're what she'd don't it's I'm, 'tis o'clock y'all",
    "capital_contractions": "I'LL SAY WE'VE SEEN THEY'RE IT'S DON'T I'M",
    "digits": "0 1 12 123 1234 12345 1234567890 3.14159 1,000,000 0x1F 1e-5",
    "other_numbers": "\u00bd cup, x\u00b2, \u2167, \u0661\u0662\u0663, \u0967\u0968\u0969",
    "spaces": "a b  c   d    e     f      g",
    "indented": "def f(x):\n    if x:\n        return  x\n\n\nprint(f(1))\n",
    "tabs": "\tone\t\ttwo\t \tthree\n\t\n",
    "crlf": "line one\r\nline two\r\n\r\nline four\rline five\n\r",
    "newlines": "\n\n\n a \n\n b\n \n",
    "trailing_newlines": "the end\n\n\n",
    "punctuation": "?!... --- ((([[[{{{ }}}]]])))  "
    "\"quoted\" 'single' `code` a/b\\c #@$%^&*~_+=|<>",
    "code": "for (int i = 0; i < n; ++i) { a[i] *= b->c; } // done\nx = {'k': [1, 2]}",
    "markup": '<html><body><p class="x">Hi &amp; bye</p></body></html>',
    "urls": "see https://example.org/a?b=c&d=%20e#f or mail me@example.org",
    "latin": "caf\u00e9 na\u00efve \u00fcber Stra\u00dfe \u0141\u00f3d\u017a \u0130stanbul",
    "accented_capitals": "CAF\u00c9 \u00c9mile \u00c0\u00c9\u00ce "
    "\u00c5ngstr\u00f6m McDonald iPhone",
    "combining": "cafe\u0301 n\u0303 a\u0327\u0301 \u0e01\u0e33\u0e25\u0e31\u0e07",
    "long_s": "Congre\u017fs 'tis'\u017f",
    "greek": "\u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac "
    "\u03ba\u03b1\u03b9 \u0391\u0392\u0393",
    "cyrillic": "\u0421\u044a\u0435\u0448\u044c \u0435\u0449\u0451 \u042d\u0422\u0418\u0425",
    "arabic": "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645\u060c",
    "hindi": "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e\u0964",
    "chinese": "\u4eca\u5929\u5929\u6c14\u5f88\u597d\uff0c\u6211\u4eec\u53bb\u516c\u56ed\u3002123",
    "japanese": "\u3053\u3093\u306b\u3061\u306f\u3001\u30c6\u30b9\u30c8\u3067\u3059\u3002",
    "korean": "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4",
    "emoji": "\U0001f600 \U0001f680\U0001f680 \u2764\ufe0f \U0001f44d\U0001f3fd",
    "joined_emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308",
    "odd_spaces": "a\u00a0b\u2003c\u3000d\u200be\u2028f\u2029g\u0085h",
    "control_characters": "bell\x07 escape\x1b[0m nul\x00 delete\x7f",
    "private_use": "\ue000\uf8ff \U000f0000 \U0010fffd",
    "replacement": "\ufffd\ufffe \ufeffbom",
    "lower_block": "\u2581 a \u2581\u2581b",
    "control_text": "<|im_start|>user\nhi<|im_end|>\n<|endoftext|> <bos><eos></s><start_of_turn>x",
    "half_control_text": "<|im_ <|im_end| im_end|> <eo s> <|<|im_end|>|> <unused0",
    "byte_text": "<0x0A> <0xFF> \\x41 \\u0041",
    "math": "\u2211\u1d62 x\u1d62\u00b2 \u2264 \u221e \u2208 \u211d\u207f, \u2200\u03b5>0",
    "repeated": "aaaaaaaaaaaaaaaa bbbbbbbb !!!!!!!! ........ ======== abababab",
    "mixed": "GPT-4o\u306f2024\u5e745\u6708\u306b\u767a\u8868 (\u7d04100%).",
}
# What the tiny vocabularies of the goldens are trained on; and what pre-tokenizers differ in.
PRETOKENIZERS = (
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "deepseek-v3",
    "falcon",
    "gpt-2",
    "gpt-4o",
    "llama-bpe",
    "qwen2",
    "smollm",
    "tekken",
)

# Besides TEXTS: what rules for splitting words differ in.
SPLIT_TEXTS = {
    "cases": "camelCase HTTPServer XMLHttpRequest2 iOS'S don'T O'Reilly'd ALLCAPS'll x'RE",
    "long_numbers": "1234567 12345678 123456789 a1234567b 1234.5678 1_000_000 x12345678901234",
    "number_kinds": "1\u00bd2\u00b23 \u2460\u2461\u2462\u2463 \u0967\u0968\u0969\u096a "
    "\uff11\uff12\uff13"
    "\uff14",
    "han_and_kana": "\u6f22\u5b57\u304b\u306a\u4ea4\u3058\u308a\u30ab\u30bf\u30ab\u30ca"
    "\u3001ABC\u6f22"
    "\u5b57 \u4e2d\u6587text\u6df7\u5408",
    "thai_and_khmer": "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25"
    "\u0e01 \u1797\u17b6"
    "\u179f\u17b6\u1781\u17d2\u1798\u17c2\u179a",
    "hangul_parts": "\u1112\u1161\u11ab\uad6d\uc5b4 \u3131\u314f",
    "slashes": "a/b //c\n// d\r\n/* e */\n/f\n\n/",
    "quotes": "'s 'S ''s \u2019s 'tis 'Twas '90s can't've she'd'a rock'n'roll",
    "space_runs": " ".join("x" + " " * n for n in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33)),
    "line_ends": "a \n b\n\n c\r\r\nd\n \n\t\ne   \n",
    "marks_alone": "\u0301a \u0301\u0301 b\u0308c 1\u20e3 \u093e\u0928",
    "symbols": "a+b=c <=> $5 ^x^ ~y~ |z| `w` \u20ac5 \u00a35 x\u00d7y \u2192z",
    "marks_of_sentences": "one, two. three! four? five\u2026 \u516d\u3002\u4e03\uff0c \u0668"
    "\u060c \u0969\u0964",
    "image_marks": "IMGIMGABCZ <sentinel:12> IMGIMGJ",
    "underscores": "snake_case __init__ _x x_ a_1 1_a",
    "flags": "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7 \U0001f469\U0001f3fd\u200d\U0001f680!",
    "invisible": "a\u00adb\u200bc\u200dd\ufeffe\u2060f",
    "mixed_scripts": "\u041f\u0440\u0438\u0432\u0435\u0442world\u4e16\u754c123\u05e9\u05dc"
    "\u05d5\u05dd",
}
# Every tokenizer.ggml.pre that llama.cpp has for byte-level BPE.
LLAMA_CPP_NAMES = """
    a.x-4.0 afmoe bailingmoe bailingmoe2 bloom chameleon chatglm-bpe codeshell cohere2moe command-r
    dbrx deepseek-coder deepseek-llm deepseek-r1-qwen deepseek-v3 default exaone exaone-moe exaone4
    f2llmv2 falcon falcon-h1 falcon3 gigachat glm4 glm5 gpt-2 gpt-4o gpt3-finnish granite-docling
    granite-embed-multi-97m grok-2 hunyuan hunyuan-dense hy_v4 jais jais-2 jina-de jina-es
    jina-v1-en jina-v2-code jina-v2-de jina-v2-es jina-v5-nano joyai-llm kanana2 kimi-k2 kormo
    laguna lfm2 llada-moe llama-bpe llama-v3 llama3 llama4 megrez mellum mellum2 midm-2.0
    minerva-7b minicpm5 minimax-m2 modern-bert mpt olmo phi-2 pixtral poro-chat qwen2 qwen35 refact
    roberta-bpe seed-coder smaug-bpe smollm solar-open spark2_5 stablelm2 starcoder superbpe talkie
    tekken tiny_aya trillion ufakzeka viking youtu
"""
