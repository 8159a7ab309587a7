// The runs of the folder, with filters, pages, and a choice of two to compare.

import { ask } from "./api.js";
import { badge, el, number, say, tell, when } from "./dom.js";

const PER_PAGE = 25;
const AGAIN_MS = 2000;
const chosen = new Set();

export function showList(main) {
  const filters = { kind: "", state: "", label: "", verdict: "" };
  let offset = 0;
  let timer = 0;
  let asked = 0;
  let total = null; // that was said

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
  const newer = el("button", { type: "button", onclick: () => turn(-PER_PAGE) }, "Newer");
  const older = el("button", { type: "button", onclick: () => turn(PER_PAGE) }, "Older");
  const range = el("span");
  const pages = el("p", { class: "pages", hidden: true }, newer, range, older);
  const heading = el("h1", { tabindex: "-1" }, "Runs");
  const problem = el("p", { class: "problem", role: "alert" });

  main.replaceChildren(
    el("div", { class: "title" }, heading, el("a", { class: "button primary", href: "#/new" }, "New run")),
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
    total = null;
    refresh();
  }

  function turn(by) {
    offset = Math.max(0, offset + by);
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
    const mine = ++asked;
    const query = new URLSearchParams({ limit: PER_PAGE, offset });
    for (const [name, value] of Object.entries(filters)) if (value) query.set(name, value);
    try {
      const found = await ask("GET", `/api/runs?${query}`);
      if (mine !== asked) return;
      if (offset > 0 && offset >= found.total) { // runs were removed, and this page with them
        offset = Math.max(0, Math.ceil(found.total / PER_PAGE) - 1) * PER_PAGE;
        return refresh();
      }
      tell(problem, "");
      render(found);
    } catch (error) {
      if (mine !== asked) return;
      tell(problem, error.message);
    }
    timer = setTimeout(refresh, AGAIN_MS);
  }

  function render(found) {
    const focused = document.activeElement;
    const rows = found.runs.map((run) => row(run, found.waiting.indexOf(run.id)));
    if (rows.length !== body.children.length || rows.some((made, at) => !made.isEqualNode(body.children[at]))) {
      body.replaceChildren(...rows);
      if (focused.id) document.getElementById(focused.id)?.focus();
    }
    none.hidden = found.total > 0;
    none.textContent = Object.values(filters).some(Boolean) ? "No run is like that." : "No run yet. Start one.";
    const last = Math.min(offset + PER_PAGE, found.total);
    pages.hidden = found.total <= PER_PAGE;
    range.textContent = `${offset + 1} to ${last} of ${found.total}`;
    newer.disabled = offset === 0;
    older.disabled = last >= found.total;
    // A button that is disabled loses the focus to the document, and a keyboard its place.
    if (focused.disabled) [newer, older, heading].find((one) => !one.disabled).focus();
    if (found.total !== total) say(`${found.total} runs`);
    total = found.total;
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
  return () => { asked += 1; clearTimeout(timer); };
}
