"""How references to RRefs are counted: the messages and effects of two pure state machines.

A value lives at its **owner**. Every other worker that refers to it is a **user** and holds a
**fork**; the forks of an RRef form a tree, each with a **parent** that sent it. `OwnerTable` knows
the forks of this worker's values, `UserTable` this worker's forks of the values of others; each
takes events and returns effects.

    who sends an RRef to whom        what is counted, and what is sent

    owner ──fork──▶ user             the owner counts the fork as it sends; confirmed on arrival
    user  ──fork──▶ owner            the user pins its own fork until ChildAccept comes back
    parent ─fork──▶ child            the parent pins its own fork;
                    child ──ForkRequest──▶ owner
                    child ◀──ForkConfirm── owner        the owner counts the fork, and says whether
                                                        the creation of the value has failed
    parent ◀─ChildAccept── child                        the parent lets go of its pin
    creator ─creation──▶ owner       the owner counts the creator's fork when it arrives;
    creator ◀──reply─────── owner    pending until then; where it fails the owner tells all other
                                     users by one more ForkConfirm, and what it sends later says so

A fork at its user (`UserTable`); `let go`: no handle, no call in flight, no pinned child:

    arrived from a parent ─▶ PENDING ── ForkConfirm, reply ──▶ CONFIRMED ── let go ──▶ UserDelete ─▶ ∅
    created                     │
                                ├─ the creation failed ──▶ FAILED ── let go ──▶ UserDelete ─▶ ∅
                                ├─ gone at the owner ──▶ GONE ── let go ──▶ ∅
    arrived from the owner ─▶ CONFIRMED, or FAILED
                             CONFIRMED ── the creation failed ──▶ FAILED
                                any ── the owner is lost ──▶ LOST ── let go ──▶ ∅

A value at its owner (`OwnerTable`): absent ─▶ expected (named before its creation arrived) ─▶
creating ─▶ settled ─▶ freed, once it has neither handle nor fork and no creation runs.

Guarantees, under any order of messages, and under repeated ones:

- G1: the owner hears of the end of every fork it counted: a UserDelete, or the loss of its user.
- G2: a parent's fork outlives the confirmation of its child; a user's fork outlives the arrival of
  what it sends to the owner. So a ForkRequest always finds the value, as long as nobody is lost.
- G3: a fork or a creation that was counted once is never counted again.
- G4: a lost user's forks at the owner, and a parent's pins for a lost child, are released when
  `expire` is called, one full bound after `lost`: what the lost worker sent has arrived by then.
- G5: the forks of a lost owner are LOST for good, and nothing more is sent about them.
- G6: what is known not to have been handed over takes its forks back (`undelivered`); what arrived
  and will never be decoded gives them back (`refused`).

Where a call brings an RRef, its function starts once the fork is no longer PENDING, and only if the
owner has counted it: CONFIRMED, or FAILED, of which every use says why (`rref_confirmation`).

Neither table is thread-safe; whoever owns them holds one lock around each event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from telegrad.rpc.rref_ids import ForkId, RRefId
from telegrad.types import WorkerInfo

__all__ = [
    "ChildAccept",
    "CreationAbandon",
    "Effect",
    "ForkConfirm",
    "ForkRequest",
    "Freed",
    "Orphaned",
    "ProtocolMessage",
    "Send",
    "Settled",
    "UserDelete",
]


# Messages ------------------------------------------------------------------------------------

# Nobody writes into one; they are not frozen, since such take three times as long to make.


@dataclass(slots=True)
class ForkRequest:
    """Child to owner: count this fork of mine."""

    rref: RRefId
    fork: ForkId


@dataclass(slots=True)
class ForkConfirm:
    """Owner to child: the fork is counted; or the value is gone and it never will be.

    Once more where the creation of the value fails after that.
    """

    fork: ForkId
    known: bool
    failed: bool = False  # the creation of the value


@dataclass(slots=True)
class ChildAccept:
    """Child (or the owner, for a fork that came home) to parent: the pin may go."""

    fork: ForkId


@dataclass(slots=True)
class UserDelete:
    """User to owner: this fork is no more."""

    rref: RRefId
    fork: ForkId


@dataclass(slots=True)
class CreationAbandon:
    """Creator to owner: the creation of this RRef was never sent and never will be."""

    rref: RRefId


ProtocolMessage: TypeAlias = ForkRequest | ForkConfirm | ChildAccept | UserDelete | CreationAbandon


# Effects -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Send:
    """Post this message; if the peer is lost by now, drop it."""

    peer: WorkerInfo
    message: ProtocolMessage


@dataclass(slots=True)
class Freed:
    """Nobody refers to this value any longer; drop it."""

    rref: RRefId


@dataclass(slots=True)
class Orphaned:
    """This value was expected, and its creation will never arrive; fail whoever waits for it."""

    rref: RRefId


@dataclass(slots=True)
class Settled:
    """This fork is no longer PENDING."""

    fork: ForkId


Effect: TypeAlias = Send | Freed | Orphaned | Settled
