// Rank: which of several destinations is the fastest.

import { post } from "/page/api.js";
import { announce, figure, h, ms, percent, table } from "/page/dom.js";
import { endField, field, timeField } from "/page/fields.js";
import { asking, examples, permanent } from "/page/view.js";

export const TITLE = "Rank";

const listed = (text) => [...new Set(text.split(/[\s,;]+/).filter(Boolean))];

export function build(section, name) {
  const src = endField("src", "Source", "Who will use the destination.");
  const dst = h("textarea", { name: "dst", rows: 6, spellcheck: "false", autocomplete: "off", required: true, placeholder: "198.51.100.7\n203.0.113.9" });
  const slo = h("input", { name: "objective_ms", type: "number", min: 0, step: "any", placeholder: "none" });
  const at = timeField();
  return asking(section, {
    name, title: TITLE, button: "Rank",
    words: "Paste candidates: mirrors, relays, points of presence. Which one replies first, and how sure is that?",
    fields: [src.element, field("Candidates", dst, "Addresses, prefixes or names (AS3333, NL), separated by spaces, commas or lines."),
      field("Objective, ms", slo, "Also show P(a reply within it)."), at.element],
    read: async () => ({ src: src.input.value.trim(), dst: listed(dst.value).join(" "), slo: slo.value, at: at.value() }),
    fill(parameters) {
      src.input.value = parameters.get("src") ?? "";
      dst.value = listed(parameters.get("dst") ?? "").join("\n");
      slo.value = parameters.get("slo") ?? "";
      at.input.value = parameters.get("at") ?? "";
    },
    empty: (out) => examples(out, name, "For each candidate: the probability that it replies first, and what choosing it costs.",
      (source, several, last) => ({ text: `${source}, ${several.length} candidates`, src: source, dst: several.join(" "), at: last })),
    asked: (parameters) => parameters.get("src") && parameters.get("dst"),
    async answer(parameters, signal) {
      const body = { src: parameters.get("src"), dst: listed(parameters.get("dst")) };
      if (parameters.get("slo")) body.objective_ms = Number(parameters.get("slo"));
      if (parameters.get("at")) body.at = parameters.get("at");
      return shown(body, await post("/v1/rank", body, signal));
    },
  });
}

function shown(body, made) {
  const [first] = made.candidates;
  const likely = made.candidates.reduce((a, b) => (b.fastest > a.fastest ? b : a));
  const words = `${first.dst} costs the least: ${ms(first.expected_ms)} on average, lost packets included. `
    + `${likely === first ? "It" : likely.dst} is most likely the fastest: ${percent(likely.fastest)}.`;
  announce(words);
  const slo = made.objective_ms !== null;
  const columns = [["Destination"], ["P(fastest)", true], ...(slo ? [[`P(< ${made.objective_ms} ms)`, true]] : []),
    ["Expected", true], ["5 %", true], ["Median", true], ["95 %", true], ["No reply", true], ["Regret", true]];
  return [
    h("h2", { class: "ends" }, "From ", h("span", null, body.src)),
    ...(made.notes ?? []).map((note) => h("p", { class: "note" }, note)),
    h("p", { class: "verdict" }, words),
    h("p", { class: "when" }, permanent().flatMap((one) => one ? [one, " "] : [])),
    table("Candidates, the best first", columns, made.candidates.map((one, index) => h("tr", { class: index ? null : "subject" },
      h("td", null, one.dst),
      h("td", { class: "number chance" }, meter(one.fastest), h("span", null, percent(one.fastest))),
      slo ? h("td", { class: "number" }, percent(one.below)) : null,
      [one.expected_ms, one.quantiles_ms["0.05"], one.quantiles_ms["0.5"], one.quantiles_ms["0.95"]].map((value) => h("td", { class: "number" }, figure(value))),
      h("td", { class: "number" }, percent(one.no_reply)),
      h("td", { class: "number" }, figure(one.regret_ms))))),
    h("p", { class: "hint" }, `All in ms. Expected: the mean RTT, where no reply costs ${made.timeout_ms.toLocaleString("en")} ms. Regret: what choosing it costs more than the candidate that turns out fastest. `
      + `No candidate replies: ${percent(made.nobody)}. Candidates are taken to be independent.`),
  ];
}

function meter(share) {
  const bar = h("span", { class: "meter", "aria-hidden": "true" }, h("span"));
  bar.firstChild.style.width = `${100 * share}%`;
  return bar;
}
