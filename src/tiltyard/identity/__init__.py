"""Exactly which model: manifests, canonical JSON, digests."""
