"""Tokens in, tokens out: scheduler, paged KV, prefix tree, sampler; no clock, no network, no thread of its own."""
