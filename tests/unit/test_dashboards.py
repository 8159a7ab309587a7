"""The dashboards: fresh, whole, explained, of one style, and asking only for what exists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from metric_names import known, used

from dashboards import build, frame, style
from dashboards.queries import other_queries, panel_queries, panels, replaced

ROOT = Path(__file__).resolve().parents[2]
PROVISIONING = ROOT / "dashboards" / "grafana" / "provisioning"
UIDS = ("loadgen-comparison", "loadgen-client", "loadgen-static", "loadgen-vllm", "loadgen-gpu")
WRITTEN = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted(build.FOLDER.glob("*.json"))
}
TURN_KEYS = {"titleFormat", "textFormat", "tagKeys", "step", "useValueForTime"}
"""Prometheus' own keys of an annotation; the SDK's model of one has no place for them."""

register_default_plugins()


def shown(uid: str, *, text: bool = False) -> list[dict[str, Any]]:
    """The panels of a dashboard that show data, or that show anything."""
    left_out = ("row",) if text else ("row", "text")
    return [panel for panel in panels(WRITTEN[uid]) if panel["type"] not in left_out]


def through_sdk(dashboard: dict[str, Any]) -> dict[str, Any]:
    """What is left of a dashboard that the SDK has read and written."""
    again: dict[str, Any] = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))
    return again


def lost(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Where something of `before` is missing or different in `after`."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in after:
                yield from lost(value, after[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for at, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from lost(one, other, f"{path}[{at}]")
    elif before != after:
        yield path


def overrides(panel: dict[str, Any], name: str) -> dict[str, Any]:
    """The properties of a series of this name, as Grafana applies overrides: later ones win."""
    found: dict[str, Any] = {}
    for override in panel["fieldConfig"]["overrides"]:
        matcher = override["matcher"]
        if matcher["id"] == "byRegexp":
            _, pattern, flags = matcher["options"].split("/")
            fits = re.search(pattern, name, re.IGNORECASE if flags == "i" else 0) is not None
        else:
            assert matcher["id"] == "byName"
            fits = matcher["options"] == name
        if fits:
            found |= {item["id"]: item["value"] for item in override["properties"]}
    return found


def colour(panel: dict[str, Any], name: str) -> str:
    """The colour of a series."""
    default = panel["fieldConfig"]["defaults"]["color"]
    chosen = overrides(panel, name).get("color", default)
    assert chosen["mode"] == "fixed"
    return str(chosen["fixedColor"])


def series(panel: dict[str, Any], target: str) -> list[str]:
    """The names of a panel's series of one target."""
    names = [
        re.sub(r"\{\{(target|engine)\}\}", target, query["legendFormat"])
        for query in panel["targets"]
    ]
    return [name for name in names if name.split()[0] == target]


def test_the_json_is_fresh() -> None:
    """The files are what `python -m dashboards.build` writes today, all of them and no others."""
    assert build.stale(build.FOLDER) == []


def test_stale_json_is_noticed(tmp_path: Path) -> None:
    """A file that is missing, changed or left over is named, and writing mends it."""
    assert len(build.stale(tmp_path)) == len(UIDS)
    build.write(tmp_path)
    assert build.stale(tmp_path) == []
    (tmp_path / "loadgen-gpu.json").write_text("{}")
    (tmp_path / "loadgen-static.json").unlink()
    (tmp_path / "old.json").write_text("{}")
    assert build.stale(tmp_path) == ["loadgen-gpu.json", "loadgen-static.json", "old.json"]
    build.write(tmp_path)
    assert build.stale(tmp_path) == []


def test_uids_are_fixed() -> None:
    """Each dashboard has its uid, which is its file's name: links and the home page rely on it."""
    assert {name: dashboard["uid"] for name, dashboard in WRITTEN.items()} == {
        uid: uid for uid in UIDS
    }


@pytest.mark.parametrize("uid", UIDS)
def test_the_sdk_knows_every_key(uid: str) -> None:
    """Read and written by the SDK, a dashboard loses nothing but an annotation's own keys."""
    before = WRITTEN[uid]
    expected = {f".annotations.list[0].{key}" for key in TURN_KEYS}
    assert set(lost(before, through_sdk(before))) == expected


@pytest.mark.parametrize(
    "place",
    [
        (),
        ("panels", 1),
        ("panels", 1, "gridPos"),
        ("panels", 1, "fieldConfig", "defaults"),
        ("panels", 1, "fieldConfig", "defaults", "thresholds"),
        ("panels", 1, "fieldConfig", "overrides", 0, "matcher"),
        ("panels", 1, "options"),
        ("panels", 1, "options", "reduceOptions"),
        ("panels", 1, "targets", 0),
        ("templating", "list", 1),
        ("annotations", "list", 0),
        ("links", 0),
        ("time",),
    ],
    ids=str,
)
def test_an_unknown_key_is_noticed(place: tuple[str | int, ...]) -> None:
    """A key that Grafana's schema does not have is lost on the way through the SDK, and named."""
    planted = json.loads(json.dumps(WRITTEN["loadgen-comparison"]))
    at: Any = planted
    for step in place:
        at = at[step]
    at["plantedKey"] = 1
    named = [path for path in lost(planted, through_sdk(planted)) if path.endswith(".plantedKey")]
    assert len(named) == 1


@pytest.mark.parametrize("uid", UIDS)
def test_the_grid_is_filled(uid: str) -> None:
    """Panels have ids of their own, do not overlap, and leave no hole to the right."""
    all_panels = list(panels(WRITTEN[uid]))
    assert len({panel["id"] for panel in all_panels}) == len(all_panels)
    places = [panel["gridPos"] for panel in all_panels]
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    for line in {place["y"] for place in places}:
        assert sum(place["w"] for place in places if place["y"] == line) == 24


@pytest.mark.parametrize("uid", UIDS)
def test_every_panel_is_explained(uid: str) -> None:
    """A panel is of a kind that can be previewed, has a name of its own, and says what it shows."""
    titles = [panel["title"] for panel in shown(uid)]
    assert len(set(titles)) == len(titles)
    for panel in shown(uid, text=True):
        assert panel["type"] in ("timeseries", "stat", "gauge", "bargauge", "table", "text")
        assert panel["description"].endswith("."), panel["title"]
        assert panel["title"] or panel["type"] == "text"


@pytest.mark.parametrize("uid", UIDS)
def test_every_panel_says_where_its_numbers_come_from(uid: str) -> None:
    """A description ends in its metrics, and the ones that it names whole exist."""
    stems = {re.sub(r"_(bucket|sum|count)$", "", name) for name in known()}
    for panel in shown(uid):
        _, begins, told = panel["description"].rpartition("From ")
        assert begins, panel["title"]
        named = re.findall(r"(?:loadgen|static|vllm|DCGM)[_:][\w:]*\w", told)
        assert set(named) <= known() | stems, panel["title"]


@pytest.mark.parametrize("uid", UIDS)
def test_every_panel_has_a_unit(uid: str) -> None:
    """No number stands without its unit, nor without a threshold's base colour."""
    for panel in shown(uid):
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"], panel["title"]
        assert defaults["thresholds"]["steps"][0]["value"] is None, panel["title"]


@pytest.mark.parametrize("uid", UIDS)
def test_no_panel_is_empty(uid: str) -> None:
    """Where there is no data yet, a panel says so in words."""
    for panel in shown(uid):
        assert panel["fieldConfig"]["defaults"]["noValue"], panel["title"]
        assert panel["targets"], panel["title"]


@pytest.mark.parametrize("uid", UIDS)
def test_every_panel_asks_the_chosen_source(uid: str) -> None:
    """Panel and queries take the data source from the variable."""
    for panel in shown(uid):
        asked = [panel["datasource"], *(query["datasource"] for query in panel["targets"])]
        assert asked == [{"type": "prometheus", "uid": "${datasource}"}] * len(asked)
        refs = [query["refId"] for query in panel["targets"]]
        assert len(set(refs)) == len(refs), panel["title"]


@pytest.mark.parametrize("uid", UIDS)
def test_every_metric_exists(uid: str) -> None:
    """Queries, annotations and variables read only what somebody exports or records."""
    dashboard = WRITTEN[uid]
    for title, expr in panel_queries(dashboard) + other_queries(dashboard):
        assert used(expr), title
        assert used(expr) <= known(), title


def test_an_unknown_metric_is_noticed() -> None:
    """Names are found inside of functions, quotients and selectors, and words of PromQL are not."""
    expr = (
        'sum by (run, le) (rate(one_total{job="two",x=~"three.*"}[1m])) / (four:five:sum > 0) '
        'or on () label_replace(vector(0), "six", "seven", "", "") unless seven offset 5m >= 1e6'
    )
    assert used(expr) == {"one_total", "four:five:sum", "seven"}


@pytest.mark.parametrize("uid", UIDS)
def test_quantiles_and_ratios_are_never_nan(uid: str) -> None:
    """A quantile of nothing and a division by nothing give no series."""
    for title, expr in panel_queries(WRITTEN[uid]):
        assert expr.count("histogram_quantile(") == expr.count(") >= 0"), title
        divisions = re.findall(r" / (?!\d)", expr)
        assert len(divisions) <= expr.count(" > 0)"), title


@pytest.mark.parametrize("uid", UIDS)
def test_queries_are_given_whole(uid: str) -> None:
    """With all variables replaced, nothing of Grafana's is left in a query."""
    found = panel_queries(WRITTEN[uid], {"run": "r1", "__range": "77s"})
    assert len(found) == sum(len(panel.get("targets", [])) for panel in panels(WRITTEN[uid]))
    assert all("$" not in expr and "[[" not in expr for _, expr in found)


def test_variables_are_replaced_as_grafana_does() -> None:
    """A variable may be written in three ways, longer names stay whole, unknown ones are errors."""
    values = {"run": "r1", "__range": "900s", "__range_s": "900"}
    assert replaced("$run ${run} ${run:regex} [$__range] $__range_s", values) == (
        "r1 r1 r1 [900s] 900"
    )
    with pytest.raises(KeyError):
        replaced("$runs", values)


def test_a_target_has_one_colour_everywhere() -> None:
    """Series that begin with a target's name have its colour, the client's and the server's."""
    for target, expected in style.TARGETS.items():
        found = {
            (colour(panel, name), uid, name)
            for uid in UIDS
            for panel in shown(uid)
            for name in series(panel, target)
        }
        assert {shade for shade, _, _ in found} == {expected}, target
        assert len(found) > 5


def test_other_targets_have_colours_of_their_own() -> None:
    """Neighbouring names differ, and none takes the colour of the stack's own servers."""
    panel = next(panel for panel in shown(UIDS[0]) if "{{target}}" in str(panel["targets"]))
    for names in (("a", "b", "c", "d"), ("tgi-1", "tgi-2"), ("sglang", "trt")):
        shades = [colour(panel, name) for name in names]
        assert len(set(shades)) == len(names), names
        assert not set(shades) & {style.ORANGE, style.SKY, style.GREY}


def test_colours_are_of_the_palette() -> None:
    """No panel has a colour that colour-blind readers could not tell apart from the others."""
    palette = {
        value for name, value in vars(style).items() if name.isupper() and str(value)[:1] == "#"
    }
    allowed = palette | {style.NEUTRAL}
    for uid, dashboard in WRITTEN.items():
        text = json.dumps(dashboard["panels"])
        found = re.findall(r'"(?:fixedColor|color)": "([^"]+)"', text)
        assert set(found) <= allowed, uid
        assert "palette-classic" not in text


@pytest.mark.parametrize("uid", UIDS)
def test_dashboards_link_to_each_other(uid: str) -> None:
    """Each links to all by their tag, and the range and the variables go along."""
    dashboard = WRITTEN[uid]
    link, page = dashboard["links"]
    assert (page["type"], page["url"]) == ("link", "http://127.0.0.1:9464/")
    assert link["type"] == "dashboards"
    assert link["tags"] == dashboard["tags"] == ["loadgen"]
    assert link["includeVars"] is True
    assert link["keepTime"] is True


@pytest.mark.parametrize("uid", UIDS)
def test_dashboards_open_alike(uid: str) -> None:
    """The last quarter of an hour, anew each 5 s; all runs and targets; one data source."""
    dashboard = WRITTEN[uid]
    assert dashboard["time"] == {"from": "now-15m", "to": "now"}
    assert dashboard["refresh"] == "5s"
    source, run, target = dashboard["templating"]["list"]
    assert [source["name"], run["name"], target["name"]] == ["datasource", "run", "target"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    assert run["query"]["query"] == "label_values(loadgen_run_info, run)"
    for variable in (run, target):
        assert variable["multi"] is True
        assert variable["includeAll"] is True
        assert variable["allValue"] == ".*"
        assert variable["current"]["value"] == ["$__all"]


@pytest.mark.parametrize("uid", UIDS)
def test_turns_are_marked_where_they_begin(uid: str) -> None:
    """The annotation takes the metric's value, in milliseconds, for its time."""
    (turns,) = WRITTEN[uid]["annotations"]["list"]
    assert "loadgen_turn_start_time_seconds" in turns["expr"]
    assert turns["expr"].endswith("* 1000")
    assert turns["useValueForTime"] is True
    assert turns["titleFormat"] == "{{target}}"


def test_the_first_dashboard_begins_with_words() -> None:
    """A newcomer is told in two to four sentences what is compared and how it is read."""
    first = WRITTEN["loadgen-comparison"]["panels"][0]
    assert first["type"] == "text"
    assert first["gridPos"] == {"x": 0, "y": 0, "w": 24, "h": first["gridPos"]["h"]}
    assert 2 <= len(re.findall(r"\.(?:\s|$)", first["options"]["content"])) <= 4


def test_vllms_titles_are_its_own() -> None:
    """The panels of vLLM's own dashboard are found under its titles."""
    own = """E2E Request Latency, Token Throughput, Inter Token Latency, Scheduler State,
    Time To First Token Latency, Cache Utilization, Request Prompt Length,
    Request Generation Length, Finish Reason, Queue Time, Requests Prefill and Decode Time"""
    titles = {panel["title"] for panel in WRITTEN["loadgen-vllm"]["panels"]}
    assert {" ".join(title.split()) for title in own.split(",")} <= titles


def test_the_data_source_is_the_provisioned_one() -> None:
    """The variable starts with the uid that provisioning gives to its only data source."""
    content = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yaml").read_text())
    assert content["apiVersion"] == 1
    (source,) = content["datasources"]
    assert source["uid"] == frame.SOURCE_UID
    assert source["type"] == "prometheus"
    for dashboard in WRITTEN.values():
        assert dashboard["templating"]["list"][0]["current"]["value"] == source["uid"]


def test_dashboards_are_provisioned_from_files() -> None:
    """One provider reads the folder; nobody deletes or changes a dashboard in the browser."""
    content = yaml.safe_load((PROVISIONING / "dashboards" / "loadgen.yaml").read_text())
    (provider,) = content["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
    assert provider["folder"] == "loadgen"
    assert provider["disableDeletion"] is True
    assert provider["allowUiUpdates"] is False


def test_the_home_dashboard_exists() -> None:
    """The file that provisioning's comment names as the home dashboard is one that is written."""
    text = (PROVISIONING / "dashboards" / "loadgen.yaml").read_text()
    named = re.search(r"HOME_DASHBOARD_PATH=/var/lib/grafana/dashboards/(\S+)\.json", text)
    assert named is not None
    assert named[1] in WRITTEN
