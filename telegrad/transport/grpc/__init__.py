"""The transport over gRPC: the connection that every two workers have."""
