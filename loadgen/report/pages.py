"""Where pages come from: Jinja's templates, which escape every text and know the report's parts."""

from __future__ import annotations

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape


def templates(package: str = "loadgen.report") -> Environment:
    """The templates of a package, and beside them the report's style and macros."""
    places = dict.fromkeys((package, "loadgen.report"))
    return Environment(
        loader=ChoiceLoader([PackageLoader(place, ".") for place in places]),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
    )
