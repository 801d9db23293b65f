"""The chat page: its policy, and what it does in a real browser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Page, browser, found
from fakes import History
from running_server import running, tokenizer

HOSTILE = (
    "# Title\n\nSome **bold**, *weak* and `code <b>`.\n\n- one\n- two\n\n1. first\n\n"
    '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\n\n'
    "[bad](javascript:window.hacked=1) [good](https://example.com/a)\n\n"
    "```html\n<b>kept</b>\n```\n\n| a | b |\n|---|---|\n| 1 | <i>2</i> |\n\n> quoted"
)
NODES = "document.querySelectorAll('.message.assistant')"
needs_browser = pytest.mark.skipif(found() is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("chromium")) as tab:
        yield tab


def ask(page: Page, text: str) -> None:
    """Type a message and send it."""
    page.run(f"$('text').value = {text!r}, $('say').requestSubmit()")


def answered(page: Page, n: int = 1) -> str:
    """Wait for the end of the n-th answer and return its text."""
    page.wait(f"{NODES}.length === {n} && !running && {NODES}[{n - 1}].innerText")
    return str(page.run(f"{NODES}[{n - 1}].innerText"))


def test_the_policy_lets_nothing_in_and_nothing_else_run() -> None:
    with running() as server:
        response = server.get("/")
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'sha256-")
        assert "unsafe" not in policy
        assert "connect-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert response.headers["content-type"].startswith("text/html")
        assert response.headers["x-content-type-options"] == "nosniff"
        html = response.text
        for outside in ('src="', "@import", "url(", "innerHTML", "eval(", " onclick="):
            assert outside not in html, outside
        links = html.count("http://") + html.count("https://")
        assert links == 0


@needs_browser
def test_a_chat(page: Page) -> None:
    with running("Hello **you**!") as server:
        page.open(server.url)
        page.wait("$('name').textContent === 'tiny'")
        ask(page, "Hi")
        assert answered(page) == "Hello you!"
        facts = str(page.run("document.querySelector('.facts').innerText"))
        assert "tokens/s" in facts
        assert page.run("document.querySelector('.message.user').innerText") == "Hi"
        ask(page, "Again")
        answered(page, 2)
        page.run("[...document.querySelectorAll('.facts button')].at(-1).click()")  # Again
        answered(page, 2)
        page.run("$('new').click()")
        assert page.run(f"{NODES}.length + messages.length") == 0
        assert page.problems == []
        assert all(url.startswith((server.url, "about:")) for url in page.requests)
        page.requests.clear()


@needs_browser
def test_markdown_is_shown_and_html_is_not_run(page: Page) -> None:
    with running(HOSTILE, context=1024) as server:
        page.open(server.url)
        ask(page, "Hi <b>there</b>")
        text = answered(page)
        count = "document.querySelectorAll('.message {}').length"
        once = ("strong", "em", "ol li", "pre code", "h3", "a", "blockquote")
        expected = dict.fromkeys(once, 1) | dict.fromkeys(("ul li", "td", "th"), 2)
        expected |= dict.fromkeys(("img", "script", "b", "i"), 0)
        for tag, n in expected.items():
            assert page.run(count.format(tag)) == n, tag
        assert "<img src=x onerror" in text
        assert page.run("document.querySelector('.message pre').innerText") == "<b>kept</b>"
        assert page.run("document.querySelector('.message a').href") == "https://example.com/a"
        assert page.run("window.hacked") is None
        assert page.problems == []


@needs_browser
def test_stop_ends_the_answer_here_and_in_the_engine(page: Page) -> None:
    def endless(history: History) -> int:
        return 104

    with running(endless, before=lambda batch: time.sleep(0.005)) as server:
        page.open(server.url)
        ask(page, "Hi")
        page.wait(f"{NODES}[0]?.innerText.length > 3")
        assert page.run("$('send').hidden && !$('stop').hidden")
        page.run("$('stop').click()")
        page.wait("!running")
        page.wait("document.querySelector('.facts').innerText.includes('stopped')")
        end = time.monotonic() + 10
        while not server.is_empty():
            assert time.monotonic() < end
            time.sleep(0.01)


@needs_browser
def test_settings_reach_the_request_and_are_kept(page: Page) -> None:
    with running("Hello!") as server:
        page.open(server.url)
        for name, value in (("system", "Be brief."), ("max_tokens", "2"), ("temperature", "0")):
            page.run(
                f"$('{name}').value = {value!r}, $('{name}').dispatchEvent(new Event('input'))"
            )
        body = page.run("request()")
        assert isinstance(body, dict)
        assert body["messages"][0] == {"role": "system", "content": "Be brief."}
        assert (body["max_tokens"], body["temperature"]) == (2, 0)
        assert "top_k" not in body
        ask(page, "Hi")
        assert answered(page) == "He"
        page.wait("document.querySelector('.facts').innerText.includes('cut off')")
        brief = tokenizer().encode("Be brief.", add_special=False)
        seen = [token for batch in server.model.batches for token in batch.tokens]
        assert any(seen[i : i + len(brief)] == brief for i in range(len(seen)))
        page.open(server.url)
        assert page.run("$('system').value") == "Be brief."
        page.run("localStorage.clear()")


@needs_browser
def test_errors_are_shown_and_the_question_is_given_back(page: Page) -> None:
    with running("Hello!") as server:
        page.open(server.url)
        ask(page, "x" * 3000)
        page.wait("document.querySelector('.error')")
        assert "context length is 512" in str(
            page.run("document.querySelector('.error').innerText")
        )
        assert page.run("messages.length") == 0
        assert page.run("$('text').value.length") == 3000
        page.problems.clear()  # the browser notes the status of the response


@needs_browser
def test_a_key_is_asked_for(page: Page) -> None:
    with running("Hello!", settings={"api_keys": ("secret",)}) as server:
        page.open(server.url)
        page.wait("$('name').textContent === 'API key needed' && !$('settings').hidden")
        page.run("$('key').value = 'secret', $('key').dispatchEvent(new Event('input'))")
        page.wait("$('name').textContent === 'tiny'")
        ask(page, "Hi")
        assert answered(page) == "Hello!"
        page.problems.clear()
        page.run("sessionStorage.clear()")


@needs_browser
def test_it_follows_the_systems_scheme_until_told_otherwise(page: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    with running() as server:
        page.prefer("light")
        page.open(server.url)
        light = page.run(background)
        page.prefer("dark")
        page.wait(f"{background} !== '{light}'")
        dark = page.run(background)
        page.run("$('theme').click()")
        assert page.run(background) == light
        page.open(server.url)
        assert page.run(background) == light
        page.run("$('theme').click()")
        assert page.run(background) == dark
        page.run("localStorage.clear()")


@needs_browser
def test_it_fits_a_phone(page: Page, tmp_path: Path) -> None:
    with running(HOSTILE + "\n\n" + "unbroken" * 30, context=1024) as server:
        page.size(360, 640, is_phone=True)
        page.open(server.url)
        ask(page, "Hi " * 40)
        answered(page)
        assert page.run("document.documentElement.scrollWidth") == 360
        assert page.run("$('send').getBoundingClientRect().bottom <= innerHeight")
        assert page.run("$('send').getBoundingClientRect().height >= 38")
        page.run("$('toggle').click()")
        assert page.run("$('settings').getBoundingClientRect().right <= innerWidth")
        page.picture(tmp_path / "phone.png")
        page.size(1200, 800)
