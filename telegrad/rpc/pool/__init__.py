"""The threads and event loops that run user functions, their deadlines, and the inbox."""
