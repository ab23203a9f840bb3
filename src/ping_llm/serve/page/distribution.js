// Chart of the distribution, and the slider of P(RTT < x).

import { drawn, h, ms, percent, s, ticks } from "/page/dom.js";

const HEIGHT = 210;
const FOOT = 26;
const TOP = 20;

/** Return P(RTT < x | reply), linear between the points of the curve. */
function below(curve, x) {
  const { ms: edges, below: levels } = curve;
  if (x <= edges[0]) return x < edges[0] ? 0 : levels[0];
  if (x >= edges.at(-1)) return 1;
  let low = 0;
  let high = edges.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (edges[middle] <= x) low = middle; else high = middle;
  }
  const wide = edges[high] - edges[low];
  return levels[low] + (wide > 0 ? (x - edges[low]) / wide : 1) * (levels[high] - levels[low]);
}

/** Return a scale from low to high, logarithmic if the range is wide. */
function scaleOf(low, high) {
  const start = Math.max(low, 0.01);
  const logarithmic = high > 8 * start;
  if (!logarithmic) return { low, high, logarithmic, share: (x) => (x - low) / (high - low), at: (share) => low + share * (high - low) };
  const ratio = Math.log(high / start);
  return { low: start, high, logarithmic, share: (x) => Math.log(Math.max(x, 1e-9) / start) / ratio, at: (share) => start * Math.exp(share * ratio) };
}

export function picture(answer) {
  const { curve, quantiles, failure } = answer;
  // The chart shows 98 % of the replies, without long empty tails.
  const wide = Math.max(quantiles["0.95"] - quantiles["0.05"], 0.2);
  const low = Math.max(quantiles["0.01"], quantiles["0.05"] - 0.8 * wide) - 0.1 * wide;
  const scale = scaleOf(Math.max(low, quantiles["0.05"] / 3), Math.min(quantiles["0.99"], quantiles["0.95"] + 1.2 * wide) + 0.1 * wide);
  const chart = h("div", { class: "chart" });
  const steps = 1000;
  const slider = h("input", { type: "range", id: "below", min: 0, max: steps, "aria-describedby": "below-out" });
  const exact = h("input", { type: "number", id: "below-ms", min: 0, step: "any", "aria-label": "RTT in ms" });
  const result = h("output", { id: "below-out", for: "below below-ms" });
  let x = quantiles["0.95"];
  let width = 0;

  function tell() {
    const share = below(curve, x);
    result.textContent = `P(a reply in less than ${ms(x)}) = ${percent(share * (1 - failure))}`;
    slider.setAttribute("aria-valuetext", `${ms(x)}: ${percent(share * (1 - failure))}`);
    if (width) draw(width);
  }
  slider.addEventListener("input", () => { x = scale.at(slider.value / steps); exact.value = x.toFixed(x >= 10 ? 1 : 2); tell(); });
  exact.addEventListener("input", () => {
    if (!(Number(exact.value) >= 0) || exact.value === "") return;
    x = Number(exact.value);
    slider.value = steps * scale.share(x);
    tell();
  });

  function draw(now) {
    width = now;
    const at = (value) => width * scale.share(value);
    const bins = Math.max(40, Math.min(120, Math.round(width / 7)));
    const edges = Array.from({ length: bins + 1 }, (_, index) => scale.at(index / bins));
    const shares = edges.slice(1).map((edge, index) => below(curve, edge) - below(curve, edges[index]));
    const most = Math.max(...shares, 1e-9);
    const foot = HEIGHT - FOOT;
    const y = (share) => foot - (foot - TOP) * (share / most);
    let path = `M0 ${foot}`;
    shares.forEach((share, index) => { path += `V${y(share).toFixed(1)}H${(width * (index + 1) / bins).toFixed(1)}`; });
    path += `V${foot}Z`;
    const clip = (id, low, high) => s("clipPath", { id }, s("rect", { x: at(low), y: 0, width: Math.max(at(high) - at(low), 0.5), height: foot }));
    const middle = at(answer.median);
    const mark = at(x);
    const label = (place, text, kind, top) => s("text", {
      x: Math.min(Math.max(place, 4), width - 4), y: top, class: kind,
      "text-anchor": place > width - 80 ? "end" : place < 80 ? "start" : "middle",
    }, text);
    chart.replaceChildren(s("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label":
      `Distribution of the RTT: median ${ms(answer.median)}, half of the replies between ${ms(quantiles["0.25"])} and ${ms(quantiles["0.75"])}, 90 % between ${ms(quantiles["0.05"])} and ${ms(quantiles["0.95"])}.` },
      s("defs", null, clip("band-90", quantiles["0.05"], quantiles["0.95"]), clip("band-50", quantiles["0.25"], quantiles["0.75"])),
      s("rect", { class: "back", x: at(quantiles["0.05"]), y: TOP, width: Math.max(at(quantiles["0.95"]) - at(quantiles["0.05"]), 1), height: foot - TOP }),
      s("path", { d: path, class: "tail" }),
      s("path", { d: path, class: "band90", "clip-path": "url(#band-90)" }),
      s("path", { d: path, class: "band50", "clip-path": "url(#band-50)" }),
      s("line", { class: "median", x1: middle, x2: middle, y1: TOP - 4, y2: foot }),
      label(middle, `median ${ms(answer.median)}`, "median-label", 11),
      s("path", { class: "guess", d: "M-5 0L5 0L0 -7Z", transform: `translate(${at(answer.point)} ${foot + 7})` }, s("title", null, "best guess")),
      mark >= 0 && mark <= width ? s("line", { class: "mark", x1: mark, x2: mark, y1: TOP, y2: foot }) : null,
      s("line", { class: "axis", x1: 0, x2: width, y1: foot, y2: foot }),
      ticks(scale.low, scale.high, Math.max(3, width / 90), scale.logarithmic).map((value) => [
        s("line", { class: "axis", x1: at(value), x2: at(value), y1: foot, y2: foot + 4 }),
        at(value) > 12 && at(value) < width - 12 ? s("text", { x: at(value), y: HEIGHT - 8, class: "tick", "text-anchor": "middle" }, String(value)) : null,
      ])));
  }

  slider.value = steps * scale.share(x);
  exact.value = x.toFixed(x >= 10 ? 1 : 2);
  tell();
  return h("figure", null,
    drawn(chart, draw),
    h("figcaption", null,
      h("span", { class: "key band50" }, "half of the replies"), h("span", { class: "key band90" }, "90 % of the replies"),
      h("span", null, "▲ best guess"), h("span", { class: "key mark" }, "the slider"), h("span", { class: "axis-name" }, scale.logarithmic ? "RTT, ms (by ratio)" : "RTT, ms")),
    h("div", { class: "below" }, h("label", { for: "below" }, "Below"), slider, h("span", { class: "exact" }, exact, " ms"), result));
}

/** Return a function that draws the bar of an answer, 5 % to 95 % with the median, on a scale around the first. */
export function bars(answers) {
  const middle = answers[0].quantiles["0.5"];
  const scale = scaleOf(
    Math.min(answers[0].quantiles["0.05"], ...answers.map((one) => Math.max(one.quantiles["0.05"], 0.6 * middle))) * 0.97,
    Math.max(answers[0].quantiles["0.95"], ...answers.map((one) => Math.min(one.quantiles["0.95"], 1.6 * middle))) * 1.03 + 0.01);
  const share = (value) => 100 * Math.min(Math.max(scale.share(value), 0), 1);
  return ({ quantiles: q }) => s("svg", { class: "bar", viewBox: "0 0 100 14", preserveAspectRatio: "none", "aria-hidden": "true" },
    s("rect", { class: "b90", x: share(q["0.05"]), y: 5, width: Math.max(share(q["0.95"]) - share(q["0.05"]), 0.6), height: 4 }),
    s("rect", { class: "b50", x: share(q["0.25"]), y: 3, width: Math.max(share(q["0.75"]) - share(q["0.25"]), 0.6), height: 8 }),
    s("rect", { class: "b0", x: share(q["0.5"]) - 0.4, y: 0, width: 0.8, height: 14 }));
}
