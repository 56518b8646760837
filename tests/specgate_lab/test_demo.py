"""How the demo ends: at a terminal with the page, elsewhere with a line."""

import asyncio
import io
import os
import sys
import webbrowser
from collections.abc import Iterator

import pytest
from rich.console import Console

from specgate_lab.demo import show_page

ENDPOINT = "127.0.0.1:8123"
URL = f"http://{ENDPOINT}/"


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A terminal as our standard input; yields what types into it."""
    ours, its = os.openpty()
    with os.fdopen(its) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield ours
    os.close(ours)


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a browser was asked for, on a machine without a desktop."""
    urls: list[str] = []
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)

    def open_browser(url: str) -> bool:
        urls.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", open_browser)
    return urls


async def ended(keyboard: int, out: Console) -> bool:
    """Return whether it goes on until Enter, and ends then."""
    showing = asyncio.create_task(show_page(ENDPOINT, out))
    _, waits = await asyncio.wait((showing,), timeout=0.2)
    os.write(keyboard, b"\n")
    await asyncio.wait_for(showing, 5)
    return bool(waits)


@pytest.mark.parametrize(("display", "urls"), [(None, []), (":0", [URL])], ids=["no desktop", "a desktop"])
async def test_at_a_terminal_the_page_is_served_until_enter_and_opened_on_a_desktop(
    keyboard: int, opened: list[str], monkeypatch: pytest.MonkeyPatch, display: str | None, urls: list[str]
) -> None:
    if display:
        monkeypatch.setenv("DISPLAY", display)
    out = Console(file=io.StringIO(), force_terminal=True)
    assert await ended(keyboard, out)
    assert URL in out.file.getvalue()  # type: ignore[attr-defined]
    assert opened == urls


async def test_in_a_pipe_nobody_waits(opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setenv("DISPLAY", ":0")
    out = Console(file=io.StringIO())
    await asyncio.wait_for(show_page(ENDPOINT, out), 5)
    assert "orchestrator serve" in out.file.getvalue()  # type: ignore[attr-defined]
    assert not opened
