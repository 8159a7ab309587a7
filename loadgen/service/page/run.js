// One run: live plots while it goes on, its results when it has ended, and what may be done to it.

import { ask } from "./api.js";
import { badge, el, number, say, tell, when } from "./dom.js";
import { Plot } from "./plot.js";
import { missing, pointsOf, resultsOf } from "./results.js";

const MOST_POINTS = 1200;
const AGAIN_MS = 2000;
const MOST_AGAIN_MS = 30000;

export function showRun(main, id) {
  const points = [];
  let names = [];
  let source = null;
  let timer = 0;
  let againMs = AGAIN_MS;
  let isCutOff = false; // from the events: the figures are old
  let isGone = false;
  let isMissing = false; // there is no such run
  let isLoaded = false;
  let hasEnded = false;
  let isOurs = false; // or another program's, which the service cannot stop
  let done = null; // points of a sweep

  const title = el("h1", { tabindex: "-1" }, id);
  const facts = el("p", { class: "facts" });
  const state = el("span");
  const bar = el("progress", { max: 1, "aria-label": "Requests ended" });
  const counts = el("p", { class: "counts" });
  const problem = el("p", { class: "problem", role: "alert" });
  const stop = el("button", { type: "button", class: "danger", hidden: true, onclick: stopRun }, "Stop");
  const keep = el("button", { type: "button", hidden: true, onclick: keepRun }, "Keep");
  const results = el("section", { "aria-label": "Results" });
  const course = el("section", { "aria-label": "Points", hidden: true });
  const plots = [
    new Plot("Output tokens/s", "tokens_per_s"),
    new Plot("TTFT p50, ms", "ttft_p50_ms", 1),
    new Plot("Requests in flight", "in_flight"),
    new Plot("Requests failed so far", "failed"),
  ];
  const pictures = el("section", { class: "plots", "aria-label": "Plots over the run's seconds" }, plots.map((plot) => plot.element));
  main.replaceChildren(
    el("p", {}, el("a", { href: "#/" }, "← Runs")),
    el("div", { class: "title" }, title, el("div", { class: "actions" }, keep, stop)),
    el("p", { class: "state" }, state), facts, problem, bar, counts,
    course, pictures, results);

  async function stopRun() {
    try {
      await ask("DELETE", `/api/runs/${id}`);
      stop.textContent = "Cut off what is in flight";
      say("Stopping: nothing more is sent. Again cuts off what is in flight.");
    } catch (error) {
      tellProblem(error.message);
    }
  }

  async function keepRun() {
    try {
      const run = await ask("PATCH", `/api/runs/${id}`, { keep: keep.getAttribute("aria-pressed") !== "true" });
      tellKeep(run);
    } catch (error) {
      tellProblem(error.message);
    }
  }

  function tellKeep(run) {
    keep.hidden = !run.is_ours;
    keep.setAttribute("aria-pressed", String(run.keep));
    keep.textContent = run.keep ? "Kept: never pruned" : "Keep";
  }

  function tellState(word, verdict) {
    hasEnded = !["queued", "running"].includes(word);
    pictures.hidden = hasEnded && !points.length;
    if (hasEnded && points.length) draw();
    state.replaceChildren(badge(word), " ", hasEnded && verdict ? badge(verdict) : "");
    stop.hidden = hasEnded || !isOurs;
  }

  function tellProblem(text) {
    const old = isCutOff && !hasEnded ? "Live figures are interrupted: what is shown is old. The page goes on trying." : "";
    tell(problem, [text, old].filter(Boolean).join(" "));
  }

  async function load() {
    let run;
    try {
      run = await ask("GET", `/api/runs/${id}`);
    } catch (error) {
      isMissing = error.status === 404;
      tellProblem(error.message);
      return;
    }
    if (isGone) return;
    isLoaded = true;
    names = run.targets;
    isOurs = run.is_ours;
    title.textContent = run.label || run.id;
    document.title = `${run.label || run.id} · loadgen`;
    tellState(run.state, run.verdict);
    tellKeep(run);
    const where = (run.config.targets ?? []).map((target) => `${target.name ?? "target"}: ${target.base_url}`);
    facts.replaceChildren(`${run.kind} · ${when(run.started_at ?? run.created_at)} · ${where.join(" · ")}`,
      el("small", {}, run.id));
    tellProblem(run.error);
    tellPoints(run);
    if (run.progress) tellLive(run.progress);
    bar.hidden = counts.hidden = !run.progress?.targets;
    results.replaceChildren(...(hasEnded && (run.summary || run.curve) ? resultsOf(run) : missing(run)));
  }

  function tellPoints(run) {
    course.hidden = !run.points;
    if (!run.points) return;
    done = run.points.done;
    course.replaceChildren(...pointsOf(run));
  }

  function tellLive(live) {
    if (live.points && live.points.done !== done && !hasEnded) {
      done = live.points.done;
      ask("GET", `/api/runs/${id}`).then((run) => { if (!isGone) tellPoints(run); }, () => { done = null; });
    }
    if (!live.targets) return;
    bar.hidden = counts.hidden = false;
    let ended = 0;
    const texts = [];
    for (const [name, target] of Object.entries(live.targets)) {
      ended += target.done;
      const failed = target.failed ? `, ${number(target.failed)} failed` : "";
      texts.push(`${name}: ${number(target.done)} ended${failed}, ${number(target.in_flight)} in flight, ${number(target.tokens)} tokens`);
    }
    bar.value = live.requests ? ended / live.requests : 0;
    const point = live.points && live.points.load !== null && !hasEnded ? `Point ${live.points.done + 1}${live.points.of ? ` of ${live.points.of}` : ""}, load ${live.points.load}: ` : "";
    counts.textContent = `${point}${number(ended)} of ${number(live.requests)} requests in ${number(live.elapsed_s)} s · ${texts.join(" · ")}`;
  }

  function add(point) {
    if (points.length && point.t <= points.at(-1).t) return;
    points.push(point);
    if (points.length > MOST_POINTS) {
      // The older half is thinned out, so that a run of days stays a picture.
      const half = points.splice(0, MOST_POINTS / 2).filter((_, place) => place % 2 === 0);
      points.unshift(...half);
    }
  }

  function draw() {
    const known = names.length ? names : Object.keys(points.at(-1)?.targets ?? {});
    pictures.hidden = false;
    for (const plot of plots) plot.draw(points, known, hasEnded);
  }

  function watch() {
    source = new EventSource(`/api/runs/${id}/events`);
    source.addEventListener("open", () => {
      againMs = AGAIN_MS;
      if (isLoaded && !isCutOff) return;
      isCutOff = false;
      load();
    });
    source.addEventListener("error", async () => {
      if (!isCutOff) {
        isCutOff = true;
        tellProblem("");
      }
      // A connection that broke is made again by the browser; one that was refused is not: too many
      // watch, the token is another, or a proxy answered in the service's place.
      if (isGone || source.readyState !== EventSource.CLOSED) return;
      await load();
      if (isGone || isMissing || hasEnded) return;
      timer = setTimeout(watch, againMs);
      againMs = Math.min(2 * againMs, MOST_AGAIN_MS);
    });
    source.addEventListener("course", (event) => {
      points.length = 0;
      JSON.parse(event.data).points.forEach(add);
      if (points.length) draw();
    });
    source.addEventListener("live", (event) => {
      const live = JSON.parse(event.data);
      if (!live.targets) return;
      tellLive(live);
      if (live.state === "running") add({ t: live.elapsed_s, targets: live.targets });
      draw();
    });
    source.addEventListener("state", (event) => {
      const told = JSON.parse(event.data);
      tellState(told.state, null);
      say(`The run is ${told.state}.`);
    });
    source.addEventListener("end", (event) => {
      source.close();
      const told = JSON.parse(event.data);
      tellState(told.state, told.verdict);
      say(`The run is ${told.state}${told.verdict ? `, verdict ${told.verdict}` : ""}.`);
      load();
    });
  }

  load().then(() => { if (!isGone && !isMissing) watch(); });
  return () => { isGone = true; clearTimeout(timer); source?.close(); };
}
