// A new run: a form with sane defaults that says what it will send before it sends it.

import { ask } from "./api.js";
import { el, number, say } from "./dom.js";

const ASK_AFTER_MS = 700;
const KINDS = [
  ["run", "run: one load"],
  ["compare", "compare: two endpoints"],
  ["sweep", "sweep: several loads"],
  ["capacity", "capacity: rate under limits"],
  ["simulate", "simulate: nothing is sent"],
];

export function showForm(main, settings) {
  let timer = 0;
  let asked = 0;
  let isGone = false;

  const labelled = (id, title, input, hint) => ({ input, row: el("p", {}, el("label", { for: id }, title), input, hint ? el("small", { id: `${id}-hint` }, hint) : null) });
  const field = (id, title, attributes, hint) =>
    labelled(id, title, el("input", { id, "aria-describedby": hint ? `${id}-hint` : null, ...attributes }), hint);
  const select = (id, title, options, hint) =>
    labelled(id, title, el("select", { id, "aria-describedby": hint ? `${id}-hint` : null }, options.map(([value, text]) => el("option", { value }, text))), hint);
  const pick = (name, options) => options.map(([value, title], place) =>
    el("label", { class: "option" }, el("input", { type: "radio", name, value, checked: place === 0 }), ` ${title}`));
  const fields = (...rows) => el("div", { class: "fields" }, rows.map((one) => one.row));
  const limitOf = (id, title, hint) => field(id, title, { type: "number", min: 0.001, step: "any" }, hint);

  const kind = select("kind", "Kind", KINDS.filter(([name]) => settings.kinds.includes(name)));
  const url = field("url", "Endpoint", { type: "url", required: true, value: "http://127.0.0.1:8000", autocomplete: "url", spellcheck: "false" }, "with or without /v1");
  const name = field("name", "Its name", { pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]*", maxlength: 63, value: "target" });
  const otherUrl = field("other-url", "Second endpoint", { type: "url", required: true, value: "http://127.0.0.1:8001", spellcheck: "false" }, "the first is the baseline");
  const otherName = field("other-name", "Its name", { pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]*", maxlength: 63, value: "other" });
  const model = field("model", "Model", { placeholder: "the only one it serves", spellcheck: "false" });
  const key = field("key", "API key", { type: "password", autocomplete: "off" }, "given to this run alone, never kept");
  const axis = select("axis", "Points differ in", [["rates", "arrivals a second"], ["concurrencies", "requests in flight"], ["batch_sizes", "size of a gang"]]);
  const loads = field("loads", "Points", { required: true, value: "1,2,4,8", spellcheck: "false" }, "1,2,4,8, or FROM:TO:HOW_MANY");
  const share = field("share", "Share of good requests, %", { type: "number", min: 1, max: 99.99, step: "any", value: 95, required: true });
  const startRate = field("start-rate", "First rate to probe", { type: "number", min: 0.01, step: "any", value: 1, required: true });
  const maxRate = field("max-rate", "Highest rate to probe", { type: "number", min: 0.01, step: "any", value: 64, required: true });
  const least = field("least", "Requests a point, at least", { type: "number", min: 16, max: settings.max_requests, value: 200, required: true });
  const seconds = field("seconds", "Seconds a point, at least", { type: "number", min: 0, step: "any", value: 30, required: true });
  const policy = select("policy", "Servers", [["static,continuous", "static and continuous batching"], ["continuous", "continuous batching"], ["static", "static batching"]]);
  const batch = field("batch", "Batch size", { type: "number", min: 1, max: 2048, value: 16, required: true }, "of continuous batching: slots");
  const order = select("order", "Order of the queue", [["fcfs", "first come, first served"], ["spf", "shortest prompt first"], ["sof", "shortest output first (an oracle)"], ["slai", "SLAI"]]);
  const replicas = field("replicas", "Replicas", { type: "number", min: 1, max: 10000, value: 1, required: true });
  const count = field("count", "Requests", { type: "number", min: 1, max: settings.max_requests, value: 100, required: true });
  const rate = field("rate", "Arrivals a second", { type: "number", min: 0.000001, step: "any", value: 2, required: true });
  const seed = field("seed", "Seed", { type: "number", min: 0, max: 4294967295, value: 42 }, "the same seed draws the same trace");
  const input = field("input", "Prompt tokens", { type: "number", min: 1, value: 128, required: true });
  const output = field("output", "Output tokens", { type: "number", min: 1, value: 64, required: true });
  const upload = field("trace", "Trace file (JSONL)", { type: "file", accept: ".jsonl,.json", required: true }, `at most ${settings.max_trace_mib} MiB`);
  const cap = field("cap", "Most in flight", { type: "number", min: 1, placeholder: "no limit" });
  const label = field("label", "Label", { maxlength: 200 });
  const ttft = limitOf("ttft", "TTFT within, ms", "requests that meet all limits are good");
  const tpot = limitOf("tpot", "TPOT within, ms");
  const e2el = limitOf("e2el", "E2E within, ms");
  const limit = field("limit", "Stop after, s", { type: "number", min: 0.001, step: "any", placeholder: "as long as it takes" });

  const told = el("div", { class: "told", role: "status", "aria-live": "polite", "aria-label": "What will be sent" }, el("p", {}, "Asking what will be sent…"));
  const raw = el("pre", { tabindex: "0", "aria-label": "The request" });
  const problem = el("p", { class: "problem", role: "alert" });
  const start = el("button", { class: "primary" }, "Start");
  const targets = fields(url, name);
  const second = fields(otherUrl, otherName);
  const access = fields(model, key);
  const points = fields(axis, loads);
  const search = fields(share, startRate, maxRate);
  const servers = fields(policy, batch, order, replicas);
  const size = fields(least, seconds);
  const file = fields(upload);
  const fixed = fields(input, output);
  const form = el("form", { onsubmit: submit, oninput: change, onchange: change },
    el("fieldset", {}, el("legend", {}, "What is done"), el("div", { class: "fields" }, kind.row),
      targets, second, access, points, search, servers),
    el("fieldset", {}, el("legend", {}, "Which requests"),
      el("div", { class: "options" }, pick("work", [["lesson1", "lengths of a chat, log-normal"], ["fixed", "fixed lengths"], ["file", "a trace of your own"]])),
      fields(count, rate, seed), size, fixed, file),
    el("fieldset", {}, el("legend", {}, "How, and what of it"), fields(label, ttft, tpot, e2el, cap, limit)),
    told, el("details", {}, el("summary", {}, "The same as an API request"), raw), problem,
    el("p", { class: "actions" }, start));
  main.replaceChildren(el("p", {}, el("a", { href: "#/" }, "← Runs")), el("h1", { tabindex: "-1" }, "New run"),
    settings.allowed_targets ? el("p", { class: "notice" }, `This service asks only: ${settings.allowed_targets}`) : "", form);

  // What is shown of each kind of run; what is not shown is not asked for.
  const isOne = (...kinds) => kinds.includes(kind.input.value);
  const work = () => form.elements.work.value;
  const PARTS = [
    [targets, () => !isOne("simulate")],
    [second, () => isOne("compare")],
    [access, () => !isOne("simulate")],
    [points, () => isOne("sweep")],
    [search, () => isOne("capacity")],
    [servers, () => isOne("simulate")],
    [size, () => isOne("sweep", "capacity")],
    [count.row, () => !isOne("sweep", "capacity") && work() !== "file"],
    [rate.row, () => !isOne("sweep", "capacity") && work() !== "file"],
    [seed.row, () => work() !== "file"],
    [fixed, () => work() === "fixed"],
    [file, () => work() === "file"],
    [cap.row, () => isOne("run", "compare")],
    [limit.row, () => !isOne("simulate")],
  ];

  function body(trace) {
    const made = { kind: kind.input.value };
    const numbers = (named) => Object.fromEntries(Object.entries(named).filter(([, one]) => one.input.value).map(([part, one]) => [part, one.input.valueAsNumber]));
    if (!isOne("simulate")) made.targets = [{ name: name.input.value || "target", base_url: url.input.value }];
    if (isOne("compare")) made.targets.push({ name: otherName.input.value || "other", base_url: otherUrl.input.value });
    if (work() === "file") {
      made.trace = trace ?? null;
    } else {
      made.generate = numbers(isOne("sweep", "capacity") ? { seed } : { num_prompts: count, request_rate: rate, seed });
      if (work() === "fixed") Object.assign(made.generate, numbers({ input_len: input, output_len: output }));
      else made.generate.preset = "lesson1";
    }
    if (isOne("sweep")) made.sweep = { [axis.input.value]: listed(loads.input.value), ...numbers({ num_prompts: least, seconds_per_point: seconds }) };
    if (isOne("capacity")) {
      made.capacity = { share: share.input.valueAsNumber / 100, ...numbers({ start_rate: startRate, max_rate: maxRate, num_prompts: least, seconds_per_point: seconds }) };
    }
    if (isOne("simulate")) {
      made.policies = { policy: policy.input.value.split(","), ...numbers({ batch_size: batch }), order: order.input.value };
      made.fleet = numbers({ replicas });
    }
    const request = model.input.value && !isOne("simulate") ? { model: model.input.value } : {};
    const load = isOne("simulate") ? {} : numbers(isOne("run", "compare") ? { max_concurrency: cap, max_duration: limit } : { max_duration: limit });
    const out = label.input.value ? { label: label.input.value } : {};
    const goodput = numbers({ ttft, tpot, e2el });
    if (Object.keys(goodput).length) out.goodput = goodput;
    for (const [part, values] of Object.entries({ request, load, output: out })) if (Object.keys(values).length) made[part] = values;
    return made;
  }

  function change(event) {
    if (event?.type === "change" && event.target === kind.input && isOne("capacity") && ![ttft, tpot, e2el].some((one) => one.input.value)) {
      ttft.input.value = 500; // a capacity is under limits
    }
    for (const [part, isShown] of PARTS) {
      part.hidden = !isShown();
      for (const one of part.querySelectorAll("input, select")) one.disabled = part.hidden;
    }
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
      told.replaceChildren(el("p", {}, sentence(kind.input.value, load)));
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
      if (key.input.value && !key.input.disabled) made.api_key = key.input.value;
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

// `1,2,4` as numbers; what is none is left for the service to name.
function listed(text) {
  const parts = text.split(/[,\s]+/).filter(Boolean).map(Number);
  return parts.some(Number.isNaN) ? text : parts;
}

function sentence(kind, load) {
  const names = Object.keys(load.targets).join(" and ");
  const tokens = `${number(load.prompt_tokens)} prompt tokens, up to ${number(load.output_tokens)} output tokens`;
  if (kind === "simulate") return `Will simulate ${number(load.requests)} requests on ${names} batching: ${tokens}. Nothing is sent, and an iteration counts as a second.`;
  const targets = Object.values(load.targets).join(" and ");
  const time = load.duration_s === null ? "as fast as the answers come" : `over ${number(load.duration_s)} s`;
  const work = `${number(load.requests)} requests (and ${number(load.warm_up_requests)} of warm-up) to ${targets}`;
  if (kind === "sweep") return `Will measure ${load.points.length} points, ${load.points.map((point) => point.load).join(", ")}, by ${work}: about ${tokens}, ${time}.`;
  if (kind === "capacity") return `Will probe ${load.points[0].load} requests/s first, by ${work}, ${time}; then twice that until a probe fails, and between. How many probes that takes, they decide.`;
  return `Will send ${work}: ${tokens}, ${time}.`;
}
