"""``python -m specgate_lab.replay``: a table of gates on recorded traces."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from specgate.errors import InvalidArgument, SpecgateError
from specgate_lab.provenance import provenance
from specgate_lab.replay.compare import HEAD, compare
from specgate_lab.replay.trace import RoundTrace, read_trace
from specgate_lab.report import ResultsFile


def main() -> None:
    parser = argparse.ArgumentParser(prog="replay_gates", description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path, help="files or folders of traces")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8], metavar="N", help="sessions at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file as well")
    options = parser.parse_args()
    rows = []
    try:
        print(HEAD)
        for name, one in _traces(options.traces):
            for sessions in options.concurrency:
                try:
                    rows.append(compare(name, one, sessions)[0])
                    print(rows[-1], flush=True)
                except InvalidArgument as error:
                    print(f"{name}: {error}", file=sys.stderr)
        if options.json:
            origin = provenance([parser.prog, *sys.argv[1:]])
            ResultsFile(options.json, provenance=origin).write({"rows": [row._asdict() for row in rows]})
    except SpecgateError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")


def _traces(given: Sequence[Path]) -> Iterator[tuple[str, RoundTrace]]:
    for one in given:
        for path in sorted(one.glob("*.jsonl")) if one.is_dir() else [one]:
            yield path.name, read_trace(path)


if __name__ == "__main__":
    main()
