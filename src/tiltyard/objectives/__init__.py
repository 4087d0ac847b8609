"""What was promised and how far it is kept: objectives, error budgets and burn rates, computed from the log alone."""
