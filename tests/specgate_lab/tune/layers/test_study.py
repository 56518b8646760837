"""The search's memory: killed, resumed, of something else, in use, in a folder that cannot be written to."""

import json
from dataclasses import asdict
from pathlib import Path
from statistics import mean

import pytest

from specgate.errors import InvalidArgument
from specgate.types import ForwardCost
from specgate_lab.tune.layers.blocks import Blocks, BlockSet
from specgate_lab.tune.layers.predict import MeasuredTimes, Ranks
from specgate_lab.tune.layers.search import LayerSearch
from specgate_lab.tune.layers.study import open_study

BLOCKS = Blocks(6, True)
SUBJECT = {"model": "aa", "prompts": "bb"}
TIMES = MeasuredTimes(tuple(ForwardCost(rows, 1000) for rows in (1, 9)), 1000.0, 50.0, 50.0, 50.0, 1.0, 0.0)
NEEDED = BLOCKS.set_of(["attention 0", "mlp 0", "attention 5", "mlp 5"])
FIRST = [["attention 3"], ["attention 3", "mlp 3"]]


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


@pytest.mark.parametrize("dies_after", [0, 9])
async def test_a_killed_search_resumes_where_it_was(tmp_path: Path, dies_after: int) -> None:
    path = tmp_path / "study.json"
    killed, scorer = FakeScorer(dies_after), FakeScorer()
    with open_study(path, SUBJECT, 0) as study:
        study.keep(times=asdict(TIMES))
        with pytest.raises(KeyboardInterrupt):
            await search(killed).run(study, FIRST, 20, lambda *_: None)
    with open_study(path, SUBJECT, 0) as again:
        assert MeasuredTimes.of_object(again.known["times"]) == TIMES
        assert [one.skip for one in again.judged(BLOCKS)] == killed.asked
        tried = await search(scorer).run(again, FIRST, 20, lambda *_: None)
    assert (killed.asked + scorer.asked)[:2] == [BLOCKS.set_of(names) for names in FIRST]
    # No set is tried again.
    assert {one.skip for one in tried} == {*killed.asked, *scorer.asked}
    assert len(tried) == len(killed.asked) + len(scorer.asked) == 20


async def test_the_search_finds_better_sets_than_chance(tmp_path: Path) -> None:
    scorer = FakeScorer()
    harm = await search(scorer).harm(lambda: None)
    assert {name for name, lost in harm.items() if lost > 0.3} == {"attention 0", "mlp 0", "attention 5", "mlp 5"}
    with open_study(tmp_path / "study.json", SUBJECT, 0) as study:
        best, *_ = await search(scorer).run(study, FIRST, 30, lambda *_: None)
    random = await search(scorer).random_sets(best.skip, 8, seed=0)
    assert best.ratio > mean(one.ratio for one in random)
    assert not best.skip.attention & NEEDED.attention


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("hello", "cannot be used"),
        ("[]", "holds something else"),
        ('{"subject": {}}', "holds something else"),
        (json.dumps({"subject": {**SUBJECT, "prompts": "cc"}, "known": {}, "trials": []}), "with another prompts"),
    ],
)
def test_a_file_of_something_else_is_named_and_left_alone(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "study.json"
    path.write_text(content)
    with pytest.raises(InvalidArgument, match=f"out: {path} .*{problem}"), open_study(path, SUBJECT, 0):
        pass
    assert path.read_text() == content


def test_a_study_is_for_one_search_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    for _ in range(2):
        with (
            open_study(path, SUBJECT, 0),
            pytest.raises(InvalidArgument, match="in use by another search"),
            open_study(path, SUBJECT, 0),
        ):
            pass


def test_a_study_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "study.json"
    with pytest.raises(InvalidArgument, match=f"out: {path} cannot be used"), open_study(path, SUBJECT, 0):
        pass
