"""Votes that others collected: read their files, append them as events, read them back, write the same files again."""
