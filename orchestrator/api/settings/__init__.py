"""The served system's configuration, checked by name."""
