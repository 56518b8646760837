"""`orchestrator serve` as a child process, as far as it goes without Ray."""

import pytest

from orchestrator.api.settings.settings import load_settings
from orchestrator.local.served_child import served, settings_for
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.service_flags import ServiceFlags
from specgate.errors import ServiceUnavailable


async def test_a_child_that_refuses_its_settings_says_why() -> None:
    with pytest.raises(ServiceUnavailable, match=r"exit code 2: .*verifier\.such: is not a setting"):
        async with served({"verifier.such": 1}):
            pytest.fail("it was never ready")


def test_the_flags_become_settings() -> None:
    flags = ServiceFlags({"dtype": "bfloat16", "threads": 2})
    settings = load_settings(None, settings_for(ModelOptions(target="T", draft="D", service=flags)))
    assert settings.drafter is not None
    assert (settings.verifier.model, settings.drafter.model) == ("T", "D")
    for service in (settings.verifier, settings.drafter):
        assert (service.dtype, service.threads) == ("bfloat16", 2)
