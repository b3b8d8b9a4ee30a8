"""The threads and event loops that run user functions, and their deadlines."""
