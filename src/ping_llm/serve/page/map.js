// Map: expected RTTs from a source to the known destinations; without places, a table by prefix.

import { get } from "/page/api.js";
import { announce, counted, drawn, figure, h, ms, percent, s, script, table } from "/page/dom.js";
import { endField, field, timeField } from "/page/fields.js";
import { asking, examples, linkOf, permanent } from "/page/view.js";

export const TITLE = "Map";
const STEPS = [20, 50, 100, 150, 250]; // limits of the colours, ms: one below each, one above all
const step = (value) => STEPS.filter((limit) => value >= limit).length;
const NAMES = [...STEPS.map((limit, index) => (index ? `${STEPS[index - 1]} – ${limit}` : `below ${limit}`)), `${STEPS.at(-1)} and more`];

export function build(section, name) {
  const src = endField("src", "Source", "An address, a prefix, or a name: AS3333, probe:1234.");
  const limit = h("select", { name: "limit" }, [50, 100, 200, 500].map((count) => h("option", { value: count, selected: count === 200 }, String(count))));
  const at = timeField();
  return asking(section, {
    name, title: TITLE, button: "Show",
    words: "How far away is everything from a source? Destinations of the server's data, by expected RTT.",
    fields: [src.element, at.element, field("Destinations", limit, "The most measured ones.")],
    read: async () => ({ src: src.input.value.trim(), at: at.value(), limit: limit.value }),
    fill(parameters) {
      src.input.value = parameters.get("src") ?? "";
      at.input.value = parameters.get("at") ?? "";
      limit.value = parameters.get("limit") ?? "200";
      if (!limit.value) limit.value = "200";
    },
    empty: (out) => examples(out, name, "Every known destination, coloured by its median RTT, and a table by prefix.",
      (source, several, last) => ({ text: `from ${source}`, src: source, at: last })),
    asked: (parameters) => parameters.get("src"),
    async answer(parameters, signal) {
      const made = await get("/v1/map", { src: parameters.get("src"), at: parameters.get("at"), limit: limit.value }, signal);
      const placed = made.destinations.filter((one) => one.latitude !== null);
      let world = null;
      if (placed.length) {
        await script("d3-array.js"); // before d3-geo, which adds to it
        await Promise.all([script("d3-geo.js"), script("topojson-client.js")]);
        const atlas = await get("/page/vendor/countries-110m.json", {}, signal);
        world = topojson.feature(atlas, atlas.objects.countries);
      }
      return shown(made, placed, world);
    },
  });
}

function shown(made, placed, world) {
  const all = made.destinations;
  const median = (one) => one.expected["0.5"];
  const words = `${counted(all.length, "destination")}: ${NAMES.map((name, index) => [all.filter((one) => step(median(one)) === index).length, name])
    .filter(([count]) => count).map(([count, name]) => `${count}\u00a0at ${name}\u00a0ms`).join(", ")}.`;
  announce(words);
  const unknown = all.length - placed.length;
  return [
    h("h2", { class: "ends" }, "From ", h("span", null, made.src_addr)),
    h("p", { class: "when" }, made.event_time ? `at ${made.event_time} · ` : "at an unknown time · ", words, " ", permanent().flatMap((one) => one ? [one, " "] : [])),
    world ? figureOf(made, placed, world) : h("p", { class: "hint" }, made.has_places
      ? "None of these destinations has a place in the server's table of places." : "The server knows no places: start it with --places FILE.csv to see a map."),
    world && unknown ? h("p", { class: "hint" }, `${counted(unknown, "destination")} without a known place: only in the table.`) : null,
    h("h3", null, "By prefix"),
    byNetwork(made, all),
  ];
}

function byNetwork(made, all) {
  const groups = Map.groupBy ? Map.groupBy(all, (one) => one.network) : all.reduce((map, one) => map.set(one.network, [...(map.get(one.network) ?? []), one]), new Map());
  const middle = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];
  const rows = [...groups].map(([network, several]) => ({
    network, several, median: middle(several.map((one) => one.expected["0.5"])),
    low: Math.min(...several.map((one) => one.expected["0.05"])), high: Math.max(...several.map((one) => one.expected["0.95"])),
    failure: several.reduce((sum, one) => sum + one.failure, 0) / several.length,
  })).sort((a, b) => a.median - b.median);
  return table("Destinations by prefix", [["Prefix"], ["Destinations", true], ["Median, ms", true], ["5 – 95 %", true], ["No reply", true], ["Nearest"]],
    rows.map((one) => {
      const nearest = one.several.reduce((a, b) => (a.expected["0.5"] <= b.expected["0.5"] ? a : b));
      return [
        h("span", null, h("span", { class: `swatch step${step(one.median)}`, "aria-hidden": "true" }), one.network),
        String(one.several.length), figure(one.median), `${figure(one.low)} – ${figure(one.high)}`, percent(one.failure),
        h("a", { href: linkOf("ask", { src: made.src_addr, dst: nearest.dst_addr, at: made.event_time }) }, nearest.dst_addr),
      ];
    }));
}

/** Group destinations by place, for one circle per place whose size shows their number. */
function sites(placed) {
  const found = new Map();
  for (const one of placed) {
    const key = `${one.latitude},${one.longitude}`;
    if (!found.has(key)) found.set(key, { longitude: one.longitude, latitude: one.latitude, several: [] });
    found.get(key).several.push(one);
  }
  return [...found.values()].map((site) => {
    const medians = site.several.map((one) => one.expected["0.5"]).sort((a, b) => a - b);
    return { ...site, median: medians[medians.length >> 1] };
  }).sort((a, b) => b.several.length - a.several.length);
}

function figureOf(made, placed, world) {
  const told = h("output", { class: "told" }, "Point at a circle, or use the Tab key.");
  const box = h("div", { class: "world" });
  const here = made.latitude === null ? null : [made.longitude, made.latitude];
  const circles = sites(placed);
  const tell = (site) => {
    const [first] = site.several;
    const names = site.several.length === 1 ? first.dst_addr : `${counted(site.several.length, "destination")}, such as ${first.dst_addr}`;
    told.textContent = `${names} · median ${ms(site.median)} · 5 – 95 %: ${figure(Math.min(...site.several.map((one) => one.expected["0.05"])))} – ${ms(Math.max(...site.several.map((one) => one.expected["0.95"])))}`;
  };
  const draw = (width) => {
    const height = Math.round(width * 0.5);
    const projection = d3.geoNaturalEarth1().fitExtent([[2, 2], [width - 2, height - 2]], { type: "Sphere" });
    const path = d3.geoPath(projection);
    const size = Math.max(3.5, Math.min(7, width / 140));
    box.replaceChildren(s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Map of the destinations, coloured by expected RTT" },
      s("path", { class: "sea", d: path({ type: "Sphere" }) }),
      s("path", { class: "grid", d: path(d3.geoGraticule10()) }),
      world.features.map((one) => s("path", { class: "land", d: path(one) })),
      here ? circles.map((site) => s("path", { class: `way step${step(site.median)}`, d: path({ type: "LineString", coordinates: [here, [site.longitude, site.latitude]] }) })) : null,
      circles.map((site) => {
        const [x, y] = projection([site.longitude, site.latitude]);
        const circle = s("circle", {
          class: `site step${step(site.median)}`, cx: x, cy: y, r: size * Math.min(1 + Math.log2(site.several.length) / 3, 2.6), tabindex: "0", role: "img",
          "aria-label": `${counted(site.several.length, "destination")}, median ${ms(site.median)}`,
          onpointerenter: () => tell(site), onfocus: () => tell(site), onclick: () => tell(site),
        });
        return circle;
      }),
      here ? s("path", { class: "here", d: "M0 -8L2.3 -2.6L8 -2.4L3.5 1.2L5 7L0 3.8L-5 7L-3.5 1.2L-8 -2.4L-2.3 -2.6Z", transform: `translate(${projection(here)})` }, s("title", null, "the source")) : null));
  };
  return h("figure", null, drawn(box, draw), told,
    h("figcaption", null, NAMES.map((name, index) => h("span", { class: `key round step${index}` }, name)), h("span", { class: "axis-name" }, "median RTT, ms"),
      here ? h("span", { class: "axis-name" }, "★ the source") : null));
}
