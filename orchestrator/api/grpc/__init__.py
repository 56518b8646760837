"""GenerationService, for clients in any language."""
