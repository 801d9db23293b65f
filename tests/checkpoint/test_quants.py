"""Which file of a repository a name means."""

from __future__ import annotations

import pytest

from quantcli.checkpoint.quants import (
    ModelFile,
    choose,
    choose_file,
    file_sets,
    is_model,
    quant_of,
    size_text,
)
from quantcli.errors import DownloadError, UsageError


def listing(*paths: str) -> list[ModelFile]:
    return [ModelFile(path, 1_000_000 * (index + 1)) for index, path in enumerate(paths)]


def chosen(*paths: str, quant: str | None = None) -> list[str]:
    return [file.path for file in choose(listing(*paths), repo="org/repo", quant=quant)]


@pytest.mark.parametrize(
    ("path", "tag"),
    [
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("Qwen3-0.6B-Q8_0.gguf", "Q8_0"),
        ("gemma-3-270m-it-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("model-IQ4_NL.gguf", "IQ4_NL"),
        ("model-bf16.gguf", "BF16"),
        ("model-fp16.gguf", "FP16"),
        ("BF16/Big-BF16-00001-of-00002.gguf", "BF16"),
        ("model-Q4_K_M-imat.gguf", "Q4_K_M"),
        ("gpt-mxfp4.gguf", "MXFP4"),
        ("TQ1_0/model-TQ1_0.gguf", "TQ1_0"),
        ("Qwen3.gguf", None),
        ("model.gguf", None),
    ],
)
def test_the_tag_is_read_from_the_path(path: str, tag: str | None) -> None:
    assert quant_of(path) == tag


@pytest.mark.parametrize(
    "path",
    [
        "mmproj-model-f16.gguf",
        "model-mmproj.gguf",
        "sub/mmproj-BF16.gguf",
        "model.imatrix.gguf",
        "model-MTP-Q8_0.gguf",
        "model-draft.gguf",
        "eagle3-model.gguf",
        "my-lora.gguf",
        "README.md",
        "model.gguf.part1",
    ],
)
def test_companions_are_no_models(path: str) -> None:
    assert not is_model(path)


@pytest.mark.parametrize("path", ["a.gguf", "A.GGUF", "mtprank.gguf", "loralei-Q4_0.gguf"])
def test_models_are_models(path: str) -> None:
    assert is_model(path)


def test_without_a_tag_q4_k_m_comes_first_then_q8_0_then_the_first() -> None:
    assert chosen("m-Q2_K.gguf", "m-Q8_0.gguf", "m-q4_k_m.gguf") == ["m-q4_k_m.gguf"]
    assert chosen("m-Q2_K.gguf", "m-Q8_0.gguf") == ["m-Q8_0.gguf"]
    assert chosen("m-Q6_K.gguf", "m-Q2_K.gguf", "mmproj-a.gguf") == ["m-Q2_K.gguf"]


@pytest.mark.parametrize("quant", ["Q5_K_S", "q5_k_s", "Q5_k_S"])
def test_a_tag_counts_in_any_case(quant: str) -> None:
    assert chosen("m-Q5_K_S.gguf", "m-Q5_K_M.gguf", quant=quant) == ["m-Q5_K_S.gguf"]


def test_a_tag_is_not_found_inside_another() -> None:
    with pytest.raises(UsageError, match=r"org/repo has no Q4_0\. It has IQ4_0X"):
        chosen("m-IQ4_0X.gguf", quant="Q4_0")
    assert chosen("m-Q4_K_M.gguf", "m-Q4_K.gguf", quant="Q4_K") == ["m-Q4_K.gguf"]


def test_the_plain_file_is_preferred_to_a_variant_of_the_same_tag() -> None:
    assert chosen("m-UD-Q4_K_M.gguf", "m-Q4_K_M.gguf", quant="Q4_K_M") == ["m-Q4_K_M.gguf"]
    assert chosen("m-UD-Q4_K_XL.gguf", "m-Q4_K_M.gguf", quant="q4_k_xl") == ["m-UD-Q4_K_XL.gguf"]


def test_an_absent_tag_lists_what_is_there_with_sizes() -> None:
    with pytest.raises(UsageError, match=r"has no Q3_K\. It has Q4_K_M \(1\.0 MB\), Q8_0 \(2\.0"):
        chosen("m-Q4_K_M.gguf", "m-Q8_0.gguf", quant="Q3_K")


def test_a_tag_of_several_files_asks_for_one_of_them() -> None:
    with pytest.raises(
        UsageError, match=r"several files of Q8_0\. Name one: org/repo/a-Q8_0\.gguf, org/repo/b-"
    ):
        chosen("a-Q8_0.gguf", "b-Q8_0.gguf", quant="Q8_0")


def test_a_split_model_is_taken_whole_and_in_order() -> None:
    shards = [f"Q4_K_M/m-Q4_K_M-{index:05}-of-00003.gguf" for index in (1, 2, 3)]
    assert chosen(shards[2], shards[0], "m-Q8_0.gguf", shards[1]) == shards


def test_a_split_model_with_a_shard_missing_is_not_offered() -> None:
    files = listing("m-Q4_K_M-00001-of-00003.gguf", "m-Q4_K_M-00003-of-00003.gguf", "m-Q8_0.gguf")
    assert [[file.path for file in files] for files in file_sets(files)] == [["m-Q8_0.gguf"]]


def test_any_shard_and_any_case_names_the_whole_model() -> None:
    files = listing("a/m-00001-of-00002.gguf", "a/m-00002-of-00002.gguf", "b.gguf")
    for path in ("a/m-00002-of-00002.gguf", "A/M-00001-OF-00002.gguf"):
        found = choose_file(files, repo="org/repo", path=path)
        assert [file.path for file in found] == [
            "a/m-00001-of-00002.gguf",
            "a/m-00002-of-00002.gguf",
        ]


def test_an_absent_file_lists_what_is_there() -> None:
    with pytest.raises(UsageError, match=r"has no complete x\.gguf\. It has b\.gguf \(1\.0 MB\)"):
        choose_file(listing("b.gguf"), repo="org/repo", path="x.gguf")


@pytest.mark.parametrize("paths", [(), ("README.md", "mmproj-f16.gguf", "model.safetensors")])
def test_a_repository_without_models_says_so(paths: tuple[str, ...]) -> None:
    with pytest.raises(DownloadError, match="org/repo holds no GGUF model"):
        chosen(*paths)
    with pytest.raises(DownloadError, match="org/repo holds no GGUF model"):
        choose_file(listing(*paths), repo="org/repo", path="x.gguf")


def test_a_long_list_is_cut() -> None:
    with pytest.raises(UsageError, match=r" and 20 more\.$"):
        chosen(*(f"m{index:02}-Q8_0.gguf" for index in range(60)), quant="Q2_K")


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (98_362_432, "98.4 MB"),
        (999_949_999, "999.9 MB"),
        (999_950_000, "1.0 GB"),
        (10**18, "1000000.0 TB"),
    ],
)
def test_sizes_are_decimal(nbytes: int, text: str) -> None:
    assert size_text(nbytes) == text
