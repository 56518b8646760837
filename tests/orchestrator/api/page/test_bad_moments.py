"""Keys, crowds, cut connections, and a server that has nothing to say: the page tells it, and loses no text."""

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path

import pytest
import yaml

from orchestrator.api.failures import OUT_OF_REACH
from orchestrator.api.http import sse
from orchestrator.api.keys.key_file import hash_of, new_key
from orchestrator.api.keys.keyring import Keyring
from specgate.types import SessionSpec
from specgate_lab.network.delay_proxy import DelayProxy
from tests.orchestrator.api.http_serving import CHAT, COMPLETIONS, Telling, said_to
from tests.orchestrator.api.page.conftest import Doors, Visit
from tests.orchestrator.api.page.serving import slow
from tests.orchestrator.api.queues import PATIENT, occupied
from tests.support.cut_proxy import Cut, CutProxy
from tests.support.fakes import Fault
from tests.support.loop_thread import LoopThread

FAILING_FAST = replace(PATIENT, open_s=0.5, failover_s=0.5)
KEY = new_key()


@pytest.fixture
def write_key(tmp_path: Path) -> Callable[..., Keyring]:
    """Write the file of keys. Its keyring looks at it each time."""
    seconds = iter(range(0, 100_000, 10))

    def write(revoked: date | None = None) -> Keyring:
        entry = {"name": "visitor", "sha256": hash_of(KEY)} | ({"revoked": revoked} if revoked else {})
        (tmp_path / "keys.yaml").write_text(yaml.safe_dump({"keys": [entry]}))
        return Keyring(tmp_path / "keys.yaml", clock=lambda: float(next(seconds)))

    return write


def test_key_is_asked_for_and_kept_in_this_tab_alone(
    doors: Doors, visit: Visit, write_key: Callable[..., Keyring]
) -> None:
    _, url = doors(keyring=write_key())
    visitor = visit(url).open("needs a key")
    page = visitor.page
    assert page.locator("#key-dialog").is_visible()
    assert "a key is needed" in page.inner_text("#key-why")
    page.fill("#key", "sg-wrong")
    page.keyboard.press("Enter")
    page.locator("#key-why").filter(has_text="this key is not known here").wait_for()
    page.fill("#key", KEY)
    page.click("#key-dialog .main")
    visitor.until("document.querySelector('#state').textContent === 'ready'")
    assert not page.locator("#key-dialog").is_visible()
    visitor.set(mode="text", max_tokens=5).generate("Hello").ended()
    assert visitor.text() == said_to("Hello", 5)
    visitor.open()
    kept = page.evaluate("[Object.values(sessionStorage), JSON.stringify({...localStorage}) + document.cookie]")
    assert kept[0] == [KEY]
    assert KEY not in kept[1]
    second = visitor.context.new_page()
    second.goto(url)
    second.wait_for_selector("#key-dialog[open]")


def test_key_that_is_revoked(doors: Doors, visit: Visit, write_key: Callable[..., Keyring]) -> None:
    _, url = doors(keyring=write_key())
    visitor = visit(url).open("needs a key")
    visitor.page.fill("#key", KEY)
    visitor.page.keyboard.press("Enter")
    visitor.until("document.querySelector('#state').textContent === 'ready'")
    write_key(revoked=date(2026, 1, 2))
    visitor.set(mode="text").generate("Hello").ended()
    assert "visitor was revoked on 2026-01-02" in visitor.outcome()
    assert visitor.page.locator("#key-dialog").is_visible()
    assert "revoked" in visitor.page.inner_text("#key-why")


def test_full_house_counts_down_and_offers_another_try(doors: Doors, visit: Visit, loop: LoopThread) -> None:
    room, url = doors(max_running=1, max_queued=0)
    visitor = visit(url).open().set(mode="text", max_tokens=5)
    with loop.entered(occupied(room)):
        visitor.generate("Hello").ended()
        assert "1 requests run and 0 wait; come back later" in visitor.outcome()
        assert "Try again in 1 s." in visitor.outcome()
    visitor.page.click(".outcome button")
    visitor.has_tokens(5).ended()
    assert visitor.text() == said_to("Hello", 5)


def test_no_verifier(doors: Doors, visit: Visit, loop: LoopThread) -> None:
    room, url = doors(timeouts=FAILING_FAST)
    visitor = visit(url).open().set(mode="text", max_tokens=5)
    loop.run(room.verifier.stop())
    visitor.generate("Hello").ended()
    assert "Try again in 1 s." in visitor.outcome()
    assert visitor.page.inner_text("#state") == "no verifier"
    visit(url).open("no verifier")
    loop.run(room.verifier.restart())
    while not visitor.tokens():
        # Its connection is tried again after a while.
        visitor.page.click(".turn:first-child .outcome button")
        visitor.ended()
    assert visitor.text() == said_to("Hello", 5)
    assert visitor.page.inner_text("#state") == "ready"


def test_stream_that_is_cut_off_keeps_its_text(doors: Doors, visit: Visit, loop: LoopThread) -> None:
    _, url = doors(slow())
    proxy = DelayProxy(url.removeprefix("http://"), 0.0)
    visitor = visit(f"http://{loop.run(proxy.start())}").open().set(mode="text", max_tokens=400)
    visitor.generate("Hello").has_tokens(5)
    loop.run(proxy.stop())
    visitor.ended()
    assert visitor.outcome() == "The server cannot be reached, or the connection broke."
    assert visitor.panel().locator(".notice").inner_text() == "It broke off here."
    assert len(visitor.text()) >= 5
    assert said_to("Hello", 400).startswith(visitor.text())
    visitor.complaints[:] = [one for one in visitor.complaints if "net::ERR_" not in one]


def dying(spec: SessionSpec) -> Telling:
    """A target whose first session dies after a few verdicts, and which begins no other one."""
    is_first = len(spec.committed_token_ids) == len(spec.prompt_token_ids)
    return Telling(spec, faults={5 if is_first else 0: Fault.DIE})


def test_failure_in_mid_stream(doors: Doors, visit: Visit) -> None:
    _, url = doors(dying, timeouts=FAILING_FAST)
    visitor = visit(url).open().set(mode="text", max_tokens=200).generate("Hello").ended()
    assert visitor.outcome() == OUT_OF_REACH
    assert visitor.panel().locator(".notice").inner_text() == "It broke off here."
    assert visitor.text()
    assert said_to("Hello", 200).startswith(visitor.text())


def test_server_that_has_nothing_to_say_yet(doors: Doors, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.1)
    _, url = doors(partial(Telling, faults={2: Fault.HANG}))
    visitor = visit(url).open().set(mode="text").generate("Hello")
    notice = visitor.panel().locator(".notice")
    notice.filter(has_text="nothing to send yet").wait_for()
    visitor.page.keyboard.press("Escape")
    visitor.ended()
    assert (visitor.outcome(), notice.inner_text()) == ("Stopped.", "Stopped here.")
    assert visitor.text()


def test_slow_line_and_packets_that_end_anywhere(doors: Doors, visit: Visit, loop: LoopThread) -> None:
    _, url = doors()
    with loop.entered(CutProxy(url.removeprefix("http://"), Cut.BYTES)) as proxy:
        visitor = visit(url).open().set(mode="text", max_tokens=6)
        visitor.page.route(
            f"**{COMPLETIONS}",
            lambda route: route.continue_(url=f"http://{proxy.endpoint}{COMPLETIONS}"),
        )
        visitor.generate("Hello").ended()
        assert visitor.text() == said_to("Hello", 6)
        assert proxy.num_pieces > 0
        visitor.requests[:] = [one for one in visitor.requests if proxy.endpoint not in one.url]


def test_clear_in_mid_answer_begins_another_talk(doors: Doors, visit: Visit) -> None:
    visitor = visit(doors(slow())[1]).open().set(mode="chat", max_tokens=400).generate("one").has_tokens(3)
    visitor.page.click("#clear")
    visitor.ended().set(max_tokens=3).generate("two").ended()
    assert [one["content"] for one in visitor.asked(CHAT)[-1]["messages"]] == ["two"]


def test_stop_frees_the_services(doors: Doors, visit: Visit, loop: LoopThread) -> None:
    room, url = doors(slow())
    visitor = visit(url).open().set(mode="text", max_tokens=400).generate("Hello").has_tokens(3)
    visitor.page.click("#stop")
    visitor.ended()
    loop.run(room.freed())
    assert 3 <= len(visitor.tokens()) < 400
    visitor.page.click("#clear")
    assert visitor.page.locator(".turn").count() == 0
