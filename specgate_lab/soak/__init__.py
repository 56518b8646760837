"""A served system under mixed load for minutes or hours: its texts, and what its processes hold over time."""
