"""The types of values that travel: Python's own, classes, and arrays."""
