"""The Python program in clients/ as its readers would run it, against a real door over the fake model."""

import sys

from orchestrator.decode.request import GenerationRequest
from orchestrator.decode.text import TextTokenizer
from tests.orchestrator.api.client_programs import ROOT, run
from tests.orchestrator.api.queues import expected, open_api

PYTHON_CLIENT = (sys.executable, str(ROOT / "clients" / "python" / "generate.py"))


async def test_python_streams_text_and_tells_what_is_wrong(byte_level: TextTokenizer) -> None:
    async with open_api(tokenizer=byte_level) as (_, door):
        ask = [*PYTHON_CLIENT, "the fox", "--server", door.endpoint, "--max-tokens"]
        streamed, refused = await run(*ask, "30"), await run(*ask, "0")
    text, _, statistics = streamed[1].rpartition("\n\n")
    assert (streamed[0], streamed[2]) == (0, "")
    assert text == byte_level.decode(expected(GenerationRequest(byte_level.encode("the fox"), max_tokens=30)))
    assert statistics.startswith("30 tokens, ")
    assert refused[0] == 1
    assert "INVALID_ARGUMENT: max_tokens: 0 is outside [1, " in refused[2]
