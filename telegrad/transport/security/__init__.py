"""Authentication of peers: the handshake, tags of frames, TLS, certificates and the audit log."""
