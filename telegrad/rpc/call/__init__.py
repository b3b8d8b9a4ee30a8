"""The life of one call, from the caller's arguments to the callee's reply."""
