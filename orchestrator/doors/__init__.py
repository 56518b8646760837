"""The front doors: HTTP in OpenAI's words and gRPC in ours, over one desk."""
