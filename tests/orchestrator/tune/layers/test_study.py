"""The search's memory: killed, gone on with, of something else, on a full disk."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.tune.layers.blocks import Blocks, BlockSet
from orchestrator.tune.layers.predict import MeasuredTimes, Prediction, Ranks
from orchestrator.tune.layers.search import LayerSearch
from orchestrator.tune.layers.study import Judged, LayerStudy
from specgate.errors import InvalidArgument
from specgate.types import ForwardCost

BLOCKS = Blocks(6, True)
SUBJECT = {"model": "aa", "prompts": "bb"}
TIMES = MeasuredTimes(tuple(ForwardCost(rows, 1000) for rows in (1, 9)), 1000.0, 50.0, 50.0, 50.0, 1.0, 0.0)
NEEDED = BLOCKS.set_of(["attention 0", "mlp 0", "attention 5", "mlp 5"])


class FakeScorer:
    """A model whose first and last layers are needed; each other block that is left out costs some agreement."""

    def __init__(self, dies_after: int | None = None) -> None:
        self.asked: list[BlockSet] = []
        self._dies_after = dies_after

    async def ranks(self, skip: BlockSet, num_texts: int) -> list[Ranks]:
        if len(self.asked) == self._dies_after:
            raise KeyboardInterrupt
        self.asked.append(skip)
        needs = len(skip.attention & NEEDED.attention) + len(skip.mlp & NEEDED.mlp)
        wrong = 8 * needs + skip.size
        return [[int(position % 20 < wrong) for position in range(100)]] * num_texts


def search(scorer: FakeScorer) -> LayerSearch:
    return LayerSearch(scorer, BLOCKS, TIMES, 2, run_ahead=False)


async def run(scorer: FakeScorer, study: LayerStudy, num_sets: int) -> None:
    study.begin_with(BLOCKS, [["attention 3"], ["attention 3", "mlp 3"]])
    await search(scorer).run(study, num_sets, lambda *_: None)


async def test_a_killed_search_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    with pytest.raises(KeyboardInterrupt):
        await run(FakeScorer(dies_after=9), LayerStudy(path, SUBJECT, 0), 20)
    again = LayerStudy(path, SUBJECT, 0)
    before = [one.skip for one in again.judged(BLOCKS)]
    assert len(before) == 9
    scorer = FakeScorer()
    await run(scorer, again, 20)
    after = [one.skip for one in again.judged(BLOCKS)]
    assert len(after) == 20
    assert set(before) < set(after)
    # What was tried is not tried again.
    assert not set(before) & set(scorer.asked)
    assert len(scorer.asked) == 11


async def test_the_search_finds_better_sets_than_chance(tmp_path: Path) -> None:
    study, scorer = LayerStudy(tmp_path / "study.db", SUBJECT, 0), FakeScorer()
    harm = await search(scorer).harm(lambda: None)
    assert {name for name, lost in harm.items() if lost > 0.3} == {"attention 0", "mlp 0", "attention 5", "mlp 5"}
    await run(scorer, study, 30)
    best = max(study.judged(BLOCKS), key=lambda one: one.on_demand.ratio)
    random = await search(scorer).random_sets(best.skip, 8, seed=0)
    assert best.on_demand.ratio > random.mean_ratio(run_ahead=False)
    assert not best.skip.attention & NEEDED.attention


async def test_what_was_measured_before_is_kept(tmp_path: Path) -> None:
    study = LayerStudy(tmp_path / "study.db", SUBJECT, 0)
    study.keep(times=TIMES.to_object())
    study.keep(harm={"mlp 1": 0.5})
    known = LayerStudy(tmp_path / "study.db", SUBJECT, 0).known
    assert MeasuredTimes.of_object(known["times"]) == TIMES
    assert known["harm"] == {"mlp 1": 0.5}


@pytest.mark.parametrize("field", ["model", "prompts"])
def test_a_study_of_something_else_is_left_alone(tmp_path: Path, field: str) -> None:
    path = tmp_path / "study.db"
    LayerStudy(path, SUBJECT, 0).keep(harm={})
    with pytest.raises(InvalidArgument, match=f"study with another {field}") as refused:
        LayerStudy(path, {**SUBJECT, field: "cc"}, 0)
    assert refused.value.field == "study"
    assert "harm" in LayerStudy(path, SUBJECT, 0).known


def test_a_file_that_is_no_study_is_told_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(InvalidArgument, match="file is not a database"):
        LayerStudy(path, SUBJECT, 0)
    assert path.read_text() == "hello"


def fill(path: str) -> None:
    """Try sets without end; for a process whose files may not grow far."""
    study = LayerStudy(Path(path), SUBJECT, 0)
    while True:
        trial, skip = study.ask(BLOCKS)
        study.tell(trial, Judged(skip, Prediction(1, 1.0, 0.5), Prediction(1, 1.0, 0.5)), run_ahead=False)


def test_a_full_disk_is_one_error_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    command = [sys.executable, __file__, str(path)]
    limit = 160 << 10

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100, preexec_fn=full)
    assert done.stderr.splitlines()[-1].startswith(f"specgate.errors.InvalidArgument: study: {path} cannot be used: ")
    kept = LayerStudy(path, SUBJECT, 0)
    tried = len(kept.judged(BLOCKS))
    assert tried > 0
    trial, skip = kept.ask(BLOCKS)
    kept.tell(trial, Judged(skip, Prediction(1, 1.0, 0.5), Prediction(1, 1.0, 0.5)), run_ahead=False)
    assert kept.num_done > tried


if __name__ == "__main__":
    fill(sys.argv[1])
