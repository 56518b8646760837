"""What the bundled pair, and others like it, are trained on, and what is held out."""

import sysconfig
from pathlib import Path
from typing import NamedTuple

# Never seen in training: prompts for tests, the demo and the figures in the report come from here.
HELD_OUT = (
    "bisect", "calendar", "cmd", "configparser", "csv", "fractions", "graphlib", "heapq", "sched",
    "shelve", "statistics", "textwrap", "uuid", "wave", "zipapp",
)  # fmt: skip
HELD_OUT_TEXTS = 20
"""Of a folder of texts every so many-th file is held out."""
# Tests repeat themselves; charmap tables and help topics are data, not code.
SKIPPED_FOLDERS = {"site-packages", "test", "tests", "idle_test", "encodings", "pydoc_data", "__pycache__"}


class Corpus(NamedTuple):
    """Texts to train on and held-out ones, each in a fixed order; ``names`` are those of the latter."""

    training: list[str]
    held_out: list[str]
    names: list[str]


def read_texts(folder: Path) -> Corpus:
    """Return the text files of a folder (.txt, .rst, .md), at any depth."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix in {".txt", ".rst", ".md"} and path.is_file())
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in paths]
    training = [text for index, text in enumerate(texts) if index % HELD_OUT_TEXTS]
    if not training:
        raise SystemExit(f"{folder} holds {len(texts)} text files; two are needed, one to train on and one to hold out")
    return Corpus(training, texts[::HELD_OUT_TEXTS], [path.name for path in paths[::HELD_OUT_TEXTS]])


def read_standard_library() -> Corpus:
    """Return the sources of Python's own modules."""
    root = Path(sysconfig.get_paths()["stdlib"])
    training, held_out = [], []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED_FOLDERS & set(relative.parts):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        (held_out if relative.parts[0].removesuffix(".py") in HELD_OUT else training).append(text)
    return Corpus(training, held_out, list(HELD_OUT))
