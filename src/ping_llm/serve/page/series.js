// Series: measured RTTs of a pair over the expected ones, and the forecast of the next day.

import { get } from "/page/api.js";
import { announce, clock, colour, counted, drawn, figure, h, ms, percent, script, table } from "/page/dom.js";
import { endField, field } from "/page/fields.js";
import { asking, examples, permanent } from "/page/view.js";

export const TITLE = "Series";
const UNUSUAL = 0.01; // largest tail probability of an unusual result: outside the central 99 %
const HEIGHT = 320;

export function build(section, name) {
  const src = endField("src", "Source", "A source of the server's data.");
  const dst = endField("dst", "Destination", "The list shows what the source measured.", () => src.input.value.trim() ? { src: src.input.value.trim() } : {});
  const limit = h("select", { name: "limit" }, [50, 100, 200, 500, 1000].map((count) => h("option", { value: count, selected: count === 200 }, String(count))));
  return asking(section, {
    name, title: TITLE, button: "Show",
    words: "What was measured, what was to be expected at that time, and what to expect in the next day.",
    fields: [src.element, dst.element, field("Newest measurements", limit)],
    read: async () => ({ src: src.input.value.trim(), dst: dst.input.value.trim(), limit: limit.value }),
    fill(parameters) {
      src.input.value = parameters.get("src") ?? "";
      dst.input.value = parameters.get("dst") ?? "";
      limit.value = parameters.get("limit") ?? "200";
      if (!limit.value) limit.value = "200";
    },
    empty: (out) => examples(out, name, "A pair's results over the band that was expected at each time, unusual ones marked, and a forecast.",
      (source, [first]) => ({ text: `${source} → ${first}`, src: source, dst: first })),
    asked: (parameters) => parameters.get("src") && parameters.get("dst"),
    async answer(parameters, signal) {
      const [made] = await Promise.all([
        get("/v1/series", { src: parameters.get("src"), dst: parameters.get("dst"), limit: limit.value, forecast: 24 }, signal),
        script("uplot.js"),
      ]);
      return shown(made);
    },
  });
}

function shown(made) {
  const title = h("h2", { class: "ends" }, h("span", null, made.src_addr), " → ", h("span", null, made.dst_addr));
  if (!made.points.length) return [title, h("p", { class: "warning" }, "The server's data have no measurement of this pair. Ask gives the distribution of its RTT.")];
  const unusual = made.points.filter((one) => one.tail < UNUSUAL);
  const lost = made.points.filter((one) => one.rtt < 0).length;
  const inside = made.points.filter((one) => one.rtt >= 0 && one.rtt >= one.expected["0.05"] && one.rtt <= one.expected["0.95"]).length;
  const words = `${counted(made.points.length, "measurement")} of ${made.measured.toLocaleString("en")}, ${lost} without a reply; `
    + `${percent(inside / Math.max(made.points.length - lost, 1))} of the replies within the expected 5 to 95 %; ${counted(unusual.length, "unusual result")}.`;
  announce(words);
  return [
    title,
    h("p", { class: "when" }, words, " ", permanent().flatMap((one) => one ? [one, " "] : [])),
    chart(made),
    forecast(made.forecast),
    unusual.length ? [h("h3", null, "Unusual results"), rows("Unusual results, outside the central 99 %", unusual)] : null,
    h("details", null, h("summary", null, "All points"), rows("All points", made.points)),
  ].filter(Boolean).flat();
}

function rows(caption, points) {
  return table(caption, [["Time"], ["Result, ms", true], ["Expected 5 – 95 %", true], ["Median", true], ["No reply", true], ["Tail", true]],
    [...points].reverse().map((one) => [
      clock(one.event_time), one.rtt < 0 ? "no reply" : figure(one.rtt), `${figure(one.expected["0.05"])} – ${figure(one.expected["0.95"])}`,
      figure(one.expected["0.5"]), percent(one.failure), percent(one.tail),
    ]));
}

function forecast(points) {
  if (!points.length) return null;
  const medians = points.map((one) => one.expected["0.5"]);
  const low = Math.min(...points.map((one) => one.expected["0.05"]));
  const high = Math.max(...points.map((one) => one.expected["0.95"]));
  return h("p", { class: "basis" }, `Next day, to ${clock(points.at(-1).event_time)}: median ${ms(Math.min(...medians))} to ${ms(Math.max(...medians))}; `
    + `5 to 95 % of the replies within ${ms(low)} and ${ms(high)}; no reply up to ${percent(Math.max(...points.map((one) => one.failure)))}.`);
}

/** Return columns for uPlot: time, band, median, forecasts of these, results, unusual results, no replies. */
function columns({ points, forecast: next }) {
  const last = points.at(-1);
  const all = [...points, ...next];
  const seconds = (one) => Date.parse(one.event_time) / 1000;
  const now = (pick) => all.map((one, index) => (index < points.length ? pick(one) : null));
  const then = (level) => all.map((one) => (one === last || next.includes(one) ? one.expected[level] : null));
  const floor = Math.max(0, 0.97 * Math.min(...all.map((one) => Math.min(one.expected["0.05"], one.rtt >= 0 ? one.rtt : Infinity))));
  return [
    all.map(seconds),
    now((one) => one.expected["0.95"]), now((one) => one.expected["0.05"]), now((one) => one.expected["0.5"]),
    then("0.95"), then("0.05"), then("0.5"),
    now((one) => (one.rtt >= 0 && one.tail >= UNUSUAL ? one.rtt : null)),
    now((one) => (one.rtt >= 0 && one.tail < UNUSUAL ? one.rtt : null)),
    now((one) => (one.rtt < 0 ? floor : null)),
  ];
}

function chart(made) {
  const data = columns(made);
  const all = [...made.points, ...made.forecast];
  const told = h("output", { class: "told" }, "Point at the chart, or use the arrow keys on it. Drag to zoom in; a double click zooms out.");
  const tell = (index) => {
    const one = all[index];
    if (!one) return;
    const expected = `expected ${figure(one.expected["0.05"])} – ${ms(one.expected["0.95"])}, median ${ms(one.expected["0.5"])}, no reply ${percent(one.failure)}`;
    const result = one.rtt === undefined ? "forecast" : one.rtt < 0 ? "no reply" : `measured ${ms(one.rtt)}`;
    told.textContent = `${clock(one.event_time)} · ${result}${one.tail < UNUSUAL ? " (unusual)" : ""} · ${expected}`;
  };
  const box = h("div", { class: "plot", tabindex: "0", role: "img", "aria-label":
    `Results of ${made.src_addr} to ${made.dst_addr} over time with the expected band. The tables below have the same figures.` });
  let plot = null;
  let width = 0;
  const draw = (now) => {
    width = now;
    plot?.destroy();
    plot = new uPlot(options(width, tell, data), data, box);
  };
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || !plot) return;
    event.preventDefault();
    const index = Math.min(Math.max((plot.cursor.idx ?? all.length) + step, 0), all.length - 1);
    plot.setCursor({ left: plot.valToPos(data[0][index], "x"), top: 10 });
    announce(told.textContent);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => width && box.isConnected && draw(width));
  return h("figure", null, drawn(box, draw), told,
    h("figcaption", null, h("span", { class: "key dot" }, "measured"), h("span", { class: "key odd" }, "unusual"), h("span", { class: "key lost" }, "no reply"),
      h("span", { class: "key band90" }, "expected 5 – 95 %"), h("span", { class: "key next" }, "forecast")));
}

const two = (number) => String(number).padStart(2, "0");

function options(width, tell, data) {
  const soft = colour("soft");
  const line = { stroke: colour("line"), width: 1 };
  const none = { points: { show: false }, stroke: "transparent", width: 0 };
  const dots = (stroke, size, shape) => ({ stroke, paths: () => null, points: { show: true, size, stroke, fill: shape ? "transparent" : stroke, width: shape ? 2 : 0 } });
  const accent = colour("accent");
  const day = (date) => `${date.getUTCFullYear()}-${two(date.getUTCMonth() + 1)}-${two(date.getUTCDate())}`;
  return {
    width, height: HEIGHT, legend: { show: false }, tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    cursor: { drag: { x: true, y: false }, y: false, points: { show: false } },
    hooks: { setCursor: [(self) => self.cursor.idx !== null && self.cursor.idx !== undefined && tell(self.cursor.idx)] },
    scales: { x: { time: true }, y: { range: (self, low, high) => { const room = 0.06 * Math.max(high - low, 1); return [Math.max(0, low - room), high + room]; } } },
    axes: [
      { stroke: soft, grid: line, ticks: line, space: 90, values: (self, splits) => splits.map((value, index) => {
        const date = new Date(value * 1000);
        const hour = `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}`;
        const new_day = index === 0 || day(date) !== day(new Date(splits[index - 1] * 1000));
        return new_day ? `${hour}\n${day(date)}` : hour;
      }) },
      { stroke: soft, grid: line, ticks: line, size: 48, label: "RTT, ms", labelSize: 20, labelFont: "12px system-ui", values: (self, splits) => splits.map((value) => value >= 1000 ? `${value / 1000} k` : String(+value.toPrecision(6))) },
    ],
    series: [{},
      none, none, { stroke: accent, width: 1.5, points: { show: false } },
      none, none, { stroke: accent, width: 1.5, dash: [5, 4], points: { show: false } },
      dots(colour("text"), 4), dots(colour("bad"), 9, true), dots(colour("warn"), 7)],
    bands: [{ series: [1, 2], fill: colour("band") }, { series: [4, 5], fill: colour("band-next") }],
  };
}
