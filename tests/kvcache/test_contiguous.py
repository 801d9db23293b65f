from __future__ import annotations

import pytest

from quantcli.errors import ResourceError
from quantcli.kvcache import create


@pytest.mark.parametrize(("context", "page_size"), [(1, 16), (16, 16), (17, 32), (4096, 4096)])
def test_a_page_is_the_context_rounded_up_to_16(context: int, page_size: int) -> None:
    cache = create("contiguous", context=context, n_sequences=3)
    assert (cache.page_size, cache.n_pages, cache.context) == (page_size, 3, context)


def test_a_sequence_holds_one_page_however_long_it_is() -> None:
    cache = create("contiguous", context=100, n_sequences=2)
    cache.reserve(5, 1)
    cache.reserve(6, 100)
    cache.reserve(5, 100)
    assert [list(cache.page_table(5)), list(cache.page_table(6))] == [[0], [1]]
    assert not cache.can_reserve(7, 1)


def test_slots_of_no_whole_sequence_are_refused() -> None:
    with pytest.raises(ResourceError, match="100 slots do not hold one sequence of 4096"):
        create("contiguous", context=4096, n_sequences=1, n_slots=100)


def test_n_slots_bounds_the_sequences() -> None:
    assert create("contiguous", context=100, n_sequences=9, n_slots=300).n_pages == 2
