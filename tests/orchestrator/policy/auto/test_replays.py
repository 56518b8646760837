"""``auto`` on simulated traces: near the best fixed choice, whatever the draft is worth and whatever it costs."""

from dataclasses import replace

import pytest

from specgate_lab.replay.compare import compare
from tests.support.made_up_traces import KINDS, machine, trace


@pytest.mark.parametrize("sessions", [1, 8])
@pytest.mark.parametrize("ratio", [0.09, 0.33, 1.0])
@pytest.mark.parametrize("kind", ["greedy, good draft", "warm, poor draft", "useless draft"])
def test_it_is_near_the_best_fixed_choice(kind: str, ratio: float, sessions: int) -> None:
    row, _ = compare(kind, trace(KINDS[kind], machine(ratio), 24, 128), sessions)
    assert row.auto_to_best > 0.9
    assert row.auto_to_best_cold > 0.9


def test_texts_whose_drafts_fail_do_not_take_it_from_the_others() -> None:
    good, useless = (trace(KINDS[kind], machine(0.1), 32, 384) for kind in ("greedy, good draft", "useless draft"))
    texts = tuple(text for pair in zip(good.texts, useless.texts, strict=True) for text in pair)
    row, _ = compare("mixed", replace(good, texts=texts), 8)
    assert row.auto > 1.05
    assert row.auto_to_best > 1.05
