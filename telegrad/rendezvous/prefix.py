"""A store in a store: every key with a prefix in front, so that users of one do not collide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from telegrad.rendezvous.store import STORE_TIMEOUT, Store, check_key, check_keys, check_prefix

__all__ = ["PrefixStore"]


@final
class PrefixStore(Store):
    """Those keys of another store that begin with `prefix/`, without it.

    Errors name the keys as they stand in that store. Closing it closes that store.

    Args:
        prefix: What stands before each key.
        store: Where the values are.

    Raises:
        ValueError: The prefix is empty.

    Example:
        >>> from telegrad.rendezvous import MemoryStore
        >>> store = MemoryStore()
        >>> PrefixStore("group1", store).set("address", b"10.0.0.1")
        >>> store.get("group1/address", timeout=1.0)
        b'10.0.0.1'
    """

    def __init__(self, prefix: str, store: Store) -> None:
        if not check_prefix(prefix):
            raise ValueError("a store prefix must not be empty; use the store itself")
        if not isinstance(store, Store):
            raise TypeError(f"store must be a Store (got {type(store).__name__})")
        self._prefix = f"{prefix}/"
        self._store = store

    def set(self, key: str, value: bytes) -> None:
        """Writes a value; see `Store.set`."""
        self._store.set(self._full(key), value)

    def get(self, key: str, timeout: float = STORE_TIMEOUT) -> bytes:
        """Waits for a value; see `Store.get`."""
        return self._store.get(self._full(key), timeout)

    def add(self, key: str, amount: int) -> int:
        """Adds to a counter; see `Store.add`."""
        return self._store.add(self._full(key), amount)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Writes if the value is the expected one; see `Store.compare_set`."""
        return self._store.compare_set(self._full(key), expected, desired)

    def delete(self, key: str) -> bool:
        """Removes a key; see `Store.delete`."""
        return self._store.delete(self._full(key))

    def wait(self, keys: Sequence[str], timeout: float = STORE_TIMEOUT) -> None:
        """Waits for keys; see `Store.wait`."""
        self._store.wait([self._full(key) for key in check_keys(keys)], timeout)

    def num_keys(self, prefix: str = "") -> int:
        """Counts the keys of this prefix alone; see `Store.num_keys`."""
        return self._store.num_keys(self._prefix + check_prefix(prefix))

    def close(self) -> None:
        """Closes the store underneath; idempotent."""
        self._store.close()

    def _full(self, key: str) -> str:
        return self._prefix + check_key(key)
