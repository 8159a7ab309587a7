"""An endpoint's URL from whatever base a user has at hand."""

from __future__ import annotations

import pytest

from loadgen.client.client import url_of
from loadgen.client.openai import CHAT, COMPLETIONS


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("http://h:1", "http://h:1/v1/chat/completions"),
        ("http://h:1/", "http://h:1/v1/chat/completions"),
        ("http://h:1/v1", "http://h:1/v1/chat/completions"),
        ("http://h:1/v1/", "http://h:1/v1/chat/completions"),
        ("http://h:1/v1/completions", "http://h:1/v1/chat/completions"),
        ("http://h:1/v1/chat/completions", "http://h:1/v1/chat/completions"),
        ("http://h:1/v1/models", "http://h:1/v1/chat/completions"),
        ("http://h/prefix", "http://h/prefix/v1/chat/completions"),
        ("http://h/openai/v1", "http://h/openai/v1/chat/completions"),
        ("http://h/api/paas/v4", "http://h/api/paas/v4/chat/completions"),
        ("http://h/v1beta/openai/", "http://h/v1beta/openai/chat/completions"),
        ("http://[::1]:8/v1", "http://[::1]:8/v1/chat/completions"),
        ("http://u:p@h/v1", "http://u:p@h/v1/chat/completions"),
        ("http://h/v1?api-version=1&a=b", "http://h/v1/chat/completions?api-version=1&a=b"),
        ("http://h?a=b", "http://h/v1/chat/completions?a=b"),
        ("http://h/v1#part", "http://h/v1/chat/completions"),
    ],
)
def test_the_url_of_an_endpoint(base: str, expected: str) -> None:
    """With or without a version, an endpoint or a query, the base gives the endpoint's URL."""
    assert url_of(base, CHAT) == expected
    assert url_of(base, COMPLETIONS) == expected.replace("/chat/completions", "/completions")
