"""Load on a server that speaks the OpenAI protocol, and what it did under it."""
