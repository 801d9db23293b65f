"""Threads for kernel tests."""

from __future__ import annotations

from collections.abc import Iterator

import kernel_calls
import pytest


@pytest.fixture(scope="module")
def threads() -> Iterator[kernel_calls.Threads]:
    """Return executors by number of threads."""
    with kernel_calls.threads() as pool:
        yield pool
