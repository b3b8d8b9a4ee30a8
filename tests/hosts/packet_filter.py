"""Packet filters in the kernel's oldest language, for which no compiler is needed.

`tc filter ... bpf direct-action bytecode` takes a classic BPF program as numbers: of each
instruction the operation, how many to skip if true, if false, and a constant. It returns what
happens to the packet.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["dropping", "losing"]

PASS, DROP = 0, 2
BYTE, HALF, WORD = 0x30, 0x28, 0x20  # load one, two, four bytes
AND, EQUAL, LESS, RETURN = 0x54, 0x15, 0x35, 0x06  # LESS: skips if the loaded is not below
NETWORK = 0xFFF00000  # plus an offset into the IP header
RANDOM = 0xFFFFF000 + 56
TCP, SYN, SYN_OR_ACK = 6, 0x02, 0x12
# Where the next protocol, the destination's port and the flags are; no options are expected.
OFFSETS: dict[int, tuple[int, int, int]] = {4: (9, 22, 33), 6: (6, 42, 53)}


def dropping(family: Literal[4, 6], port: int | None) -> str:
    """Returns a filter that drops what asks for a TCP connection, at one port or at any.

    >>> dropping(4, None)[:20]
    '8,48 0 0 4293918720,'
    """
    protocol, target, flags = OFFSETS[family]
    version = 0x40 if family == 4 else 0x60
    tests = [
        (BYTE, 0, 0xF0, version),
        (BYTE, protocol, 0xFF, TCP),
        (BYTE, flags, SYN_OR_ACK, SYN),
    ]
    if port is not None:
        tests.append((HALF, target, 0xFFFF, port))
    lines = []
    for i, (load, offset, mask, value) in enumerate(tests):
        left = 3 * (len(tests) - i - 1)  # instructions of the tests that follow
        lines += [
            f"{load} 0 0 {NETWORK + offset}",
            f"{AND} 0 0 {mask}",
            f"{EQUAL} 0 {left + 1} {value}",
        ]
    return _program([*lines, f"{RETURN} 0 0 {DROP}", f"{RETURN} 0 0 {PASS}"])


def losing(share: float) -> str:
    """Returns a filter that drops a share of all packets, by the kernel's random numbers.

    >>> losing(0.5)
    '4,32 0 0 4294963256,53 1 0 2147483648,6 0 0 2,6 0 0 0,'
    """
    below = int(share * 2**32)
    drop, keep = f"{RETURN} 0 0 {DROP}", f"{RETURN} 0 0 {PASS}"
    return _program([f"{WORD} 0 0 {RANDOM}", f"{LESS} 1 0 {below}", drop, keep])


def _program(lines: list[str]) -> str:
    return f"{len(lines)},{','.join(lines)},"
