"""The C library that computes on the CPU: whether it is here, and with which instructions it computes.

Installing specgate builds it (setup.py); nothing is compiled later. The runtime computes with it, and ``doctor`` tells
of it: this module needs neither torch nor the runtime.
"""

import ctypes
import hashlib
import os
from enum import StrEnum
from functools import cache
from pathlib import Path

from specgate.errors import InvalidArgument

VARIABLE = "SPECGATE_CPU_KERNELS"
"""The environment variable that names another instruction set than the processor's best."""


class InstructionSet(StrEnum):
    """The vector instructions that the library computes with, numbered as in C. With NONE torch computes."""

    NONE = "none"
    AVX2 = "avx2"
    AVX512 = "avx512"
    NEON = "neon"


def library_path() -> Path:
    """Return where the library is when it was built."""
    return Path(__file__).parent / "runtime" / "cpu" / "libspecgate_cpu.so"


@cache
def load() -> ctypes.CDLL | None:
    """Return the library, None where it is missing or cannot be loaded, or is another one."""
    try:
        return _opened()
    except OSError:
        return None


def _opened() -> ctypes.CDLL:
    """Raise OSError where there is no library, or, beside its sources, one that was built from others."""
    path = library_path()
    library, sources = ctypes.CDLL(str(path)), path.with_name("native")
    try:
        library.specgate_sources.restype = ctypes.c_char_p
        is_ours = not sources.is_dir() or library.specgate_sources().decode() == digest_of(sources)
    except AttributeError:
        is_ours = False
    if not is_ours:
        raise OSError("it was built from other sources")
    return library


def digest_of(sources: Path) -> str:
    """Return a fingerprint of the C files of a folder; the library has it built in."""
    digest = hashlib.sha256()
    for file in sorted(sources.glob("*.[ch]")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def instruction_set() -> InstructionSet:
    """Return the processor's best set, or the one that the environment names; NONE where there is no library.

    Raises:
        InvalidArgument: the environment names a set that does not exist, or that this processor lacks.
    """
    asked, library = _asked(), load()
    if library is None:
        return InstructionSet.NONE
    best = list(InstructionSet)[library.specgate_cpu_best()]
    if asked is not None and asked not in _usable(best):
        raise InvalidArgument(VARIABLE, f"this processor lacks {asked.value!r}; it may be {' or '.join(_usable(best))}")
    return best if asked is None else asked


def why_not() -> str:
    """Return why torch computes instead of the library, and what to do; nothing where the library computes.

    Raises:
        InvalidArgument: as ``instruction_set`` does.
    """
    if instruction_set() is not InstructionSet.NONE:
        return ""
    if load() is None:
        return _why_no_library()
    if _asked() is InstructionSet.NONE:
        return f"{VARIABLE}=none asks for it; unset it to compute with the C library"
    return "the C library needs AVX2, AVX-512 or NEON, and this processor has none of them"


def _asked() -> InstructionSet | None:
    name = os.environ.get(VARIABLE)
    if not name:
        return None
    try:
        return InstructionSet(name)
    except ValueError:
        raise InvalidArgument(VARIABLE, f"{name!r} is not one of {', '.join(InstructionSet)}") from None


def _usable(best: InstructionSet) -> list[InstructionSet]:
    # What has AVX-512 has AVX2.
    also = InstructionSet.AVX2 if best is InstructionSet.AVX512 else InstructionSet.NONE
    return [one for one in InstructionSet if one in (InstructionSet.NONE, also, best)]


def _why_no_library() -> str:
    path = library_path()
    if not path.exists():
        return "the C library was not built at installation; install a C compiler (gcc), then specgate again"
    try:
        _opened()
    except OSError as error:
        return f"the C library cannot be loaded ({error}); install specgate again on this machine"
    return "the C library came after this process had looked for it; start it again"
