"""The search for calls that wait for each other."""
