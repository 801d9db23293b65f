"""How much work a chat template may do: steps, sizes of what it makes, and time.

A template comes with the model's file, so it may be broken or hostile. Every loop turn, call and
operator of a template asks here first; each size is checked before memory is taken. Limits grow
with the conversation, so that a long one is no reason to stop. They hold on any thread and system.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from time import thread_time
from typing import Never

from jinja2.utils import Namespace

from quantcli.errors import CheckpointError

STEPS = 2_000_000  # a template takes some 300 for a message
STEPS_PER_CHARACTER = 16
STEPS_PER_CALL = 16
LONGEST = 1 << 20  # characters of one text
LONGEST_PER_CHARACTER = 16
MOST_ITEMS = 1 << 17  # of one list, with those of the lists in it
MOST_ITEMS_PER_CHARACTER = 1
TOTAL = 1 << 25  # characters of all texts made on the way
TOTAL_PER_CHARACTER = 256
SECONDS = 10.0  # of processor time, for what no count foresees; ordinary templates take 0.01
MOST_BITS = 4096  # of an integer

KEY = "tokenizer.chat_template"
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_CONTAINERS: tuple[type, ...] = (list, tuple, dict, Namespace, *_VIEWS)


class Budget:
    """What is left of the work that one rendering may do.

    is_spent   whether a limit was passed; every method raises CheckpointError when it is
    """

    def __init__(self, n_characters: int) -> None:
        """Start a budget for a conversation of this many characters."""
        self.is_spent = False
        self._steps = STEPS + STEPS_PER_CHARACTER * n_characters
        self._longest = LONGEST + LONGEST_PER_CHARACTER * n_characters
        self._most_items = MOST_ITEMS + MOST_ITEMS_PER_CHARACTER * n_characters
        self._total = TOTAL + TOTAL_PER_CHARACTER * n_characters
        self._deadline = thread_time() + SECONDS
        self._n_asked = 0

    def spend(self, n_steps: int = 1) -> None:
        """Take steps: one for a turn of a loop or an operator."""
        self._steps -= n_steps
        if self._steps < 0:
            self._stop("takes too many steps")
        self._n_asked += 1
        if self._n_asked % 64 == 0 and thread_time() > self._deadline:
            self._stop(f"takes over {SECONDS:.0f} s of processor time")

    def make(self, n_characters: int) -> None:
        """Allow for a text of this length, before it is made."""
        if n_characters > self._longest:
            self._stop(f"makes a text of {n_characters} characters, over {self._longest}")
        self._total -= n_characters
        if self._total < 0:
            self._stop("makes too much text in all")
        self.spend(1 + (n_characters >> 8))

    def make_list(self, n_items: int) -> None:
        """Allow for a list of this length, before it is made."""
        if n_items > self._most_items:
            self._stop(f"makes a list of {n_items} items, over {self._most_items}")
        self.spend(1 + (n_items >> 4))

    def make_integer(self, n_bits: int) -> None:
        """Allow for an integer of this many bits."""
        if n_bits > MOST_BITS:
            self._stop(f"makes an integer of {n_bits} bits, over {MOST_BITS}")
        self.spend()

    def weigh(self, value: object) -> int:
        """Return how many characters and items a value has, and take steps for reading it once.

        A list may hold one list twice, that one another twice, and so on: short, but too long to
        compare or print.
        """
        if isinstance(value, str):
            self.spend(1 + (len(value) >> 10))
            return len(value)
        if isinstance(value, range):
            self.spend(1 + (len(value) >> 3))
            return len(value)
        if not isinstance(value, _CONTAINERS):
            return 1 + _n_digits(value)
        n_characters, n_items = 0, 0
        stack: list[object] = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, str):
                n_characters += len(item)
                if n_characters > self._longest:
                    self._stop(f"makes lists of texts of over {self._longest} characters")
            elif isinstance(item, _CONTAINERS):
                children = _children(item)
                n_items += 1 + len(children)
                if n_items > self._most_items:
                    self._stop(f"makes a nested list of over {self._most_items} items")
                stack.extend(children)
            else:
                n_characters += _n_digits(item)
        self.spend(1 + (n_items >> 2) + (n_characters >> 10))
        return n_characters + n_items

    def watch(self, items: Iterable[object]) -> Iterator[object]:
        """Yield items that are made one by one, as a list of them would be weighed."""
        n = 0
        for item in items:
            self.spend()
            n += self.weigh(item)
            if n > self._longest:
                self._stop(f"makes texts one by one of over {self._longest} characters")
            yield item

    def _stop(self, what: str) -> Never:
        self.is_spent = True
        raise CheckpointError(
            f"{KEY} {what}; it is broken or hostile. Use the model without a chat template."
        )


def _n_digits(value: object) -> int:
    """Return how long a large integer is as hexadecimal text."""
    return value.bit_length() >> 2 if isinstance(value, int) else 0


def _children(container: object) -> Collection[object]:
    """Return what a container holds, of a dict keys and values."""
    if isinstance(container, Namespace):
        container = container._Namespace__attrs  # type: ignore[attr-defined]
    if isinstance(container, dict):
        return [*container, *container.values()]
    assert isinstance(container, Collection), type(container)
    return container
