"""Colours, units and limits of all dashboards: what means the same looks the same everywhere.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart:
https://jfly.uni-koeln.de/color/. A target has one colour on every panel, in the client's view of it
and in its server's own. So the first word of a series' name is its target or engine, and colours go
by that word. It knows names and numbers, and nothing of Grafana's objects.
"""

from string import ascii_lowercase, digits
from typing import Final

from loadgen.verdict import THRESHOLDS

ORANGE: Final = "#E69F00"
SKY: Final = "#56B4E9"
GREEN: Final = "#009E73"
YELLOW: Final = "#F0E442"
BLUE: Final = "#0072B2"
VERMILLION: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
GREY: Final = "#999999"
NEUTRAL: Final = "text"
"""Grafana's name for the theme's own text colour."""

GOOD: Final = GREEN
DOUBTFUL: Final = YELLOW
BAD: Final = VERMILLION

TARGETS: Final = {"static": ORANGE, "vllm": SKY, "target": GREEN}
"""The servers of the stack, which own their colours, and what loadgen calls a lone endpoint."""
OTHER_TARGETS: Final = (GREEN, PURPLE, YELLOW, BLUE)
"""By the last letter or digit of the name, in turn: names in a and b, or in 1 and 2, differ."""
NUMBERED: Final = (GREEN, PURPLE, YELLOW, BLUE, GREY, VERMILLION)
"""Workers and GPUs, by the last digit of their number."""
OUTCOMES: Final = {
    "ok": GREEN,
    "http_5xx|stream_error|truncated|malformed|empty|short": VERMILLION,
    "http_429|http_4xx": YELLOW,
    "timeout_.*": PURPLE,
    "connect|tls": BLUE,
    "cancelled|dropped": GREY,
}
"""Patterns of whole names, by whose fault: the server, the request, the network, or us."""
REASONS: Final = {
    "stop": GREEN,
    "length": BLUE,
    "abort": GREY,
    "error": VERMILLION,
    "repetition": PURPLE,
}

# Grafana's units: packages/grafana-data/src/valueFormats/categories.ts
SECONDS: Final = "s"
SHARE: Final = "percentunit"
PERCENT: Final = "percent"
COUNT: Final = "short"
REQUESTS: Final = "suffix:req"
REQUESTS_PER_S: Final = "reqps"
TOKENS: Final = "suffix:tok"
TOKENS_PER_S: Final = "suffix:tok/s"
EVENTS_PER_S: Final = "eps"
BATCHES_PER_S: Final = "suffix:batches/s"
STEPS_PER_S: Final = "suffix:rows/s"
TIMES: Final = "suffix:x"
MEBIBYTES: Final = "mbytes"
WATTS: Final = "watt"
JOULES: Final = "joule"
CELSIUS: Final = "celsius"
HERTZ: Final = "hertz"

# Limits. Those of alerts.yml stand there; a test holds these to them.
WORKER_CPU: Final = (THRESHOLDS["worker_cpu"].suspect, THRESHOLDS["worker_cpu"].invalid)
LOOP_LAG_S: Final = 0.05
KV_CACHE: Final = 0.95


def first_word(pattern: str) -> str:
    """A regular expression for series whose name begins with this word."""
    return f"/^({pattern})( |$)/"


def whole_name(pattern: str) -> str:
    return f"/^({pattern})$/"


def target_colours() -> list[tuple[str, str]]:
    """(regular expression, colour): later ones win, so the named targets come last."""
    letters = ascii_lowercase + digits
    colours = []
    for turn, colour in enumerate(OTHER_TARGETS):
        own = letters[turn :: len(OTHER_TARGETS)]
        colours.append((f"/^\\S*[{own}]( |$)/i", colour))
    return colours + [(first_word(name), colour) for name, colour in TARGETS.items()]


def numbered_colours(word: str) -> list[tuple[str, str]]:
    """(regular expression, colour) for `word 0`, `word 1` and so on, by the last digit."""
    return [
        (f"/^{word} \\d*[{digits[turn :: len(NUMBERED)]}]( |$)/", colour)
        for turn, colour in enumerate(NUMBERED)
    ]


def named_colours(colours: dict[str, str]) -> list[tuple[str, str]]:
    """(regular expression, colour) for series of these names."""
    return [(whole_name(pattern), colour) for pattern, colour in colours.items()]
