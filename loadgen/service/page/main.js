// The page: which part is shown, by the address's hash; nothing is kept but what the service tells.

import { ask } from "./api.js";
import { showComparison } from "./compare.js";
import { el } from "./dom.js";
import { showForm } from "./form.js";
import { showList } from "./list.js";
import { showRun } from "./run.js";

const main = document.getElementById("main");
let leave = () => {};
let settings = null;
let isFirst = true;

function show() {
  leave();
  const [part, ...ids] = location.hash.replace(/^#\/?/, "").split("/");
  document.title = "loadgen";
  if (part === "new") leave = showForm(main, settings);
  else if (part === "run" && ids.length === 1) leave = showRun(main, ids[0]);
  else if (part === "compare" && ids.length === 2) leave = showComparison(main, ...ids);
  else leave = showList(main);
  for (const link of document.querySelectorAll("header nav a")) {
    const isHere = link.getAttribute("href") === (part === "new" ? "#/new" : "#/");
    isHere ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  if (!isFirst) main.querySelector("h1")?.focus();
  isFirst = false;
}

// The hash names what is shown, so the skip link leaves it alone.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

try {
  settings = await ask("GET", "/api/settings");
  const grafana = document.getElementById("grafana");
  if (settings.grafana_url) {
    grafana.href = settings.grafana_url;
    grafana.hidden = false;
  }
  addEventListener("hashchange", show);
  show();
} catch (error) {
  main.replaceChildren(el("p", { class: "problem", role: "alert" }, error.message));
}
