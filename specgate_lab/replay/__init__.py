"""Gates on recorded traces, in simulated time."""
