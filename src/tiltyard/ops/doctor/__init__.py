"""Looks at everything that can be wrong with a deployment, changes nothing, and says what to do."""
