"""The verifier service: one target model, verdicts over gRPC."""
