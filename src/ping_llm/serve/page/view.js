// Shared by all views: a form that becomes a link, and the question of the link.

import { ends } from "/page/api.js";
import { announce, clock, counted, h } from "/page/dom.js";
import { complain } from "/page/fields.js";

export function heading(name, title, words) {
  return [h("h1", { id: `title-${name}` }, title), h("p", { class: "lead" }, words)];
}

/** Return the permanent link of a question, such as #/ask?src=…. */
export function linkOf(name, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  return `#/${name}?${new URLSearchParams(given)}`;
}

/**
 * Add a form and its answer to a section.
 * Options: name; title; words; fields; button; read(): parameters of the link; fill(parameters);
 * asked(parameters): whether they make a question; answer(parameters, signal): elements;
 * empty(out), optional: fills the element of the answer before a first question, such as with `examples`.
 */
export function asking(section, options) {
  const button = h("button", { class: "primary" }, options.button);
  const form = h("form", { novalidate: true, autocomplete: "off" }, options.fields, h("p", { class: "buttons" }, button));
  const out = h("div", { class: "answer", "aria-busy": "false" });
  section.append(...heading(options.name, options.title, options.words), h("div", { class: "two" }, form, out));
  let running = null;
  let shown = null;

  async function run(parameters) {
    running?.abort();
    const mine = (running = new AbortController());
    out.setAttribute("aria-busy", "true");
    button.textContent = "Asking …";
    try {
      const made = await options.answer(parameters, mine.signal);
      for (const one of form.elements) one.removeAttribute("aria-invalid");
      out.replaceChildren(...made.flat().filter(Boolean));
    } catch (error) {
      if (mine.signal.aborted) return;
      if (!(error.message && "status" in error)) console.error(error);
      shown = null;
      out.replaceChildren(complain(form, error));
    } finally {
      if (running === mine) {
        out.setAttribute("aria-busy", "false");
        button.textContent = options.button;
      }
    }
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const missing = [...form.elements].find((one) => one.required && !one.value.trim());
    if (missing) {
      const label = form.querySelector(`label[for="${missing.id}"]`).textContent;
      out.replaceChildren(complain(form, { message: `${label} must be given.`, field: missing.name }));
      return;
    }
    try {
      const link = linkOf(options.name, await options.read());
      if (location.hash === link) follow(new URLSearchParams(link.split("?", 2)[1]), true);
      else location.hash = link;
    } catch (error) {
      out.replaceChildren(complain(form, error));
    }
  });

  function follow(parameters, again = false) {
    const text = parameters.toString();
    if (!text) {
      if (shown === null && options.empty) { shown = ""; options.empty(out); }
      return;
    }
    if (text === shown && !again) return;
    shown = text;
    options.fill(parameters);
    if (options.asked(parameters)) run(parameters);
  }
  return { show: follow };
}

/**
 * Show example questions in `out`, with ends known from the data.
 * make(source, its destinations, newest time) returns the text and the parameters of a link.
 */
export async function examples(out, name, words, make) {
  out.replaceChildren(h("p", { class: "hint" }, words));
  const hint = out.firstChild;
  const found = await ends({ limit: 3 }).catch(() => null);
  if (!found?.ends.length) return;
  const links = await Promise.all(found.ends.map(async ({ address }) => {
    const near = (await ends({ field: "dst", src: address, limit: 5 })).ends.map((one) => one.address);
    const { text, ...parameters } = make(address, near, found.known.last_time);
    return near.length ? h("li", null, h("a", { href: linkOf(name, parameters) }, text)) : null;
  })).catch(() => null); // examples are optional, so their errors are ignored
  if (!links || !hint.isConnected) return; // something was asked in the meantime
  const { sources, destinations, complete, first_time, last_time } = found.known;
  hint.after(h("h2", null, "For example"), h("ul", { class: "examples" }, links),
    h("p", { class: "hint" }, `The data have ${counted(sources, "source")} and ${counted(destinations, "destination")}${complete ? "" : " or more"}, ${clock(first_time)} to ${clock(last_time)}.`));
}

/** Return the link of the current question, and a button that copies it. */
export function permanent() {
  const copy = h("button", { type: "button" }, "Copy link");
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(location.href);
    announce("The link was copied.");
    copy.textContent = "Copied";
  });
  return [h("a", { href: location.hash }, "Permanent link"), navigator.clipboard ? copy : null];
}
