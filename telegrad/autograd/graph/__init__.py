"""The graph of operations, and the engine that runs a backward pass through it."""
