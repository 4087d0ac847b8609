"""How serving went, slice by slice: figures of calls from the log alone, and what workers say of themselves now."""
