"""Fixed sets: items with checks, asked through the users' door, resumable, marked, compared and reported."""
