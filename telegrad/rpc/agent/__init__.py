"""The core of an agent: the parts of one worker, its options, events and messages."""
