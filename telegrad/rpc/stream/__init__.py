"""Streams: generators of one worker that another worker iterates."""
