// What a run came to, as tables: its figures, its verdict, the points of a sweep.

import { badge, el, inUnit, latency, number } from "./dom.js";

const POINT = [
  ["Requests", (point) => number(point.requests)],
  ["ok", (point) => number(point.completed)],
  ["Output tokens/s", (point) => number(point.output_tokens_per_s, 1)],
  ["TTFT p50, ms", (point) => latency(point.ttft_p50_s)],
  ["TTFT p99, ms", (point) => latency(point.ttft_p99_s)],
  ["E2E p50, ms", (point) => latency(point.e2e_p50_s)],
  ["Good, %", (point) => number(point.good_share === null ? null : 100 * point.good_share, 1)],
];

export function pointsOf(run) {
  const { done, of, rows } = run.points;
  const told = of ? `${done} of ${of} points are done.` : `${done} ${done === 1 ? "probe is" : "probes are"} done.`;
  const head = (title) => el("th", { scope: "col", class: "figure" }, title);
  return [el("h2", {}, "Points"), el("p", {}, told), rows.length ? el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of points" },
    el("table", {},
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Load"), POINT.map(([title]) => head(title)), el("th", { scope: "col" }, "Verdict"))),
      el("tbody", {}, rows.map((point) => el("tr", {},
        el("th", { scope: "row" }, `${point.load}${point.look ? `, look ${point.look + 1}` : ""}`),
        POINT.map(([, of]) => el("td", { class: "figure" }, of(point))),
        el("td", {}, badge(point.verdict), point.refused ? el("small", {}, "not counted") : null)))))) : ""];
}

export function missing(run) {
  if (["queued", "running"].includes(run.state)) return [];
  if (run.points) return [el("p", {}, "It came to no result. Its points are kept; on the service's machine, `loadgen ", run.kind, " --resume` and its directory go on.")];
  if (run.requests !== null) {
    return [el("p", {}, "Its results have not been made yet. ", el("a", { href: `/api/runs/${run.id}/report`, target: "_blank", rel: "noopener" }, "Make the report"))];
  }
  const printed = run.log.trim();
  return printed && printed !== `loadgen: ${run.error}` ? [el("h2", {}, "What it printed"), el("pre", {}, printed)] : [];
}

const ROWS = [
  ["Requests ok", (target) => number(target.completed)],
  ["Requests failed", (target) => number(target.failed)],
  ["Output tokens/s", (target) => number(target.output_tokens_per_s, 1)],
  ["Requests/s", (target) => number(target.requests_per_s, 2)],
  ["Goodput, requests/s", (target) => number(target.goodput?.requests_per_s, 2)],
  ["TTFT p50, ms", (target, unit) => latency(target.ttft_s?.p50, unit)],
  ["TTFT p99, ms", (target, unit) => latency(target.ttft_s?.p99, unit)],
  ["ITL p50, ms", (target, unit) => latency(target.itl_s?.p50, unit)],
  ["E2E p50, ms", (target, unit) => latency(target.e2e_s?.p50, unit)],
  ["E2E p99, ms", (target, unit) => latency(target.e2e_s?.p99, unit)],
];

export function resultsOf(run) {
  const url = `/api/runs/${run.id}`;
  if (run.curve) {
    return [el("h2", {}, "Results"), el("p", { class: "answer" }, run.curve.answer),
      run.has_report ? el("p", { class: "actions" }, el("a", { class: "button", href: `${url}/report`, target: "_blank", rel: "noopener" }, "Report")) : ""];
  }
  const targets = Object.entries(run.summary.targets);
  const unit = run.summary.time_unit;
  const link = (text, href) => el("a", { class: "button", href, target: "_blank", rel: "noopener" }, text);
  return [
    el("h2", {}, "Results"),
    el("p", { class: "actions" }, link("Report", `${url}/report`), el("a", { class: "button", href: `${url}/records`, download: true }, "Records, Parquet"),
      el("a", { class: "button", href: `${url}/records?format=csv`, download: true }, "Records, CSV")),
    el("ul", { class: "reasons" }, run.summary.reasons.map((reason) =>
      el("li", {}, badge(reason.grade), " ", reason.target ? `${reason.target}: ` : "", reason.text))),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Figures" },
      el("table", {},
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Figure"), targets.map(([name]) => el("th", { scope: "col", class: "figure" }, name)))),
        el("tbody", {}, ROWS.map(([title, of]) => el("tr", {}, el("th", { scope: "row" }, inUnit(title, unit)), targets.map(([, target]) => el("td", { class: "figure" }, of(target, unit)))))))),
  ];
}
