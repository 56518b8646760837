"""Each architecture of the table is exact on the serving path, or refused with the reason that the docs give."""

from pathlib import Path

import pytest
import torch

from specgate.errors import UnsupportedArchitecture
from specgate.runtime.engine.self_check import TOLERANCE
from tests.support.architecture_runs import change_shows, measure, write_case
from tests.support.architectures import CASES, Case
from tests.support.models_table import documented_verdicts

SERVED = [case for case in CASES if not case.refused]
REFUSED = [case for case in CASES if case.refused]


@pytest.mark.parametrize("case", SERVED, ids=lambda case: case.name)
def test_it_is_exact_and_what_it_covers_would_show(case: Case, tmp_path: Path) -> None:
    """Without the window, the soft-cap or the bias the same weights answer something else by far."""
    folder = write_case(case, tmp_path)
    difference = measure(folder)
    assert difference.worst < TOLERANCE[torch.float32]
    assert difference.other_choices == 0
    assert difference.num_rows > 80
    for change in case.unlike:
        assert change_shows(folder, change, range(3, 83)) > 100 * TOLERANCE[torch.float32], change


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_it_is_refused_by_name_with_the_reason(case: Case, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchitecture) as refusal:
        measure(write_case(case, tmp_path))
    assert case.architecture in str(refusal.value)
    assert case.refused in str(refusal.value)


def test_the_document_has_the_same_architectures_and_verdicts() -> None:
    """After a change of the table, scripts/models_table writes the document anew."""
    assert list(documented_verdicts()) == [(case.name, case.architecture, case.verdict) for case in CASES]
