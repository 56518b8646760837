"""What all bodies have in common: nothing in them is guessed at."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.api.chats import MAX_NAME_CHARACTERS

Name = Annotated[str, Field(max_length=MAX_NAME_CHARACTERS)]


class StrictBody(BaseModel):
    """No unknown field, no number in quotes, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=True)
