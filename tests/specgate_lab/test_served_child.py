"""`orchestrator serve` as a child process, as far as it goes without Ray."""

import pytest

from orchestrator.api.settings.settings import Settings
from orchestrator.local.pair_settings import GivenSettings, PairModels
from specgate.errors import ServiceUnavailable
from specgate_lab.served_child import served, settings_for


async def test_a_child_that_refuses_its_settings_says_why() -> None:
    with pytest.raises(ServiceUnavailable, match=r"exit code 2: .*drain_s: "):
        async with served(Settings().model_copy(update={"drain_s": -1.0})):
            pytest.fail("it was never ready")


def test_a_pair_becomes_settings() -> None:
    given = GivenSettings({"dtype": "bfloat16", "threads": 2})
    settings = settings_for(PairModels(target="T", draft="D", service=given), {"verifier.threads": 3})
    assert settings.drafter is not None
    assert (settings.verifier.model, settings.drafter.model) == ("T", "D")
    assert [(one.dtype, one.threads) for one in (settings.verifier, settings.drafter)] == [
        ("bfloat16", 3),
        ("bfloat16", 2),
    ]
