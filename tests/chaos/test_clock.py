"""A wall clock that jumps changes nothing: it is read for dates alone."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("specgate", "drafter_svc", "verifier_svc", "orchestrator", "specgate_lab")
WALL_CLOCK = re.compile(r"\btime\.time(?:_ns)?\(|\bdatetime\.(?:now|utcnow|today)\(|\blocaltime\(")
DATES = {
    "orchestrator/api/http/routes.py": '"created": int(time.time())',
    "orchestrator/api/http/answers.py": '"created": int(time.time())',
    "orchestrator/api/http/responses_answer.py": "int(time.time())",
    # Serve tells a date, and it is shown, not waited for.
    "orchestrator/cluster/system_status.py": "return time.time() - date_s",
    # The day that a key was made is for its reader.
    "orchestrator/cli/keys.py": "datetime.now(UTC).date()",
    # A span's ends are dates; how long it took was measured elsewhere.
    "specgate/tracing.py": "end_ns = time.time_ns()",
    "specgate_lab/report.py": "return folder / f",
    "specgate_lab/provenance.py": '"date": datetime.now(UTC)',
}
"""Where it is read, and for what. Anything else measures with time.monotonic, or tells why it must not."""


def test_intervals_are_monotonic() -> None:
    assert [name for name in DATES if not (ROOT / name).is_file()] == []
    for package in PACKAGES:
        for file in (ROOT / package).rglob("*.py"):
            name = str(file.relative_to(ROOT))
            for line in file.read_text("utf-8").splitlines():
                if WALL_CLOCK.search(line):
                    assert DATES.get(name, "no date") in line, f"{name}: {line.strip()}"
