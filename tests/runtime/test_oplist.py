"""Which calls threads must meet after."""

from __future__ import annotations

import numpy as np
import pytest

from quantcli.kernels.jit import op
from quantcli.runtime.executor import LINE, OP
from quantcli.runtime.oplist import OpList

ARGS = np.dtype([("counter", "i8"), ("value", "i8")])


@op
def nothing(args, thread, n_threads):
    """Do nothing."""


def calls(*accesses: tuple[str, str]) -> OpList:
    """Return a list of calls, each given as the regions it reads and the ones it writes."""
    made = OpList()
    for reads, writes in accesses:
        made.add(nothing, np.zeros(1, ARGS), set(reads), set(writes))
    return made


@pytest.mark.parametrize(
    ("accesses", "barriers"),
    [
        ([("", "a")], [1]),
        ([("", "a"), ("a", "b")], [1, 1]),  # reads what was written
        ([("a", "b"), ("", "a")], [1, 1]),  # writes what was read
        ([("", "a"), ("", "a")], [1, 1]),  # writes what was written
        ([("a", "b"), ("a", "c")], [0, 1]),  # two may read
        ([("a", "b"), ("a", "c"), ("bc", "d")], [0, 1, 1]),
        ([("", "a"), ("", "b"), ("a", "c"), ("b", "d")], [0, 1, 0, 1]),
        ([("", "a"), ("x", "b"), ("y", "c"), ("a", "d")], [0, 0, 1, 1]),
        ([("x", "a"), ("a", "a"), ("a", "a")], [1, 1, 1]),
    ],
)
def test_threads_meet_where_calls_depend_on_each_other(
    accesses: list[tuple[str, str]], barriers: list[int]
) -> None:
    assert calls(*accesses).barriers(frozenset()).tolist() == barriers


def test_private_regions_need_no_meeting() -> None:
    made = calls(("x", "p"), ("p", "a"), ("p", "b"), ("ab", "p"), ("p", "c"))
    assert made.barriers(frozenset()).tolist() == [1, 0, 1, 1, 1]
    assert made.barriers(frozenset("p")).tolist() == [0, 0, 1, 0, 1]


@pytest.mark.jit
def test_a_call_counts_in_its_own_entry() -> None:
    made = OpList()
    records = [made.add(nothing, np.zeros(1, ARGS), set(), set()) for _ in range(3)]
    records[1]["value"] = 7
    array = made.build()
    assert array.ctypes.data % LINE == 0
    for i, call in enumerate(made.calls):
        assert array[i]["kernel"] == nothing.address
        assert array[i]["args"] == call.args.ctypes.data
        assert call.args["counter"][0] == array.ctypes.data + i * OP.itemsize
    assert made.calls[1].args["value"][0] == 7
