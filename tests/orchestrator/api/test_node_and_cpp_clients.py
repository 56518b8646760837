"""The clients in Node and in C++ against a real door over the fake model: both keep the same promises."""

import asyncio
import json
import re
import signal
from pathlib import Path

import pytest

from orchestrator.api.keys.key_file import KeyEntry, hash_of, write_keys
from orchestrator.api.keys.keyring import Keyring
from orchestrator.api.settings.listen import Listen, TlsSettings
from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from specgate.types import Grammar, GrammarKind
from tests.orchestrator.api.client_programs import CLIENT_LIMIT_S, NODE_CLIENT, Command, end_of, run, start
from tests.orchestrator.api.http_serving import TOKENIZER, TURNS
from tests.orchestrator.api.queues import Hanging, dying_after, expected, occupied, open_api
from tests.specgate.rpc.certificates import Certificates

PROMPT = "5 17 3"
SAID = expected(GenerationRequest((5, 17, 3), max_tokens=40))


def test_the_lock_names_no_registry() -> None:
    lock = (NODE_CLIENT / "package-lock.json").read_text()
    assert '"integrity"' in lock
    assert not re.search(r"resolved|://registry", lock)


async def test_streams_text(client: Command, byte_level: TextTokenizer) -> None:
    async with open_api(tokenizer=byte_level) as (_, door):
        flags = ["--max-tokens", "30", "--temperature", "0", "--seed", "18446744073709551615"]
        code, out, err = await run(*client, "--server", door.endpoint, *flags, "the fox")
    assert (code, err) == (0, "")
    text, _, statistics = out.rpartition("\n\n")
    assert text == byte_level.decode(expected(GenerationRequest(byte_level.encode("the fox"), max_tokens=30)))
    assert statistics.startswith("30 tokens · ")
    assert statistics.endswith("finished by length · seed 18446744073709551615\n")


async def test_a_key_is_shown_where_one_is_asked_for(
    client: Command, byte_level: TextTokenizer, tmp_path: Path
) -> None:
    write_keys(tmp_path / "keys.yaml", [KeyEntry(name="ann", sha256=hash_of("sg-right"))])
    async with open_api(tokenizer=byte_level, keyring=Keyring(tmp_path / "keys.yaml")) as (_, door):
        asked = (*client, "--server", door.endpoint, "--max-tokens", "3", "the fox")
        code, _, err = await run(*asked, SPECGATE_KEY="sg-right")
        assert (code, err) == (0, "")
        for key in ("", "sg-wrong"):
            code, _, err = await run(*asked, SPECGATE_KEY=key)
            assert code == 1
            assert "UNAUTHENTICATED" in err
        code, _, err = await run(*asked, SPECGATE_KEY="sg\nright")
        assert code == 2
        assert err.startswith("generate: ")


async def test_a_chat_is_read_by_the_targets_template(client: Command) -> None:
    async with open_api(tokenizer=TOKENIZER) as (_, door):
        code, out, err = await run(*client, "--server", door.endpoint, "--chat", "--max-tokens", "30", "Hi")
    assert (code, err) == (0, "")
    prompt = TOKENIZER.encode(TURNS)
    assert out.rpartition("\n\n")[0] == TOKENIZER.decode(expected(GenerationRequest(prompt, max_tokens=30)))


async def test_says_all_that_was_asked(client: Command, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "integer"}')
    async with open_api() as (room, door):
        ask = [*client, "--server", door.endpoint, "--token-ids", "--max-tokens", "9", "--gamma", "0"]
        sampling = ["--temperature", "0.5", "--top-k", "7", "--top-p", "0.25"]
        assert (await run(*ask, *sampling, "--min-tokens", "3", "--seed", "4", PROMPT))[0] == 0
        assert (await run(*ask, "--json-schema", str(schema), PROMPT))[0] == 0
        assert (await run(*ask, "--regex", "[0-9]+", PROMPT))[0] == 0
        plain, by_schema, by_regex = (session.spec for session in room.verifier.sessions)
        assert not room.drafter.sessions
    assert (plain.sampling.temperature, plain.sampling.top_k, plain.sampling.top_p) == (0.5, 7, 0.25)
    assert (plain.prompt_token_ids, plain.max_tokens, plain.min_tokens, plain.seed) == ((5, 17, 3), 9, 3, 4)
    assert by_schema.grammar is not None
    assert json.loads(by_schema.grammar.text) == {"type": "integer"}
    assert by_regex.grammar == Grammar(GrammarKind.REGEX, "[0-9]+")
    assert (by_schema.sampling.temperature, by_schema.min_tokens, plain.grammar) == (1.0, 0, None)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--temperature", "101"], "INVALID_ARGUMENT, reason INVALID_ARGUMENT, field temperature: temperature: 101"),
        (["--regex", "("], "INVALID_ARGUMENT, reason INVALID_ARGUMENT, field grammar.regex: "),
        ([], "RESOURCE_EXHAUSTED, reason TOO_MANY_SESSIONS, retry in 1 s: "),
    ],
)
async def test_tells_what_is_wrong(client: Command, flags: list[str], told: str) -> None:
    async with (
        open_api(max_running=1, max_queued=len(flags)) as (room, door),
        occupied(room),
    ):
        code, out, err = await run(*client, "--server", door.endpoint, "--token-ids", *flags, PROMPT)
    assert (code, out) == (1, "")
    assert err.strip().startswith(told)


@pytest.mark.parametrize("n", [1, 3])
async def test_tells_an_error_after_its_tokens(client: Command, n: int) -> None:
    """All that arrived is shown, of choices whose turn had not come too."""
    async with open_api(dying_after(3, num_sessions=n)) as (_, door):
        code, out, err = await run(*client, "--server", door.endpoint, "--token-ids", "--n", str(n), PROMPT)
    assert code == 1
    assert len(out.split()) >= 3
    assert err.strip().startswith("UNAVAILABLE, reason SERVICE_UNAVAILABLE, retry in 1 s: ")
    assert f"the last token sent has index {len(out.split()) - 1}" in err


async def test_cancels_on_ctrl_c(client: Command) -> None:
    async with open_api(Hanging) as (room, door):
        running = await start(*client, "--server", door.endpoint, "--token-ids", PROMPT)
        assert running.stdout is not None
        await asyncio.wait_for(running.stdout.readexactly(1), CLIENT_LIMIT_S)
        running.send_signal(signal.SIGINT)
        code, _, err = await end_of(running)
        assert (code, err) == (130, "\ncancelled\n")
        await room.freed()


async def test_gives_up_at_its_deadline(client: Command) -> None:
    async with open_api(Hanging) as (room, door):
        ask = [*client, "--server", door.endpoint, "--token-ids", "--timeout", "2", PROMPT]
        code, out, err = await run(*ask)
        assert code == 1
        assert ids_in(out) == SAID[: len(out.split())]
        assert out
        assert err.strip().startswith("DEADLINE_EXCEEDED: ")
        await room.freed()


@pytest.mark.parametrize(
    "flags",
    ["--max-tokens 1.5 p", "--max-tokens=-1 p", "--seed 18446744073709551616 p", "--temperature x p", "--token-ids 1,x",
     "--timeout 0 p", "--chat --token-ids 1", "--json-schema s --regex r p", "--tls-ca /x p", "--nope p", "a b",
     "p --stop"],
)  # fmt: skip
async def test_refuses_a_wrong_command_line(client: Command, flags: str) -> None:
    code, out, err = await run(*client, *flags.split())
    assert (code, out) == (2, "")
    assert err.startswith("generate: ")


async def test_speaks_tls_and_shows_its_certificate(client: Command, certificates: Certificates) -> None:
    certificate, key = certificates.issue("server")
    own_certificate, own_key = certificates.issue("client")
    listen = Listen(tls=TlsSettings(certificate=certificate, key=key, client_ca=certificates.ca))
    async with open_api(listen=listen) as (_, door):
        ask = [*client, "--server", door.endpoint, "--token-ids", "--max-tokens", "9", PROMPT]
        trusting = ["--tls-ca", str(certificates.ca), "--tls-server-name", "localhost"]
        mutual = ["--tls-certificate", str(own_certificate), "--tls-key", str(own_key)]
        code, _, err = await run(*ask, *trusting, *mutual)
        assert (code, err) == (0, "")
        code, _, err = await run(*ask, *trusting)
        assert code == 1
        assert err.strip().startswith("UNAVAILABLE")


def ids_in(shown: str) -> tuple[int, ...]:
    return tuple(map(int, shown.split()))
