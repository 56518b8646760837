#!/usr/bin/env python3
"""Pictures of the page at ``/`` on the bundled pair, and what it weighs. Run by scripts/page_pictures."""

import argparse
import http.client
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright
from rich.table import Table

from orchestrator.terminal.background import BackgroundLoop
from orchestrator.terminal.render import output_console
from specgate_lab.served_child import MODEL_NAME, ServedEndpoints, served, settings_for
from specgate_lab.soak.replicas import replicas_under

SCRIPTS = Path(__file__).resolve().parent
FOLDER = SCRIPTS.parent / "docs" / "pictures"
CONTRAST = (SCRIPTS / "page_contrast.js").read_text("utf-8")
CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
DESKTOP, PHONE = {"width": 1120, "height": 860}, {"width": 360, "height": 780}
MAX_PICTURE_BYTES = 150_000
PROMPT = "def load(filename):\n    try:\n        with open(filename, 'rb') as file:\n            data = file.read()\n"
TOKENS = 90
GREEDY = {"gate": "target_confidence", "temperature": 0, "seed": 1}
EXTRAS = {"logprobs": 0, "return_sources": True, "return_rounds": True, "stream_options": {"include_usage": True}}
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    path = shutil.which("chromium")
    if path is None:
        raise SystemExit("no chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


def opened(browser: Browser, doors: ServedEndpoints, **options: Any) -> Page:
    """Return a tab of its own that shows the page."""
    page = browser.new_page(**{"viewport": DESKTOP, "device_scale_factor": 1, **options})
    page.goto(f"http://{doors.http}/")
    wait(page, "document.querySelector('#state').textContent === 'ready'")
    return page


def wait(page: Page, condition: str) -> None:
    """Wait for a condition in JavaScript. Playwright's own way evaluates text in the page, which the policy forbids."""
    while not page.evaluate(condition):
        page.wait_for_timeout(30)


def start(page: Page, max_tokens: int = TOKENS, race: str = "") -> None:
    """Ask for a text on the page."""
    for name, value in {**GREEDY, "max_tokens": max_tokens}.items():
        page.locator(f"#settings [name={name}]").evaluate("(field, value) => field.value = value", value)
    page.select_option("#race", race)
    page.fill("#prompt", PROMPT)
    page.click("#send")


def finish(page: Page) -> None:
    """Wait until the text is there."""
    wait(page, "document.querySelector('#stop').disabled")


def picture(page: Page, name: str) -> None:
    """Write one picture."""
    path = FOLDER / f"page-{name}.png"
    if page.viewport_size == DESKTOP:
        page.evaluate("window.scrollTo(0, 0)")
    page.screenshot(path=path)
    size = path.stat().st_size
    output_console().print(f"{path.name}: {size} bytes", highlight=False)
    if size > MAX_PICTURE_BYTES:
        raise SystemExit(f"{path.name} has more than {MAX_PICTURE_BYTES} bytes")


def take_all(browser: Browser, doors: ServedEndpoints) -> None:
    """Take the pictures; the last one kills the drafter, which Ray starts again."""
    for theme in ("light", "dark"):
        page = opened(browser, doors, color_scheme=theme)
        start(page)
        finish(page)
        page.evaluate("window.scrollTo(0, 0)")
        page.locator(".text .t.accepted").nth(3).hover()
        picture(page, theme)
        tell_contrast(page, theme)
        page.close()
    page = opened(browser, doors)
    start(page, race="turns")
    finish(page)
    picture(page, "race")
    page.close()
    page = opened(browser, doors, viewport=PHONE, device_scale_factor=1.5, is_mobile=True, has_touch=True)
    start(page, max_tokens=48)
    finish(page)
    page.locator("#legend").evaluate("element => element.scrollIntoView()")
    page.locator(".text .t.accepted").nth(1).tap()
    picture(page, "phone")
    page.close()
    lose_drafter(browser, doors)


def lose_drafter(browser: Browser, doors: ServedEndpoints) -> None:
    """Kill the drafter in mid-stream, and take the picture while the target goes on."""
    page = opened(browser, doors)
    start(page, max_tokens=400)
    wait(page, "document.querySelectorAll('.text .t').length > 70")
    for replica in replicas_under(doors.pid):
        if replica.role == "drafter":
            os.kill(replica.pid, signal.SIGKILL)
    wait(page, "document.querySelectorAll('.bar-lost').length > 24")
    picture(page, "drafter-lost")
    page.close()


def tell_contrast(page: Page, theme: str) -> None:
    """Print the least contrast of what the tab shows, by kind."""
    found = page.evaluate(CONTRAST)
    for kind in ("text", "edge", "bar"):
        least = min((one for one in found if one["kind"] == kind), key=lambda one: one["ratio"])
        output_console().print(
            f"{theme}, least contrast of {kind}: {least['ratio']:.2f} ({least['what']})", markup=False
        )


def tell_weight(browser: Browser, doors: ServedEndpoints) -> None:
    """Print what the page loads, and how soon something is seen."""
    paints, sizes = [], {}
    for _ in range(5):
        context = browser.new_context()
        page = context.new_page()
        page.on("response", lambda response: sizes.update({response.url: len(response.body())}))
        page.goto(f"http://{doors.http}/")
        wait(page, "document.querySelector('#state').textContent === 'ready'")
        paints.append(page.evaluate(PAINT))
        context.close()
    files = {url: size for url, size in sizes.items() if url.endswith("/") or "/page/" in url}
    told = (
        f"{sum(files.values())} bytes in {len(files)} files; {len(sizes)} requests; first paint {median(paints):.0f} ms"
    )
    output_console().print(told, highlight=False)


def rate_by_client(doors: ServedEndpoints, extras: dict[str, Any]) -> float:
    """Return the tokens a second, after the first one, of a stream that is read and thrown away."""
    body = {"model": MODEL_NAME, "prompt": PROMPT, "max_tokens": 256, **GREEDY, "stream": True, **extras}
    connection = http.client.HTTPConnection(doors.http)
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    moments = []
    for line in connection.getresponse():
        if line.startswith(b'data: {"id"') and b'"choices":[]' not in line:
            moments.append(time.perf_counter())
    connection.close()
    # Chunks have several tokens; the last one has none.
    return 255 / (moments[-1] - moments[0])


def rate_by_page(page: Page) -> float:
    """Return the same of a stream that the page shows, by its own clock."""
    page.click("#clear")
    start(page, max_tokens=256)
    finish(page)
    return float(page.inner_text(".rate").split("·")[1].split()[0])


def measure(browser: Browser, doors: ServedEndpoints, repeats: int) -> Table:
    """Measure one stream each way in turns; the first turn warms up. Return a line for each way."""
    page = opened(browser, doors)
    ways = {
        "a plain body, an HTTP client": lambda: rate_by_client(doors, {}),
        "the page's body, an HTTP client": lambda: rate_by_client(doors, EXTRAS),
        "the page's body, the page in Chromium": lambda: rate_by_page(page),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(repeats + 1):
        for name, way in ways.items():
            rate = way()
            rates[name] += [rate] if repeat else []
    table = Table("one stream, and who reads it", "tokens/s, median", "all", "× first")
    first = median(next(iter(rates.values())))
    for name, seen in rates.items():
        everything = " ".join(f"{rate:.0f}" for rate in sorted(seen))
        table.add_row(name, f"{median(seen):.1f}", everything, f"{median(seen) / first:.3f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="measure what the page costs a stream; take no pictures")
    parser.add_argument("--repeats", type=int, default=5, help="turns of --measure [default: 5]")
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    with BackgroundLoop() as loop, loop.entered(served(settings_for())) as doors, chromium() as browser:
        tell_weight(browser, doors)
        if arguments.measure:
            output_console().print(measure(browser, doors, arguments.repeats))
        else:
            take_all(browser, doors)


if __name__ == "__main__":
    main()
