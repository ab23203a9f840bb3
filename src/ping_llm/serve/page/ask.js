// Ask: the distribution of the RTT of one pair.

import { model, post } from "/page/api.js";
import { announce, counted, figure, h, ms, percent, table } from "/page/dom.js";
import { bars, picture } from "/page/distribution.js";
import { contextField, endField, timeField } from "/page/fields.js";
import { asking, examples, permanent } from "/page/view.js";

export const TITLE = "Ask";
const POINTS = 400;

export function build(section, name) {
  const src = endField("src", "Source", "An address, a prefix (203.0.113.0/24), or a name: AS3333, NL, probe:1234.");
  const dst = endField("dst", "Destination", null, () => src.input.value.trim() && !dst.input.value.trim() ? { src: src.input.value.trim() } : {});
  const at = timeField();
  const context = contextField(src.input);
  let known; // context of the current question
  return asking(section, {
    name, title: TITLE, button: "Ask",
    words: "How long does a packet take from here to there and back, and how sure is that?",
    fields: [src.element, dst.element, at.element, context.element],
    async read() {
      known = await context.value();
      return { src: src.input.value.trim(), dst: dst.input.value.trim(), at: at.value(), context: context.link(known) };
    },
    fill(parameters) {
      src.input.value = parameters.get("src") ?? "";
      dst.input.value = parameters.get("dst") ?? "";
      at.input.value = parameters.get("at") ?? "";
      context.follow(parameters.get("context") ?? "");
    },
    asked: (parameters) => parameters.get("src") && parameters.get("dst"),
    async answer(parameters, signal) {
      known = await context.value();
      const question = { src: parameters.get("src"), dst: parameters.get("dst") };
      if (parameters.get("at")) question.at = parameters.get("at");
      if (known) question.context = known;
      const answer = await post("/v1/rtt", { ...question, curve: POINTS }, signal);
      announce(`Best guess ${ms(answer.point)}. ${range(answer)}. No reply ${percent(answer.failure)}.`);
      const others = h("div", { class: "others", "aria-busy": "true" });
      methods(question, signal).then((found) => others.replaceChildren(...beside(answer, found)))
        .catch((error) => signal.aborted || others.replaceChildren(h("p", { class: "error" }, error.message)))
        .finally(() => others.setAttribute("aria-busy", "false"));
      return [...shown(answer), others, request(question, known)];
    },
    empty: (out) => examples(out, name, "The answer is a distribution: median, 50 % and 90 % bands, and the probability of no reply.",
      (source, [first], last) => ({ text: `${source} → ${first}`, src: source, dst: first, at: last })),
  });
}

/** Return the answers of the simple methods, without those that fail. */
async function methods(question, signal) {
  const about = await model();
  const found = await Promise.all(about.methods.map((method) =>
    post("/v1/rtt", { ...question, method }, signal).then((answer) => ({ method, answer, words: about.method_words[method] }))
      .catch((error) => { if (signal.aborted) throw error; return null; })));
  return found.filter(Boolean);
}

function range(answer) {
  return `90 % of replies between ${ms(answer.quantiles["0.05"])} and ${ms(answer.quantiles["0.95"])}`;
}

/** Return a warning about unknown ends, and a sentence on the measurements that the answer rests on. */
function basis(answer) {
  const known = answer.rests_on;
  if (known.kind === undefined) return ["", "The network alone answers: this run was never calibrated."];
  const pair = known.pair_measurements;
  const others = known.source_measurements - pair;
  const parts = [`${pair ? counted(pair, "earlier measurement") : "no earlier measurement"} of this pair`];
  if (others) parts.push(`${counted(others, "measurement")} of the source to other destinations`);
  if (known.destination_measurements) parts.push(`${counted(known.destination_measurements, "measurement")} of the destination by all sources in training`);
  const source = known.source_trained || known.source_measurements > 0;
  let warning = "";
  if (!source && !known.destination_trained)
    warning = known.source_network_trained || known.destination_network_trained
      ? "Neither end is known, only a network around it: wide on purpose."
      : "Nothing is known about these networks: wide on purpose.";
  else if (!source) warning = known.source_network_trained ? "The source is unknown; its network is known." : "Nothing is known about the source's network: wide on purpose.";
  else if (!known.destination_trained && !pair) warning = known.destination_network_trained ? "The destination is unknown; its network is known." : "Nothing is known about the destination's network: wide on purpose.";
  return [warning, `Rests on ${parts.join(", ")}.`];
}

function shown(answer) {
  const [warning, rests] = basis(answer);
  const seen = answer.rests_on.pair_observed;
  return [
    h("h2", { class: "ends" }, h("span", null, answer.src_addr), " → ", h("span", null, answer.dst_addr)),
    h("p", { class: "when" }, answer.event_time ? `at ${answer.event_time}` : "at an unknown time", " · ", permanent().flatMap((one) => one ? [one, " "] : [])),
    h("dl", { class: "figures" },
      h("div", { class: "main" }, h("dt", null, "Best guess"), h("dd", { id: "best-guess" }, ms(answer.point))),
      h("div", null, h("dt", null, "Median"), h("dd", null, ms(answer.median))),
      h("div", null, h("dt", null, "90 % of replies"), h("dd", null, `${figure(answer.quantiles["0.05"])} – ${ms(answer.quantiles["0.95"])}`)),
      h("div", null, h("dt", null, "No reply"), h("dd", null, percent(answer.failure)))),
    warning ? h("p", { class: "warning" }, warning) : null,
    picture(answer),
    h("p", { class: "basis" }, rests,
      seen ? ` Its replies so far: median ${ms(seen.median)}, ${ms(seen.min)} to ${ms(seen.max)}.` : "",
      answer.rests_on.kind ? ` Kind of question: ${answer.rests_on.kind}.` : ""),
    answer.notes.map((note) => h("p", { class: "note" }, note)),
  ].filter(Boolean);
}

function beside(answer, others) {
  const rows = [{ method: "stack", words: "this answer: all of them, mixed and calibrated", answer }, ...others];
  if (!others.length) return [];
  const scale = bars(rows.map((one) => one.answer));
  return [
    h("h3", null, "The simple methods' answers"),
    table("The methods' answers", [["Method"], ["5 – 95 %, median"], ["Median, ms", true], ["5 %", true], ["95 %", true], ["No reply", true]],
      rows.map(({ method, words, answer: one }) => h("tr", { class: method === "stack" ? "subject" : null },
        h("td", null, h("b", null, method), h("small", null, words && words !== method ? words : "")),
        h("td", { class: "strip" }, scale(one)),
        ["0.5", "0.05", "0.95"].map((level) => h("td", { class: "number" }, figure(one.quantiles[level]))),
        h("td", { class: "number" }, percent(one.failure)))), { class: "methods" }),
  ];
}

function request(question, known) {
  const body = JSON.stringify(known && known.length > 3 ? { ...question, context: [...known.slice(0, 3), "…"] } : question);
  return h("details", { class: "request" }, h("summary", null, "The same by HTTP"),
    h("pre", { tabindex: "0" }, `curl -s ${location.origin}/v1/rtt -H 'Content-Type: application/json' \\\n  -d '${body}'`));
}
