"""Shared memory as values: nothing is lent twice, whatever comes back and whoever is lost."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import strategies as st

from telegrad.transport.channels.ledger import (
    SLAB_BYTES,
    SMALLEST_BLOCK,
    Account,
    Block,
    Bounds,
    Ledger,
)
from tests.repeated import on_examples

BOUNDS = Bounds(lent=2**26, idle=20 * 2**20, idle_seconds=5.0, slabs=4, all_slabs=6)
KIB = 2**10


def ledger(bounds: Bounds = BOUNDS) -> Ledger[bytes]:
    return Ledger(lambda size: b"", bounds)


def taken(books: Ledger[bytes], account: Account[bytes], size: int) -> Block[bytes]:
    block = books.take(account, size)
    assert block is not None
    return block


def place(block: Block[bytes]) -> tuple[int, int, int]:
    return id(block.slab), block.offset, block.offset + block.slab.block_bytes


def test_the_block_that_was_used_last_is_next() -> None:
    books, account = ledger(), Account[bytes]()
    first, second = taken(books, account, 20 * KIB), taken(books, account, 20 * KIB)
    assert (first.slab, first.offset, second.offset) == (second.slab, 0, SMALLEST_BLOCK)
    books.released(first, 1.0)
    books.released(second, 2.0)
    assert taken(books, account, SMALLEST_BLOCK) is second


def test_a_loan_is_given_back_once() -> None:
    books, account = ledger(), Account[bytes]()
    loan = books.lend(taken(books, account, 2**20))
    books.returned(account, loan, 0.0)
    with pytest.raises(KeyError):
        books.returned(account, loan, 0.0)
    with pytest.raises(KeyError):
        books.returned(Account[bytes](), loan, 0.0)


def test_the_bound_of_what_one_peer_has() -> None:
    books, account = ledger(), Account[bytes]()
    assert books.take(account, BOUNDS.lent + 1) is None
    half = taken(books, account, BOUNDS.lent // 2)
    assert books.take(account, BOUNDS.lent // 2 + 1) is None
    books.released(half, 0.0)
    assert books.take(account, BOUNDS.lent // 2 + 1) is not None
    assert books.take(Account[bytes](), BOUNDS.lent // 2) is not None


def test_idle_slabs_are_kept_for_a_while_and_not_too_many() -> None:
    books, account = ledger(), Account[bytes]()
    sizes = (2**23, 2**22, 2**23 + 1)  # of three classes; together more than may be idle
    blocks = [taken(books, account, size) for size in sizes]
    for now, block in enumerate(blocks):
        block.slab.told = block is not blocks[1]
        books.released(block, float(now))
    assert books.trim(3.0) == [blocks[0].slab]
    assert account.dropped == [1]
    assert books.trim(5.5) == []
    assert books.trim(6.0) == [blocks[1].slab]
    assert account.dropped == [1]  # of the other one the peer never knew
    assert books.trim(7.0) == [blocks[2].slab]
    assert (books.idle_bytes, books.slabs, account.slabs) == (0, 0, {})


def test_an_idle_slab_makes_room_for_another_size() -> None:
    books, account = ledger(), Account[bytes]()
    blocks = [taken(books, account, SMALLEST_BLOCK << k) for k in range(BOUNDS.slabs)]
    assert books.take(account, SMALLEST_BLOCK << BOUNDS.slabs) is None
    books.released(blocks[2], 0.0)
    assert books.take(account, SMALLEST_BLOCK << BOUNDS.slabs) is not None
    assert blocks[2].slab.number not in account.slabs


def test_one_that_has_its_most_slabs_takes_no_idle_one_of_another() -> None:
    books, account, other = ledger(), Account[bytes](), Account[bytes]()
    for k in range(BOUNDS.slabs):
        taken(books, account, SMALLEST_BLOCK << k)
    idle = taken(books, other, 2**20)
    books.released(idle, 0.0)
    assert books.take(account, SMALLEST_BLOCK << BOUNDS.slabs) is None
    assert idle.slab.number in other.slabs


def test_all_peers_together_have_a_bound() -> None:
    books = ledger()
    blocks = [taken(books, Account[bytes](), 2**20) for _ in range(BOUNDS.all_slabs)]
    assert books.take(Account[bytes](), 2**20) is None
    books.released(blocks[3], 0.0)
    assert books.take(Account[bytes](), 2**20) is not None
    assert books.slabs == BOUNDS.all_slabs


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ["take", "take", "take", "lend", "lend", "release", "return", "lose", "trim"]
        ),
        st.integers(0, 1),  # whose
        st.integers(0, 30),  # which of those that are there; or what size
    ),
    max_size=120,
)


@on_examples(OPERATIONS)
def test_in_any_order_no_two_have_the_same_bytes(operations: list[tuple[str, int, int]]) -> None:
    """At each moment what is held or lent is disjoint, within its bounds, and all else comes back."""
    books = ledger()
    accounts = [Account[bytes](), Account[bytes]()]
    held: list[list[Block[bytes]]] = [[], []]
    lent: list[dict[int, Block[bytes]]] = [{}, {}]
    had: set[int] = set()  # blocks that the peer has had since they were taken
    for now, (what, k, number) in enumerate(operations):
        account = accounts[k]
        if what == "take":
            block = books.take(account, (number + 1) * 70 * KIB * (1 + 20 * (number % 3)))
            if block is not None:
                assert block.slab.account is account
                assert block.offset + block.size <= max(SLAB_BYTES, block.slab.block_bytes)
                held[k].append(block)
                had.discard(id(block))
        elif what == "lend" and held[k]:
            block = held[k][number % len(held[k])]
            loan = books.lend(block)
            assert bool(loan) == (id(block) not in had)  # it may have written there
            if loan:
                lent[k][loan] = block
                had.add(id(block))
        elif what == "release" and held[k]:
            books.released(held[k].pop(number % len(held[k])), float(now))
        elif what == "return" and lent[k]:
            loan = sorted(lent[k])[number % len(lent[k])]
            del lent[k][loan]
            books.returned(account, loan, float(now))
        elif what == "lose":
            slabs = [id(slab) for slab in account.slabs.values()]
            assert sorted(id(slab) for slab in books.close(account)) == sorted(slabs)
            assert books.take(account, KIB) is None
            for block in held[k]:
                assert books.lend(block) == 0
                books.released(block, float(now))
            accounts[k], held[k], lent[k] = Account(), [], {}
        elif what == "trim":
            dropped = books.trim(float(now))
            used = {id(b.slab) for k in (0, 1) for b in (*held[k], *lent[k].values())}
            assert not used & {id(slab) for slab in dropped}
            assert books.idle_bytes <= BOUNDS.idle
        for k in (0, 1):
            mine = {id(b): b for b in (*held[k], *lent[k].values())}
            assert accounts[k].out == sum(b.size for b in mine.values()) <= BOUNDS.lent
            assert len(accounts[k].slabs) <= BOUNDS.slabs
            places = sorted(map(place, mine.values()))
            for one, other in itertools.pairwise(places):
                assert one[0] != other[0] or one[2] <= other[1]
        assert books.slabs == sum(len(each.slabs) for each in accounts) <= BOUNDS.all_slabs
    for k in (0, 1):
        for block in held[k]:
            books.released(block, 0.0)
        for loan in lent[k]:
            books.returned(accounts[k], loan, 0.0)
    books.trim(1e9)
    assert (books.slabs, books.idle_bytes) == (0, 0)
    assert [each.out for each in accounts] == [0, 0]
