"""Completions of the bundled pair, as other people's clients ask for them, and through proxies that cut streams."""

import pytest

from orchestrator.decode.request import GenerationRequest
from specgate.types import SamplingParams
from specgate_lab.clients import stream_completion
from tests.clients.everyone import ON_THE_PAIR, Cases
from tests.clients.served import MODEL, WHOLE, Served, Through, all_ways, run_and_compare
from tests.support.clients import ClientTable

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("cases", ON_THE_PAIR, ids=lambda cases: cases.client.name)
def test_completions(cases: Cases, pair: Served, clients: ClientTable, through: Through) -> None:
    run_and_compare(cases, pair, clients, through)


def test_our_own_client(pair: Served, through: Through) -> None:
    request = GenerationRequest((1,), SamplingParams(temperature=0.0), max_tokens=24)
    with all_ways(pair, through) as ways:
        streams = {name: stream_completion(way.endpoint, MODEL, request, "def main():") for name, way in ways.items()}
        texts = {name: [delta.text for delta in stream] for name, stream in streams.items()}
    assert "".join(texts[WHOLE])
    assert len({"".join(text) for text in texts.values()}) == 1
