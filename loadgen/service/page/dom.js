// Elements, built without markup: whatever a server said becomes text.

const SVG = "http://www.w3.org/2000/svg";

export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// Tells a screen reader, once.
export function say(text) {
  document.getElementById("said").textContent = text;
}

// In a line that is read aloud when it changes: the same text again is no change.
export function tell(line, text) {
  if (line.textContent !== text) line.textContent = text;
}

export function number(value, digits = 0) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// A latency in ms, or of a simulation in iterations as what it is: there, a second is one.
export function latency(seconds, unit) {
  return number(seconds == null ? null : unit === "iterations" ? seconds : seconds * 1000, 1);
}

export function inUnit(title, unit) {
  return unit === "iterations" ? title.replace(", ms", ", iterations").replace("/s", "/iteration") : title;
}

export function ratio(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  return `${value < 0.1 ? value.toPrecision(1) : value.toFixed(2)}×`;
}

export function when(text) {
  if (!text) return "–";
  const at = new Date(text);
  const pad = (part) => String(part).padStart(2, "0");
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  return `${day} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

const MARKS = { VALID: "✓", SUSPECT: "!", INVALID: "✗", failed: "✗", interrupted: "✗" };

// A state or a verdict: by word and mark, and not by colour alone.
export function badge(word) {
  const mark = MARKS[word] ? el("span", { "aria-hidden": "true" }, `${MARKS[word]} `) : null;
  return el("span", { class: `badge is-${word}` }, mark, word);
}
