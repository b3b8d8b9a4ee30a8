"""The messages of `protos/telegrad/pb`, generated; made anew by scripts/make_protos.py."""

from __future__ import annotations

from telegrad.pb.frame_pb2 import Frame, Goodbye, Heartbeat, Lending
from telegrad.pb.handshake_pb2 import Hello, Proof, Refusal, Welcome

__all__ = [
    "Frame",
    "Goodbye",
    "Heartbeat",
    "Hello",
    "Lending",
    "Proof",
    "Refusal",
    "Welcome",
]
