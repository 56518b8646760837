"""Where the tokenizer of a verifier's model is found: a verifier tells a name, and no path."""

import math
from types import MappingProxyType

import pytest

from orchestrator.decode.ports import Lease
from orchestrator.services.discovery import UNKNOWN_TOKEN_US, KnownDrafters, tokenizer_of
from specgate.tokenizer import fingerprint, load_tokenizer
from specgate.types import ForwardCost, ModelInfo
from tests.support.decoding import make_spec
from tests.support.fake_fleet import FakeDialer
from tests.support.fake_services import model_info
from tests.support.services import PAIR

KNOWN = str(PAIR / "target")
FAR_US = 2.0**24


def test_it_is_the_one_that_is_known_where_the_fingerprints_are_the_same() -> None:
    tokenizer = load_tokenizer(KNOWN)
    assert tokenizer is not None
    same = model_info("verifier", tokenizer_fingerprint=MappingProxyType(fingerprint(tokenizer)))
    found = tokenizer_of(same, KNOWN)
    assert found is not None
    assert found.encode("def f") == tuple(tokenizer("def f")["input_ids"])


def test_no_other_one_is_taken() -> None:
    """Nor a folder here, whatever a verifier calls its model."""
    for name in ("fake-verifier", KNOWN, "."):
        other = model_info("verifier", model=name, tokenizer_fingerprint=MappingProxyType({"vocabulary": "other"}))
        assert tokenizer_of(other, KNOWN) is None
    assert tokenizer_of(model_info("verifier", tokenizer_fingerprint=MappingProxyType({})), KNOWN) is None


class Fleet(FakeDialer):
    """Drafters whose draft token takes as many microseconds as their endpoint says; 0: it does not tell."""

    async def model_info(self, lease: Lease, role: str, timeout_s: float | None = None) -> ModelInfo:
        token_us = int(lease.endpoint)
        return model_info(role, forward_costs=(ForwardCost(1, token_us),) if token_us else ())


async def test_a_drafter_costs_as_much_as_its_drafts_take_and_one_that_was_not_met_is_met() -> None:
    known = KnownDrafters(Fleet(), model_info("verifier"), None, {"300": FAR_US})
    assert known.round_trip_us == FAR_US
    assert known.cost_us("300", 0) - known.cost_us("100", 0) == FAR_US
    assert known.cost_us("100", 0) < known.cost_us("100", 1)
    assert list(known.forward_costs) == []
    await known.open_drafter(Lease("0"), make_spec(10))
    assert known.round_trip_us < FAR_US
    unknown_us = known.cost_us("0", 1) - known.cost_us("0", 0)
    for endpoint in ("8000", "2000"):
        await known.open_drafter(Lease(endpoint), make_spec(10))
    one_more = {endpoint: known.cost_us(endpoint, 1) - known.cost_us(endpoint, 0) for endpoint in ("8000", "2000")}
    assert one_more["8000"] == pytest.approx(4 * one_more["2000"])
    assert unknown_us == pytest.approx(one_more["2000"] * UNKNOWN_TOKEN_US / 2000)
    assert list(known.forward_costs) == [ForwardCost(1, 2000)]
    # One that was not met is worth a try, and a full one is not.
    assert known.cost_us("100", 0) < known.cost_us("2000", 0)
    assert known.cost_us("2000", model_info("drafter").max_sessions) == math.inf
