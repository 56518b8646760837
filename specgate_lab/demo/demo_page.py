"""The end of the demo: the page, for whoever sits at a terminal."""

import asyncio
import os
import sys
import webbrowser

from rich.console import Console

ELSEWHERE = "The page that shows live who brought each token: `orchestrator serve`, then http://127.0.0.1:8000/"


async def show_page(endpoint: str, out: Console) -> None:
    """Open the page of a served system where there is a desktop; at a terminal serve it until Enter or Ctrl-C.

    Args:
        endpoint: HOST:PORT of the HTTP API.
    """
    if not (sys.stdin.isatty() and out.is_terminal):
        out.print(ELSEWHERE, markup=False, soft_wrap=True)
        return
    url = f"http://{endpoint}/"
    has_opened = has_desktop() and await asyncio.to_thread(webbrowser.open, url)
    out.print(f"The page is {'open' if has_opened else 'at'} {url}", style="bold", soft_wrap=True)
    out.print("Enter ends the demo.")
    await _enter()


def has_desktop() -> bool:
    """Return whether a browser opens in a window: elsewhere one of text would take the terminal."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


async def _enter() -> None:
    loop = asyncio.get_running_loop()
    pressed = asyncio.Event()
    loop.add_reader(sys.stdin, pressed.set)
    try:
        await pressed.wait()
    finally:
        loop.remove_reader(sys.stdin)
        # Else the shell behind us reads it.
        if pressed.is_set():
            sys.stdin.readline()
