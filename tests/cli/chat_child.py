"""A chat with a scripted model, for test_terminal.py to run on a pseudo-terminal."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import termios

from fake_runtime import FakeEngine, FakeModel, fake_loaded

from quantcli.cli.chat import converse
from quantcli.cli.options import PromptOptions, SamplingOptions
from quantcli.cli.render import StatusLine
from quantcli.cli.worker import Worker


def main() -> None:
    """Chat with the answers given as JSON in the first argument, then say what was asked."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # or Ctrl-C would reach nobody
    engine = FakeEngine(json.loads(sys.argv[1]))
    with Worker() as worker:
        loaded = fake_loaded(engine, FakeModel(context=1 << 20))
        converse(loaded, worker, StatusLine(), PromptOptions(), SamplingOptions())
    asked = ["".join(map(chr, request.tokens)) for request in engine.requests]
    os.write(1, f"\nasked {json.dumps(asked)} cancelled {engine.n_cancelled}\n".encode())


if __name__ == "__main__":
    main()
