"""Futures, the waits for them, and the errors that nobody retrieves."""
