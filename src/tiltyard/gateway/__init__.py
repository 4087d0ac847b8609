"""The public door: parse, stream, answer; the one writer of generation events."""
