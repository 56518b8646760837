"""The C library is found and asked; where it cannot compute, a sentence says why."""

import _ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from specgate import cpu_library
from specgate.cpu_library import VARIABLE, InstructionSet, instruction_set, library_path, load, why_not
from specgate.errors import InvalidArgument

NONE, AVX2, AVX512, NEON = InstructionSet
BUILT = library_path()


@pytest.fixture(autouse=True)
def no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def on_processor(monkeypatch: pytest.MonkeyPatch) -> Callable[[InstructionSet], None]:
    """Have a library that finds this set the best one."""

    def put(best: InstructionSet) -> None:
        number = {NONE: 0, AVX2: 1, AVX512: 2, NEON: 3}[best]
        monkeypatch.setattr(cpu_library, "load", lambda: SimpleNamespace(specgate_cpu_best=lambda: number))

    return put


@pytest.fixture
def library_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where the library is looked for. Nothing is there yet."""
    file = tmp_path / "libspecgate_cpu.so"
    monkeypatch.setattr(cpu_library, "library_path", lambda: file)
    load.cache_clear()
    yield file
    load.cache_clear()


def test_the_library_of_this_installation() -> None:
    if not library_path().exists():
        pytest.skip("no C library: there was no compiler at installation")
    assert load() is not None
    assert load() is load()
    assert (why_not() == "") == (instruction_set() is not NONE)


@pytest.mark.parametrize("best", InstructionSet)
def test_the_best_set_of_the_processor(on_processor: Callable[[InstructionSet], None], best: InstructionSet) -> None:
    on_processor(best)
    assert instruction_set() is best
    assert (why_not() == "") == (best is not NONE)
    assert best is not NONE or "this processor has none" in why_not()


@pytest.mark.parametrize(
    ("best", "asked", "usable"),
    [
        (NONE, NONE, True),
        (AVX2, NONE, True),
        (AVX2, AVX2, True),
        (AVX512, AVX2, True),
        (NEON, NONE, True),
        (NONE, AVX2, False),
        (AVX2, AVX512, False),
        (AVX2, NEON, False),
        (AVX512, NEON, False),
        (NEON, AVX2, False),
    ],
)
def test_the_environment_names_another_set(
    on_processor: Callable[[InstructionSet], None],
    monkeypatch: pytest.MonkeyPatch,
    best: InstructionSet,
    asked: InstructionSet,
    usable: bool,
) -> None:
    on_processor(best)
    monkeypatch.setenv(VARIABLE, asked.value)
    if usable:
        assert instruction_set() is asked
    else:
        with pytest.raises(InvalidArgument, match=rf"{VARIABLE}.* lacks '{asked.value}'.* none\b"):
            instruction_set()


def test_an_unknown_set_is_refused_with_the_known_ones(
    monkeypatch: pytest.MonkeyPatch, library_file: Path, on_processor: Callable[[InstructionSet], None]
) -> None:
    monkeypatch.setenv(VARIABLE, "AVX3")
    problem = rf"{VARIABLE}: 'AVX3' is not one of none, avx2, avx512, neon$"
    with pytest.raises(InvalidArgument, match=problem):
        instruction_set()
    on_processor(AVX2)
    with pytest.raises(InvalidArgument, match=problem):
        why_not()


def test_an_empty_name_is_none_at_all(
    on_processor: Callable[[InstructionSet], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_processor(AVX2)
    monkeypatch.setenv(VARIABLE, "")
    assert instruction_set() is AVX2


def test_torch_computes_where_the_environment_says_so(
    on_processor: Callable[[InstructionSet], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_processor(AVX2)
    monkeypatch.setenv(VARIABLE, "none")
    assert "unset it" in why_not()
    assert f"{VARIABLE}=none" in why_not()


def test_a_library_that_was_not_built(library_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load() is None
    assert instruction_set() is NONE
    assert "install a C compiler" in why_not()
    monkeypatch.setenv(VARIABLE, "avx2")
    assert instruction_set() is NONE
    assert "install a C compiler" in why_not()


def test_a_library_that_cannot_be_loaded(library_file: Path) -> None:
    library_file.write_text("not a library")
    assert load() is None
    assert instruction_set() is NONE
    assert "cannot be loaded" in why_not()
    assert str(library_file) in why_not()
    assert "\n" not in why_not()


def test_looking_for_it_needs_no_torch() -> None:
    code = "import sys, specgate.cpu_library as c; c.instruction_set(); print(*sys.modules.keys() & {'torch', 'numpy'})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


def test_a_library_of_other_sources_is_none(library_file: Path) -> None:
    """As after a change of the sources without an installation."""
    if not BUILT.exists():
        pytest.skip("no C library: there was no compiler at installation")
    library_file.symlink_to(BUILT)
    assert instruction_set() is not NONE
    load.cache_clear()
    sources = library_file.with_name("native")
    sources.mkdir()
    (sources / "native.h").write_text("/* others */")
    assert instruction_set() is NONE
    assert "it was built from other sources" in why_not()


def test_a_library_that_is_another_one_is_none(library_file: Path) -> None:
    library_file.symlink_to(_ctypes.__file__)
    assert instruction_set() is NONE
    assert "it was built from other sources" in why_not()
    assert "install specgate again" in why_not()
