"""What an exception of `App.submit` and `App.resolve` means for the request; and `Refuse`, which a handler raises.

There are exactly four families, and each of them answers the one question a caller has:

=================  =========================================================  ==================================
`NothingHappened`  The request has no effect, and will have none unless       Report the failure, or submit again.
                   somebody submits it anew.
`Decided`          The request has taken effect, exactly once. Its result is  Report the result.
                   final and attached; a site is still to be told.
`Unknown`          The request may or may not take effect.                    Submit again with the same XID.
`Expired`          This call did nothing, and none with this XID ever will.   Use a new XID, if you know that the
                   What became of earlier ones is not known here any more.    request has not taken effect.
=================  =========================================================  ==================================

"Anew" is also a submission that no site knows of yet: a copy of the request on its way to another server, or waiting
there for a connection or between two attempts (where this call has met it before, it is `Unknown`). It gets an answer
of its own. So who sends a request to several servers at once has to hear all of them; `Client` does.

A business refusal ("out of stock") is what a handler says by `raise Refuse(result)`: nothing of what it has written
stays, and the refusal is the request's answer for good, `Refused`. That is a case of `NothingHappened`, as are
`Cancelled` and `KeyReused`: with these three a submission anew changes nothing.
"""

from __future__ import annotations

from typing import Any

import psycopg

__all__ = [
    "Cancelled",
    "Decided",
    "EarlierLost",
    "Expired",
    "KeyReused",
    "NothingHappened",
    "ProtocolViolation",
    "Refuse",
    "Refused",
    "SiteDown",
    "SubmitError",
    "Unknown",
]


class Refuse(Exception):
    """Raised by a handler: the request is refused. What the handler has written is rolled back at every site, and
    `result` (JSON, as that of a handler which returns) is recorded as the request's answer: `App.submit` raises
    `Refused` with it, now and for every retransmission, at any server.

    A refusal may follow an error of the database ("already exists"), caught without a savepoint. An error that is
    retried, as a deadlock or a lost connection is, and one of pg_mip's own count more: then nothing is recorded.
    """

    result: Any = None

    def __init__(self, result: Any = None) -> None:
        super().__init__("the handler has refused the request")
        self.result = result


class SubmitError(Exception):
    """Base of the four families. What went wrong in the last attempt is in `__cause__`, where there is any."""

    def __init__(self, message: str, *, xid: str | None = None) -> None:
        super().__init__(message)
        self.xid = xid
        """The XID of the request; submit again with it."""


class NothingHappened(SubmitError):
    """The request has no effect at any site, and nothing that a site knows of can have one later, whoever began it.

    Raised only where the MIPTs of all sites were read (or nobody else can know the XID), after what this call had
    prepared was rolled back, and no instance of the family is left; a sweeper finishes nothing then. The same XID can
    be submitted again: it then runs as if for the first time.
    """


class KeyReused(NothingHappened):
    """The XID belongs to another request, which is decided: another payload or another transaction.

    This request has no effect and cannot have one under this XID. As long as the other one is not decided it is
    `Unknown`: this one may yet run.
    """


class Cancelled(NothingHappened):
    """The family was resolved as cancelled (`App.resolve`): under this XID nothing has happened, and nothing will.

    `unfinished` sites (they are down) do not know yet: what is prepared there stays locked until any `submit` or
    `resolve` with this XID gets through.
    """

    def __init__(self, message: str, *, xid: str | None = None, unfinished: tuple[str, ...] = ()) -> None:
        super().__init__(message, xid=xid)
        self.unfinished = unfinished


class Refused(NothingHappened):
    """The handler has refused the request (`Refuse`): under this XID nothing has happened, and nothing will.

    `result` is what it has refused it with; it is final. `unfinished` sites (they are down) do not know yet: what is
    prepared there stays locked until any `submit` or `resolve` with this XID gets through.
    """

    def __init__(self, message: str, *, xid: str | None = None, result: Any, unfinished: tuple[str, ...] = ()) -> None:
        super().__init__(message, xid=xid)
        self.result = result
        self.unfinished = unfinished


class Decided(SubmitError):
    """The request is decided and takes effect exactly once; `result` is what every retransmission returns.

    The winner is prepared at every site, and known, but could not be committed at all of `unfinished` yet (a site is
    down). What it wrote there stays locked until any `submit` or `resolve` with this XID, by anybody, gets through.
    """

    def __init__(self, message: str, *, xid: str, result: Any, unfinished: tuple[str, ...]) -> None:
        super().__init__(message, xid=xid)
        self.result = result
        self.unfinished = unfinished


class Expired(SubmitError):
    """The XID is acknowledged, or older than the retention: its result is gone, and it never runs again.

    This call had no effect. Whether an earlier one took effect is not known here any more.
    """


class Unknown(SubmitError):
    """The request may have taken effect or may still do so. Safe to submit again with the same XID, to any server.

    Raised where a site could not be reached, where an instance may be prepared, where a sibling of another server is
    or may be on its way, where what its session has been told before could not be committed, or this could not be
    remembered for it, and where something unexpected happens.
    """


class ProtocolViolation(Unknown):
    """The MIPTs contradict each other: a bug, a site that lost a prepare, or a hand-made COMMIT PREPARED.

    Repeating the request is harmless but will not help: an operator has to look at `mip.instances` of every site.
    """


class EarlierLost(Unknown):
    """Sites have lost earlier requests of the same session, which this session was told had taken effect. This call has
    begun nothing.

    The text names all that are known to be lost at this request's sites by now, each with its XID and site; the session
    is told of each of them once: the same request, submitted again, runs on what is there. So whoever repeats what is
    Unknown by himself should not repeat this without having looked.
    """


class SiteDown(psycopg.OperationalError):
    """A site cannot be connected to, or could not a moment ago. Comes as `__cause__` of one of the above.

    As soon as one connection has failed, everybody is told at once, until one has succeeded again.
    """

    def __init__(self, message: str, *, site: str, seconds: float) -> None:
        super().__init__(message)
        self.site = site
        self.seconds = seconds
        """For how long the site has been known to be down."""
