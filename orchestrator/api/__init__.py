"""The API of the served system: HTTP as OpenAI has it, and gRPC; one queue behind both."""
