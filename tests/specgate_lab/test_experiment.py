"""An experiment: fair turns, a warm-up that does not count, and a budget that treats all variants alike."""

from collections import Counter

from specgate_lab.experiment import Sample, Variant, measure, turns


def test_every_variant_runs_every_case_and_each_comes_first_equally_often() -> None:
    variants = ("a", "b", "c")
    order = [(repeat, *turn) for repeat in range(2) for turn in turns(variants, 3, repeat)]
    assert len(set(order)) == len(order) == 3 * 3 * 2
    assert [case for _, case, _ in order] == [case for _ in range(2) for case in range(3) for _ in variants]
    assert Counter(variant for _, _, variant in order[:: len(variants)]) == {"a": 2, "b": 2, "c": 2}


async def test_samples_are_numbered_and_the_warm_up_is_thrown_away() -> None:
    ran: list[tuple[str, int]] = []

    def variant(name: str) -> Variant[int]:
        async def run(case: int) -> Sample:
            ran.append((name, case))
            return Sample(case, 1.0)

        return run

    variants, ticks = {name: variant(name) for name in "ab"}, list[None]()
    samples = await measure(variants, [7, 8], 3, lambda: ticks.append(None), warm_up=[99])
    assert ran[:2] == [("a", 99), ("b", 99)]
    assert len(ticks) == len(ran) - 2 == 2 * 2 * 3
    told = [(one.case, one.repeat, one.tokens) for one in samples["a"]]
    assert told == [(case, repeat, 7 + case) for repeat in range(3) for case in range(2)]
    in_a_hurry = await measure(variants, [7, 8], 3, budget_s=0.0)
    assert [len(own) for own in in_a_hurry.values()] == [2, 2]
