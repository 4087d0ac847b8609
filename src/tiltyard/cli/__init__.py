"""The `tiltyard` command: one file a verb; composes the apps and starts them."""
