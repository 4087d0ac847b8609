"""Models that judge answers, and how far they can be believed: rubrics, judgments, bias, bridges, reward scorers."""
