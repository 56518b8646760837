"""Debian's Chromium without a window, and a loop for the server that it visits."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.orchestrator.api.queues import Room
from tests.support.loop_thread import LoopThread
from tests.support.programs import program

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.orchestrator.api.page.visitor import Visitor

Visit = Callable[..., "Visitor"]
Doors = Callable[..., tuple[Room, str]]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
DESKTOP = {"width": 1180, "height": 800}


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """A browser a file: while it is open, no loop can be started in this thread."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = program("chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    with LoopThread() as loop:
        yield loop


@pytest.fixture
def doors(loop: LoopThread) -> Iterator[Doors]:
    """Open the page over fakes: ``doors(make_verifier, **what open_door takes)``."""
    from tests.orchestrator.api.page.serving import open_door

    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(loop.entered(open_door(*args, **kwargs)))


@pytest.fixture
def visit(browser: "Browser") -> Iterator[Visit]:
    """Visit a URL: ``visit(url, **what a browser context takes)``. At the end each visitor must have been at peace."""
    from tests.orchestrator.api.page.visitor import Visitor

    visitors: list[Visitor] = []

    def begin(url: str, **options: Any) -> Visitor:
        visitors.append(Visitor(browser.new_context(**{"viewport": DESKTOP, **options}), url))
        return visitors[-1]

    yield begin
    for visitor in visitors:
        visitor.context.close()
    for visitor in visitors:
        visitor.check_quiet()
