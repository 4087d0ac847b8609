"""Blind battles: draw a pair, ask both sides, take one vote, and only then say who was who."""
