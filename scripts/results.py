"""Write docs/results/tables.md, the plots beside it and the figures in all pages from the JSON files there.

``--check`` writes nothing: it fails where pages and JSON differ, where a file was edited, or measured on a tree with
changes, and tells how many commits of serving code followed each headline. ``--release`` fails where any did.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from figures import pages, render
from results_checks import EXCUSED, headlines, problems, serving_commits_since
from results_plots import draw_plots

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "results"
HEAD = """<!-- made by a script: scripts/results -->

# Tables of results

`scripts/results` writes this page and the plots from the JSON files beside it. Do not edit it by hand.
[README.md](README.md) says what the numbers mean for a user, and [benchmarks](../internals/benchmarks.md) defines
rows and columns. Each section names the command, the commit, the machine and the versions of its run.
"""
TOPICS = (
    "One request at a time",
    "Many requests at a time",
    "Far apart and many",
    "Draft sources",
    "Tuning",
    "Gates",
    "Drafts that were trained",
    "Forwards on a CPU",
    "Beside llama.cpp",
    "Long contexts",
    "Starts",
    "Another tokenizer",
    "On a GPU",
    "Inside vLLM",
    "Reliability",
)
COLUMNS = {
    "context": "context",
    "name": "row",
    "way": "way",
    "clients": "clients",
    "trace": "trace",
    "agreement": "agreement",
    "gamma": "γ",
    "sessions": "sessions",
    "version": "version",
    "before": "before",
    "ran": "what ran",
    "concurrency": "at a time",
    "rate": "requests/s",
    "speculation": "speculation",
    "added_delay_ms": "added ms",
    "tokens_per_s": "tokens/s",
    "ratio_to_off": "× off",
    "ratio_to_off_runs": "in three runs",
    "ratio_to_concurrency_1": "× one client",
    "ratio_to_hf": "× hf",
    "ratio_to_vllm": "× vLLM alone",
    "ratio_to_llama": "× llama.cpp, 95 %",
    "ratio_to_ours": "× ours, 95 %",
    "ratio_to_empty": "× empty drafts",
    "hit_us": "µs in propose, hit",
    "miss_us": "µs in propose, miss",
    "ratio_to_target": "× target",
    "ratio_to_target_95": "95 %",
    "ratio_to_target_runs": "in three runs",
    "acceptance_rate": "accepted",
    "accepted_of_drafted": "accepted of drafted",
    "accepted_of_judged": "accepted of judged",
    "token_ms": "ms a token",
    "tokens_per_forward": "tok/forward",
    "batch_width": "batch",
    "run_ahead_hit_rate": "ahead",
    "share_of_ceiling": "of its ceiling",
    "round_us": "draft / verify / overhead, µs",
    "bytes_per_round": "bytes a round",
    "ttft_ms": "TTFT p50 / p99, ms",
    "tpot_ms": "TPOT p50 / p99, ms",
    "alone_tokens_per_s": "target alone, tokens/s",
    "auto_tokens_per_s": "auto, tokens/s",
    "none": "none",
    "target_confidence": "target's",
    "draft_confidence": "draft's",
    "both": "both",
    "auto": "auto",
    "best": "best fixed choice",
    "auto_to_best": "auto / best",
    "auto_to_best_cold": "from a cold start",
    "cases": "cases",
    "done": "done as asked",
    "http_5xx": "5xx",
    "internal": "INTERNAL, UNKNOWN",
    "hangs": "hangs",
    "crashes": "crashes",
    "held": "held",
    "seen": "what is seen",
    "first_token_ms": "first token, ms",
    "first_token_s": "first token, s",
    "gap_beside_ms": "another stream's longest gap, ms",
    "memory_mb": "memory, MB",
    "texts_as_alone": "texts as alone",
    "gap_s": "longest gap, s",
    "gap_ms": "longest gap, ms",
    "text_equal": "text equal",
    "minutes": "minutes",
    "answers": "whole answers",
    "clients_left": "clients left",
    "distinct": "distinct requests",
    "tokens": "tokens",
    "compared_tokens": "of them compared",
    "num_differing": "texts differing",
    "near_tie_texts": "met a near tie",
    "num_lost": "found no service",
    "num_failed": "failed",
    "kills": "kills",
    "still_held": "still held",
    "grown_mb": "memory grown, MB",
    "worst_cpu_ms": "event loop's longest stretch of CPU time, ms",
    "worst_wait_ms": "longest wait of another client, ms",
    "status": "",
    "seconds": "s",
    "told": "",
}
"""Fields of a row that are shown, in this order, where a file's rows have them."""
SHARES = frozenset(
    {"acceptance_rate", "accepted_of_drafted", "accepted_of_judged", "run_ahead_hit_rate", "share_of_ceiling"}
)
PRECISE = frozenset({"auto_to_best", "auto_to_best_cold"})


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results files of ``folder``, in the order of their names."""
    return {file.stem: json.loads(file.read_text("utf-8")) for file in sorted(folder.glob("*.json"))}


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page that shows all results files, topic by topic."""
    lines = [HEAD]
    for topic in TOPICS:
        own = {name: result for name, result in results.items() if _topic(result) == topic}
        lines += [f"## {topic}\n"] if own else []
        lines += [line for name, result in own.items() for line in _section(name, result)]
    return "\n".join(lines)


def _topic(result: Mapping[str, Any]) -> str:
    kinds = dict.fromkeys(("layers", "ablations"), "Drafts that were trained")
    kinds |= {"advice": "Tuning", "tables": "Forwards on a CPU", "steps": "On a GPU"}
    kinds |= {"cores": "Beside llama.cpp", "conversations": "Long contexts", "starts": "Starts"}
    kinds |= {"translations": "Another tokenizer", "shapes": "Tuning", "gains": "Far apart and many"}
    kinds |= {"vllm": "Inside vLLM", **dict.fromkeys(("temperatures", "cases"), "Gates")}
    for key, topic in kinds.items():
        if key in result:
            return topic
    columns = result["rows"][0]
    if "added_delay_ms" in columns or "auto_tokens_per_s" in columns:
        return "Far apart and many"
    if any(row.get("name") == "hf-prompt-lookup" for row in result["rows"]):
        return "Draft sources"
    for column, topic in (("concurrency", TOPICS[1]), ("auto_to_best", "Gates"), ("tokens_per_s", TOPICS[0])):
        if column in columns:
            return topic
    return "Reliability"


def _section(name: str, result: Mapping[str, Any]) -> Iterator[str]:
    yield f"### [{name}]({name}.json)\n"
    yield f"    {result['provenance']['command']}\n"
    excuse = EXCUSED.get(name)
    yield f"{_origin(result)}{f' Its commit: {excuse.why}.' if excuse and excuse.why else ''}\n"
    for line in result.get("advice", []):
        yield f"> {line}\n"
    steps = [] if "ablations" in result else result.get("steps", [])
    yield from _measured(result.get("rows") or steps or result.get("finals", []), result)
    for key in ("conversations", "starts", "translations", "shapes", "pairs", "gains"):
        yield from _table(result.get(key, []), all_columns=True)
    others = _training(result) or _signals(result) or _gates(result) or result.get("ablations", [])
    yield from _table(others, all_columns=True)
    for title, rows in result.get("tables", {}).items():
        yield f"{title}:\n"
        yield from _table(rows, all_columns=True)
    for step in steps:
        if step["rows"]:
            yield f"#### {step['name']}\n"
            yield from _table(step["rows"], all_columns=True)


def _training(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return how a draft learned."""
    history: list[dict[str, Any]] = result.get("history", [])
    stored = {"step": "as stored", **{name: result[name] for one in history[-1:] for name in one if name in result}}
    return [*history, stored] if history else []


def _signals(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what each confidence foretells, temperature by temperature."""
    return [
        {
            "temperature": one["temperature"],
            "judged": one["all"]["tokens"],
            "accepted": f"{one['all']['accepted']:.0%}",
            **{f"{who}: {what}": one["all"][who][what] for who in ("draft", "target") for what in ("area", "error")},
        }
        for one in result.get("temperatures", [])
    ]


def _gates(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return how ``auto`` and fixed choices fare, case by case, over the target alone, with 95 % intervals."""
    return [
        {
            **{name: case[name] for name in ("draft", "temperature", "concurrency")},
            "choice": choice["name"],
            "tokens_per_s": choice["tokens_per_s"],
            "over the target alone": _interval(choice["ratio_to_alone"]),
            **{name: choice[name] for name in ("accepted_of_drafted", "accepted_of_judged")},
        }
        for case in result.get("cases", [])
        for choice in case["choices"]
    ]


def _interval(ratio: Mapping[str, float | None]) -> str:
    value, low, high = (ratio[name] for name in ("value", "low", "high"))
    return f"{value:.3f}" if low is None else f"{value:.3f} ({low:.3f} to {high:.3f})"


def _origin(result: Mapping[str, Any]) -> str:
    origin = result["provenance"]
    machine = origin["machine"]
    where = ", ".join([f"{machine['cores']} cores of {machine['cpu']}", *machine["gpus"]])
    versions = ", ".join(f"{name} {origin['versions'][name]}" for name in ("torch", "transformers"))
    commit = origin["commit"] or result.get("note") or "unknown"
    return f"{origin['date'][:10]}, commit {commit}, {where}, {versions}.{_models(result)}"


def _models(result: Mapping[str, Any]) -> str:
    if "models" not in result:
        return ""
    models = [f"the {role} has {_size(model)}" for role, model in result["models"].items()]
    request = result["request"]
    asked = f"temperature {request['temperature']:g}, {request['max_tokens']} tokens a request"
    return f" Models: {', '.join(models)}; {asked}."


def _size(model: Mapping[str, Any]) -> str:
    return f"{model['num_parameters'] / 1e6:.1f} M parameters in {model['dtype']}"


def _measured(rows: list[dict[str, Any]], result: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table, how its rows compare with each other, and whether they wrote the same text."""
    yield from _table(rows)
    for row in rows:
        if rivals := row.get("ratios_to_rivals"):
            ratios = [f"{_cell('', one['value'])} × {rival} ({_cell('', one['95'])})" for rival, one in rivals.items()]
            yield f"- `{row['name']}`: {', '.join(ratios)}"
    cases = [(row["sessions"], row["auto_to_best"]) for row in rows if "auto_to_best" in row]
    cases += [(case["concurrency"], case["auto_to_best"]["value"]) for case in result.get("cases", [])]
    for sessions in sorted({one for one, _ in cases}):
        ratios = [ratio for one, ratio in cases if one == sessions]
        yield f"- auto / best with {sessions} at a time: {mean(ratios):.3f} on average, {min(ratios):.3f} at the least."
    if same := result.get("agreement"):
        yield f"- All rows of the target wrote the same text for {same['equal']} of {same['total']} prompts.\n"


def _table(rows: list[dict[str, Any]], *, all_columns: bool = False) -> Iterator[str]:
    """Yield a table, or nothing of no rows. ``all_columns`` shows what ``COLUMNS`` does not know, too."""
    if not rows:
        return
    named = dict.fromkeys(column for row in rows for column in row) if all_columns else COLUMNS
    shown = [column for column in named if any(_cell(column, row.get(column)) for row in rows)]
    yield f"| {' | '.join(COLUMNS.get(column, column) for column in shown)} |"
    yield f"|{'---|' * len(shown)}"
    for row in rows:
        yield f"| {' | '.join(_cell(column, row.get(column)) for column in shown)} |"
    yield ""


def _cell(column: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return _parts(value)
    if isinstance(value, list) and all(isinstance(one, float) for one in value):
        return " to ".join(f"{one:.2f}" for one in value)
    if column in SHARES:
        return f"{value:.0%}"
    if isinstance(value, float):
        return f"{value:.3f}" if column in PRECISE else f"{value:.0f}" if value >= 100 else f"{value:.2f}"
    return str(value).replace("|", "\\|")


def _parts(value: Mapping[str, float | None]) -> str:
    """Return percentiles of a time, or the parts of a round; nothing where none was measured."""
    shown = [value["p50"], value["p99"]] if "p50" in value else list(value.values())
    known = [one for one in shown if one is not None]
    return " / ".join(f"{one:.1f}" if "p50" in value else f"{one:.0f}" for one in known)


def write_all(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the tables, the plots and the figures in pages."""
    (FOLDER / "tables.md").write_text(page(results), "utf-8")
    draw_plots(results, FOLDER)
    for path in pages():
        path.write_text(render(path.read_text("utf-8"), results), "utf-8")


def check_all(results: Mapping[str, Mapping[str, Any]], *, release: bool) -> int:
    """Print what is wrong and how old the headlines are. Returns the exit status."""
    wrong = list(problems(results))
    if page(results) != (FOLDER / "tables.md").read_text("utf-8"):
        wrong.append("docs/results/tables.md is not that of the JSON: run scripts/results")
    for name in headlines(results):
        commit = results[name]["provenance"]["commit"]
        num_later = serving_commits_since(commit)
        if num_later != 0:
            told = "nobody knows how many" if num_later is None else num_later
            print(f"old: {name} is of {commit}; {told} commits of serving code followed")
            if release:
                wrong.append(f"docs/results/{name}.json is a headline and old: measure it again")
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail where something is wrong")
    parser.add_argument("--release", action="store_true", help="the same, and fail where a headline of a CPU is old")
    options = parser.parse_args()
    found = read_results(FOLDER)
    if options.check or options.release:
        sys.exit(check_all(found, release=options.release))
    write_all(found)
