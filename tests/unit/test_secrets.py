"""Keys stay out of texts, URLs and command lines."""

from __future__ import annotations

import json
import string
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.secrets import (
    STRUCK,
    Redactor,
    basic_auth,
    clean_command,
    clean_config,
    clean_url,
    one_line,
    secrets_of_body,
    secrets_of_headers,
    secrets_of_url,
)

KEY = "sk-canary-0123456789"
keys = st.text(string.ascii_letters + string.digits + "-_.~+", min_size=4, max_size=40)
texts = st.text(st.characters(exclude_characters="*", exclude_categories=("Cs",)))


def cleaned(*words: str, known: tuple[str, ...] = ()) -> str:
    return " ".join(clean_command(words, Redactor(known)))


def test_a_known_secret_is_struck_out_everywhere() -> None:
    """Each place where the secret stands is struck, and the rest stays."""
    redactor = Redactor([KEY])
    assert redactor.strike(f"a {KEY} b{KEY}c") == f"a {STRUCK} b{STRUCK}c"
    assert redactor.strike("nothing here") == "nothing here"


def test_no_secrets_change_nothing() -> None:
    """Without a secret, with an empty one or one too short to be one, texts stay."""
    for redactor in (Redactor([]), Redactor([None, ""]), Redactor(["abc"])):
        assert redactor.strike("abc *** abc") == "abc *** abc"


def test_the_longer_of_two_secrets_goes_first() -> None:
    """A secret that holds another is struck whole."""
    assert Redactor(["abcd", "abcdefgh"]).strike("xabcdefghx abcd") == f"x{STRUCK}x {STRUCK}"


def test_a_secret_is_no_pattern() -> None:
    """Characters that mean something in patterns are plain characters in a secret."""
    assert Redactor(["a.c+("]).strike("abcc( a.c+(") == f"abcc( {STRUCK}"


@given(secrets=st.lists(keys, min_size=1, max_size=4), parts=st.lists(texts, max_size=6))
def test_no_secret_survives_in_a_text(secrets: list[str], parts: list[str]) -> None:
    """Wherever secrets stand in a text, none is left in it."""
    text = secrets[0] + "".join(part + secrets[n % len(secrets)] for n, part in enumerate(parts))
    struck = Redactor(secrets).strike(text)
    assert not [secret for secret in secrets if secret in struck]


def test_header_values_are_secrets() -> None:
    """The value is one, and so is the key after its scheme."""
    found = secrets_of_headers({"Authorization": f"Bearer {KEY}", "X-Key": "other"})
    assert {f"Bearer {KEY}", KEY, "other"} <= set(found)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h:1/v1", "http://h:1/v1"),
        ("https://user:pw@h/v1", "https://***@h/v1"),
        ("https://token@h/v1", "https://***@h/v1"),
        ("https://user:p@ss@h/v1", "https://***@h/v1"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
        ("http://u:p@[::1]:8000", "http://***@[::1]:8000"),
        ("https://h/?api-key=K", "https://h/?api-key=***"),
        ("https://h/?api_key=K&api-version=2024-10-21", "https://h/?api_key=***&api-version=2024-10-21"),
        ("https://h/?sig=K&code=K&access_token=K", "https://h/?sig=***&code=***&access_token=***"),
        ("https://h/?KEY=K", "https://h/?KEY=***"),
        ("https://h/#fragment", "https://h/"),
    ],
)  # fmt: skip
def test_urls(url: str, expected: str) -> None:
    """Passwords and secret query values go; host, path and what is harmless stay."""
    assert clean_url(url) == expected


def test_a_urls_secrets_are_known_in_every_form() -> None:
    """As written, as meant, and as they are sent."""
    url = "http://us%40er:p%40ss%2Fword@h:1/v1?api_key=sk%2Fabc%2Bdef&a=plain&token=one+two"
    known = secrets_of_url(url)
    for secret in (
        "p%40ss%2Fword",
        "p@ss/word",
        "us@er",
        "sk%2Fabc%2Bdef",
        "sk/abc+def",
        "one two",
    ):
        assert secret in known
    assert basic_auth(url) == "Basic dXNAZXI6cEBzcy93b3Jk"
    assert {"Basic dXNAZXI6cEBzcy93b3Jk", "dXNAZXI6cEBzcy93b3Jk"} <= set(known)
    assert "plain" not in known
    assert basic_auth("http://h/v1?api_key=x") is None


@given(
    key=keys,
    name=st.sampled_from(["key", "api-key", "token", "access_token", "sig", "password", "secret"]),
    more=st.booleans(),
)
def test_no_secret_survives_in_a_url(key: str, name: str, more: bool) -> None:
    """A secret is not in the cleaned URL, neither as it is nor quoted."""
    key = f"{key}<{key}>"
    quoted = quote(key, safe="")
    other = "a=b&" if more else ""
    for url in (
        f"https://user:{quoted}@h/v1",
        f"https://{quoted}@h:8/v1",
        f"https://h/v1?{other}{name}={quoted}",
        f"https://u:{quoted}@h/v1?{name}={quoted}&{other}",
    ):
        shown = clean_url(url)
        assert key not in shown
        assert quoted not in shown


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--api-key", KEY), "--api-key ***"),
        ((f"--api-key={KEY}",), "--api-key=***"),
        (("--header", f"Authorization=Bearer {KEY}"), "--header ***"),
        (("--header", "A=1", f"B={KEY}", "--json"), "--header *** *** --json"),
        ((f"--header=Authorization=Bearer {KEY}",), "--header=***"),
        (("--extra-body", f'{{"key":"{KEY}"}}'), "--extra-body ***"),
        (("--base-url", f"https://u:{KEY}@h/v1"), "--base-url https://***@h/v1"),
        ((f"--base-url=https://u:{KEY}@h/v1",), "--base-url=https://***@h/v1"),
        (("--target", f"vllm=https://u:{KEY}@h/v1"), "--target vllm=https://***@h/v1"),
        ((f"--target=vllm=https://u:{KEY}@h/v1",), "--target=vllm=https://***@h/v1"),
        (("--base-url", f"https://h/v1?api-key={KEY}"), "--base-url https://h/v1?api-key=***"),
        (("--api-key-env", "MY_KEY"), "--api-key-env MY_KEY"),
        (("run", "t.jsonl", "--label", "a=b"), "run t.jsonl --label a=b"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_command_lines(words: tuple[str, ...], expected: str) -> None:
    """Values of secret flags and secrets in URLs are struck out; all else stays readable."""
    assert cleaned(*words) == expected


def test_known_secrets_are_struck_in_every_word() -> None:
    """A secret that stands where none belongs is struck as well."""
    assert cleaned("--label", f"x{KEY}", "--metadata", f"k={KEY}", known=(KEY,)) == (
        "--label x*** --metadata k=***"
    )


@pytest.mark.parametrize(
    "url",
    [
        f"https://h/v1?api-key={KEY}&upstream=https://other",
        f"https://u:{KEY}@h/v1?next=http://x",
        f"https://h/v1?next=http://x&api-key={KEY}",
    ],
)
@pytest.mark.parametrize(
    "form", ["--base-url {}", "--base-url={}", "--target a={}", "--target=a={}"]
)
def test_a_url_in_a_url_hides_no_secret(url: str, form: str) -> None:
    """A query that holds another URL does not keep the first one from being cleaned."""
    assert KEY not in cleaned(*form.format(url).split(" "))


@given(key=keys, split=st.booleans())
def test_no_secret_survives_in_a_command_line(key: str, split: bool) -> None:
    """Wherever a key stands in a command line, it is not in the cleaned one."""
    key = f"K{key}K{key}"
    pairs = [
        ("--api-key", key),
        ("--header", f"Authorization=Bearer {key}"),
        ("--extra-body", f'{{"k":"{key}"}}'),
        ("--base-url", f"https://u:{key}@h/v1?token={key}"),
        ("--target", f"a=https://{key}@h"),
    ]
    words = [w for flag, value in pairs for w in ((flag, value) if split else (f"{flag}={value}",))]
    assert key not in cleaned(*words)


def test_a_configuration_is_kept_without_secrets() -> None:
    """Free texts, URLs, headers and further fields lose them; settings stay what they were."""
    redactor = Redactor([KEY, "open"])
    content = {
        "targets": [{"name": "open", "base_url": f"https://u:{KEY}@h/v1"}],
        "load": {"pace": "open"},
        "request": {"header": {"X-Key": KEY}, "extra_body": {"deep": {"a": KEY}}, "model": "m"},
        "output": {"label": f"with {KEY}", "metadata": {KEY: "open"}, "goodput": {"ttft": 500}},
    }
    before = json.dumps(content)
    cleaned = clean_config(content, redactor)
    assert KEY not in json.dumps(cleaned)
    assert cleaned["load"] == {"pace": "open"}
    assert cleaned["targets"] == [{"name": "open", "base_url": "https://***@h/v1"}]
    assert cleaned["request"] == {
        "header": {"X-Key": "***"},
        "extra_body": {"deep": "***"},
        "model": "m",
    }
    assert cleaned["output"]["metadata"] == {"***": "***"}
    assert cleaned["output"]["goodput"] == {"ttft": 500}
    assert json.dumps(content) == before
    assert clean_config({}, redactor) == {}


def test_secrets_of_a_body_are_found_however_deep() -> None:
    """In lists and below a name that smells, numbers too; what smells of nothing stays."""
    body = {"a": [{"api_key": "k-1234"}], "auth": {"x": ["k-5678", 123456]}, "mode": "plain"}
    assert secrets_of_body(body) == ["k-1234", "k-5678", "123456"]
    assert secrets_of_body(None) == []


def test_a_servers_text_moves_no_terminal() -> None:
    """Control characters and turns of direction go; letters of every script stay, joiners too."""
    shown = Redactor([]).excerpt("no\x1b[2J\x1b]0;owned\x07 model\u202e\n of\tit", 100)
    assert shown == "no\ufffd[2J\ufffd]0;owned\ufffd model\ufffd of it"
    for text in (
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\u6a21\u578b",
        "\U0001f469\u200d\U0001f467",
        "caf\u00e9",
    ):
        assert one_line(text) == text
