"""The commands of ``orchestrator``, one module each, and what they share."""
