"""What services of our own are started with."""

import os
from typing import Any

import pytest

from orchestrator.local.launch import Capacity, local_service
from orchestrator.terminal.model_options import ModelOptions
from orchestrator.terminal.service_flags import ServiceFlags


@pytest.mark.parametrize(
    ("cores", "given", "expected"),
    [({3}, {}, 0), ({3}, {"run_ahead": 2}, 2), ({3, 5}, {}, 4), ({3, 5}, {"run_ahead": 0}, 0)],
)
def test_on_a_single_core_a_drafter_does_not_run_ahead(
    cores: set[int], given: dict[str, int], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    models, capacity = ModelOptions(service=ServiceFlags(given)), Capacity(sessions=1, tokens_a_session=64)
    drafter = local_service(models, "drafter", "m", None, capacity)
    assert drafter.settings.model_dump()["run_ahead"] == expected
    assert local_service(models, "verifier", "m", None, capacity).role == "verifier"


@pytest.mark.parametrize(
    ("models", "given", "expected"),
    [
        ({}, {"device": "cuda"}, 0),
        ({}, {"device": "cuda:1", "run_ahead": 2}, 2),
        ({"verifier": ("elsewhere:1",)}, {"device": "cuda"}, 4),
        ({}, {"device": "cpu"}, 4),
        ({"in_process": True}, {"device": "cpu"}, 0),
    ],
)
def test_where_both_models_take_turns_there_is_no_run_ahead(
    models: dict[str, Any], given: dict[str, Any], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert ModelOptions(service=ServiceFlags(given), **models).run_ahead == expected
