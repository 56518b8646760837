"""Generated from ``protos/specgate/v1`` for this distribution alone; never edited by hand."""
