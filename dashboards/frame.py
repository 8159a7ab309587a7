"""What all dashboards have in common: variables, links, annotations, the range, and the grid.

Rows are given as (title, panels); panels flow from left to right and must fill their lines. It
knows how a dashboard is put together and not what is on it.
"""

from collections.abc import Iterable
from typing import Final

from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import (
    AnnotationQuery,
    DashboardCursorSync,
    DashboardLinkType,
    VariableHide,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.dashboard import Dashboard as Model

from dashboards import promql, style
from dashboards.panels import SOURCE, Panel

TAG: Final = "loadgen"
PAGE: Final = "http://127.0.0.1:9464/"
"""The service's page, as docker-compose.yml publishes it."""
SOURCE_UID: Final = "prometheus"
"""The data source of grafana/provisioning: the variable starts with it."""


def dashboard(
    uid: str,
    title: str,
    description: str,
    rows: Iterable[tuple[str, list[Panel]]],
    *,
    choose: bool,
) -> Model:
    """A dashboard of these rows; a row without a title has no heading.

    Run and target are variables everywhere, so that a choice survives the way to another dashboard;
    they are shown where there is something to `choose`.
    """
    board = (
        Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .time("now-15m", "now")
        .refresh("5s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(_source())
        .with_variable(_labels("run", "Run", promql.select("loadgen_run_info"), choose=choose))
        .with_variable(
            _labels("target", "Target", promql.of_run("loadgen_requests_sent_total"), choose=choose)
        )
        .annotation(_TurnStarts())
        .link(_to_others())
        .link(_to_page())
    )
    number = 0
    for heading, panels in rows:
        if heading:
            number += 1
            board.with_row(Row(heading).id(number))
        for panel in panels:
            number += 1
            board.with_panel(panel.id(number))
    return board.build()


def _source() -> DatasourceVariable:
    return (
        DatasourceVariable("datasource")
        .label("Data source")
        .type("prometheus")
        .current(VariableOption(selected=True, text="Prometheus", value=SOURCE_UID))
    )


def _labels(name: str, label: str, series: str, *, choose: bool) -> QueryVariable:
    """All values of a label; at first all are chosen, also those that come later."""
    asked = f"label_values({series}, {name})"
    return (
        QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query({"query": asked, "refId": name, "qryType": 1})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_DESC if name == "run" else VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
        .hide(VariableHide.DONT_HIDE if choose else VariableHide.HIDE_VARIABLE)
    )


def _to_others() -> DashboardLink:
    return (
        DashboardLink("loadgen")
        .type(DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .icon("dashboard")
        .tooltip("The other dashboards, with the same range and variables")
        .as_dropdown(False)
        .include_vars(True)
        .keep_time(True)
        .target_blank(False)
    )


def _to_page() -> DashboardLink:
    return (
        DashboardLink("Runs")
        .type(DashboardLinkType.LINK)
        .url(PAGE)
        .icon("external link")
        .tooltip("loadgen's own page: start, watch, stop and compare runs")
        .target_blank(True)
    )


class _TurnAnnotation(AnnotationQuery):
    """Prometheus' own keys of an annotation, which the SDK's model does not have.

    https://grafana.com/docs/grafana/latest/datasources/prometheus/annotations/
    """

    def to_json(self) -> dict[str, object]:
        return super().to_json() | {
            "titleFormat": "{{target}}",
            "textFormat": "The turn of {{target}} begins, run {{run}}",
            "tagKeys": "target,run",
            "step": f"{promql.SCRAPE_S}s",
            "useValueForTime": True,
        }


class _TurnStarts(Builder[AnnotationQuery]):
    """A mark where each target's turn begins: the metric's value is the time, in milliseconds."""

    def build(self) -> AnnotationQuery:
        start = promql.client("loadgen_turn_start_time_seconds")
        return _TurnAnnotation(
            name="Turns",
            datasource=SOURCE,
            enable=True,
            icon_color=style.GREY,
            expr=f"({start} > 0) * 1000",
        )
