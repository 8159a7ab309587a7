"""Vega's SVG made fit for our pages and files: named, smaller, its values shown by a mouse.

Vega labels each mark for screen readers and shows nothing on hover. Here a mark's label becomes its
`<title>`, which browsers show, and the drawing as a whole is one image with a name: hundreds of
marks read aloud help nobody, and a table stands behind each plot. It knows no plot.
"""

from __future__ import annotations

import re
from typing import Final
from xml.sax.saxutils import escape, quoteattr

_ROOT: Final = re.compile(r"<svg [^>]*?width=\"(\d+)\" height=\"(\d+)\"[^>]*>")
_LABELLED: Final = re.compile(
    r'<(path|line) aria-label="([^"]*)" role="graphics-symbol"'
    r' aria-roledescription="[^"]*"([^>]*)/>'
)
_ARIA: Final = re.compile(r' (?:aria-[a-z]+|role)="[^"]*"')
_EMPTY: Final = re.compile(
    r'<path class="(?:background|foreground)"[^>]*d="(?:M0,0h0v0h0Z)?"[^>]*/>'
)
_GEOMETRY: Final = re.compile(r' (?:d|transform)="[^"]*"')
_LONG: Final = re.compile(r"(\d+\.\d)\d+")
_ID: Final = re.compile(r'(id="|url\(#)')


def for_page(svg: str, name: str, title: str, *, hovers: bool = True) -> str:
    """For a page: `name` is its own on the page, `title` is what it is called."""
    marked = _LABELLED.sub(_with_title if hovers else r"<\1\3/>", svg)
    plain = _EMPTY.sub("", _ARIA.sub("", marked))
    short = _GEOMETRY.sub(lambda found: _LONG.sub(r"\1", found[0]), plain)
    own = _ID.sub(rf"\g<1>{name}-", short)
    label = quoteattr(title)

    def root(found: re.Match[str]) -> str:
        return f'<svg role="img" aria-label={label} viewBox="0 0 {found[1]} {found[2]}">'

    return _ROOT.sub(root, own, count=1)


def as_document(svg: str, title: str, caption: str) -> str:
    """For a file: with title and description, which viewers and screen readers know."""
    words = f"<title>{escape(title)}</title><desc>{escape(caption)}</desc>"
    head, end, rest = svg.partition(">")
    return f"{head}{end}{words}{rest}\n"


def _with_title(found: re.Match[str]) -> str:
    return f"<{found[1]}{found[3]}><title>{found[2]}</title></{found[1]}>"
