"""The verbs of `telegrad.collectives`, by noun."""
