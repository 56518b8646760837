"""What a service measures of its own forwards once it has loaded."""

import time
from pathlib import Path

import pytest

from specgate.runtime.engine.forward_costs import WIDTHS, measure_forwards
from tests.support.drafting import by_torch
from tests.support.models import make_runner, write_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("model") / "llama"
    write_llama(folder, seed=1)
    return folder


def test_forwards_are_timed_by_their_rows_and_nothing_is_left_open(folder: Path) -> None:
    runner = make_runner(folder, kv_tokens=512, page_size=16)
    costs = measure_forwards(runner)
    assert tuple(one.rows for one in costs) == WIDTHS
    assert all(one.forward_us > 0 for one in costs)
    assert runner.pool.num_free == runner.pool.num_pages
    runner.pool.check_integrity()
    # What was not computed is known to nobody.
    sequence = runner.pool.open([0] * 64, 64)
    runner.pool.attach(sequence, 63)
    assert sequence.num_cached == 0


def test_what_a_longer_text_adds_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make_runner(folder, kv_tokens=512, page_size=16)
    forward = runner.forward

    def slow_forward(batch):
        ((sequence, num_rows, _),) = batch
        time.sleep(num_rows * sequence.num_cached * 1e-6)
        return forward(batch)

    monkeypatch.setattr(runner, "forward", slow_forward)
    costs = {one.rows: one for one in measure_forwards(runner)}
    assert costs[1].context_us >= 900
    assert costs[17].context_us >= 17 * 900
    assert costs[9].at(2048).forward_us == costs[9].forward_us + 2 * costs[9].context_us


def test_a_lone_row_of_a_drafter_is_a_token_of_a_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, _ = by_torch(write_llama(tmp_path, head_dim=16))
    draft = runner.draft

    def slow_draft(*arguments):
        time.sleep(0.1)
        return draft(*arguments)

    monkeypatch.setattr(runner, "draft", slow_draft)
    token, *rest = measure_forwards(runner, drafts=True)
    assert token.rows == 1
    assert token.forward_us >= 20_000
    assert tuple(one.rows for one in rest) == WIDTHS[1:]


@pytest.mark.parametrize(("kv_tokens", "most"), [(16, 9), (1, 0)])
def test_widths_that_do_not_fit_are_left_out(folder: Path, kv_tokens: int, most: int) -> None:
    costs = measure_forwards(make_runner(folder, kv_tokens=kv_tokens, page_size=min(kv_tokens, 16)))
    assert tuple(one.rows for one in costs) == tuple(width for width in WIDTHS if width <= most)
