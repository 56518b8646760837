#!/usr/bin/env python3
"""Print the table of settings in docs/operations.md, from the comments of deploy/specgate.yaml; a test keeps it so."""

import re
from collections.abc import Iterator
from pathlib import Path

SETTINGS = Path(__file__).resolve().parent.parent / "deploy" / "specgate.yaml"
LINE = re.compile(r"(?P<indent> *)(?P<commented># )?(?P<name>\w+):(?P<value>[^#]*)(?:# (?P<meaning>.*))?")


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield dotted key, default and meaning; what is like the verifier's is left out."""
    path: list[str] = []
    of_verifier: set[str] = set()
    for line in SETTINGS.read_text(encoding="utf-8").splitlines():
        found = LINE.fullmatch(line)
        if found is None:
            continue
        path[len(found["indent"]) // 2 :] = [found["name"]]
        if path[0] == "verifier" and len(path) > 1:
            of_verifier.add(".".join(path[1:]))
        if (path[0] == "drafter" and ".".join(path[1:]) in of_verifier) or (
            path[:2] == ["gateway", "placement"] and len(path) > 2
        ):
            continue
        # A commented key shows an example, not the default.
        default = "" if found["commented"] else found["value"].strip()
        yield ".".join(path), default, (found["meaning"] or "").strip()


def main() -> None:
    print("| key | default | meaning |\n|---|---|---|")
    for key, default, meaning in rows():
        print(f"| `{key}` | {f'`{default}`' if default else ''} | {meaning} |")


if __name__ == "__main__":
    main()
