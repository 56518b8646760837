"""The search's memory: its trials in a JSON file, from which a killed search resumes, and Optuna, which samples."""

import fcntl
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgate.errors import InvalidArgument, ServiceUnavailable
from specgate_lab.report import write_json
from specgate_lab.tune.layers.blocks import Blocks, BlockSet
from specgate_lab.tune.layers.predict import Judged, Prediction

if TYPE_CHECKING:
    import optuna

_PARTS = {"subject": dict, "known": dict, "trials": list}


class LayerStudy:
    """Trials that are done, of ``subject``. ``known`` is what was measured before the first one.

    See ``open_study``.
    """

    def __init__(self, path: Path, subject: Mapping[str, Any], seed: int) -> None:
        self._path = path
        self._seed = seed
        kept = _read(path, subject)
        self.known: dict[str, Any] = kept["known"]
        self.subject: dict[str, Any] = kept["subject"]
        self._trials: list[dict[str, Any]] = kept["trials"]
        self._save()

    def _save(self) -> None:
        parts = {"subject": self.subject, "known": self.known, "trials": self._trials}
        write_json(self._path, parts, "out")

    def keep(self, **known: Any) -> None:
        """Keep something that a resumed search must not measure again."""
        self.known |= known
        self._save()

    @property
    def num_done(self) -> int:
        return len(self._trials)

    def judged(self, blocks: Blocks) -> list[Judged]:
        """Return all sets that can draft, each once, in the order in which they were tried."""
        found: dict[BlockSet, Judged] = {}
        for trial in self._trials:
            if trial["prediction"] is not None:
                skip = blocks.set_of(trial["left_out"])
                found.setdefault(skip, Judged(skip, Prediction(*trial["prediction"])))
        return list(found.values())

    def sampler(self, blocks: Blocks, first: Sequence[Sequence[str]]) -> "LayerSampler":
        """Return what proposes sets: those of ``first`` that were not tried yet, then what looks best."""
        return LayerSampler(blocks, self._trials, first, self._seed)

    def add(self, names: Sequence[str], judged: Judged | None) -> None:
        """Keep a trial; None is a set that cannot draft, and brings nothing."""
        self._trials.append({"left_out": names, "prediction": judged and judged.prediction})
        self._save()


class LayerSampler:
    """Optuna's sampler over the blocks of a model."""

    def __init__(
        self, blocks: Blocks, done: Sequence[Mapping[str, Any]], first: Sequence[Sequence[str]], seed: int
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            # That several blocks are looked at together is called experimental.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # It begins with the sets that are enqueued. A resumed search must not draw the same numbers again.
            sampler = optuna.samplers.TPESampler(multivariate=True, n_startup_trials=0, seed=seed + len(done))
        self._study = optuna.create_study(sampler=sampler, direction="maximize")
        self._names = blocks.names
        choice: optuna.distributions.BaseDistribution = optuna.distributions.CategoricalDistribution([False, True])
        distributions = dict.fromkeys(self._names, choice)
        for trial in done:
            params, value = self._choices(trial["left_out"]), _value(trial["prediction"])
            self._study.add_trial(optuna.create_trial(params=params, distributions=distributions, value=value))
        for names in first:
            self._study.enqueue_trial(self._choices(names), skip_if_exists=True)

    def _choices(self, names: Sequence[str]) -> dict[str, bool]:
        return {name: name in names for name in self._names}

    def ask(self) -> "tuple[optuna.Trial, list[str]]":
        """Return the next trial, and the names of the blocks that it leaves out."""
        trial = self._study.ask()
        return trial, [name for name in self._names if trial.suggest_categorical(name, [False, True])]

    def tell(self, trial: "optuna.Trial", judged: Judged | None) -> None:
        """Learn from a trial; None is a set that cannot draft."""
        self._study.tell(trial, _value(judged and judged.prediction))


def _value(prediction: Any) -> float:
    """Return what the sampler maximises, of a prediction or of JSON's; None is a set that cannot draft."""
    return 0.0 if prediction is None else Prediction(*prediction).ratio


@contextmanager
def open_study(path: Path, subject: Mapping[str, Any], seed: int) -> Iterator[LayerStudy]:
    """Yield the study in a file, a new one where there is none; this process alone has it for as long.

    Args:
        subject: what it is a study of.

    Raises:
        InvalidArgument: the file is no study, is one of something else, is in use, or cannot be written; its content
            stays.
    """
    # Beside the study, which is replaced at every write.
    lock_path = path.with_name(f"{path.name}.lock")
    try:
        lock = lock_path.open("w", encoding="utf-8")
    except OSError as error:
        raise InvalidArgument("out", f"{path} cannot be used: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidArgument("out", f"{path} is in use by another search") from None
        yield LayerStudy(path, subject, seed)


def _read(path: Path, subject: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a study of ``subject``, of a new one where there is no file."""
    if not path.exists():
        return {"subject": dict(subject), "known": {}, "trials": []}
    try:
        kept = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidArgument("out", f"{path} cannot be used: {error}") from error
    if not isinstance(kept, dict) or any(not isinstance(kept.get(name), kind) for name, kind in _PARTS.items()):
        raise InvalidArgument("out", f"{path} holds something else")
    for name, value in subject.items():
        if kept["subject"].get(name) != value:
            other = f"is a study with another {name}: {kept['subject'].get(name)!r:.60}, and not {value!r:.60}"
            raise InvalidArgument("out", f"{path} {other}; name another folder")
    return kept


def check_optuna() -> None:
    """Raise ServiceUnavailable where Optuna, an extra, is not installed."""
    if find_spec("optuna") is None:
        raise ServiceUnavailable("the search needs Optuna: pip install 'specgate[tune]'")
