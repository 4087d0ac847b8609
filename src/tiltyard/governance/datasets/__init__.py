"""Dataset releases: from a plan to signed files that the log gives again, and what became of them."""
