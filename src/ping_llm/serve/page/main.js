// Shows the view named by the part of the URL after #. No part of a question is sent before it is asked.

import { model } from "/page/api.js";
import { h } from "/page/dom.js";
import * as ask from "/page/ask.js";
import * as map from "/page/map.js";
import * as models from "/page/model.js";
import * as rank from "/page/rank.js";
import * as series from "/page/series.js";

const VIEWS = { ask, series, rank, map, model: models };
const made = new Map();
const main = document.getElementById("main");

function show() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  if (path === "main") return; // the link that skips to the content
  const name = Object.hasOwn(VIEWS, path) ? path : "ask";
  if (!made.has(name)) {
    const section = h("section", { class: `view ${name}`, "aria-labelledby": `title-${name}` });
    made.set(name, { section, view: VIEWS[name].build(section, name) });
  }
  const { section, view } = made.get(name);
  if (main.firstChild !== section) {
    const first = !main.firstChild;
    main.replaceChildren(section);
    if (!first) { main.focus({ preventScroll: true }); scrollTo(0, 0); }
  }
  document.title = `${VIEWS[name].TITLE} · ping-llm`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  view.show(new URLSearchParams(query ?? ""));
}

addEventListener("hashchange", show);
show();
model().then((about) => {
  const millions = about.parameters / 1e6;
  const size = millions >= 0.1 ? `${millions.toFixed(1)} M` : `${Math.round(1000 * millions)} k`;
  document.getElementById("served").textContent = `${about.name} · ${size} parameters`;
}).catch(() => {});
