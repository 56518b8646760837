"""``orchestrator chat`` with lines that are piped to it, against a real door over the fake model."""

import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from orchestrator.decode.request import GenerationRequest
from specgate.types import SessionSpec
from tests.orchestrator.api.http_serving import TOKENIZER, TURN, ascii_tokenizer
from tests.orchestrator.api.queues import Room, dying_after, expected, open_api, open_room
from tests.support.fakes import FakeVerifier
from tests.support.loop_thread import LoopThread
from tests.support.orchestrating import Cli
from tests.support.patience import PATIENCE_S

Chat = Callable[..., tuple[int, str, str]]
FLAGS = ("--max-tokens", "30", "--gate", "none")


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with LoopThread() as loop:
        yield loop


@pytest.fixture
def chat(orchestrator: Cli, monkeypatch: pytest.MonkeyPatch) -> Chat:
    """Pipe lines to one chat; return its exit code, what it shows, and what it tells on standard error."""

    def run(said: str, *flags: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(said.encode("utf-8", "surrogateescape"))))
        return orchestrator("chat", *flags)

    return run


def read(*turns: str, system: str = "") -> str:
    """What the model reads of turns by user and assistant, the user's first."""
    roles = ("user", "assistant") * len(turns)
    said = "".join(f"{TURN}{role}:{text}" for role, text in zip(roles, turns, strict=False))
    return (f"{TURN}system:{system}" if system else "") + said + f"{TURN}assistant:"


def answer_to(text: str, length: int = 30) -> str:
    return TOKENIZER.decode(expected(GenerationRequest(TOKENIZER.encode(text), max_tokens=length)))


def prompts_of(specs: list[SessionSpec]) -> list[str]:
    return [TOKENIZER.decode(spec.prompt_token_ids, skip_special_tokens=False) for spec in specs]


def test_each_line_is_a_turn_of_one_conversation(chat: Chat, loop: LoopThread) -> None:
    with loop.entered(open_api(tokenizer=TOKENIZER)) as (room, door):
        lines = "Hi\n\n//and\n/system Be\nagain\n/retry\n/reset\n/system\nnew"
        code, shown, told = chat(lines, "--server", door.endpoint, *FLAGS)
        asked = prompts_of([session.spec for session in room.verifier.sessions])
    hi = answer_to(read("Hi"))
    and_ = answer_to(read("Hi", hi, "/and"))
    again = read("Hi", hi, "/and", and_, "again", system="Be")
    assert (code, told) == (0, "")
    assert asked == [read("Hi"), read("Hi", hi, "/and"), again, again, read("new")]
    for answer in (hi, and_, answer_to(again), answer_to(read("new"))):
        assert answer in shown
    assert "\x1b[" not in shown


def test_stats_of_the_last_answer_and_of_all(chat: Chat, loop: LoopThread) -> None:
    with loop.entered(open_api(tokenizer=TOKENIZER)) as (_, door):
        code, shown, _ = chat("/stats\nHi\nHo\n/stats\n/nope\n/quit\nnever asked", "--server", door.endpoint, *FLAGS)
    assert code == 0
    assert "no answer yet" in shown
    assert re.search(r"tokens +30 +60 *\n", shown)
    assert re.search(r"acceptance +\d+% +\d+% *\n", shown)
    assert re.search(r"accepted from the draft model +\d+ +\d+ *\n", shown)
    assert re.search(r"gate +none +none *\n", shown)


def test_a_turn_that_fails_is_taken_back_and_the_chat_goes_on(chat: Chat, loop: LoopThread) -> None:
    with loop.entered(open_api(dying_after(3), tokenizer=TOKENIZER)) as (room, door):
        code, shown, told = chat(f"Hi\n{'long ' * 200}\n\udcff\n/stats", "--server", door.endpoint, *FLAGS)
        asked = prompts_of([session.spec for session in room.verifier.sessions])
    broken, too_long, lost = told.splitlines()
    assert code == 1
    begun = shown.partition("\n")[0]
    assert begun
    assert answer_to(read("Hi")).startswith(begun)
    assert "the last token sent has index" in broken
    assert too_long.startswith("the conversation is too long: chat (tokens) (length): ")
    assert "/retry asks it again" in lost
    assert "no answer yet" in shown
    # Bytes that are no text read as U+FFFD, which this tokenizer has no token for.
    assert set(asked) == {read("Hi"), read("")}


def test_an_answer_ends_where_there_is_no_more_room(chat: Chat, loop: LoopThread) -> None:
    with loop.entered(open_api(tokenizer=TOKENIZER)) as (room, door):
        code, _, told = chat("a" * 450, "--server", door.endpoint, "--ignore-eos")
        assert (code, told) == (0, "")
        spec = room.verifier.sessions[0].spec
        assert len(spec.prompt_token_ids) + spec.max_tokens == 512


def own(room: Room, *flags: str) -> tuple[str, ...]:
    return ("--verifier", room.verifier.endpoint, "--drafter", room.drafter.endpoint, *flags)


def test_a_model_that_cannot_chat_is_refused_in_one_line(chat: Chat, loop: LoopThread) -> None:
    mute = ascii_tokenizer(chat_template=None)
    with loop.entered(open_api(tokenizer=mute)) as (room, door):
        served, here = chat("Hi\nHo", "--server", door.endpoint), chat("Hi", *own(room))
        bundled = chat("Hi")
    told = "chat.messages: the served model has no chat template; give it a text to go on with"
    assert served[::2] == (2, f"orchestrator: {told}\n")
    assert here[0] == 2
    assert here[2].splitlines()[-1].startswith("orchestrator: --target: has no chat template")
    # Told before anything is loaded.
    assert bundled[0] == 2
    assert re.fullmatch(r"orchestrator: --target: has no chat template.*\n", bundled[2])


def test_over_services_of_its_own(chat: Chat, loop: LoopThread, tmp_path: Path) -> None:
    TOKENIZER._tokenizer.save_pretrained(tmp_path)
    with loop.entered(open_room(tokenizer=TOKENIZER)) as room:
        said = chat(f"Hi\nHo\n{'a' * 600}\n/stats", *own(room, "--target", str(tmp_path)), *FLAGS, "--system", "Be")
        asked = prompts_of([session.spec for session in room.verifier.sessions])
        filled = chat("a" * 450, *own(room, "--target", str(tmp_path)), "--ignore-eos")
        assert room.verifier.sessions[-1].spec.max_length == 512
        assert filled[0] == 0
    code, shown, told = said
    hi = answer_to(read("Hi", system="Be"))
    assert asked == [read("Hi", system="Be"), read("Hi", hi, "Ho", system="Be")]
    assert hi in shown
    assert code == 1
    assert re.match(r"messages: have \d+ tokens; the target holds 512 with its answer; /reset", told)


def test_nobody_there(chat: Chat) -> None:
    code, _, told = chat("Hi", "--server", "127.0.0.1:1")
    assert code == 1
    assert "127.0.0.1:1" in told
    assert told.count("\n") == 1


@pytest.fixture
def typed(loop: LoopThread) -> Iterator[tuple[int, subprocess.Popen[bytes], Room]]:
    """A chat that a terminal is in front of, with a model that takes its time."""
    slow = partial(FakeVerifier, delay_s=0.02)
    with loop.entered(open_api(slow, TOKENIZER)) as (room, door):
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "orchestrator.cli", "chat", "--server", door.endpoint, "--ignore-eos"]
        environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        root = Path(__file__).resolve().parents[3]
        with subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, cwd=root, start_new_session=True
        ) as process:
            os.close(theirs)
            yield ours, process, room
            process.kill()
        os.close(ours)


def shown_until(terminal: int, pattern: str) -> str:
    """Read the terminal until ``pattern`` is there; return all that was read."""
    shown, deadline = "", time.monotonic() + PATIENCE_S
    while not re.search(pattern, shown):
        assert time.monotonic() < deadline, shown
        shown += os.read(terminal, 4096).decode(errors="replace")
    return shown


def interrupted(process: subprocess.Popen[bytes], terminal: int) -> None:
    """Send Ctrl-C until it is heard: one that comes while the line editor starts waits there for the next key."""
    process.send_signal(signal.SIGINT)
    while not select.select([terminal], [], [], 1.0)[0]:
        process.send_signal(signal.SIGINT)


def test_ctrl_c_stops_the_answer_and_ctrl_d_leaves(
    typed: tuple[int, subprocess.Popen[bytes], Room], loop: LoopThread
) -> None:
    terminal, process, room = typed
    shown_until(terminal, "> ")
    interrupted(process, terminal)
    shown_until(terminal, r"Ctrl-D leaves[\s\S]*> ")
    os.write(terminal, b"Hi\n")
    assert "\x1b[" in shown_until(terminal, r"assistant|\x1b\[3\dm\S")
    process.send_signal(signal.SIGINT)
    shown_until(terminal, r"stopped[\s\S]*> ")
    loop.run(room.freed())
    os.write(terminal, b"\x04")
    assert process.wait(60) == 0
