"""Generated from ``protos/specgate/v1``; never edited by hand."""
