"""What a client is told when its request cannot be served, in OpenAI's error JSON.

`ApiError` carries the status and the JSON's fields; nothing here knows how it is sent. Shapes and
type names follow vLLM's server, so that a client cannot tell the two apart by their errors.
"""

import json
from collections.abc import Mapping


class ApiError(Exception):
    """A refusal or failure with its HTTP status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "BadRequestError",
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """The JSON text of the error."""
        fields = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status,
        }
        # Escaped to ASCII: a message may quote what the client sent, broken surrogates included.
        return json.dumps({"error": fields}, separators=(",", ":")).encode()


def bad_request(message: str, param: str | None = None) -> ApiError:
    """400: the client's mistake, in the field `param`."""
    return ApiError(400, message, param=param)


def unavailable(message: str, retry_after_s: int = 1) -> ApiError:
    """503: the model cannot serve now."""
    return ApiError(
        503, message, kind="ServiceUnavailableError", headers={"Retry-After": str(retry_after_s)}
    )


def queue_full(limit: int) -> ApiError:
    """429: as many requests wait as may wait."""
    message = f"{limit} requests are waiting already; try again later"
    return ApiError(429, message, kind="RateLimitError", headers={"Retry-After": "1"})


def internal(message: str) -> ApiError:
    """500: the batch failed; not the client's mistake."""
    return ApiError(500, message, kind="InternalServerError")
