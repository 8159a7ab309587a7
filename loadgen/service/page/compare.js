// Two runs side by side: the figures of both, and b / a.

import { ask } from "./api.js";
import { el, number, ratio, say, when } from "./dom.js";

const ROWS = [
  ["Requests ok", ["completed"], 1, 0],
  ["Requests failed", ["failed"], 1, 0],
  ["Output tokens/s", ["output_tokens_per_s"], 1, 1],
  ["Requests/s", ["requests_per_s"], 1, 2],
  ["Goodput, requests/s", ["goodput", "requests_per_s"], 1, 2],
  ...[["TTFT", "ttft_s"], ["TPOT", "tpot_s"], ["ITL", "itl_s"], ["E2E", "e2e_s"]].flatMap(([title, key]) =>
    [["mean", "mean"], ["p50", "p50"], ["p99", "p99"]].map(([word, part]) => [`${title} ${word}, ms`, [key, part], 1000, 1])),
];

export function showComparison(main, a, b) {
  const body = el("div", {}, el("p", {}, "Reading the records of both…"));
  main.replaceChildren(el("p", {}, el("a", { href: "#/" }, "← Runs")), el("h1", { tabindex: "-1" }, "Two runs compared"), body);
  ask("GET", `/api/runs/compare?${new URLSearchParams({ a, b })}`).then(
    (found) => { body.replaceChildren(...show(found)); say("The comparison is there."); },
    (error) => body.replaceChildren(el("p", { class: "problem", role: "alert" }, error.message)));
  return () => {};
}

function show(found) {
  const name = (run) => el("span", {}, el("a", { href: `#/run/${run.run_id}` }, run.label || run.run_id), ` (${run.kind}, ${when(run.started_at)})`);
  const notes = found.same_trace
    ? "Both sent the same requests, which are compared one by one. The runs were not made at one time: what drifted between them is part of the difference, and no interval covers it."
    : "They replayed different traces: what differs may be the work, and not the target.";
  return [
    el("dl", { class: "pair" }, el("dt", {}, "a"), el("dd", {}, name(found.a)), el("dt", {}, "b"), el("dd", {}, name(found.b))),
    el("p", { class: found.same_trace ? null : "notice" }, notes),
    ...found.pairs.map((pair) => el("section", {}, el("h2", {}, pair.a === pair.b ? pair.a : `${pair.a} and ${pair.b}`),
      ...paired(pair.paired),
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Figures of ${pair.b}` }, table(pair)))),
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

function table(pair) {
  const at = (figures, keys) => keys.reduce((part, key) => part?.[key], figures);
  const cell = (text) => el("td", { class: "figure" }, text);
  return el("table", {},
    el("thead", {}, el("tr", {}, ["Figure", "a", "b", "b / a"].map((title, place) => el("th", { scope: "col", class: place ? "figure" : null }, title)))),
    el("tbody", {}, ROWS.map(([title, keys, factor, digits]) => {
      const value = (figures) => { const found = at(figures, keys); return number(found == null ? null : found * factor, digits); };
      return el("tr", {}, el("th", { scope: "row" }, title), cell(value(pair.figures_a)), cell(value(pair.figures_b)), cell(ratio(at(pair.ratio, keys))));
    })));
}
