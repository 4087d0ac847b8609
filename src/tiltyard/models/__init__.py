"""Model sources, GGUF reading, tokenizers, chat templates, and loading into the native engine."""
