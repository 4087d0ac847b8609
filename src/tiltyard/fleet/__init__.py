"""Who is alive, how loaded, how many: the registry of workers and what launches them."""
