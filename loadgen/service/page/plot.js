// One live plot: a line a target over the run's seconds. Redrawn at most once a frame.

import { el, number, svg } from "./dom.js";

const HEIGHT = 150;
const LEFT = 52;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 22;
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];

export class Plot {
  constructor(title, key, digits = 0) {
    this.title = title;
    this.key = key;
    this.digits = digits;
    this.now = el("span", { class: "now" }, "–");
    this.picture = svg("svg", {
      height: HEIGHT,
      role: "img",
      "aria-label": `${title}, no value yet`,
    });
    this.element = el("figure", { class: "plot" },
      el("figcaption", {}, el("span", {}, title), this.now), this.picture);
    this.waits = false;
    this.points = [];
    new ResizeObserver(() => this.points.length && this.draw(this.points, this.names, this.isOver)).observe(this.element);
  }

  // points: [{t, targets: {name: {key: value}}}]; names in the order of the run's targets.
  // Of a run that is over, the last values are not told: they are of its last seconds, and no result.
  draw(points, names, isOver) {
    this.points = points;
    this.isOver = isOver;
    this.names = names;
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => {
      this.waits = false;
      this.redraw();
    });
  }

  redraw() {
    const width = this.picture.clientWidth || 480; // one unit is one pixel, so that words stay readable
    this.picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const until = Math.max(1, ...this.points.slice(-1).map((point) => point.t));
    let most = 0;
    for (const point of this.points) {
      for (const name of this.names) most = Math.max(most, point.targets[name]?.[this.key] ?? 0);
    }
    const top = ceiling(most);
    const x = (t) => LEFT + (t / until) * (width - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
    const parts = [0, 0.5, 1].flatMap((share) => [
      svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(top * share), y2: y(top * share) }),
      svg("text", { class: "tick", x: LEFT - 6, y: y(top * share) + 4, "text-anchor": "end" }, short(top * share)),
    ]);
    parts.push(svg("text", { class: "tick", x: LEFT, y: HEIGHT - 6 }, "0 s"));
    parts.push(svg("text", { class: "tick", x: width - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, `${number(until)} s`));
    const told = [];
    this.names.forEach((name, place) => {
      const line = path(this.points, name, this.key, x, y);
      parts.push(svg("path", { class: `line target-${place % 4}`, d: line, "stroke-dasharray": DASHES[place % 4] }));
      const last = this.points.findLast((point) => point.targets[name]?.[this.key] != null);
      told.push([name, last ? last.targets[name][this.key] : null, place]);
    });
    this.picture.replaceChildren(...parts);
    const words = told.map(([name, value]) => `${name} ${number(value, this.digits)}`);
    this.picture.setAttribute("aria-label", `${this.title}: ${words.join(", ")}`);
    this.now.replaceChildren(...told.map(([name, value, place]) =>
      el("span", { class: `key target-${place % 4}` }, told.length > 1 ? `${name} ` : "",
        this.isOver ? "" : el("b", {}, number(value, this.digits)))));
  }
}

function path(points, name, key, x, y) {
  let text = "";
  let isOn = false;
  for (const point of points) {
    const value = point.targets[name]?.[key];
    if (value === null || value === undefined) {
      isOn = false;
      continue;
    }
    text += `${isOn ? "L" : "M"}${x(point.t).toFixed(1)} ${y(value).toFixed(1)}`;
    isOn = true;
  }
  return text;
}

// The next round number above.
function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

function short(value) {
  if (value >= 1e6) return `${number(value / 1e6, 1)} M`;
  if (value >= 1e4) return `${number(value / 1e3)} k`;
  return number(value, value > 0 && value < 2 ? 1 : 0);
}
