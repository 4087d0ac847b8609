"""Copies of what tiltyard knows, without the keys of people; and the way back from them."""
