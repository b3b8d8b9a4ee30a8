"""The agent of a worker: its parts, its members, its events and its shutdown."""
