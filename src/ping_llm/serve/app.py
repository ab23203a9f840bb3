"""The application: paths, errors and the OpenAPI document. `endpoints.py` and `views.py` answer."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

from ping_llm import __version__
from ping_llm.serve.endpoints import Endpoints
from ping_llm.serve.metrics import Metrics
from ping_llm.serve.model_thread import ModelThread
from ping_llm.serve.names import RequestNames
from ping_llm.serve.options import LIMITS, ServeOptions
from ping_llm.serve.reading import JSON, NDJSON
from ping_llm.serve.refusals import FAILED, ClientGone, Refused, refusal
from ping_llm.serve.requests import (
    CompleteBody,
    ContextText,
    InverseBody,
    RankBody,
    RttBody,
    ScoreBody,
    sentence,
)
from ping_llm.serve.site import add_page, docs_page
from ping_llm.serve.views import Views


class Refusal(BaseModel):
    """Reason why a request was refused."""

    error: str
    field: str | None
    request_id: str


#: Error responses of every path, for the OpenAPI document.
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"description": words, "model": Refusal}
    for status, words in {
        400: "The body is not JSON, or nested too deep.",
        401: "No token, or a wrong one.",
        408: "The body paused for too long.",
        413: "The body is too large.",
        415: "The Content-Type is not one of those listed.",
        421: "The Host header names another machine.",
        422: "A field is wrong.",
        500: "The server failed; its log says why.",
        503: "Too much is waiting: Retry-After says when to ask again.",
    }.items()
}


def create(thread: ModelThread, options: ServeOptions, metrics: Metrics) -> FastAPI:
    """Return the application, to be wrapped by `guard.Guard`."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for start in app.state.at_start:
            start()
        yield
        thread.close()

    # FastAPI's own /docs loads scripts from other servers.
    app = FastAPI(
        title="ping-llm", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan,
        description="Calibrated distributions of Internet latency.", responses=_REFUSALS,
        redirect_slashes=False,
    )  # fmt: skip
    app.state.at_start = []
    names = RequestNames(thread, options)
    endpoints, views = Endpoints(thread, options, names), Views(thread, options, names)
    for path, method, kind in (
        ("/v1/rtt", endpoints.rtt, RttBody),
        ("/v1/rank", endpoints.rank, RankBody),
        ("/v1/inverse", endpoints.inverse, InverseBody),
        ("/v1/complete", endpoints.complete, CompleteBody),
        ("/v1/score", endpoints.score, ScoreBody),
        ("/v1/context", views.context, ContextText),
    ):
        lists = kind in (RttBody, ScoreBody)
        app.post(path, openapi_extra=_described(kind, lists), summary=(kind.__doc__ or "").strip())(method)
    app.get("/v1/series", summary="RTTs of a pair over time, what was to be expected, and a forecast.")(
        views.series
    )
    app.get("/v1/map", summary="Expected RTTs from a source to the known destinations, with their places.")(
        views.map
    )
    app.get("/v1/ends", summary="Known sources, or destinations, that start with a text.")(views.ends)
    app.get("/v1/names", summary="The addresses or prefixes that a name stands for.")(views.names)
    app.get("/v1/model", summary="The model: card, calibration, what it was trained on.")(endpoints.model)

    @app.get("/healthz", summary="Whether the server runs.")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz", summary="Whether the model is loaded and compiled.")
    async def readyz() -> dict[str, str]:
        if not thread.ready:
            # This path needs no token, so it does not tell the error.
            failed = "the first question failed; the server's log has the reason"
            sentence = failed if thread.first_failed else "the first question is being compiled"
            raise Refused(503, sentence, retry_after=2)
        return {"status": "ok"}

    @app.get(
        "/metrics", summary="Metrics in the text format of Prometheus.", response_class=PlainTextResponse
    )
    async def metrics_text() -> Response:
        return Response(metrics.text(thread.waiting), media_type="text/plain; version=0.0.4")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(docs_page(app.openapi()), media_type="text/html; charset=utf-8")

    app.state.page = add_page(app)
    _describe_bodies(app)  # last: another path would make FastAPI write the document again
    _handle_errors(app)
    return app


def _handle_errors(app: FastAPI) -> None:
    """Answer all errors in the same form."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return _refusal(request, error)

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=499)  # only for the log: the client is gone

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        return _refusal(request, Refused(422, sentence([first]), ".".join(map(str, first["loc"][1:]))))

    async def unknown(request: Request, error: Exception) -> Response:
        return _refusal(request, Refused(404, "there is no such path: /docs lists them"))

    async def wrong_method(request: Request, error: Exception) -> Response:
        return _refusal(request, Refused(405, f"this path does not take {request.method[:16]}"))

    async def failed(request: Request, error: Exception) -> Response:
        # The error is raised again, and the guard logs it.
        return _refusal(request, Refused(500, FAILED))

    app.add_exception_handler(Refused, refused)
    app.add_exception_handler(ClientGone, gone)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(404, unknown)
    app.add_exception_handler(405, wrong_method)
    app.add_exception_handler(Exception, failed)


def _refusal(request: Request, refused: Refused) -> Response:
    body, headers = refusal(refused, request.state.request_id)
    return Response(body, refused.status, headers, JSON)


def _described(kind: type[BaseModel], lists: bool) -> dict[str, Any]:
    """Describe the request body of a path for the OpenAPI document."""
    one = {"$ref": f"#/components/schemas/{kind.__name__}"}
    several = {"type": "array", "maxItems": LIMITS.items, "items": one}
    content: dict[str, Any] = {JSON: {"schema": {"anyOf": [one, several]} if lists else one}}
    described: dict[str, Any] = {"requestBody": {"required": True, "content": content}}
    if lists:
        content[NDJSON] = {"schema": one}
        described["responses"] = {"200": {"content": {JSON: {}, NDJSON: {}}}}
    return described


def _describe_bodies(app: FastAPI) -> None:
    """Add the bodies to the OpenAPI document: the endpoints read them without FastAPI, within the limits."""
    schema = app.openapi()
    schemas = schema.setdefault("components", {}).setdefault("schemas", {})
    for kind in (RttBody, RankBody, InverseBody, CompleteBody, ScoreBody, ContextText):
        made = kind.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= made.pop("$defs", {})
        schemas[kind.__name__] = made
