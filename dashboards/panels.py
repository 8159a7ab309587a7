"""Panels: the four kinds that the dashboards are made of, each with all that every panel must have.

A panel says what it is, what good looks like and from which metric (`about`), has a unit, a colour
for every series, and words for the time before there is data (`empty`). It knows Grafana's objects
and not what is measured. https://grafana.com/docs/grafana/latest/panels-visualizations/
"""

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Final, TypeVar

from grafana_foundation_sdk.builders import (
    common,
    prometheus,
    stat,
    table,
    text,
    timeseries,
)
from grafana_foundation_sdk.builders.dashboard import FieldColor, ThresholdsConfig
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    GraphTresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    LineInterpolation,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat, QueryEditorMode
from grafana_foundation_sdk.models.text import TextMode

from dashboards import style
from dashboards.promql import IDLE

SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
HEIGHT: Final = 8
IDLE_NAMES: Final = style.first_word(IDLE)

Panel = timeseries.Panel | stat.Panel | table.Panel | text.Panel
Drawn = TypeVar("Drawn", timeseries.Panel, stat.Panel, table.Panel)

Colours = Sequence[tuple[str, str]]
"""(regular expression of names, colour); of two that match, the later one wins."""
Limits = Sequence[tuple[float, str]]
"""(from this value on, this colour)"""


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and how its series are called."""

    expr: str
    legend: str = "{{target}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How series are drawn: by target if nothing else is said."""

    colours: Colours = tuple(style.target_colours())
    other: str = style.GREY
    """The colour of series that no pattern names."""
    dashed: str = ""
    """A regular expression of names."""
    dotted: str = ""
    bold: str = ""
    """Thick, so that it shows below another line."""
    stacked: bool = False
    stepped: bool = False


BY_TARGET: Final = Look()
RUN_WIDTH: Final = 260
HASH_WIDTH: Final = 520
"""Pixels that a run's name, and a SHA-256, take in a table."""


def quantiles(engine: str) -> Look:
    """One server alone: all in its colour, the tail dashed and the mean dotted."""
    return Look(
        colours=(), other=style.TARGETS[engine], dashed="/p99|waiting/", dotted="/mean|p90/"
    )


def graph(
    title: str,
    about: str,
    unit: str,
    *queries: Query,
    span: int,
    empty: str,
    look: Look = BY_TARGET,
    limits: Limits = (),
    top: float | None = None,
    least_top: float | None = None,
) -> timeseries.Panel:
    """Lines over time, from zero up to `top`, or as far as they go but at least to `least_top`."""
    panel = _described(timeseries.Panel(), title, about, unit, span, empty).min(0)
    if top is not None:
        panel.max(top)
    if least_top is not None:
        panel.axis_soft_max(least_top)
    for ref, query in zip(ascii_uppercase, queries, strict=False):
        panel.with_target(_query(ref, query).range())
    panel.line_width(2).fill_opacity(25 if look.stacked else 8)
    if look.stepped:
        panel.line_interpolation(LineInterpolation.STEP_AFTER)
    if look.stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    panel.legend(
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .calcs([])
    )
    panel.tooltip(
        common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    )
    _thresholds(panel, limits, look.other)
    if limits:
        panel.thresholds_style(
            common.GraphThresholdsStyleConfig().mode(GraphTresholdsStyleMode.DASHED)
        )
    _coloured(panel, look)
    for pattern, dashes in ((look.dashed, (10, 6)), (look.dotted, (2, 5))):
        if pattern:
            line = DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": list(dashes)})
            panel.override_by_regexp(pattern, [line])
    if look.bold:
        panel.override_by_regexp(look.bold, [DynamicConfigValue("custom.lineWidth", 5)])
    if any(IDLE in query.expr for query in queries):
        hidden = {"legend": True, "tooltip": True, "viz": False}
        panel.override_by_regexp(IDLE_NAMES, [DynamicConfigValue("custom.hideFrom", hidden)])
    return panel


def number(
    title: str,
    about: str,
    unit: str,
    *queries: Query,
    span: int,
    empty: str,
    height: int = 5,
    look: Look | None = None,
    limits: Limits = (),
    words: dict[float, tuple[str, str]] | None = None,
    decimals: int | None = None,
) -> stat.Panel:
    """Figures as of the end of the range, coloured by `look`, or else by `limits` or `words`."""
    panel = _described(stat.Panel(), title, about, unit, span, empty).height(height)
    for ref, query in zip(ascii_uppercase, queries, strict=False):
        panel.with_target(_query(ref, query).instant())
    panel.color_mode(BigValueColorMode.VALUE).graph_mode(BigValueGraphMode.NONE)
    panel.text_mode(BigValueTextMode.VALUE_AND_NAME if look else BigValueTextMode.VALUE)
    panel.orientation(VizOrientation.AUTO)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    if decimals is not None:
        panel.decimals(decimals)
    _thresholds(panel, limits, style.GOOD if limits else style.NEUTRAL)
    if look:
        _coloured(panel, look)
    else:
        panel.color_scheme(FieldColor().mode(FieldColorModeId.THRESHOLDS))
    if words:
        panel.mappings(
            [
                ValueMap(
                    {
                        f"{value:g}": ValueMappingResult(text=said, color=colour, index=index)
                        for index, (value, (said, colour)) in enumerate(words.items())
                    }
                )
            ]
        )
    return panel


def listing(
    title: str, about: str, query: Query, *, columns: Sequence[str], span: int, empty: str
) -> table.Panel:
    """The labels of series, a row each."""
    panel = _described(table.Panel(), title, about, "string", span, empty).show_header(True)
    panel.with_target(_query("A", query).format(PromQueryFormat.TABLE).instant())
    _thresholds(panel, (), style.GREY)
    unwanted = ("Time", "Value", "__name__", "instance", "job")
    order = {name: at for at, name in enumerate(columns)}
    organised = {"excludeByName": dict.fromkeys(unwanted, True), "indexByName": order}
    panel.with_transformation(DataTransformerConfig(id_val="organize", options=organised))
    for name, width in (("run", RUN_WIDTH), ("trace_sha256", HASH_WIDTH)):
        panel.override_by_name(name, [DynamicConfigValue(id_val="custom.width", value=width)])
    return panel


def words(content: str, *, height: int = 3) -> text.Panel:
    """A text over the whole width."""
    return (
        text.Panel()
        .title("")
        .description("What this dashboard shows, and how it is read.")
        .transparent(True)
        .height(height)
        .span(24)
        .mode(TextMode.MARKDOWN)
        .content(content)
    )


def _described(panel: Drawn, title: str, about: str, unit: str, span: int, empty: str) -> Drawn:
    panel.title(title).description(about).unit(unit).no_value(empty)
    panel.datasource(SOURCE).span(span).height(HEIGHT)
    return panel


def _query(ref: str, query: Query) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery()
        .ref_id(ref)
        .datasource(SOURCE)
        .editor_mode(QueryEditorMode.CODE)
        .expr(query.expr)
        .legend_format(query.legend)
    )


def _thresholds(panel: Drawn, limits: Limits, start: str) -> None:
    steps = [Threshold(None, start), *(Threshold(value, colour) for value, colour in limits)]
    panel.thresholds(ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))


def _coloured(panel: Drawn, look: Look) -> None:
    panel.color_scheme(FieldColor().mode(FieldColorModeId.FIXED).fixed_color(look.other))
    for pattern, colour in (*look.colours, (IDLE_NAMES, style.GREY)):
        fixed = {"mode": "fixed", "fixedColor": colour}
        panel.override_by_regexp(pattern, [DynamicConfigValue("color", fixed)])
