"""Remote references: the protocol that counts them, and the calls through them."""
