"""Releases: from a candidate to everyone, with evidence at each gate; steers traffic by appending events only."""
