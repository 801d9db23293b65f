"""The codebooks of the iq1, iq2 and iq3 formats."""

from __future__ import annotations

import gguf.quants
import numpy as np
import pytest

from quantcli.formats import codebooks

LEVELS = {
    "iq1_s": codebooks.LEVELS_1,
    "iq2_xxs": codebooks.LEVELS_2,
    "iq2_xs": codebooks.LEVELS_2,
    "iq2_s": codebooks.LEVELS_2,
    "iq3_xxs": codebooks.LEVELS_3_XXS,
    "iq3_s": codebooks.LEVELS_3_S,
}


@pytest.mark.parametrize("name", LEVELS)
def test_codebook_is_that_of_gguf(name: str) -> None:
    theirs = getattr(gguf.quants, name.upper())
    theirs.init_grid()
    mine = LEVELS[name][codebooks.indices(name)]
    np.testing.assert_array_equal(mine, theirs.grid.reshape(theirs.grid_shape))


@pytest.mark.parametrize("name", LEVELS)
def test_no_group_is_there_twice(name: str) -> None:
    assert len(np.unique(codebooks.groups(name))) == len(codebooks.groups(name))


def test_signs_are_those_of_gguf_and_even_in_number() -> None:
    assert codebooks.EVEN_SIGNS.tobytes() == gguf.quants.IQ2_XXS.ksigns
    assert all(int(s).bit_count() % 2 == 0 for s in codebooks.EVEN_SIGNS)
