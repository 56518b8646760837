"""What is shown is text and never markup, nothing is asked of anybody else, and long texts are shown as they come."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.api.http.page import PAGE_PATHS
from orchestrator.decode.text import TextTokenizer
from tests.orchestrator.api.http_serving import said, said_to
from tests.orchestrator.api.page.conftest import Doors, Visit
from tests.orchestrator.api.page.serving import reciting, slow

MARKUP = "<img src=x onerror=window.hacked=1><script>window.hacked=2</script><b>"
VIOLATED = """document.addEventListener('securitypolicyviolation',
  event => (window.violated ??= []).push(event.effectiveDirective))"""
INJECT = """() => {
  const script = document.createElement('script');
  script.textContent = 'window.hacked = 1';
  document.body.append(script);
  document.querySelector('h1').setAttribute('style', 'color: red');
  document.body.append(Object.assign(new Image(), {src: 'http://elsewhere.test/x.png'}));
  document.body.insertAdjacentHTML('beforeend', '<iframe src="http://elsewhere.test/"></iframe>');
  fetch('http://elsewhere.test/').catch(() => {});
  setTimeout(() => eval('window.hacked = 2'));
}"""
HIDDEN = """Object.defineProperty(document, 'hidden', {get: () => true});
window.requestAnimationFrame = () => 0;"""
WATCH_FRAMES = """() => {
  let last = performance.now();
  window.longest = 0;
  const look = () => {
    const now = performance.now();
    window.longest = Math.max(window.longest, now - last);
    last = now;
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}"""


@pytest.mark.parametrize("mode", ["text", "chat"])
def test_markup_is_text(mode: str, doors: Doors, visit: Visit) -> None:
    _, url = doors(reciting(MARKUP))
    visitor = visit(url).open().set(mode=mode, max_tokens=200).generate(MARKUP).ended()
    assert MARKUP in visitor.text()
    assert visitor.page.inner_text(".said") == MARKUP
    assert visitor.page.locator("#log img, #log script, #log b").count() == 0
    visitor.panel().locator(".t").first.hover()
    assert visitor.page.evaluate("window.hacked") is None


def test_errors_with_markup_are_text(doors: Doors, visit: Visit) -> None:
    visitor = visit(doors()[1]).open().set(mode="text")
    visitor.page.route(
        "**/v1/completions", lambda route: route.fulfill(status=400, json={"error": {"message": MARKUP}})
    )
    visitor.generate("Hello").ended()
    assert visitor.outcome() == MARKUP
    visitor.page.route("**/v1/completions", lambda route: route.fulfill(status=502, body=MARKUP))
    visitor.generate("Hello").ended()
    assert visitor.outcome() == "the server answered 502"


def test_nothing_can_be_slipped_in(doors: Doors, visit: Visit) -> None:
    visitor = visit(doors()[1]).open()
    page = visitor.page
    page.evaluate(VIOLATED)
    before = page.evaluate("getComputedStyle(document.querySelector('h1')).color")
    page.evaluate(INJECT)
    visitor.until("window.violated?.length >= 5")
    refused = {"script-src-elem", "style-src-attr", "img-src", "frame-src", "connect-src"}
    assert refused <= set(page.evaluate("window.violated"))
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("getComputedStyle(document.querySelector('h1')).color") == before
    assert all("Content Security Policy" in one for one in visitor.complaints)
    visitor.complaints.clear()
    visitor.requests.clear()


def test_weight(doors: Doors, visit: Visit) -> None:
    visitor = visit(doors()[1]).open()
    sizes = {one.url.removeprefix(visitor.url): len(one.response().body()) for one in visitor.requests}
    files = {path: size for path, size in sizes.items() if path in PAGE_PATHS}
    assert set(files) == set(PAGE_PATHS)
    assert sum(files.values()) < 120_000
    assert len(sizes) <= len(PAGE_PATHS) + 3


def test_a_long_text_leaves_the_page_awake(doors: Doors, visit: Visit) -> None:
    visitor = visit(doors()[1]).open().set(mode="text")
    events = "".join(f"data: {json.dumps(one)}\n\n" for one in long_answer(4000))
    stream = {"body": f"{events}data: [DONE]\n\n", "content_type": "text/event-stream"}
    visitor.page.route("**/v1/completions", lambda route: route.fulfill(**stream))
    visitor.page.evaluate(WATCH_FRAMES)
    visitor.generate("Hello").ended()
    assert visitor.text() == " word" * 4000
    assert visitor.page.evaluate("window.longest") < 2000
    visitor.panel().locator(".text").focus()
    visitor.page.keyboard.press("End")
    assert "round 1999: 1 of 1 accepted" in visitor.panel().locator(".detail").inner_text()
    assert visitor.page.locator("#strip-gate rect").count() == 75


def long_answer(num_tokens: int) -> Iterator[dict[str, Any]]:
    """Yield the chunks of an answer all at once, in which every draft of one token is accepted."""
    told = {"tokens": [" word"] * 2, "token_logprobs": [-0.1] * 2}
    drafted = {"tokens": 2, "draft_tokens": 1, "accepted_tokens": 1, "confidence": 0.9, "why_alone": None}
    for number in range(num_tokens // 2):
        rounds = [drafted | {"round": number, "from_run_ahead": False}]
        choice = {"text": " word" * 2, "logprobs": told, "sources": ["accepted", "bonus"], "rounds": rounds}
        yield {"choices": [choice | {"index": 0, "finish_reason": None}]}
    yield {"choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}]}


def test_characters_that_are_spread_over_tokens(doors: Doors, visit: Visit, byte_level: TextTokenizer) -> None:
    _, url = doors(tokenizer=byte_level)
    visitor = visit(url).open().set(mode="text", max_tokens=300, gamma=4).generate("né 日本 🎉").ended()
    expected = byte_level.decode(said(byte_level.encode("né 日本 🎉"), 300))
    assert visitor.text() == expected
    assert len(visitor.tokens()) == 300


@pytest.mark.parametrize(
    ("pieces", "text", "shown"),
    [
        (["a", " b", "<|end|>"], "a b", ["a", " b", ""]),
        (["x", "\ufffd", "\ufffd", " y", "z"], "xé yz", ["x", "é", "", " y", "z"]),
        (["\ufffd", "\ufffd", "\n"], "\ufffd\ufffd\n", ["\ufffd", "\ufffd", "\n"]),
    ],
    ids=["special token", "spread character", "broken character"],
)
def test_each_token_of_a_chunk_has_its_own_text(
    pieces: list[str], text: str, shown: list[str], doors: Doors, visit: Visit
) -> None:
    visitor = visit(doors()[1]).open().set(mode="text")
    told = {"tokens": pieces, "token_logprobs": [-0.1] * len(pieces)}
    choice = {"text": text, "logprobs": told, "sources": ["accepted"] * len(pieces), "finish_reason": "stop"}
    stream = {"body": f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"}
    visitor.page.route("**/v1/completions", lambda route: route.fulfill(**stream, content_type="text/event-stream"))
    visitor.generate("Hello").ended()
    assert [one for one, _ in visitor.tokens()] == shown


def test_window_that_nobody_sees(doors: Doors, visit: Visit) -> None:
    visitor = visit(doors(slow())[1])
    visitor.context.add_init_script(HIDDEN)
    visitor.open().set(mode="text", max_tokens=60).page.fill("#prompt", "Hello")
    visitor.page.evaluate("document.querySelector('#send').click()")
    visitor.has_tokens(5)
    assert not visitor.page.locator("#stop").is_disabled()
    visitor.ended()
    assert visitor.text() == said_to("Hello", 60)
