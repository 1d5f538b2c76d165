"""What a client is told of a request that is not answered, in the shape of OpenAI's API."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from linnet.serve.request import RequestError

log = logging.getLogger("linnet.serve")
INVALID = "invalid_request_error"
SERVER = "server_error"


class ApiError(Exception):
    """An answer that is an error: its HTTP status, and what the body says."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, dict[str, str | None]]:
        """The JSON body."""
        return {
            "error": {
                "message": self.message,
                "type": SERVER if self.status >= 500 else INVALID,
                "param": self.param,
                "code": self.code,
            }
        }


def report(what: str, error: Exception) -> None:
    """The server's own log says what went wrong, and with LINNET_DEBUG=1 where."""
    where = error if os.environ.get("LINNET_DEBUG") == "1" else None
    log.error("%s: %s: %s", what, type(error).__name__, error, exc_info=where)


def refused(error: RequestError, names: Mapping[str, str]) -> ApiError:
    """A request that the engine refuses; `names` has fields that the API calls otherwise."""
    return ApiError(400, str(error), names.get(error.field, error.field), "invalid_value")
