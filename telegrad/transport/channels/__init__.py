"""Channels: what moves the big parts of messages beside the control stream."""
