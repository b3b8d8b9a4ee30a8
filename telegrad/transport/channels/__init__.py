"""The channels, which move the big parts of messages beside the control stream."""
