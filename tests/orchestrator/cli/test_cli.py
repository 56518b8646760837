"""The commands as they are typed: exit codes, output, and real services behind them."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from orchestrator.cli import main as cli
from specgate import __version__
from tests.support.models import TOKENIZER_SIZE, Mix, write_llama
from tests.support.orchestrating import Cli
from tests.support.patience import PATIENCE_S, wait_until
from tests.support.services import is_gone, running

Bench = Callable[..., tuple[Any, str]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    write_llama(folder / "target", TOKENIZER_SIZE, layers=2, seed=1, tokenizer=True)
    write_llama(folder / "draft", TOKENIZER_SIZE, layers=2, seed=2, mix=Mix(1, 0.97), tokenizer=True)
    return folder


@pytest.fixture(scope="module")
def services(pair: Path) -> Iterator[list[str]]:
    """The flags that name a running pair."""
    with running("verifier", pair / "target") as verifier, running("drafter", pair / "draft") as drafter:
        # A verifier does not tell where its tokenizer lies.
        yield ["--target", str(pair / "target"), "--verifier", verifier.endpoint, "--drafter", drafter.endpoint]


def test_version(orchestrator: Cli) -> None:
    code, told, _ = orchestrator("--version")
    assert code == 0
    assert re.fullmatch(
        rf"specgate {re.escape(__version__)} \((commit \w+\+?|unknown commit), Python .*, torch .*\)\n", told
    )


def test_every_command_and_flag_has_a_help_text_without_brackets_which_would_be_read_as_markup() -> None:
    named = dict(typer.main.get_command(cli.app).commands)  # type: ignore[attr-defined]
    commands = [*named.pop("config").commands.values(), *named.values()]
    flags = [flag for command in commands for flag in command.params if flag.param_type_name == "option"]
    texts = [one.help or "" for one in (*commands, *flags)]
    assert len(texts) > 100
    assert [text for text in texts if not text or "[" in text] == []


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        ("generate x --gamma 99", "--gamma: 99 is outside [0, 64]"),
        ("generate x --temperature nan", "--temperature: nan is outside [0.0, 100.0]"),
        ("generate x --max-tokens 0", "--max-tokens: 0 is outside [1, "),
        ("generate x --threads 0", "--threads: 0 is outside [1, 1024]"),
        ("generate x --threads 2 --pin", "--threads: 2 do not go with pin"),
        ("generate x --run-ahead 0 --drafter h:1", "--run-ahead: needs a drafter that starts here"),
        ("generate x --verifier nowhere", "--verifier: 'nowhere' is not HOST:PORT"),
        ("generate x --drafter h:0", "--drafter: 'h:0' has port 0"),
        ("generate x --tls-certificate a", "--tls-certificate: goes with its key"),
        ("generate x --tls-certificate a --tls-key b", "--tls-ca: is required"),
        ("generate x --tls-ca a", "--tls-ca: needs a named verifier"),
        ("generate x --verifier-wait-s 5", "--verifier-wait-s: needs a named verifier"),
        ("generate x --verifier h:1 --verifier-wait-s 0", "--verifier-wait-s: 0.0 is outside [0.1, 86400.0]"),
        ("generate x --device tpu", "--device: 'tpu' is not one of auto, cpu, cuda or cuda:N"),
        ("generate x --target t", "--draft: is required with a target"),
        ("generate", "PROMPT: give either PROMPT or --prompts FILE"),
        ("generate --prompts /missing", "--prompts: /missing cannot be read"),
        ("generate x --gate maybe", "'maybe' is not one of 'none', 'target_confidence', 'draft_confidence'"),
        ("generate x --top-k many", "'--top-k'"),
        ("generate x --nope", "--nope"),
        ("bench --repeats 0", "--repeats: 0 is outside [1, 1000]"),
        ("bench --json /missing/rows.json", "--json: /missing/rows.json cannot be written"),
        ("bench --gamma 0", "--gamma: 0 leaves nothing to compare"),
        ("bench --concurrency 0", "--concurrency: 0 is outside [1, 1024]"),
        ("bench --rate fast", "--rate: 'fast' is no list of numbers"),
        ("bench --requests 9", "--requests: is for --concurrency and --rate"),
        ("bench --long-prompt 0", "--long-prompt: 0 is outside"),
        ("bench --added-delay-ms 501", "--added-delay-ms: 501.0 is outside"),
        ("bench --added-delay-ms 1 --assisted", "--assisted: does not go with --added-delay-ms"),
        ("bench --added-delay-ms 1 --rate 1", "--added-delay-ms: does not go with --concurrency"),
        ("bench --added-delay-ms 1 --tls-ca c --verifier a:1", "--added-delay-ms: does not go with --tls-ca"),
        ("generate x --in-process --verifier a:1", "--verifier: does not go with both models in one process"),
        ("generate x --in-process --run-ahead 2", "--run-ahead: 2 does not go with both models in one process"),
        ("bench --in-process --added-delay-ms 1", "--in-process: does not go with --added-delay-ms"),
        ("bench --in-process --sources model", "--in-process: does not go with --sources"),
        ("bench --in-process --soak 1", "--in-process: does not go with --soak"),
        ("compare-gates --in-process", "--in-process: does not go with compare-gates"),
        ("demo --in-process", "--in-process: does not go with demo"),
        ("tune --in-process", "--in-process: does not go with tune"),
        ("fly", "No such command 'fly'"),
    ],
)
def test_bad_input_is_told_in_one_line_and_ends_with_2(orchestrator: Cli, argv: str, problem: str) -> None:
    code, shown, told = orchestrator(*argv.split())
    assert (code, shown) == (2, "")
    assert told.startswith("orchestrator: ")
    assert problem in told
    assert told.count("\n") == 1


def objects(shown: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shown.splitlines()]


def test_one_object_a_prompt_in_input_order(orchestrator: Cli, services: list[str], tmp_path: Path) -> None:
    lines = [
        {"prompt": "in the ", "max_tokens": 40},
        {"prompt": "on", "max_tokens": 1, "temperature": 1, "seed": 7},
        {"token_ids": [100_000]},
        {"prompt": ""},
        {"token_ids": [1, 2, 3], "gamma": 0, "logprobs": 0},
    ]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    flags = ["--prompts", str(file), "--concurrency", "3", "--max-tokens", "9", "--json"]
    code, shown, _ = orchestrator("generate", *flags, *services)
    long, short, bad_id, empty, alone = objects(shown)
    assert code == 1
    assert len(long["token_ids"]) == len(long["sources"]) == 40
    assert (short["stats"]["seed"], short["stats"]["completion_tokens"]) == (7, 1)
    assert bad_id["error"]["field"] == "prompt_token_ids"
    assert empty["error"]["reason"] == "INVALID_ARGUMENT"
    assert alone["sources"] == ["solo"] * 9
    assert len(alone["logprobs"]) == 9
    assert alone["finish_reason"] == "length"


def test_text_for_people_has_colours_on_a_terminal_alone(
    orchestrator: Cli, services: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ["generate", "in the", "--gate", "none", "--seed", "5", "--max-tokens", "30", "--gamma", "2", *services]
    code, shown, _ = orchestrator(*ask)
    assert code == 0
    assert "accepted draft" in shown
    assert "in the" + str(objects(orchestrator(*ask, "--json")[1])[0]["text"]) in shown
    assert "30 tokens · " in shown
    assert "\x1b[" not in shown
    monkeypatch.setenv("FORCE_COLOR", "1")
    tokens = orchestrator(*ask)[1].split("in the", 1)[1]
    assert {"\x1b[32m", "\x1b[33m", "\x1b[36m"} <= set(re.findall(r"\x1b\[3\dm", tokens))


def test_what_does_not_fit_the_target_is_named_by_its_flag(orchestrator: Cli, services: list[str]) -> None:
    for command, told in (
        ("generate in --max-tokens 5000", "--max-tokens: "),
        ("bench --long-prompt 600", "--long-prompt: 600 tokens and 16 more pass the target's context length of 512"),
    ):
        code, _, error = orchestrator(*command.split(), *services)
        assert code == 2
        assert f"orchestrator: {told}" in error
        assert "context length" in error


def test_no_service_there(orchestrator: Cli) -> None:
    nowhere = ("--verifier", "127.0.0.1:1", "--drafter", "127.0.0.1:1", "--verifier-wait-s", "0.5")
    code, _, told = orchestrator("generate", "x", *nowhere)
    assert code == 1
    assert "no verifier answered within 0.5 s" in told


@pytest.fixture
def bench(orchestrator: Cli, tmp_path: Path) -> Bench:
    """Run one ``bench``; return its report and what it shows."""

    def run(prompts: Sequence[str | list[int]], *flags: str) -> tuple[Any, str]:
        file, report = tmp_path / "prompts.jsonl", tmp_path / "report.json"
        file.write_text("\n".join(json.dumps({_kind(prompt): prompt}) for prompt in prompts))
        files = ["--prompts", str(file), "--json", str(report)]
        code, shown, _ = orchestrator("bench", "--repeats", "1", "--max-tokens", "12", *files, *flags)
        assert code == 0
        return json.loads(report.read_text()), shown

    return run


def _kind(prompt: str | list[int]) -> str:
    return "prompt" if isinstance(prompt, str) else "token_ids"


def test_the_bench_over_running_services(bench: Bench, services: list[str]) -> None:
    # Without --target there is no tokenizer, and nothing to run beside the services.
    told, shown = bench([[5, 6, 7], [8]], *services[2:])
    assert [row["name"] for row in told["rows"]] == ["target", "spec", "spec+gate"]
    assert set(told["provenance"]) == {"date", "command", "commit", "specgate", "versions", "machine"}
    assert told["models"]["target"]["dtype"] == "float32"
    assert told["agreement"]["equal"] == 2
    assert "the same text from target, spec, spec+gate: 2 of 2 prompts" in shown


def test_the_bench_over_a_longer_way(bench: Bench, tmp_path: Path) -> None:
    """With the bundled pair."""
    plots = tmp_path / "plots"
    report, shown = bench(["def main():"], "--added-delay-ms", "0,2", "--plots", str(plots))
    names = ["target", "spec+run-ahead", "spec+run-ahead+auto"]
    rows = {(row["added_delay_ms"], row["name"]): row for row in report["rows"]}
    assert list(rows) == [(delay_ms, name) for delay_ms in (0, 2) for name in names]
    assert rows[2, "target"]["messages_per_token"] < rows[2, "spec+run-ahead"]["messages_per_token"]
    assert "1 of 1 prompts" in shown
    assert {path.name for path in plots.iterdir()} == {"network_throughput.png", "network_speedup.png"}


def test_the_bench_under_load(bench: Bench, services: list[str]) -> None:
    flags = ["--concurrency", "1,2", "--rate", "500", "--long-prompt", "99", "--requests", "3", "--gate", "none"]
    report, shown = bench(["in the", "on the one in the other"], *flags, *services)
    assert set(report) == {"provenance", "models", "request", "rows", "long_prompt", "seal"}
    loads = [(1, None), (2, None), (None, 500.0)]
    rows = [(row.get("concurrency"), row.get("rate"), row["speculation"]) for row in report["rows"]]
    assert rows == [(*load, speculation) for load in loads for speculation in ("off", "on")]
    for row in report["rows"]:
        assert (row["requests"], row["failed"]) == (3, 0)
        assert row["tokens_per_s"] > 0
        assert (row["acceptance_rate"] is None) == (row["speculation"] == "off")
        assert 1.0 <= row["batch_width"] <= row.get("concurrency", 3)
    assert [row["sessions"] for row in report["long_prompt"]] == [2, 2]
    assert "when a prompt of 99 tokens arrives" in shown


@pytest.fixture
def own_services(pair: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """``generate`` with services of its own, in a process of its own, with hours of work to do."""
    models = ["--target", str(pair / "target"), "--draft", str(pair / "draft")]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": "in the", "seed": seed}) + "\n" for seed in range(5000)))
    # A shell starts what runs in its background with Ctrl-C ignored, and that is inherited.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "orchestrator.cli"]
    command += ["generate", "--prompts", str(prompts), "--json"]
    flags = ["--max-tokens", "200", "--temperature", "1", "--gate", "none", *models]
    with subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def children_of(pid: int) -> dict[str, int]:
    """Return the pids of the services that ``pid`` has started, by role."""
    found: dict[str, int] = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        command = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        found |= {part: int(child) for part in command if part in ("drafter_svc", "verifier_svc")}
    return found


def test_a_killed_drafter_comes_back_and_the_text_stays_until_ctrl_c_ends_all_in_order(
    own_services: subprocess.Popen[str], orchestrator: Cli, services: list[str]
) -> None:
    output = own_services.stdout
    assert output is not None
    first = json.loads(output.readline())
    assert "accepted" in first["sources"]
    drafter = children_of(own_services.pid)["drafter_svc"]
    os.kill(drafter, signal.SIGKILL)
    hit = next(told for line in output if (told := json.loads(line))["stats"]["drafter_failures"])
    flags = ["--seed", str(hit["stats"]["seed"]), "--max-tokens", "200", "--temperature", "1", "--gamma", "0"]
    _, shown, _ = orchestrator("generate", "in the", "--json", *flags, *services)
    assert objects(shown)[0]["token_ids"] == hit["token_ids"]
    wait_until(lambda: children_of(own_services.pid).get("drafter_svc", drafter) != drafter)
    again = next(told for line in output if "accepted" in (told := json.loads(line))["sources"])
    assert again["stats"]["seed"] > hit["stats"]["seed"]
    pids = children_of(own_services.pid)
    assert pids.keys() == {"drafter_svc", "verifier_svc"}
    own_services.send_signal(signal.SIGINT)
    assert own_services.wait(timeout=PATIENCE_S) == cli.INTERRUPTED
    assert own_services.stderr is not None
    assert "Traceback" not in own_services.stderr.read()
    assert all(is_gone(pid) for pid in pids.values())
