"""HTTP: transactions as resources of their own, or the endpoints of an existing application as transactions.

**A resource per transaction.** `asgi(app)` is an application to serve, with `POST /TRANSACTION`; the header
`Idempotency-Key` is the XID (unique over all transactions: requests over sites of which none is the same would not
notice that they share one), the body is the request (JSON), the answer its result::

    # uvicorn shop:server
    server = pgmip.http.asgi(app)

Every retransmission, to any server, gets the same bytes. `pgmip.Client` sends them. An answer that another transmission
has come to, be it minutes ago or beside this one, has the header `Idempotency-Replayed: true`.

======  =====================================================================================
Status  Meaning for the request
======  =====================================================================================
200     It has taken effect, exactly once (also where a site is still to be told).
400     No `Idempotency-Key`, or not a usable one, or the body is not JSON. Not taken.
404     There is no such transaction. Not taken.
410     It has been cancelled by an operator: nothing happened, and nothing will. Or its result
        is gone, since it was acknowledged or is older than the retention.
422     Refused by its handler (`refused`; its result is the member `result`): it has no effect, and
        never will. Or the key belongs to another request, which is decided (`key-reused`): this
        one has no effect.
424     A site has lost an earlier request of the same session that had been answered (`lost`): told
        once, and this request has not begun. Only with early answers and `identity`.
500     The transaction failed and has no effect, unless the request is sent anew.
503     The outcome is open: send the same request again, to any server (`Retry-After`).
======  =====================================================================================

What is "not taken", or has "no effect", is so by all that a site knows of. An earlier transmission of the same request
that has not been answered may still be on its way, and take effect: until it is answered the outcome is open. `Client`
heeds that.

`POST /-/acknowledge` with `{"xids": [...]}` says that these results have arrived and will not be asked for again (see
`App.acknowledge`); the answer `{"open": [...]}` names those that could not be acknowledged. Who knows an XID may
send it: what is not a secret among the clients does not belong here.

**Endpoints as transactions.** `IdempotencyMiddleware` goes around any ASGI application (Starlette, FastAPI, ...) and
follows draft-ietf-httpapi-idempotency-key-header. The endpoint reaches the sites through `tx(request)`::

    async def order(request):
        store = pgmip.http.tx(request).store
        row = await store.fetch_one("INSERT INTO orders ... RETURNING o_id", (...,))
        return JSONResponse({"order": row.o_id}, 201)

    service = Starlette(routes=[Route("/orders", order, methods=["POST"])])
    service.add_middleware(
        pgmip.http.IdempotencyMiddleware,
        mip=app,
        endpoints=[pgmip.http.Endpoint("/orders", sites=("store", "bank"))],
        scope=lambda scope: scope["user"].username,
    )

- The endpoint runs once per attempt, perhaps at several servers at a time, and one attempt takes effect. Its response
  (status, headers in their order, body) is recorded with it, and is what everybody gets. Not recorded are `Date` and
  the hop-by-hop headers: those of `NOT_RECORDED`, and what `Connection` names. `Content-Length` is added. What outer
  middleware adds to a response is not part of it; nor is `Idempotency-Replayed`, as above.
- What has been written stays or goes by the response's status, whether that is returned or raised (`HTTPException`),
  since it is all that a middleware sees:

  ===============================  ===========  ========  ==========================================
  Endpoint                         Its writes   Recorded  The next request with the key
  ===============================  ===========  ========  ==========================================
  answers with less than 400       committed    yes       gets the same answer
  answers with 4xx, but for these  rolled back  yes       gets the same answer
  ... 401, 403, 407, 408, 422,     rolled back  no        runs, with another body if need be
  425, 429
  raises `pgmip.Refuse(result)`    rolled back  yes       gets the same answer: 422, `refused`
  answers with 5xx, or raises      rolled back  no        runs
  anything else
  ===============================  ===========  ========  ==========================================

  So a body that is not valid (422 with FastAPI) may be corrected, and sent again with its key. `statuses` makes other
  exceptions: `{402: "commit"}`. What is raised and answered by nobody goes to the server, as without the middleware.
- What a framework does behind the response (background tasks) belongs to the attempt, and delays the response.
- The middleware sees whole bodies: of requests up to `max_body`, and of responses. The client going away is not told
  to the endpoint; the request goes on.
- A retransmission has the same identity, path, query, body, `Content-Type` and `Content-Encoding`, byte for byte (a
  form in parts also the same boundary); else it is 422. All of them, and the response, are kept at every site until
  the retention passes or somebody acknowledges them. Other headers are there for the first server only.
- Where nobody retransmits, a sweeper repeats the request from its record, inside this process, in a server whose
  middleware is set up. Such a repetition has no credentials, so authenticate outside of this middleware and restore
  what the endpoint needs with `restore`: a repetition that is answered with 401, 403 or 407 is not recorded.
- Statuses of its own: 400 without a usable key, 409 while the first request with the key is running in this process
  (with `concurrent="refuse"`, and with `"join"` for another request) and may yet succeed, 413, and 410, 422, 424, 500
  and 503 as above.

Both take a `pgmip.sync.App` as well. With that a resource's handler is a plain function, as always; and so should an
endpoint be, since its `tx(request)` is a `pgmip.sync.Tx`: a framework runs it in a thread then.

All errors are `application/problem+json` (RFC 9457), whose `type` is `urn:pgmip:problem:` and one of `key-missing`,
`key-invalid`, `bad-request`, `no-such-transaction`, `in-progress`, `cancelled`, `expired`, `too-large`, `key-reused`,
`refused`, `lost`, `failed`, `unknown` and `protocol-violation`: statuses alone do not tell them apart. Their `detail`
has nothing of an exception's text, which quotes rows, hosts and paths, but with `debug=True`, for development. The text
goes to the log, with the XID and the key: a record of the logger `pgmip.http` for each 424, 500 and 503.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ._extra import needed_for
from ._json import canonical, parse
from ._key import key_of
from ._middleware import Concurrent, Effect, Endpoint, IdempotencyMiddleware, identity, tx
from ._problem import RETRY_AFTER, Kind, Problem, log_failure
from ._recorded import NOT_RECORDED, REPLAYED
from ._text import described
from ._twin import AnyApp, inner, within
from .exceptions import Refused, SubmitError, Unknown
from .tracing import continued

if TYPE_CHECKING:  # what needs no framework shall work without one
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

__all__ = [
    "MOST_ACKNOWLEDGED",
    "NOT_RECORDED",
    "REPLAYED",
    "RETRY_AFTER",
    "Concurrent",
    "Effect",
    "Endpoint",
    "IdempotencyMiddleware",
    "asgi",
    "identity",
    "routes",
    "tx",
]

MOST_ACKNOWLEDGED = 1000
"""XIDs in one acknowledgement."""


def routes(app: AnyApp, *, debug: bool = False) -> list[BaseRoute]:
    """The routes `POST /{transaction}` and `POST /-/acknowledge`, to be mounted in a Starlette application of your own.
    `debug`: tell clients the texts of exceptions, which quote rows and addresses: for development.

    Needs starlette (extra `http`).
    """
    with needed_for("pgmip.http.routes", "http"):
        from starlette.routing import Route

    async def post(request: Request) -> Response:
        with continued(request.headers):
            return await _respond(_submit(app, request, debug=debug))

    async def acknowledge(request: Request) -> Response:
        return await _respond(_acknowledge(app, request))

    return [
        Route("/{transaction}", post, methods=["POST"]),
        Route("/-/acknowledge", acknowledge, methods=["POST"]),
    ]


def asgi(app: AnyApp, *, debug: bool = False) -> Starlette:
    """An ASGI application with those routes, which closes `app` at shutdown. Needs starlette (extra `http`)."""
    with needed_for("pgmip.http.asgi", "http"):
        from starlette.applications import Starlette

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with app:
            yield

    return Starlette(routes=routes(app, debug=debug), lifespan=lifespan)


class _Failed(Exception):
    """There is no result; the problem says why."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem


async def _respond(work: Awaitable[Response]) -> Response:
    try:
        return await work
    except _Failed as failed:
        return _response_of(failed.problem)


def _response_of(problem: Problem) -> Response:
    from starlette.responses import Response

    return Response(problem.body, problem.status, dict(problem.headers))


def _json_response(value: Any) -> Response:
    from starlette.responses import Response

    return Response(canonical(value), media_type="application/json")


async def _submit(app: AnyApp, request: Request, *, debug: bool) -> Response:
    name = request.path_params["transaction"]
    if name not in app.transactions:
        raise _Failed(Problem(Kind.NO_SUCH_TRANSACTION, f"there is no transaction {name!r}"))
    key = key_of(request.headers.getlist("idempotency-key"))
    if isinstance(key, Problem):
        raise _Failed(key)
    body = await _json(request, key)
    try:
        answer = await within(app, inner(app)._answer(name, body, xid=key))
    except SubmitError as error:
        log_failure(error, key, key)
        raise _Failed(Problem.of(error, key, debug=debug)) from error
    except ValueError as error:
        raise _Failed(Problem(Kind.BAD_REQUEST, str(error), key)) from error
    except Exception as error:  # nobody has foreseen it: an earlier transmission may have taken effect
        log_failure(error, key, key)
        unknown = Unknown(f"something unexpected has happened: {described(error)}", xid=key)
        raise _Failed(Problem.of(unknown, key, debug=debug)) from error
    if isinstance(answer.error, Refused):
        response = _response_of(Problem.of(answer.error, key))
    else:
        response = _json_response(answer.result)
    if answer.replayed:
        response.headers[REPLAYED] = "true"
    return response


async def _acknowledge(app: AnyApp, request: Request) -> Response:
    """One after another: this is nothing that anybody waits for."""
    body = await _json(request)
    xids = body.get("xids") if isinstance(body, dict) else None
    if not isinstance(xids, list) or len(xids) > MOST_ACKNOWLEDGED or not all(isinstance(xid, str) for xid in xids):
        raise _Failed(Problem(Kind.BAD_REQUEST, f'needs {{"xids": [...]}} with at most {MOST_ACKNOWLEDGED} of them'))
    still_open = []
    for xid in xids:
        try:
            await within(app, inner(app).acknowledge(xid))
        except (SubmitError, ValueError):  # also for what cannot be an XID: the others shall not wait for it
            still_open.append(xid)
    return _json_response({"open": still_open})


async def _json(request: Request, key: str | None = None) -> Any:
    from starlette.requests import ClientDisconnect

    try:
        return parse((await request.body()).decode())
    except ClientDisconnect:  # every day's business, where clients ask several servers: not worth a traceback
        raise _Failed(Problem(Kind.BAD_REQUEST, "the client left before the end of the body", key)) from None
    except ValueError as error:
        raise _Failed(Problem(Kind.BAD_REQUEST, f"the body is not JSON: {error}", key)) from None
