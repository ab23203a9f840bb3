// Elements of the page, and formats of numbers and times.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** Return an HTML element; texts in it are never parsed as HTML. */
export function h(name, attributes, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Return an SVG element. */
export function s(name, attributes, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

export function ms(value) {
  if (value === null || value === undefined) return "";
  return `${figure(value)}\u00a0ms`;
}

/** Format ms without the unit, which the column header names. */
export function figure(value) {
  if (value === null || value === undefined) return "";
  return value >= 1000 ? Math.round(value).toLocaleString("en") : value.toFixed(value >= 10 ? 1 : 2);
}

export function percent(share) {
  if (share > 0 && share < 0.001) return "<\u00a00.1\u00a0%";
  if (share < 1 && share > 0.999) return ">\u00a099.9\u00a0%";
  return `${(100 * share).toFixed(1)}\u00a0%`;
}

export function counted(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

/** Format an ISO text or seconds since 1970 as 2024-01-13 08:32:06. */
export function clock(time) {
  if (time === null || time === undefined) return "";
  const text = typeof time === "number" ? new Date(time * 1000).toISOString() : time;
  return text.replace("T", " ").replace(/(\.\d+)?Z$/, "");
}

/** Announce a text to screen readers. */
export function announce(text) {
  document.getElementById("said").textContent = text;
}

/** Return a table in a scrolling box; columns are [title, numeric?]. */
export function table(caption, columns, rows, attributes = {}) {
  const cell = (kind, content, index) =>
    h(kind, { class: columns[index][1] ? "number" : null, scope: kind === "th" ? "col" : null }, content);
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", attributes,
      h("caption", { class: "unseen" }, caption),
      h("thead", null, h("tr", null, columns.map(([title], index) => cell("th", title, index)))),
      h("tbody", null, rows.map((row) => row instanceof Element ? row
        : h("tr", null, row.map((content, index) => cell("td", content, index)))))));
}

/** Return about `count` ticks for an axis from low to high. */
export function ticks(low, high, count, logarithmic = false) {
  if (logarithmic) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const digit of [1, 2, 5]) {
        const value = digit * 10 ** power;
        if (value >= low && value <= high) found.push(value);
      }
    if (found.length >= 3) return found;
  }
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((digit) => digit * power).find((one) => one >= rough);
  const out = [];
  for (let value = Math.ceil(low / step) * step; value <= high + 1e-9; value += step) out.push(+value.toPrecision(12));
  return out;
}

/** Call `draw(width)` now and whenever the width of the box changes. */
export function drawn(box, draw) {
  let width = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.round(entry.contentRect.width);
    if (now && now !== width) draw((width = now));
  }).observe(box);
  return box;
}

/** Return a colour of the stylesheet, for canvases. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const loaded = new Map();

/** Load a vendored script on first use; these scripts define global names. */
export function script(name) {
  if (!loaded.has(name)) loaded.set(name, new Promise((resolve, reject) => {
    const element = h("script", { src: `/page/vendor/${name}` });
    element.onload = resolve;
    element.onerror = () => reject(new Error(`${name} was not loaded`));
    document.head.append(element);
  }));
  return loaded.get(name);
}
