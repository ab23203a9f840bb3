// Model: its description, its errors on held-out questions, and its calibration.

import { model } from "/page/api.js";
import { announce, drawn, h, s, table } from "/page/dom.js";
import { heading } from "/page/view.js";

export const TITLE = "Model";

export function build(section, name) {
  const out = h("div", null);
  section.append(...heading(name, TITLE, "What answers here, how good it was on questions that were held out, and what it was trained on."), out);
  let done = false;
  return {
    async show() {
      if (done) return;
      done = true;
      try {
        const about = await model();
        out.replaceChildren(...shown(about).flat().filter(Boolean));
        announce(`Model ${about.name}`);
      } catch (error) {
        done = false;
        out.replaceChildren(h("p", { class: "error", role: "alert" }, error.message));
      }
    },
  };
}

function shown(about) {
  const trained = about.trained_on ?? {};
  const facts = [
    ["Run", about.name], ["Parameters", about.parameters.toLocaleString("en")],
    ["Network", about.layers ? `${about.layers} layers of ${about.width}, ${about.max_length} tokens` : about.network],
    ["Trained on", trained.measurements ? `${trained.measurements.toLocaleString("en")} measurements` : null],
    ["Sources, destinations", trained.sources ? `${trained.sources.toLocaleString("en")}, ${trained.destinations?.toLocaleString("en")}` : null],
    ["Calibrated on", about.held_out?.questions ? `${about.held_out.questions.toLocaleString("en")} held-out questions` : null],
    ["Mixes", about.methods.join(", ") || "the network alone"],
    ["Data", about.data ? about.data.fingerprint.slice(0, 16) : "none: answers use only what a question brings"],
    ["ping-llm", about.version],
  ].filter(([, value]) => value);
  return [
    h("dl", { class: "facts" }, facts.map(([title, value]) => h("div", null, h("dt", null, title), h("dd", null, value)))),
    about.report ? report(about) : h("p", { class: "hint" }, "The run has no report: ping-llm fit writes one, and ping-llm evaluate does for any run."),
    about.card ? h("details", null, h("summary", null, "Model card"), h("pre", { class: "card", tabindex: "0" }, about.card.replace(/^---[\s\S]*?---\s*/, ""))) : null,
  ];
}

function report(about) {
  const { report: made } = about;
  const select = h("select", { id: "metric" }, Object.entries(made.metrics).map(([key, title]) => h("option", { value: key, selected: key === "crps_ms" }, title)));
  const board = h("div", null);
  const fill = () => board.replaceChildren(leaderboard(made, select.value));
  select.addEventListener("change", fill);
  fill();
  return [
    h("p", { class: "verdict" }, made.summary),
    h("h2", null, "Calibration"),
    h("p", null, "Of the results, the share below each predicted quantile. On the dashed line the probabilities are right: of 90 % intervals, 90 % hold the result."),
    h("div", { class: "small-multiples" }, made.tests.map((test) => calibration(test, made.subject))),
    h("h2", null, "Leaderboard"),
    h("p", null, "Every method answered the same held-out questions. Less is better; the best of a column is marked."),
    h("div", { class: "field inline" }, h("label", { for: "metric" }, "Figure"), select),
    board,
  ];
}

function leaderboard(made, metric) {
  const methods = [...new Set(made.tests.flatMap((test) => Object.keys(test.methods)))];
  const value = (test, method) => test.methods[method]?.[metric] ?? null;
  const best = made.tests.map((test) => Math.min(...methods.filter((one) => one !== "truth").map((one) => value(test, one)).filter((one) => one !== null)));
  const mean = (method) => made.tests.reduce((sum, test, index) => sum + (value(test, method) ?? 10 * best[index]) / best[index], 0);
  const sorted = methods.sort((a, b) => mean(a) - mean(b));
  return table(made.metrics[metric], [["Method"], ...made.tests.map((test) => [test.title, true])],
    sorted.map((method) => h("tr", { class: method === made.subject ? "subject" : null },
      h("td", null, method === "truth" ? "truth (the simulator)" : method),
      made.tests.map((test, index) => {
        const one = value(test, method);
        return h("td", { class: one === best[index] ? "number best" : "number" }, one === null ? "" : one.toFixed(one >= 100 ? 0 : 2));
      }))), { class: "board" });
}

function calibration(test, subject) {
  const box = h("div", { class: "chart" });
  const lines = Object.entries(test.calibration);
  const worst = (shares) => Math.max(...shares.map((share, index) => Math.abs(share - (index + 1) / shares.length)));
  const words = lines.map(([method, shares]) => `${method}: off by at most ${(100 * worst(shares)).toFixed(1)} %`).join("; ");
  const draw = (width) => {
    const side = Math.min(width, 240);
    const edge = 30;
    const at = (share) => edge + share * (side - edge - 14);
    const up = (share) => side - edge - share * (side - edge - 8);
    box.replaceChildren(s("svg", { width: side, height: side, viewBox: `0 0 ${side} ${side}`, role: "img", "aria-label": `Calibration of ${test.title}. ${words}` },
      [0, 0.25, 0.5, 0.75, 1].map((share) => [
        s("line", { class: "grid", x1: at(share), x2: at(share), y1: up(0), y2: up(1) }), s("line", { class: "grid", x1: at(0), x2: at(1), y1: up(share), y2: up(share) }),
        s("text", { class: "tick", x: at(share), y: side - 12, "text-anchor": "middle" }, `${100 * share}`),
        s("text", { class: "tick", x: edge - 5, y: up(share) + 4, "text-anchor": "end" }, `${100 * share}`),
      ]),
      s("line", { class: "ideal", x1: at(0), x2: at(1), y1: up(0), y2: up(1) }),
      lines.map(([method, shares]) => s("polyline", { class: method === subject ? "curve subject" : "curve", points:
        [[0, 0], ...shares.map((share, index) => [(index + 1) / shares.length, share])].map(([x, y]) => `${at(x).toFixed(1)},${up(y).toFixed(1)}`).join(" ") }))));
  };
  return h("figure", null, h("h3", null, test.title), drawn(box, draw),
    h("figcaption", null, lines.map(([method]) => h("span", { class: method === subject ? "key line subject" : "key line" }, method)), h("small", null, `${(test.questions ?? 0).toLocaleString("en")} questions · ${words}`)));
}
