"""Builds the C library in specgate/runtime/cpu/native, and tells packages their commit. The rest is in pyproject.toml.

The library is plain C without Python's headers, and specgate/cpu_library.py loads it by ctypes: one build serves every
version of Python. Where it cannot be built, specgate is installed without it.
"""

import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

# Whoever builds a package does not have its folder on the path.
sys.path.insert(0, str(Path(__file__).parent))

from specgate.cpu_library import digest_of
from specgate.version import BUILT, commit

SOURCES = Path("specgate/runtime/cpu/native")
NAME = "specgate.runtime.cpu.native"
LIBRARY = SOURCES.with_name("libspecgate_cpu.so")
OLDEST_GLIBC = 17
"""The minor version of manylinux2014's glibc: pip knows no older one on every processor."""


class BuildLibrary(build_ext):
    """Builds a library instead of a Python module, always anew."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return the library's name, without the suffix of a Python version. ``fullname`` may lack its package."""
        return str(Path(*fullname.split(".")).with_name(LIBRARY.name))

    def build_extension(self, ext: Extension) -> None:
        """Compile and link. What an earlier build left is removed first: this one may fail."""
        Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
        # Python's own linker flags name folders of the machine that built Python.
        self.compiler.linker_so = [
            word for word in self.compiler.linker_so if not word.startswith(("-L", "-Wl,-rpath"))
        ]
        super().build_extension(ext)

    def copy_extensions_to_source(self) -> None:
        """Replace the library of an editable installation, or remove it where none was built."""
        LIBRARY.unlink(missing_ok=True)
        super().copy_extensions_to_source()


class Wheel(bdist_wheel):
    """A wheel for every Python 3: for this platform with the library in it, for any without."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tags of Python, its ABI and the platform."""
        library = Path(self.get_finalized_command("build_ext").get_ext_fullpath(NAME))
        platform = super().get_tag()[-1]
        return "py3", "none", portable(platform, library) if library.exists() else "any"


class Modules(build_py):
    """Python's modules, and of which commit they are."""

    def run(self) -> None:
        """Copy them; an editable installation stays a checkout."""
        super().run()
        if not self.editable_mode:
            write_built(Path(self.build_lib))


class Sources(sdist):
    """A source distribution that knows of which commit it is: what is built from it has no git to ask."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Fill the folder that is packed."""
        super().make_release_tree(base_dir, files)
        write_built(Path(base_dir))


def write_built(root: Path) -> None:
    """Write what ``orchestrator --version`` tells of a package."""
    built = {"commit": commit(), "date": str(datetime.now(UTC).date())}
    (root / BUILT).write_text(json.dumps(built) + "\n", "utf-8")


def portable(platform: str, library: Path) -> str:
    """Return the tag of every Linux whose glibc has what ``library`` needs (PEP 600); other platforms as they are."""
    minors = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes())]
    if not platform.startswith("linux_") or not minors:
        return platform
    return platform.replace("linux", f"manylinux_2_{max(OLDEST_GLIBC, *minors)}", 1)


setup(
    ext_modules=[
        Extension(
            NAME,
            sources=[str(SOURCES / "native.c")],
            depends=sorted(map(str, SOURCES.glob("*.h"))),
            optional=True,
            define_macros=[("SPECGATE_SOURCES", f'"{digest_of(SOURCES)}"')],
            extra_compile_args=[
                "-O3",
                "-g0",
                "-std=gnu11",
                "-ffp-contract=fast",
                "-fno-math-errno",
                "-fno-trapping-math",
                "-fvisibility=hidden",
            ],
            extra_link_args=["-lm"],
        )
    ],
    cmdclass={"build_ext": BuildLibrary, "build_py": Modules, "bdist_wheel": Wheel, "sdist": Sources},
)
