"""The queries of a dashboard's JSON with their variables replaced, and how Prometheus is asked.

For tests and for a look by hand. It reads plain JSON and knows nothing of how that was made.
"""

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any, Final

Json = dict[str, Any]

_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))")

DEFAULTS: Final = {
    "datasource": "prometheus",
    "run": ".*",
    "target": ".*",
    "__interval": "2s",
    "__rate_interval": "8s",
    "__range": "900s",
    "__range_s": "900",
}
"""All runs and targets, over a quarter of an hour: what a dashboard shows when it is opened."""


def panels(dashboard: Json) -> Iterator[Json]:
    """Every panel, those inside of rows and the rows themselves included."""
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels") or []


def replaced(text: str, variables: Mapping[str, str]) -> str:
    """`text` with its variables replaced; one that is not given is a KeyError."""
    return _VARIABLE.sub(lambda found: variables[found[1] or found[2]], text)


def panel_queries(
    dashboard: Json, variables: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    """(panel title, expression) of each query; `variables` goes over `DEFAULTS`."""
    values = DEFAULTS | dict(variables or {})
    return [
        (str(panel.get("title", "")), replaced(target["expr"], values))
        for panel in panels(dashboard)
        for target in panel.get("targets") or []
    ]


def other_queries(
    dashboard: Json, variables: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    """(name, expression) of each annotation, and the series that each variable asks for."""
    values = DEFAULTS | dict(variables or {})
    found = [
        (annotation["name"], replaced(annotation["expr"], values))
        for annotation in dashboard["annotations"]["list"]
        if annotation.get("expr")
    ]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((.+), *\w+\)", variable["query"]["query"])
            assert asked is not None, variable["query"]
            found.append((variable["name"], replaced(asked[1], values)))
    return found


def instant_query(url: str, expression: str, at: float | None = None) -> list[Json]:
    """The series of a query to the Prometheus at `url`, now or at a Unix time.

    Each is `{"metric": labels, "value": [t, text]}`; a scalar has no labels. Raises OSError,
    of which an expression that Prometheus refuses is an `urllib.error.HTTPError`.
    """
    asked = {"query": expression} | ({} if at is None else {"time": f"{at:.3f}"})
    words = urllib.parse.urlencode(asked)
    with urllib.request.urlopen(f"{url}/api/v1/query?{words}", timeout=30) as answer:
        content = json.loads(answer.read())
    result = content["data"]["result"]
    if content["data"]["resultType"] == "scalar":
        return [{"metric": {}, "value": result}]
    series: list[Json] = result
    return series
