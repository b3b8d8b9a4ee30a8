"""Which functions another worker may call by name."""
