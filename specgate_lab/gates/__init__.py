"""Every gate against ``auto``, on real services."""
