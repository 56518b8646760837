"""What the APIs and the commands use: one orchestrator, many running requests."""
