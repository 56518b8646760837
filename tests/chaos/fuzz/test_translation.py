"""Texts of any characters between two tokenizers: no id that the target lacks, no text that the draft did not write."""

import pytest

from tests.support.fuzzing import Budget
from tests.support.retokenizing import CASES, Case, check

pytestmark = pytest.mark.fuzz

SURFACE = "translation"


@pytest.mark.timeout(900)
def test_any_text_is_read_and_continued(fuzz_budget: Budget) -> None:
    counts = fuzz_budget.of(SURFACE)

    def one(case: Case) -> None:
        check(case)
        counts.done += 1

    fuzz_budget.fuzz(SURFACE, CASES, one)
