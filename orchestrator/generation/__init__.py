"""The orchestrator that APIs, commands and embedding programs use, and its running requests."""
