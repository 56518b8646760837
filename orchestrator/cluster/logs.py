"""Logs of the processes that Ray starts: each replica has a file of its own, on its node."""

import logging

from ray import serve

from orchestrator.api.settings.replicas import LogSettings
from specgate.errors import InvalidArgument
from specgate.logs import configure_logs, default_folder

SERVE_LOGGER = "ray.serve"


def configure_replica_logs(role: str, settings: LogSettings) -> None:
    """Log to ``ROLE-ID.log`` in the folder of the settings, with Serve's id of this replica.

    Raises:
        InvalidArgument: the folder of the settings cannot be written. If the default folder cannot be, the log goes to
            standard error, which Ray keeps.
    """
    name = f"{role}-{serve.get_replica_context().replica_id.unique_id}"
    try:
        folder = settings.folder or default_folder()
        handler = configure_logs(name, as_json=settings.as_json, file=folder / f"{name}.log", level=settings.level)
    # A process without a home folder is a RuntimeError.
    except (OSError, RuntimeError) as error:
        if settings.folder is not None:
            raise InvalidArgument("logs.folder", f"{settings.folder} cannot be written: {error}") from None
        handler = configure_logs(name, as_json=settings.as_json, level=settings.level)
    # Serve's logger does not propagate to the root. Below a warning it writes one line per lease, which nobody needs.
    handler.addFilter(lambda record: record.name != SERVE_LOGGER or record.levelno >= logging.WARNING)
    logging.getLogger(SERVE_LOGGER).addHandler(handler)
