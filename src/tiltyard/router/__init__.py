"""Chooses the worker for a request: the alias resolved, the fewest unfinished tokens first."""
