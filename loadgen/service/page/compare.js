// Two runs side by side: the figures of both, and b / a.

import { ask } from "./api.js";
import { el, inUnit, latency, number, ratio, say, when } from "./dom.js";

const ROWS = [
  ["Requests ok", ["completed"], false, 0],
  ["Requests failed", ["failed"], false, 0],
  ["Output tokens/s", ["output_tokens_per_s"], false, 1],
  ["Requests/s", ["requests_per_s"], false, 2],
  ["Goodput, requests/s", ["goodput", "requests_per_s"], false, 2],
  ...[["TTFT", "ttft_s"], ["TPOT", "tpot_s"], ["ITL", "itl_s"], ["E2E", "e2e_s"]].flatMap(([title, key]) =>
    [["mean", "mean"], ["p50", "p50"], ["p99", "p99"]].map(([word, part]) => [`${title} ${word}, ms`, [key, part], true, 1])),
];

export function showComparison(main, a, b) {
  const body = el("div", {}, el("p", {}, "Reading the records of both…"));
  main.replaceChildren(el("p", {}, el("a", { href: "#/" }, "← Runs")), el("h1", { tabindex: "-1" }, "Two runs compared"), body);
  ask("GET", `/api/runs/compare?${new URLSearchParams({ a, b })}`).then(
    (found) => { body.replaceChildren(...show(found, a, b)); say("The comparison is there."); },
    (error) => body.replaceChildren(el("p", { class: "problem", role: "alert" }, error.message)));
  return () => {};
}

function show(found, a, b) {
  // By the id that was asked for: the run_id of a renamed run is no address.
  const name = (run, id) => el("span", {}, el("a", { href: `#/run/${id}` }, run.label || id), ` (${run.kind}, ${when(run.started_at)})`);
  const isSimulated = found.a.kind === "simulate" && found.b.kind === "simulate";
  const notes = found.same_trace && isSimulated ? "Both simulated the same requests, which are compared one by one." : found.same_trace
    ? "Both sent the same requests, which are compared one by one. The runs were not made at one time: what drifted between them is part of the difference, and no interval covers it."
    : "They replayed different traces: what differs may be the work, and not the target.";
  return [
    el("dl", { class: "pair" }, el("dt", {}, "a"), el("dd", {}, name(found.a, a)), el("dt", {}, "b"), el("dd", {}, name(found.b, b))),
    el("p", { class: found.same_trace ? null : "notice" }, notes),
    ...found.notes.map((note) => el("p", { class: "notice" }, note)),
    ...found.pairs.map((pair) => el("section", {}, el("h2", {}, pair.a === pair.b ? pair.a : `${pair.a} and ${pair.b}`),
      ...paired(pair.paired),
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Figures of ${pair.b}` }, table(pair, found.a.time_unit, found.b.time_unit)))),
  ];
}

const NAMES = { output_tokens_per_s: "Output tokens/s", goodput_per_s: "Goodput", ttft_s: "TTFT", tpot_s: "TPOT", e2e_s: "E2E" };

// Request by request, with how sure it is: the geometric mean of b / a.
function paired(found) {
  const effects = found ? [found.primary, ...found.others].filter(Boolean) : [];
  return effects.length ? [el("ul", {}, effects.map((effect) => el("li", {},
    el("b", {}, NAMES[effect.metric] ?? effect.metric), ` ${ratio(effect.ratio)}`,
    effect.low === null ? ", too few for an interval" : `, between ${ratio(effect.low)} and ${ratio(effect.high)}`,
    effect.is_shown ? ": a difference is shown" : ": no difference is shown")))] : [];
}

function table(pair, unitA, unitB) {
  const at = (figures, keys) => keys.reduce((part, key) => part?.[key], figures);
  const cell = (text) => el("td", { class: "figure" }, text);
  return el("table", {},
    el("thead", {}, el("tr", {}, ["Figure", "a", "b", "b / a"].map((title, place) => el("th", { scope: "col", class: place ? "figure" : null }, title)))),
    el("tbody", {}, ROWS.map(([title, keys, isLatency, digits]) => {
      const told = isLatency && unitA !== unitB;
      const value = (figures, unit) => {
        const found = at(figures, keys);
        return isLatency ? `${latency(found, unit)}${told ? ` ${unit === "iterations" ? unit : "ms"}` : ""}` : number(found ?? null, digits);
      };
      return el("tr", {}, el("th", { scope: "row" }, told ? title.replace(", ms", "") : inUnit(title, unitA)),
        cell(value(pair.figures_a, unitA)), cell(value(pair.figures_b, unitB)), cell(ratio(at(pair.ratio, keys))));
    })));
}
