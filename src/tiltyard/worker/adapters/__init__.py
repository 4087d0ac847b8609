"""Engines of others behind the worker contract: what they say of themselves, how they are asked, what they answer.

Nothing here speaks to a network: replies come in as bytes and bodies go out as values, so that every shape can be held
to what a real server said (`tests/worker/replies/`).
"""
