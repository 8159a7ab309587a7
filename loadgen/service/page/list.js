// The runs of the folder, with filters, pages, and a choice of two to compare.

import { ask } from "./api.js";
import { badge, el, number, say, when } from "./dom.js";

const PER_PAGE = 25;
const AGAIN_MS = 2000;
const chosen = new Set();

export function showList(main) {
  const filters = { kind: "", state: "", label: "", verdict: "" };
  let offset = 0;
  let timer = 0;
  let isGone = false;
  let shown = "";

  const choice = (name, title, words) => {
    const field = el("select", { id: `by-${name}`, onchange: () => change(name, field.value) },
      el("option", { value: "" }, "any"), words.map((word) => el("option", { value: word }, word)));
    return el("p", {}, el("label", { for: `by-${name}` }, title), field);
  };
  const label = el("input", { id: "by-label", type: "search", oninput: () => change("label", label.value) });
  const compare = el("button", { type: "button", onclick: openComparison }, "Compare");
  // A phone shows a row as a block, which would take a table's meaning from it: roles give it back.
  const body = el("tbody", { role: "rowgroup" });
  const none = el("p", { class: "notice", hidden: true });
  const pages = el("p", { class: "pages" });
  const problem = el("p", { class: "problem", role: "alert" });

  main.replaceChildren(
    el("div", { class: "title" }, el("h1", { tabindex: "-1" }, "Runs"), el("a", { class: "button primary", href: "#/new" }, "New run")),
    el("form", { class: "filters", role: "search", "aria-label": "Filter runs", onsubmit: (event) => event.preventDefault() },
      choice("kind", "Kind", ["run", "compare", "sweep", "capacity", "simulate"]),
      choice("state", "State", ["queued", "running", "finished", "failed", "stopped", "interrupted"]),
      choice("verdict", "Verdict", ["VALID", "SUSPECT", "INVALID"]),
      el("p", {}, el("label", { for: "by-label" }, "Label"), label),
      compare),
    problem,
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of runs" },
      el("table", { class: "runs", role: "table" },
        el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ["", "Run", "State", "Verdict", "Targets", "Output tokens/s", "TTFT p50, ms"].map((title, place) =>
          el("th", { scope: "col", role: "columnheader", class: place > 4 ? "figure" : null }, title || el("span", { class: "unseen" }, "Compare"))))),
        body)),
    none, pages);

  function change(name, value) {
    filters[name] = value;
    offset = 0;
    refresh();
  }

  function openComparison() {
    const [a, b] = [...chosen].sort();
    location.hash = `#/compare/${a}/${b}`;
    chosen.clear();
  }

  function tellChoice() {
    compare.disabled = chosen.size !== 2;
    compare.textContent = `Compare (${chosen.size} of 2)`;
  }

  async function refresh() {
    clearTimeout(timer);
    const query = new URLSearchParams({ limit: PER_PAGE, offset });
    for (const [name, value] of Object.entries(filters)) if (value) query.set(name, value);
    try {
      const found = await ask("GET", `/api/runs?${query}`);
      if (isGone) return;
      problem.textContent = "";
      const text = JSON.stringify(found);
      if (text !== shown) render(found);
      shown = text;
    } catch (error) {
      problem.textContent = error.message;
    }
    if (!isGone) timer = setTimeout(refresh, AGAIN_MS);
  }

  function render(found) {
    const focused = document.activeElement?.id;
    body.replaceChildren(...found.runs.map((run) => row(run, found.waiting.indexOf(run.id))));
    if (focused) document.getElementById(focused)?.focus();
    none.hidden = found.total > 0;
    none.textContent = Object.values(filters).some(Boolean) ? "No run is like that." : "No run yet. Start one.";
    const last = Math.min(offset + PER_PAGE, found.total);
    const turn = (text, to, isOff) =>
      el("button", { type: "button", disabled: isOff, onclick: () => { offset = to; refresh(); } }, text);
    pages.hidden = found.total <= PER_PAGE;
    pages.replaceChildren(turn("Newer", Math.max(0, offset - PER_PAGE), offset === 0),
      ` ${offset + 1} to ${last} of ${found.total} `, turn("Older", offset + PER_PAGE, last >= found.total));
    say(`${found.total} runs`);
  }

  function row(run, place) {
    const name = run.label || run.id;
    const isCurve = ["sweep", "capacity"].includes(run.kind); // its points are runs, and it is none
    const box = el("input", { type: "checkbox", id: `choose-${run.id}`, "aria-label": `Compare ${name}`, disabled: isCurve || !["finished", "stopped", "interrupted"].includes(run.state),
      onchange: () => { box.checked ? chosen.add(run.id) : chosen.delete(run.id); tellChoice(); } });
    box.checked = chosen.has(run.id);
    const each = (values, digits) => run.targets.map((target) => el("div", {}, number(values[target], digits)));
    const cell = (title, ...inside) => el("td", { role: "cell", "data-title": title }, ...inside);
    return el("tr", { role: "row" },
      el("td", { role: "cell", class: "choose" }, box),
      el("th", { scope: "row", role: "rowheader", "data-title": "Run" }, el("a", { id: `open-${run.id}`, href: `#/run/${run.id}` }, name),
        el("small", {}, `${run.kind} · ${when(run.created_at)}${run.keep ? " · kept" : ""}`),
        run.answer && run.state !== "running" ? el("small", {}, run.answer) : null),
      cell("State", badge(run.state), place >= 0 ? el("small", {}, `${place + 1}. in line`) : null),
      cell("Verdict", run.verdict && run.state !== "running" ? badge(run.verdict) : "–"),
      cell("Targets", run.targets.map((target) => el("div", {}, target))),
      el("td", { role: "cell", class: "figure", "data-title": "Output tokens/s" }, each(run.output_tokens_per_s, 1)),
      el("td", { role: "cell", class: "figure", "data-title": "TTFT p50, ms" }, each(run.ttft_p50_ms, 1)));
  }

  tellChoice();
  refresh();
  return () => { isGone = true; clearTimeout(timer); };
}
