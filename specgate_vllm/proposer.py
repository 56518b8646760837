"""The class that vLLM makes and calls."""

import atexit
import logging
import time
from typing import Any

from specgate_vllm import hook
from specgate_vllm.desk import Desk

ERROR_EVERY_S = 60.0
_log = logging.getLogger(__name__)


class Proposer:
    """vLLM's ``custom_class``. Raises UnsupportedVllm and InvalidSetting: with them nothing would be drafted."""

    def __init__(self, vllm_config: Any) -> None:
        engine = hook.engine_of(vllm_config)
        if (found := hook.installed_version()) and found not in hook.WRITTEN_FOR:
            _log.warning("specgate_vllm was written for vLLM %s; this is %s", ", ".join(hook.WRITTEN_FOR), found)
        # The other ranks' drafts are not read: they open no channel.
        self.desk = Desk(engine) if engine.is_output_rank else None
        self._logged_at_s = float("-inf")
        if self.desk is not None:
            atexit.register(self.desk.close)

    def load_model(self, *_: Any, **__: Any) -> None:
        """Do nothing; vLLM's runner on CPUs calls it."""

    def propose(self, sampled_token_ids: Any, num_tokens_no_spec: Any, token_ids_cpu: Any, **_: Any) -> list[list[int]]:
        """Return the draft of each row; empty: none. It never raises."""
        try:
            if self.desk is not None:
                return self.desk.step(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        except Exception:
            # An exception that leaves ends the engine.
            if time.monotonic() - self._logged_at_s > ERROR_EVERY_S:
                self._logged_at_s = time.monotonic()
                _log.exception("no drafts in this step, because specgate_vllm failed")
        return [[] for _ in sampled_token_ids]
