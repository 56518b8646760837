"""The search's memory: killed, gone on with, of something else, on a full disk."""

import resource
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from specgate.errors import InvalidArgument
from specgate.types import ForwardCost
from specgate_lab.tune.layers.blocks import Blocks, BlockSet
from specgate_lab.tune.layers.predict import MeasuredTimes, Prediction, Ranks
from specgate_lab.tune.layers.search import LayerSearch
from specgate_lab.tune.layers.study import Judged, LayerStudy, open_study

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
        wrong = 8 * needs + BLOCKS.count(skip)
        return [[int(position % 20 < wrong) for position in range(100)]] * num_texts


def search(scorer: FakeScorer) -> LayerSearch:
    return LayerSearch(scorer, BLOCKS, TIMES, 2, run_ahead=False)


async def run(scorer: FakeScorer, study: LayerStudy, num_sets: int) -> None:
    study.begin_with(BLOCKS, [["attention 3"], ["attention 3", "mlp 3"]])
    await search(scorer).run(study, num_sets, lambda *_: None)


async def test_a_killed_search_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    with pytest.raises(KeyboardInterrupt), open_study(path, SUBJECT, 0) as study:
        await run(FakeScorer(dies_after=9), study, 20)
    scorer = FakeScorer()
    with open_study(path, SUBJECT, 0) as again:
        before = [one.skip for one in again.judged(BLOCKS)]
        assert len(before) == 9
        await run(scorer, again, 20)
        after = [one.skip for one in again.judged(BLOCKS)]
    assert len(after) == 20
    assert set(before) < set(after)
    # What was tried is not tried again.
    assert not set(before) & set(scorer.asked)
    assert len(scorer.asked) == 11


async def test_the_search_finds_better_sets_than_chance(tmp_path: Path) -> None:
    scorer = FakeScorer()
    harm = await search(scorer).harm(lambda: None)
    assert {name for name, lost in harm.items() if lost > 0.3} == {"attention 0", "mlp 0", "attention 5", "mlp 5"}
    with open_study(tmp_path / "study.db", SUBJECT, 0) as study:
        await run(scorer, study, 30)
        best = max(study.judged(BLOCKS), key=lambda one: one.on_demand.ratio)
    random = await search(scorer).random_sets(best.skip, 8, seed=0)
    assert best.on_demand.ratio > random.mean_ratio(run_ahead=False)
    assert not best.skip.attention & NEEDED.attention


def test_what_was_measured_before_is_kept(tmp_path: Path) -> None:
    with open_study(tmp_path / "study.db", SUBJECT, 0) as study:
        study.keep(times=TIMES.to_object())
        study.keep(harm={"mlp 1": 0.5})
    with open_study(tmp_path / "study.db", SUBJECT, 0) as study:
        known = study.known
    assert MeasuredTimes.of_object(known["times"]) == TIMES
    assert known["harm"] == {"mlp 1": 0.5}


def refused(path: Path, subject: dict[str, str]) -> InvalidArgument:
    """Return why a file is not gone on with."""
    with pytest.raises(InvalidArgument) as caught, open_study(path, subject, 0):
        pass
    assert caught.value.field == "study"
    return caught.value


@pytest.mark.parametrize("field", ["model", "prompts"])
def test_a_study_of_something_else_is_left_alone(tmp_path: Path, field: str) -> None:
    path = tmp_path / "study.db"
    with open_study(path, SUBJECT, 0) as study:
        study.keep(harm={})
    assert f"study with another {field}" in refused(path, {**SUBJECT, field: "cc"}).problem
    with open_study(path, SUBJECT, 0) as study:
        assert "harm" in study.known


def test_a_file_that_is_no_study_is_told_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    assert "file is not a database" in refused(path, SUBJECT).problem
    assert path.read_text() == "hello"


def test_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "accounts.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE accounts (name TEXT)")
        database.commit()
    before = path.read_bytes()
    assert "is a database of something else" in refused(path, SUBJECT).problem
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["a?b.db", "a%20b.db", "a b.db"])
def test_a_file_has_the_name_that_was_given(tmp_path: Path, name: str) -> None:
    with open_study(tmp_path / name, SUBJECT, 0) as study:
        study.keep(harm={})
    assert {path.name for path in tmp_path.iterdir()} == {name, f"{name}.lock"}


def test_a_study_is_for_one_search_at_a_time(tmp_path: Path) -> None:
    with open_study(tmp_path / "study.db", SUBJECT, 0):
        assert "is in use by another search" in refused(tmp_path / "study.db", SUBJECT).problem
    with open_study(tmp_path / "study.db", SUBJECT, 0):
        pass


async def test_a_trial_that_was_killed_before_its_first_choice_is_done_again(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    with open_study(path, SUBJECT, 0) as study:
        study.begin_with(BLOCKS, [["attention 3"]])
        # Optuna's own: what is asked for is taken from the queue, and the process dies.
        study._study.ask()
    scorer = FakeScorer()
    with open_study(path, SUBJECT, 0) as again:
        await search(scorer).run(again, 1, lambda *_: None)
    assert scorer.asked == [BLOCKS.set_of(["attention 3"])]


def try_one(study: LayerStudy) -> None:
    """Try a set."""
    trial, skip = study.ask(BLOCKS)
    study.tell(trial, Judged(skip, Prediction(1, 1.0, 0.5), Prediction(1, 1.0, 0.5)), run_ahead=False)


def fill(path: str) -> None:
    """Try sets without end; for a process whose files may not grow far."""
    with open_study(Path(path), SUBJECT, 0) as study:
        while True:
            try_one(study)


def test_a_full_disk_is_one_error_and_loses_nothing(tmp_path: Path) -> None:
    path, limit = tmp_path / "study.db", 160 << 10
    done = subprocess.run(
        [sys.executable, __file__, str(path)],
        check=False, capture_output=True, text=True, timeout=100,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert done.stderr.splitlines()[-1].startswith(f"specgate.errors.InvalidArgument: study: {path} cannot be used: ")
    with open_study(path, SUBJECT, 0) as kept:
        tried = kept.num_done
        assert tried > 0
        try_one(kept)
        assert kept.num_done == tried + 1


if __name__ == "__main__":
    fill(sys.argv[1])
