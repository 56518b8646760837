"""Somebody who looks at the page in Chromium, and what the page asked for and complained of meanwhile."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Page, Request

CONTRAST = (Path(__file__).resolve().parents[4] / "scripts" / "page_contrast.js").read_text("utf-8")
REFUSED = "Failed to load resource: the server responded with a status of"
"""What Chromium itself says of an answer that is no success."""
SLOWEST_MS = 60_000.0
POLL_MS = 30.0
TOKENS = "panel => [...panel.querySelectorAll('.t')].map(one => [one.textContent, one.className.replace('t ', '')])"


class Visitor:
    """One tab, in a browser context of its own."""

    def __init__(self, context: "BrowserContext", url: str) -> None:
        self.context = context
        self.url = url
        self.requests: list[Request] = []
        self.complaints: list[str] = []
        context.set_default_timeout(SLOWEST_MS)
        context.on("request", lambda request: self.requests.append(request))
        context.on("console", self._hear)
        context.on("weberror", lambda error: self.complaints.append(str(error.error)))
        self.page: Page = context.new_page()

    def _hear(self, message: "ConsoleMessage") -> None:
        if message.type in ("error", "warning") and not message.text.startswith(REFUSED):
            self.complaints.append(message.text)

    def open(self, state: str = "ready") -> "Visitor":
        """Go to the page, and wait until it says of the server what ``state`` is."""
        self.page.goto(self.url)
        return self.until(f"document.querySelector('#state').textContent === {json.dumps(state)}")

    def until(self, condition: str) -> "Visitor":
        """Wait for a condition in JavaScript. Playwright's own way makes the page evaluate text, which it may not."""
        latest_s = time.monotonic() + SLOWEST_MS / 1e3
        while not self.page.evaluate(condition):
            assert time.monotonic() < latest_s, condition
            self.page.wait_for_timeout(POLL_MS)
        return self

    def set(self, **settings: str | int | float) -> "Visitor":
        """Fill in settings by their names in the form; ``race`` and ``mode`` are beside them."""
        page = self.page
        if "mode" in settings:
            page.check(f"input[value={settings.pop('mode')}]")
        if "race" in settings:
            page.select_option("#race", str(settings.pop("race")))
        if settings and page.get_attribute("#settings", "open") is None:
            page.click("summary")
        for name, value in settings.items():
            field = page.locator(f"#settings [name={name}]")
            is_choice = field.evaluate("field => field.tagName === 'SELECT'")
            field.select_option(str(value)) if is_choice else field.fill(str(value))
        return self

    def generate(self, prompt: str | None = None) -> "Visitor":
        """Ask for a text."""
        if prompt is not None:
            self.page.fill("#prompt", prompt)
        self.page.click("#send")
        return self

    def ended(self) -> "Visitor":
        """Wait until nothing runs."""
        return self.until("document.querySelector('#stop').disabled")

    def has_tokens(self, number: int) -> "Visitor":
        """Wait until the newest text has so many tokens."""
        return self.until(f"document.querySelectorAll('.turn:first-child .panel:first-child .t').length >= {number}")

    def panel(self, number: int = 0) -> "Locator":
        """Return a panel of the newest turn."""
        return self.page.locator(".turn >> nth=0").locator(".panel").nth(number)

    def tokens(self, number: int = 0) -> list[tuple[str, str]]:
        """Return the text and the source of each token in a panel of the newest turn."""
        return [(text, source) for text, source in self.panel(number).evaluate(TOKENS)]

    def text(self, number: int = 0) -> str:
        """Return what all tokens of a panel come to."""
        return "".join(text for text, _ in self.tokens(number))

    def outcome(self) -> str:
        """Return what is said of the newest turn."""
        return self.page.inner_text(".turn:first-child .outcome")

    def asked(self, path: str) -> list[dict[str, Any]]:
        """Return the bodies that the page sent to ``path``."""
        asked = [one for one in self.requests if one.url == self.url + path and one.method == "POST"]
        return [json.loads(one.post_data or "{}") for one in asked]

    def contrasts(self) -> list[tuple[str, str, float]]:
        """Return (kind, what, contrast) of what is shown."""
        return [(one["kind"], one["what"], one["ratio"]) for one in self.page.evaluate(CONTRAST)]

    def check_quiet(self) -> None:
        """Fail where the page asked anybody else, or complained."""
        elsewhere = {one.url for one in self.requests if not one.url.startswith(f"{self.url}/")}
        assert not elsewhere
        assert not self.complaints
