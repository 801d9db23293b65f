"""A headless Chromium for tests of pages, over its debugging pipe: no driver, no port."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--mute-audio"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--remote-debugging-pipe", "--hide-scrollbars"),
)

# It reads from descriptor 3 and writes to 4: put the pipes there, and become it.
_TRAMPOLINE = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(arg), fcntl.F_DUPFD, 10) for arg in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def found() -> str | None:
    """Return the path of a Chromium, None if there is none that can be driven."""
    if sys.platform == "win32":
        return None
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """A tab.

    requests   addresses that it asked for
    problems   exceptions, and what the console and the security policy complained of
    """

    def __init__(self, write: int, read: int) -> None:
        """Open a tab through the pipes of a browser."""
        self._write, self._read = write, read
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.requests: list[str] = []
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = str(attached["sessionId"])
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: object) -> dict[str, object]:
        """Call a method of the DevTools protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]  # type: ignore[no-any-return]
            self._note(answer)

    def _next(self) -> dict[str, object]:
        while b"\0" not in self._buffer:
            data = os.read(self._read, 1 << 16)
            assert data, "the browser has gone"
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)  # type: ignore[no-any-return]

    def _note(self, event: dict[str, object]) -> None:
        params = event.get("params", {})
        assert isinstance(params, dict)
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])

    def open(self, url: str) -> None:
        """Go to a page and wait until it is there."""
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> object:
        """Return what a JavaScript expression gives, waiting for it if it is a promise."""
        result = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result
        value = result["result"]
        assert isinstance(value, dict)
        return value.get("value")

    def wait(self, script: str, seconds: float = 20.0) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < end, script
            time.sleep(0.02)

    def size(self, width: int, height: int, *, is_phone: bool = False) -> None:
        """Give the page a size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=is_phone,
        )

    def prefer(self, scheme: str) -> None:
        """Prefer light or dark."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def picture(self, path: Path) -> None:
        """Write what the page looks like as a PNG."""
        data = self.call("Page.captureScreenshot")["data"]
        path.write_bytes(base64.b64decode(str(data)))


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Run a browser that keeps its profile in a folder; yield a tab of it."""
    path = found()
    assert path is not None
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    command = [sys.executable, "-c", _TRAMPOLINE, str(in_read), str(out_write), path, *_OPTIONS]
    with subprocess.Popen(
        [*command, f"--user-data-dir={folder}", "about:blank"],
        pass_fds=(in_read, out_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(in_read)
        os.close(out_write)
        try:
            yield Page(in_write, out_read)
        finally:
            process.kill()
            process.wait(20)
            os.close(in_write)
            os.close(out_read)
