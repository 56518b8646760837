"""The search's memory: an Optuna study in a SQLite file, that a killed search goes on with."""

import fcntl
import json
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specgate.errors import InvalidArgument, ServiceUnavailable
from specgate_lab.tune.layers.blocks import Blocks, BlockSet
from specgate_lab.tune.layers.predict import Prediction

if TYPE_CHECKING:
    import optuna

NAME = "layers"
_SUBJECT, _KNOWN = "subject", "known"


class Judged(NamedTuple):
    """A set of blocks and what is predicted of it, with run-ahead and without."""

    skip: BlockSet
    ahead: Prediction
    on_demand: Prediction

    def prediction(self, *, run_ahead: bool) -> Prediction:
        return self.ahead if run_ahead else self.on_demand


class LayerStudy:
    """Trials that are done, and the next one to do. ``known`` is what was measured before the first one.

    See ``open_study``.
    """

    def __init__(self, path: Path, subject: Mapping[str, Any], seed: int) -> None:
        self._path = path
        self._seed = seed
        with self._one_error():
            self._study = self._open()
            self._check(subject)
            self._forget_broken()

    def close(self) -> None:
        """Let go of the file."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    @property
    def known(self) -> dict[str, Any]:
        """What was kept by ``keep``."""
        found: dict[str, Any] = json.loads(self._study.user_attrs.get(_KNOWN, "{}"))
        return found

    def keep(self, **known: Any) -> None:
        """Keep something that a search that goes on must not measure again."""
        with self._one_error():
            self._study.set_user_attr(_KNOWN, json.dumps({**self.known, **known}))

    @property
    def num_done(self) -> int:
        return len(self._done())

    def begin_with(self, blocks: Blocks, sets: Sequence[Sequence[str]]) -> None:
        """Let these sets be the next trials."""
        with self._one_error():
            for names in sets:
                self._study.enqueue_trial(blocks.choices_of(names), skip_if_exists=True)

    def ask(self, blocks: Blocks) -> "tuple[optuna.Trial, BlockSet]":
        """Return the next trial, and its set."""
        with self._one_error():
            trial = self._study.ask()
            choices = {name: trial.suggest_categorical(name, [False, True]) for name in blocks.names}
        return trial, blocks.set_of_choices(choices)

    def tell(self, trial: "optuna.Trial", judged: Judged | None, *, run_ahead: bool) -> None:
        """Keep a trial; None is a set that cannot draft, and brings nothing."""
        with self._one_error():
            if judged is not None:
                told = {"ahead": judged.ahead, "on_demand": judged.on_demand}
                trial.set_user_attr("judged", json.dumps(told))
            value = judged.prediction(run_ahead=run_ahead).ratio if judged else 0.0
            self._study.tell(trial, value)

    def judged(self, blocks: Blocks) -> list[Judged]:
        """Return all sets that can draft, each once, in the order in which they were tried."""
        found: dict[BlockSet, Judged] = {}
        for trial in self._done():
            if "judged" in trial.user_attrs:
                skip, told = blocks.set_of_choices(trial.params), json.loads(trial.user_attrs["judged"])
                predictions = {name: Prediction(*values) for name, values in told.items()}
                found.setdefault(skip, Judged(skip, **predictions))
        return list(found.values())

    def _done(self) -> "list[optuna.trial.FrozenTrial]":
        import optuna

        with self._one_error():
            return self._study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))

    def _open(self) -> "optuna.Study":
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        from sqlalchemy import URL

        # A name is no address: it may hold what means something in one.
        self._storage = optuna.storages.RDBStorage(URL.create("sqlite", database=str(self._path)).render_as_string())
        study = optuna.create_study(storage=self._storage, study_name=NAME, direction="maximize", load_if_exists=True)
        with warnings.catch_warnings():
            # That several blocks are looked at together is called experimental.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # The warm starts are what it begins with. A search that goes on must not draw the same again.
            study.sampler = optuna.samplers.TPESampler(
                multivariate=True, n_startup_trials=0, seed=self._seed + len(study.trials)
            )
        return study

    def _check(self, subject: Mapping[str, Any]) -> None:
        before = self._study.user_attrs.get(_SUBJECT)
        if before is None:
            self._study.set_user_attr(_SUBJECT, dict(subject))
            return
        for name, value in subject.items():
            if before.get(name) != value:
                told = f"is a study with another {name}: {_short(before.get(name))}, and not {_short(value)}"
                raise InvalidArgument("study", f"{self._path} {told}; name another file")

    def _forget_broken(self) -> None:
        """Let trials that a killed search left running be done again."""
        import optuna

        for trial in self._study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
            # One that was killed before it was told its choices has them from the queue, or none.
            if choices := trial.params or trial.system_attrs.get("fixed_params"):
                self._study.enqueue_trial(choices)
            self._study.tell(trial.number, state=optuna.trial.TrialState.FAIL)

    @contextmanager
    def _one_error(self) -> Iterator[None]:
        import optuna
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        # Of a file of another Optuna it says RuntimeError.
        except (SQLAlchemyError, optuna.exceptions.OptunaError, OSError, RuntimeError) as error:
            raise InvalidArgument("study", f"{self._path} cannot be used: {_cause(error)}") from error


@contextmanager
def open_study(path: Path, subject: Mapping[str, Any], seed: int) -> Iterator[LayerStudy]:
    """Yield the study in a file, a new one where there is none; it is this process's alone for as long.

    Args:
        subject: what it is a study of.

    Raises:
        InvalidArgument: the file is no study, is one of something else, is in use, or cannot be written; what is in it
            stays.
    """
    with _locked(path):
        _check_file(path)
        study = LayerStudy(path, subject, seed)
        try:
            yield study
        finally:
            study.close()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a file beside the study: SQLite locks the study itself, and would lose that to us."""
    try:
        lock = path.with_name(f"{path.name}.lock").open("w", encoding="utf-8")
    except OSError as error:
        raise InvalidArgument("study", f"{path} cannot be used: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidArgument("study", f"{path} is in use by another search") from None
        yield


def _check_file(path: Path) -> None:
    """Raise InvalidArgument for a file that holds something else: Optuna would add its tables to it."""
    if not path.exists() or path.stat().st_size == 0:
        return
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error as error:
        raise InvalidArgument("study", f"{path} cannot be used: {error}") from error
    if tables and "studies" not in tables:
        raise InvalidArgument("study", f"{path} is a database of something else")


def check_optuna() -> None:
    """Raise ServiceUnavailable where Optuna, an extra, is not installed."""
    from importlib.util import find_spec

    if find_spec("optuna") is None:
        raise ServiceUnavailable("the search needs Optuna: pip install 'specgate[tune]'")


def _cause(error: BaseException) -> str:
    """Return the first line of what went wrong at the bottom: the database's own word for it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__])[0]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
