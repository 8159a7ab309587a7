"""The PromQL that the dashboards share, as text.

It knows loadgen's labels, Grafana's variables and how Prometheus counts; it does not know panels.
Three rules run through it. A division by nothing and a quantile of nothing are no series, never NaN
(`> 0`, `>= 0`). A figure over the dashboard's range counts exactly: loadgen's series begin at zero
with their run, so the last value less the one before the range is the increase, and nothing is
extrapolated as `increase()` would. A figure "per second" over the range is over the seconds in
which its target had its turn, not over the range.
"""

from typing import Final

SCRAPE_S: Final = 2
"""The scrape interval of prometheus.yml."""
IDLE: Final = "idle"
"""The name of the zero that is drawn where nothing has been measured yet."""


def client(metric: str, *more: str) -> str:
    """loadgen's series of the chosen runs and targets; `more` are further matchers."""
    return select(metric, 'run=~"$run"', 'target=~"$target"', *more)


def of_run(metric: str, *more: str) -> str:
    """loadgen's series of the chosen runs, where they have no target."""
    return select(metric, 'run=~"$run"', *more)


def select(metric: str, *matchers: str) -> str:
    return f"{metric}{{{','.join(matchers)}}}" if matchers else metric


def total(expr: str, *by: str) -> str:
    return f"sum by ({', '.join(by)}) ({expr})" if by else f"sum({expr})"


def rate(selector: str, *by: str) -> str:
    """Per second, over the last few scrapes."""
    return total(f"rate({selector}[$__rate_interval])", *by)


def ratio(part: str, whole: str) -> str:
    """Undefined, not NaN, where the whole is nothing."""
    return f"{part} / ({whole} > 0)"


def mean(histogram: str, *by: str) -> str:
    """Of what was observed in the last few scrapes. `histogram` may carry matchers: `name{...}`."""
    name, brace, matchers = histogram.partition("{")
    return ratio(
        rate(f"{name}_sum{brace}{matchers}", *by), rate(f"{name}_count{brace}{matchers}", *by)
    )


def quantile(q: float, buckets: str, *by: str) -> str:
    """Of what was observed in the last few scrapes; `buckets` selects a histogram's `_bucket`."""
    return quantile_of(q, rate(buckets, *by, "le"))


def quantile_of(q: float, buckets: str) -> str:
    """`buckets` is an expression that keeps `le`."""
    return f"histogram_quantile({q:g}, {buckets}) >= 0"


def idle(expr: str, label: str = "target") -> str:
    """A zero of that name where the expression has no series: for what is truly zero then."""
    return f'{expr} or on () label_replace(vector(0), "{label}", "{IDLE}", "", "")'


def in_range(selector: str) -> str:
    """What a counter of loadgen's grew by within the dashboard's range, series by series."""
    last = f"max_over_time({selector}[$__range])"
    return f"({last} - ({selector} offset $__range or 0 * {last}))"


def turn_seconds(*more: str) -> str:
    """Seconds of the range in which each target had its turn, to one scrape's length a turn.

    The steps of the subquery are counted and not the scrapes, so the scrape interval may be any.
    """
    active = client("loadgen_turn_active", *more)
    return f"{SCRAPE_S} * sum_over_time({active}[$__range:{SCRAPE_S}s])"


def per_turn_second(metric: str, *by: str, more: tuple[str, ...] = ()) -> str:
    """A counter's growth within the range, per second of the target's own turns in it."""
    return ratio(total(in_range(client(metric, *more)), *by), total(turn_seconds(*more), *by))


def last_in_range(selector: str) -> str:
    """The last value within the range: it stays to be seen when the process has ended."""
    return f"last_over_time({selector}[$__range])"


def latest_run(expr: str) -> str:
    """Only of the chosen run that began last; `expr` keeps the label run."""
    start = last_in_range(of_run("loadgen_run_start_time_seconds"))
    return f"{expr} and on (run) topk(1, {start})"


def verdict() -> str:
    """The latest run's grade as a number: 0 while it goes on, 1 VALID, 2 SUSPECT, 3 INVALID."""

    def grade(name: str) -> str:
        return total(last_in_range(of_run("loadgen_run_verdict", f'grade="{name}"')), "run")

    return latest_run(f"({grade('VALID')} + 2 * {grade('SUSPECT')} + 3 * {grade('INVALID')})")
