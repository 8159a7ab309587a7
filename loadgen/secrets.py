"""Keeping keys out of files, logs, metrics, error texts and command lines.

A `Redactor` knows the secret values of a run and strikes them out of any text; three functions
clean what may carry secrets by its form: URLs, command lines and configurations. It stores nothing.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, unquote_plus, urlencode, urlsplit, urlunsplit

STRUCK: Final = "***"
_MIN_SECRET_CHARS: Final = 4
"""Shorter values are no secrets, and striking them would shred every text."""

_SECRET_WORD = re.compile(r"key|token|secret|sig|pass|auth|code|credential", re.IGNORECASE)
_URL_WORD: Final = re.compile(r"((?:[\w.-]+=)*)(\w+://.*)", re.DOTALL)
"""A URL, perhaps behind `--flag=` and `name=`; what follows is its own, other URLs included."""
_MOVES: Final = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")
_SECRET_FLAGS: Final = ("--api-key", "--header", "--extra-body")


class Redactor:
    """Strikes known secrets out of texts."""

    def __init__(self, secrets: Iterable[str | None]) -> None:
        known = {secret for secret in secrets if secret and len(secret) >= _MIN_SECRET_CHARS}
        longest_first = sorted(known, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if known else None

    def strike(self, text: str) -> str:
        return self._pattern.sub(STRUCK, text) if self._pattern else text

    def excerpt(self, text: str, most: int) -> str:
        """At most so many characters of the text, in one line, from which no cut and no change has
        hidden a secret."""
        struck = one_line(self.strike(text))
        return struck if len(struck) <= most else f"{struck[: most - 1]}…"


def one_line(text: str) -> str:
    """The text in one line, without what moves a terminal or turns its letters about."""
    return _MOVES.sub("\ufffd", " ".join(text.split()))


def secrets_of_headers(headers: dict[str, str]) -> list[str]:
    """Values that must not be shown; `Bearer KEY` gives KEY as well."""
    values = []
    for value in headers.values():
        values += [value, *value.split()[-1:]]
    return values


def secrets_of_url(url: str) -> list[str]:
    """What `clean_url` strikes: user, password, and query values whose name smells of a secret; as
    they stand there, as they are meant, and as they are sent."""
    parts = urlsplit(url)
    found = [parts.username, parts.password]
    for pair in parts.query.split("&"):
        name, _, value = pair.partition("=")
        if _SECRET_WORD.search(unquote_plus(name)):
            found.append(value)
    known = [secret for secret in found if secret]
    known += [meant for secret in known for meant in (unquote(secret), unquote_plus(secret))]
    if (sent := basic_auth(url)) is not None:
        known += secrets_of_headers({"authorization": sent})
    return list(dict.fromkeys(known))


def basic_auth(url: str) -> str | None:
    """The header that a URL's user and password stand for (RFC 7617); None where it has none."""
    parts = urlsplit(url)
    if parts.username is None and parts.password is None:
        return None
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return f"Basic {b64encode(pair.encode()).decode()}"


def secrets_of_body(fields: Any, *, is_secret: bool = False) -> list[str]:
    """Texts and numbers of extra body fields at or below a name that smells of a secret, however
    deep; with `is_secret`, all of them."""
    found: list[str] = []
    if isinstance(fields, Mapping):
        for key, value in fields.items():
            smells = is_secret or _SECRET_WORD.search(str(key)) is not None
            found += secrets_of_body(value, is_secret=smells)
    elif isinstance(fields, list | tuple):
        for value in fields:
            found += secrets_of_body(value, is_secret=is_secret)
    elif is_secret and isinstance(fields, str | int | float) and not isinstance(fields, bool):
        found.append(str(fields))
    return found


def secrets_of_requests(
    base_urls: Iterable[str], headers: dict[str, str], extra_body: Any
) -> list[str]:
    """Everything that requests carry and that must not be shown, but the key itself."""
    found = [*secrets_of_headers(headers), *secrets_of_body(extra_body)]
    return found + [secret for url in base_urls for secret in secrets_of_url(url)]


def clean_url(url: str) -> str:
    """The URL without its password, and without query values whose name smells of a secret; one
    that has neither as it is."""
    parts = urlsplit(url)
    has_secrets = "@" in parts.netloc or bool(_SECRET_WORD.search(unquote_plus(parts.query)))
    if not has_secrets and not parts.fragment:
        return url
    host = parts.netloc.rpartition("@")[2]
    netloc = f"{STRUCK}@{host}" if "@" in parts.netloc else host
    query = [
        (key, STRUCK if _SECRET_WORD.search(key) else value)
        for key, value in parse_qsl(parts.query, keep_blank_values=True)
    ]
    return urlunsplit((parts.scheme, netloc, parts.path, urlencode(query, safe="*"), ""))


def clean_command(words: Sequence[str], redactor: Redactor) -> tuple[str, ...]:
    """A command line fit for a report: values of secret flags and known secrets are struck out."""
    cleaned: list[str] = []
    strike_values = False
    for word in words:
        if word.startswith("--"):
            flag, separator, _ = word.partition("=")
            strike_values = flag in _SECRET_FLAGS and not separator
            if flag in _SECRET_FLAGS and separator:
                word = f"{flag}={STRUCK}"
        elif strike_values:
            word = STRUCK
        if url := _URL_WORD.match(word):
            word = url[1] + clean_url(url[2])
        cleaned.append(redactor.strike(word))
    return tuple(cleaned)


def clean_config(content: Mapping[str, Any], redactor: Redactor) -> dict[str, Any]:
    """A run's configuration (the JSON of `RunConfig`, whole or in part) fit to be kept.

    Struck out are secrets in URLs, all values of headers and extra fields, and known secrets in
    what a user wrote for people to read. All else is settings, which a reader needs whole.
    """
    cleaned = dict(content)
    if "targets" in content:
        cleaned["targets"] = [
            {**target, "base_url": clean_url(target["base_url"])} for target in content["targets"]
        ]
    if request := dict(content.get("request") or {}):
        for name in ("header", "extra_body"):
            if fields := request.get(name):
                is_named = isinstance(fields, Mapping)
                request[name] = dict.fromkeys(fields, STRUCK) if is_named else STRUCK
        cleaned["request"] = request
    if output := dict(content.get("output") or {}):
        if output.get("label"):
            output["label"] = redactor.strike(output["label"])
        if isinstance(output.get("metadata"), Mapping):
            output["metadata"] = struck_pairs(output["metadata"], redactor)
        cleaned["output"] = output
    return cleaned


def struck_pairs(pairs: Mapping[str, str], redactor: Redactor) -> dict[str, str]:
    """Without known secrets, in names and in values."""
    return {redactor.strike(name): redactor.strike(value) for name, value in pairs.items()}
