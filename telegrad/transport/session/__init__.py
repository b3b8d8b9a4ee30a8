"""One session with each peer: every envelope arrives exactly once, or the peer is lost."""
