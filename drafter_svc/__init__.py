"""The drafter service: one draft model, proposals over gRPC."""
