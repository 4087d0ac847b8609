"""Tokens in, tokens out: scheduler, paged KV, prefix tree, sampler; no clock, network or thread."""
