"""The one way to ask a model: an OpenAI-compatible client that keeps identity and generation."""
