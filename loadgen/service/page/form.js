// A new run: a form with sane defaults that says what it will send before it sends it.

import { ask } from "./api.js";
import { el, number, say } from "./dom.js";

const ASK_AFTER_MS = 700;

export function showForm(main, settings) {
  let timer = 0;
  let asked = 0;
  let isGone = false;

  const field = (id, title, attributes, hint) => {
    const input = el("input", { id, "aria-describedby": hint ? `${id}-hint` : null, ...attributes });
    return { input, row: el("p", {}, el("label", { for: id }, title), input, hint ? el("small", { id: `${id}-hint` }, hint) : null) };
  };
  const pick = (name, options) => options.map(([value, title], place) =>
    el("label", { class: "option" }, el("input", { type: "radio", name, value, checked: place === 0 }), ` ${title}`));

  const url = field("url", "Endpoint", { type: "url", required: true, value: "http://127.0.0.1:8000", autocomplete: "url", spellcheck: "false" }, "with or without /v1");
  const name = field("name", "Its name", { pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]*", maxlength: 63, value: "target" });
  const otherUrl = field("other-url", "Second endpoint", { type: "url", value: "http://127.0.0.1:8001", spellcheck: "false" }, "the first is the baseline");
  const otherName = field("other-name", "Its name", { pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]*", maxlength: 63, value: "other" });
  const model = field("model", "Model", { placeholder: "the only one it serves", spellcheck: "false" });
  const key = field("key", "API key", { type: "password", autocomplete: "off" }, "given to this run alone, never kept");
  const count = field("count", "Requests", { type: "number", min: 1, max: settings.max_requests, value: 100, required: true });
  const rate = field("rate", "Arrivals a second", { type: "number", min: 0.000001, step: "any", value: 2, required: true });
  const seed = field("seed", "Seed", { type: "number", min: 0, max: 4294967295, value: 42 }, "the same seed draws the same trace");
  const input = field("input", "Prompt tokens", { type: "number", min: 1, value: 128 });
  const output = field("output", "Output tokens", { type: "number", min: 1, value: 64 });
  const upload = field("trace", "Trace file (JSONL)", { type: "file", accept: ".jsonl,.json" }, `at most ${settings.max_trace_mib} MiB`);
  const cap = field("cap", "Most in flight", { type: "number", min: 1, placeholder: "no limit" });
  const label = field("label", "Label", { maxlength: 200 });
  const ttft = field("ttft", "TTFT within, ms", { type: "number", min: 0.001, step: "any" }, "requests that meet this are good");
  const limit = field("limit", "Stop after, s", { type: "number", min: 0.001, step: "any", placeholder: "as long as it takes" });

  const second = el("div", { class: "fields", hidden: true }, otherUrl.row, otherName.row);
  const fixed = el("div", { class: "fields", hidden: true }, input.row, output.row);
  const drawn = el("div", { class: "fields" }, count.row, rate.row, seed.row);
  const file = el("div", { class: "fields", hidden: true }, upload.row);
  const told = el("div", { class: "told", role: "status", "aria-live": "polite", "aria-label": "What will be sent" }, el("p", {}, "Asking what will be sent…"));
  const raw = el("pre", { tabindex: "0", "aria-label": "The request" });
  const problem = el("p", { class: "problem", role: "alert" });
  const start = el("button", { class: "primary" }, "Start");
  const form = el("form", { onsubmit: submit, oninput: change, onchange: change },
    el("fieldset", {}, el("legend", {}, "What is measured"), el("div", { class: "options" }, pick("kind", [["run", "one endpoint"], ["compare", "two, compared"]])),
      el("div", { class: "fields" }, url.row, name.row), second, el("div", { class: "fields" }, model.row, key.row)),
    el("fieldset", {}, el("legend", {}, "What is sent"),
      el("div", { class: "options" }, pick("work", [["lesson1", "lengths of a chat, log-normal"], ["fixed", "fixed lengths"], ["file", "a trace of your own"]])),
      drawn, fixed, file),
    el("fieldset", {}, el("legend", {}, "How, and what of it"), el("div", { class: "fields" }, label.row, ttft.row, cap.row, limit.row)),
    told, el("details", {}, el("summary", {}, "The same as an API request"), raw), problem,
    el("p", { class: "actions" }, start));
  main.replaceChildren(el("p", {}, el("a", { href: "#/" }, "← Runs")), el("h1", { tabindex: "-1" }, "New run"),
    settings.allowed_targets ? el("p", { class: "notice" }, `This service asks only: ${settings.allowed_targets}`) : "", form);

  const chosen = (name) => form.elements[name].value;

  function body(trace) {
    const made = { kind: chosen("kind"), targets: [{ name: name.input.value || "target", base_url: url.input.value }] };
    if (made.kind === "compare") made.targets.push({ name: otherName.input.value || "other", base_url: otherUrl.input.value });
    const work = chosen("work");
    if (work === "file") {
      made.trace = trace ?? null;
    } else {
      made.generate = { num_prompts: count.input.valueAsNumber, request_rate: rate.input.valueAsNumber };
      if (seed.input.value) made.generate.seed = seed.input.valueAsNumber;
      if (work === "fixed") Object.assign(made.generate, { input_len: input.input.valueAsNumber, output_len: output.input.valueAsNumber });
      else made.generate.preset = "lesson1";
    }
    const request = model.input.value ? { model: model.input.value } : {};
    const load = {};
    if (cap.input.value) load.max_concurrency = cap.input.valueAsNumber;
    if (limit.input.value) load.max_duration = limit.input.valueAsNumber;
    const out = {};
    if (label.input.value) out.label = label.input.value;
    if (ttft.input.value) out.goodput = { ttft: ttft.input.valueAsNumber };
    for (const [part, values] of Object.entries({ request, load, output: out })) if (Object.keys(values).length) made[part] = values;
    return made;
  }

  function change() {
    second.hidden = chosen("kind") !== "compare";
    otherUrl.input.required = !second.hidden;
    fixed.hidden = chosen("work") !== "fixed";
    input.input.required = output.input.required = !fixed.hidden;
    file.hidden = chosen("work") !== "file";
    upload.input.required = !file.hidden;
    drawn.hidden = !file.hidden;
    raw.textContent = `POST /api/runs\n${JSON.stringify(body(file.hidden ? null : "the id that the upload gives"), null, 2)}`;
    clearTimeout(timer);
    timer = setTimeout(describe, ASK_AFTER_MS);
  }

  async function describe() {
    const mine = ++asked;
    if (!form.checkValidity() || !file.hidden) {
      told.replaceChildren(el("p", {}, file.hidden ? "Some fields are not filled in as they must be." : "What the file holds is told when it is sent."));
      return;
    }
    try {
      const load = await ask("POST", "/api/runs?dry_run=true", body());
      if (isGone || mine !== asked) return;
      told.replaceChildren(el("p", {}, sentence(load)));
    } catch (error) {
      if (mine === asked) told.replaceChildren(el("p", { class: "problem" }, error.message));
    }
  }

  async function submit(event) {
    event.preventDefault();
    problem.textContent = "";
    start.disabled = true;
    try {
      let trace = null;
      if (!file.hidden) trace = (await ask("POST", "/api/traces", upload.input.files[0], "application/jsonl")).id;
      const made = body(trace);
      if (key.input.value) made.api_key = key.input.value;
      const run = await ask("POST", "/api/runs", made);
      key.input.value = "";
      say("The run is in line.");
      location.hash = `#/run/${run.id}`;
    } catch (error) {
      problem.textContent = error.message;
    } finally {
      start.disabled = false;
    }
  }

  change();
  return () => { isGone = true; clearTimeout(timer); };
}

function sentence(load) {
  const targets = Object.values(load.targets).join(" and ");
  const time = load.duration_s === null ? "as fast as the answers come" : `over ${number(load.duration_s)} s`;
  return `Will send ${number(load.requests)} requests (and ${number(load.warm_up_requests)} of warm-up) to ${targets}: `
    + `${number(load.prompt_tokens)} prompt tokens, up to ${number(load.output_tokens)} output tokens, ${time}.`;
}
