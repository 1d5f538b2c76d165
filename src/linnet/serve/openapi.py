"""The OpenAPI document of the server, from the same records that requests are read with."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from linnet import __version__
from linnet.serve import objects
from linnet.serve.schema import ChatBody, CompletionBody

_REF = "#/components/schemas/{model}"
_ANSWERS = (
    objects.TextCompletion,
    objects.ChatCompletion,
    objects.ChatChunk,
    objects.Model,
    objects.Models,
    objects.Error,
)
_WRONG = {
    400: "A field is wrong or not supported; `param` names it.",
    401: "The key is missing or wrong.",
    404: "There is no such model.",
    408: "The body took too long.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "The queue is full; Retry-After says when to come again.",
    500: "A bug of the server.",
    503: "The engine has failed, or the server is shutting down.",
    504: "The answer took too long.",
}


def document() -> dict[str, Any]:
    """The document."""
    _, bodies = models_json_schema(
        [(CompletionBody, "validation"), (ChatBody, "validation")], ref_template=_REF
    )
    schemas: dict[str, Any] = bodies["$defs"]
    for kind in _ANSWERS:
        made = TypeAdapter(kind).json_schema(ref_template=_REF)
        schemas |= made.pop("$defs", {})
        schemas[kind.__name__] = made
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Linnet",
            "version": __version__,
            "description": "OpenAI's API for a model that `linnet serve` runs.",
        },
        "paths": {
            "/v1/completions": {"post": _asks("CompletionBody", "TextCompletion", "a text")},
            "/v1/chat/completions": {
                "post": _asks("ChatBody", "ChatCompletion", "the next message of a conversation")
            },
            "/v1/models": {"get": _gets("The served model.", "Models", 401)},
            "/v1/models/{id}": {
                "get": {
                    **_gets("The served model, by its name.", "Model", 401, 404),
                    "parameters": [
                        {
                            "name": "id",
                            "in": "path",
                            "required": True,
                            "schema": {"type": "string"},
                        }
                    ],
                }
            },
            "/health": {"get": _gets("Whether requests are taken.", None, 503)},
            "/metrics": {"get": _gets("Counts, for Prometheus.", None, 401, kind="text/plain")},
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _asks(body: str, answer: str, what: str) -> dict[str, Any]:
    events = {"schema": {"type": "string", "description": "Server-sent events, then [DONE]."}}
    return {
        "summary": f"Generate {what}.",
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _ref(body)}},
        },
        "responses": {
            "200": {
                "description": "The answer; with `stream`, its chunks.",
                "content": {
                    "application/json": {"schema": _ref(answer)},
                    "text/event-stream": events,
                },
            },
            **_errors(*_WRONG),
        },
    }


def _gets(
    what: str, answer: str | None, *errors: int, kind: str = "application/json"
) -> dict[str, Any]:
    schema = {} if answer is None else _ref(answer)
    return {
        "summary": what,
        "responses": {
            "200": {"description": what, "content": {kind: {"schema": schema}}},
            **_errors(*errors),
        },
    }


def _errors(*statuses: int) -> dict[str, Any]:
    return {
        str(status): {
            "description": _WRONG[status],
            "content": {"application/json": {"schema": _ref("Error")}},
        }
        for status in statuses
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
