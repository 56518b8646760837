"""What a conversation may consist of, at both APIs."""

MAX_MESSAGES = 4096
MAX_NAME_CHARACTERS = 512
ROLES = ("system", "developer", "user", "assistant")


def turn(role: str, content: str, name: str | None = None) -> dict[str, str]:
    """Return one message as chat templates take it. They call a developer "system"."""
    return {"role": "system" if role == "developer" else role, "content": content} | ({"name": name} if name else {})
