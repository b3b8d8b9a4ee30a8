"""The policy on functions that other workers may call by name."""
