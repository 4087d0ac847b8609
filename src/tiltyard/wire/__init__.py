"""The shapes that cross HTTP."""
