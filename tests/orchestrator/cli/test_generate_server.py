"""``orchestrator generate --server`` against a real door, over the fake model."""

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from orchestrator.api.settings.listen import Listen, TlsSettings
from orchestrator.api.settings.settings import Defaults
from orchestrator.decode.request import GenerationRequest
from orchestrator.policy.gates import Gate
from specgate.types import SamplingParams
from tests.orchestrator.api.http_serving import TOKENIZER, Telling
from tests.orchestrator.api.queues import dying_after, expected, open_api
from tests.specgate.rpc.certificates import Certificates
from tests.support.loop_thread import LoopThread
from tests.support.orchestrating import Cli
from tests.test_imports import run_python

HEAVY = "print(*sys.modules.keys() & {'torch', 'transformers', 'ray', 'fastapi', 'httpx'})"
COLOUR = r"\x1b\[[\d;]*m"


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with LoopThread() as loop:
        yield loop


def text_of(prompt: str, length: int) -> str:
    return TOKENIZER.decode(expected(GenerationRequest(TOKENIZER.encode(prompt), max_tokens=length)))


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--server http://h:8000", "--server: 'http://h:8000' is an HTTP address; give the gRPC address"),
        ("--server ftp://h:1", "--server: 'ftp://h:1' is not HOST:PORT, with grpc://, ws:// or wss:// before it"),
        ("--server ws://h", "--server: 'h' is not HOST:PORT"),
        ("--server h", "--server: 'h' is not HOST:PORT"),
        ("--server h:0", "--server: 'h:0' has port 0"),
        ("--server h:1 --target t", "--target: does not go with --server"),
        ("--server h:1 --verifier h:2", "--verifier: does not go with --server"),
        ("--server h:1 --in-process", "--in-process: does not go with --server"),
        ("--server h:1 --threads 2", "--threads: does not go with --server"),
        ("--server h:1 --run-ahead 0", "--run-ahead: does not go with --server"),
        ("--server h:1 --tls-key k", "--tls-certificate: goes with --tls-key"),
        ("--server h:1 --tls-ca /x", "--tls-ca: /x cannot be read"),
        ("--tls", "--tls: needs --server"),
        ("--tls-server-name n", "--tls-server-name: needs --server"),
    ],
)
def test_flags_that_do_not_go_together(orchestrator: Cli, flags: str, problem: str) -> None:
    code, shown, told = orchestrator("generate", "x", *flags.split())
    assert (code, shown) == (2, "")
    assert told.startswith(f"orchestrator: {problem}")
    assert told.count("\n") == 1


def test_one_object_a_prompt_without_a_heavy_import(loop: LoopThread, tmp_path: Path) -> None:
    lines = [
        {"prompt": "Hello", "max_tokens": 20, "temperature": 0.5},
        {"prompt": "", "max_tokens": 9},
        {"token_ids": [5, 17, 3], "gamma": 0, "logprobs": 0, "seed": 3},
    ]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    with loop.entered(open_api(Telling, TOKENIZER)) as (room, door):
        room.request_queue.defaults = Defaults(gate=Gate.NONE, gamma=2)
        argv = [
            "generate",
            "--prompts",
            str(file),
            "--concurrency",
            "2",
            "--json",
            "--server",
            f"grpc://{door.endpoint}",
        ]
        code = f"import sys; from orchestrator.cli import main; print(main.run({argv})); {HEAVY}"
        *told, exit_code, heavy = run_python(code).split("\n")[:-1]
        specs = {session.spec.seed: session.spec for session in room.verifier.sessions}
    text, empty, ids = map(json.loads, told)
    assert (exit_code, heavy) == ("1", "")
    assert text["text"] == text_of("Hello", 20)
    assert specs[text["stats"]["seed"]].sampling == SamplingParams(temperature=0.5)
    # Neither flags nor file name a gate: the system's own drafts, two tokens a round.
    assert 0 < text["stats"]["drafted"] <= 2 * text["stats"]["rounds"]
    assert text["stats"]["run_ahead_hit_rate"] is None
    assert empty["error"]["field"] == "text"
    assert ids["stats"]["seed"] == 3
    assert ids["sources"] == ["solo"] * len(ids["token_ids"])
    assert len(ids["logprobs"]) == len(ids["token_ids"]) == 128


def test_text_for_people_in_the_colours_of_its_deltas(
    orchestrator: Cli, loop: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loop.entered(open_api(tokenizer=TOKENIZER)) as (_, door):
        ask = ["generate", "Hello", "--gate", "none", "--max-tokens", "40", "--server", door.endpoint]
        code, plain, _ = orchestrator(*ask)
        monkeypatch.setenv("FORCE_COLOR", "1")
        shown = orchestrator(*ask)[1]
    assert code == 0
    assert "Hello" + text_of("Hello", 40) in plain
    assert "\n40 tokens · " in plain
    answer = shown.split("Hello", 1)[1]
    assert {"\x1b[33m", "\x1b[36m"} <= set(re.findall(COLOUR, answer))
    assert re.sub(COLOUR, "", answer).startswith(text_of("Hello", 40))


def test_ids_where_the_system_has_no_tokenizer(orchestrator: Cli, loop: LoopThread, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"token_ids": [5, 17, 3], "max_tokens": 9}))
    with loop.entered(open_api()) as (_, door):
        code, shown, _ = orchestrator("generate", "--prompts", str(file), "--server", door.endpoint)
    assert code == 0
    assert " ".join(map(str, expected(GenerationRequest((5, 17, 3), max_tokens=9)))) in shown


def test_failures_are_told_in_one_line(orchestrator: Cli, loop: LoopThread) -> None:
    with loop.entered(open_api(dying_after(3), tokenizer=TOKENIZER)) as (_, door):
        refused = orchestrator("generate", "Hello", "--max-tokens", "9999", "--server", door.endpoint)
        broken = orchestrator("generate", "Hello", "--server", door.endpoint)
    assert refused[0] == 2
    assert refused[2].startswith("orchestrator: --max-tokens: 5 prompt tokens + 9999 pass the target's context length")
    assert broken[0] == 1
    assert "the last token sent has index" in broken[2]
    code, _, told = orchestrator("generate", "Hello", "--server", "127.0.0.1:1")
    assert code == 1
    assert "127.0.0.1:1" in told
    for line in (refused[2], broken[2], told):
        assert line.count("\n") == 1


def test_tls(orchestrator: Cli, loop: LoopThread, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    (certificate, key), (own, own_key) = map(certificates.issue, ("server", "client"))
    listen = Listen(tls=TlsSettings(certificate=certificate, key=key, client_ca=certificates.ca))
    with loop.entered(open_api(tokenizer=TOKENIZER, listen=listen)) as (_, door):
        ask = partial(orchestrator, "generate", "Hello", "--max-tokens", "9", "--server", door.endpoint)
        trusting = ["--tls-ca", str(certificates.ca), "--tls-server-name", "localhost"]
        code, shown, _ = ask(*trusting, "--tls-certificate", str(own), "--tls-key", str(own_key))
        assert (code, "Hello" + text_of("Hello", 9) in shown) == (0, True)
        assert ask(*trusting)[0] == ask()[0] == 1
