"""Which targets may be asked: names, networks, ports, and addresses that never may."""

from __future__ import annotations

import pytest

from loadgen.client.allowed import Allowed
from loadgen.errors import ConfigError


def allows(text: str, host: str, port: int, *addresses: str) -> bool:
    return Allowed(text).problem(host, port, addresses) is None


@pytest.mark.parametrize(
    "address",
    [
        *("169.254.169.254", "169.254.1.1", "0.0.0.0", "0.1.2.3", "224.0.0.1", "255.255.255.255"),
        *("240.0.0.1", "100.100.100.200", "::", "fe80::1", "fe80::1%eth0", "ff02::1", "fec0::1"),
        *("fd00:ec2::254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1"),
        *("::169.254.169.254", "168.63.129.16", "64:ff9b:1::a9fe:a9fe", "2001:0:1::5601:5601"),
        *("::ffff:0:a9fe:a9fe", "fd00:42::42"),
    ],
)
@pytest.mark.parametrize("text", ["any", "*.example.com, 0.0.0.0/0, ::/0, llm.example.com"])
def test_some_addresses_never(text: str, address: str) -> None:
    """Metadata, link-local, multicast, unspecified, and wrapped ones, whatever is listed."""
    assert not allows(text, "llm.example.com", 80, address)
    assert not allows(text, "llm.example.com", 80, "192.0.2.1", address)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.0.0.1", "192.0.2.1", "2001:db8::1"])
def test_any_is_any_other(address: str) -> None:
    """Loopback, private and public ones are targets like others."""
    assert allows("any", "h", 80, address)


@pytest.mark.parametrize(
    ("text", "host", "port", "address", "expected"),
    [
        ("a.example", "a.example", 80, "192.0.2.1", True),
        ("a.example", "A.EXAMPLE.", 80, "192.0.2.1", True),
        ("a.example", "b.a.example", 80, "192.0.2.1", False),
        ("a.example", "xa.example", 80, "192.0.2.1", False),
        ("*.example", "b.a.example", 80, "192.0.2.1", True),
        ("*.example", "example", 80, "192.0.2.1", False),
        ("a.example:443", "a.example", 443, "192.0.2.1", True),
        ("a.example:443", "a.example", 80, "192.0.2.1", False),
        ("10.0.0.0/8", "h", 80, "10.1.2.3", True),
        ("10.0.0.0/8", "h", 80, "11.1.2.3", False),
        ("10.1.2.3:8000", "10.1.2.3", 8000, "10.1.2.3", True),
        ("10.1.2.3:8000", "10.1.2.3", 8001, "10.1.2.3", False),
        ("[2001:db8::]/32", "h", 80, "2001:db8::5", True),
        ("[2001:db8::5]:81", "h", 80, "2001:db8::5", False),
        ("2001:db8::/32", "h", 80, "2001:db9::5", False),
        ("b.example 10.0.0.0/8,a.example", "a.example", 80, "192.0.2.1", True),
        ("10.0.0.0/8", "h", 80, "::ffff:10.1.2.3", True),
    ],
)
def test_lists(text: str, host: str, port: int, address: str, expected: bool) -> None:
    """Names whole or by their end, addresses and networks, each with a port or without."""
    assert allows(text, host, port, address) is expected


def test_every_address_must_be_allowed() -> None:
    """A name with one address inside the list and one outside is refused; one without any, too."""
    assert not allows("10.0.0.0/8", "h", 80, "10.0.0.1", "192.0.2.1")
    assert not allows("10.0.0.0/8", "h", 80)
    assert allows("h", "h", 80)


@pytest.mark.parametrize(
    "text", ["", " , ", "a b/8", "a:0", "a:99999", "a:x", "http://a", "a/b", "*"]
)
def test_what_is_no_list(text: str) -> None:
    """One line says which word is wrong."""
    with pytest.raises(ConfigError, match="LOADGEN_ALLOWED_TARGETS"):
        Allowed(text)
