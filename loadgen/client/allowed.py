"""Which targets may be asked at all: names and addresses, where LOADGEN_ALLOWED_TARGETS is set.

`any` is every target but those that no load test has business with: link-local and metadata
addresses, multicast, unspecified and reserved ones. Otherwise it is a list, by commas or spaces, of
names (`llm.example.com`, `*.example.com`), addresses and networks (`10.0.0.0/8`, `[fd00::]/8`),
each with `:PORT` where only that port is meant. The service sets it for all of its runs; the
transport asks at every connect, so that a name that changes its address gains nothing. It resolves
no name.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from loadgen.errors import ConfigError

VARIABLE: Final = "LOADGEN_ALLOWED_TARGETS"
ANY: Final = "any"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NEVER: Final = tuple(
    ipaddress.ip_network(text)
    for text in """
    0.0.0.0/8 169.254.0.0/16 224.0.0.0/4 240.0.0.0/4 100.100.100.200/32 168.63.129.16/32
    192.0.0.192/32 ::/128 fe80::/10 fec0::/10 ff00::/8 2001::/32 64:ff9b:1::/48 ::ffff:0:0:0/96
    fd00:ec2::/32 fd20:ce::254/128 fd00:42::42/128
    """.split()
)
"""RFC 6890's special networks, those that wrap an address of IPv4 in ways not unwrapped here
(Teredo, RFC 8215, RFC 2765), and where clouds keep their metadata beside 169.254.169.254."""
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_NAME: Final = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?\.?")


@dataclass(frozen=True, slots=True)
class _Entry:
    """One allowed name, or network; with a port, or all."""

    name: str | None
    network: Network | None
    port: int | None


class Allowed:
    """The targets that `text` allows; raises ConfigError where it says nothing that is known."""

    def __init__(self, text: str) -> None:
        words = text.replace(",", " ").split()
        self._is_any = words == [ANY]
        self._entries = () if self._is_any else tuple(map(_entry, words))
        if not words:
            raise ConfigError(f"{VARIABLE}: is empty; list targets, or say {ANY}")

    @staticmethod
    def here() -> Allowed | None:
        """What this process's environment allows; None: everything, as nothing was said."""
        text = os.environ.get(VARIABLE)
        return None if text is None else Allowed(text)

    @property
    def is_any(self) -> bool:
        return self._is_any

    def problem(self, host: str, port: int, addresses: Iterable[str]) -> str | None:
        """Why `host`, which has these addresses, may not be asked; None where it may."""
        found = [_plain(text) for text in addresses]
        for address in found:
            if any(address in network for network in _NEVER):
                return f"{host} is at {address}, which no load test may reach"
        if self._is_any:
            return None
        entries = [entry for entry in self._entries if entry.port in (None, port)]
        if any(_names(entry, host) for entry in entries):
            return None
        if found and all(
            any(entry.network is not None and address in entry.network for entry in entries)
            for address in found
        ):
            return None
        return f"{host}:{port} is none of the targets that {VARIABLE} allows"


def _plain(text: str) -> Address:
    """An address without its zone; one of IPv4 that is wrapped in one of IPv6, unwrapped."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in _NAT64 or 1 < int(address) < 1 << 32:  # ::a.b.c.d, of old
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _names(entry: _Entry, host: str) -> bool:
    host = host.lower().rstrip(".")
    if entry.name is None:
        return False
    if entry.name.startswith("*."):
        return host.endswith(entry.name[1:])
    return host == entry.name


def _entry(word: str) -> _Entry:
    if bracketed := re.fullmatch(r"\[([^]]*)\](/\d+)?(?::(\d{1,5}))?", word):
        host, port = bracketed[1] + (bracketed[2] or ""), bracketed[3]
    elif word.count(":") == 1:
        host, _, port = word.partition(":")
    else:
        host, port = word, None
    number = None
    if port is not None:
        number = int(port) if port.isdecimal() else 0
        if not 0 < number < 65536:
            raise ConfigError(f"{VARIABLE}: {word}: the port must lie between 1 and 65535")
    try:
        return _Entry(None, ipaddress.ip_network(host, strict=False), number)
    except ValueError:
        pass
    if not _NAME.fullmatch(host.lower()) or "/" in host:
        raise ConfigError(f"{VARIABLE}: {word}: not a name, an address or a network")
    return _Entry(host.lower().rstrip("."), None, number)
