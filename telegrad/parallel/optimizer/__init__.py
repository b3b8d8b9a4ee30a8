"""The optimizer of parameters on any workers: its parts at the owners, and the trainers' waits."""
