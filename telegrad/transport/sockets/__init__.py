"""Stream sockets without gRPC: Unix sockets on one host, TCP between hosts."""
