"""Futures, their combinations, and the waits for them."""
