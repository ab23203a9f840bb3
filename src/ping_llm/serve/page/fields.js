// Fields of the forms: ends with completion, the time, and a pasted or dropped context.

import { ends, post } from "/page/api.js";
import { announce, counted, h } from "/page/dom.js";

let number = 0;

/** Return a labelled field; `control` gets the id that its label refers to. */
export function field(label, control, hint) {
  const id = control.id || (control.id = `field-${++number}`);
  const note = hint ? h("p", { class: "hint", id: `${id}-hint` }, hint) : null;
  if (note) control.setAttribute("aria-describedby", note.id);
  return h("div", { class: "field" }, h("label", { for: id }, label), control, note);
}

/** Return the field of a source or destination, completed with ends known from the data. */
export function endField(name, label, hint, parameters = () => ({})) {
  const list = h("datalist", { id: `known-${name}-${++number}` });
  const input = h("input", {
    name, list: list.id, autocomplete: "off", autocapitalize: "off", spellcheck: "false", maxlength: 128, required: true,
    inputmode: "text", placeholder: name === "src" ? "192.0.2.1" : "198.51.100.7",
  });
  let request = null;
  let timer = null;
  const complete = async () => {
    request?.abort();
    request = new AbortController();
    try {
      const found = await ends({ field: name, starts: input.value.trim(), limit: 12, ...parameters() }, request.signal);
      list.replaceChildren(...found.ends.map((one) =>
        h("option", { value: one.address, label: counted(one.measurements, "measurement") })));
    } catch (error) {
      if (error.name !== "AbortError") list.replaceChildren(); // completion is optional, so its errors are ignored
    }
  };
  const soon = () => { clearTimeout(timer); timer = setTimeout(complete, 150); };
  input.addEventListener("input", soon);
  input.addEventListener("focus", soon);
  return { element: h("div", null, field(label, input, hint), list), input };
}

/** Return the field of a time; "now" becomes the current time, so that a link keeps its meaning. */
export function timeField() {
  const list = h("datalist", { id: `times-${++number}` }, h("option", { value: "now" }));
  const input = h("input", {
    name: "at", list: list.id, autocomplete: "off", spellcheck: "false", maxlength: 64,
    placeholder: "unknown",
  });
  ends({ limit: 1 }).then((found) => {
    if (found.known?.last_time)
      list.append(h("option", { value: found.known.last_time, label: "newest measurement of the data" }));
  }).catch(() => {});
  const value = () => {
    if (input.value.trim().toLowerCase() === "now") input.value = new Date().toISOString().replace(/\.\d+/, "");
    return input.value.trim();
  };
  return { element: h("div", null, field("Time (UTC)", input, "2024-05-01T12:00:00Z, or now. Empty: unknown."), list), input, value };
}

const LINKED = 150; // largest number of measurements in a link: 6 kB

/** Return the field for earlier measurements of the source, pasted or dropped. */
export function contextField(source) {
  const text = h("textarea", {
    name: "context", rows: 4, spellcheck: "false", autocomplete: "off",
    placeholder: "dst_addr,rtt,event_time\n198.51.100.7,23.4,2024-05-01T12:00:00Z",
  });
  const file = h("input", { type: "file", accept: ".csv,.tsv,.txt,.json,.jsonl,.ndjson,text/*,application/json", class: "unseen", tabindex: "-1", "aria-hidden": "true" });
  const state = h("p", { class: "hint", role: "status" });
  const clear = h("button", { type: "button", hidden: true, onclick: () => set(null) }, "Remove");
  const box = h("details", { class: "context" },
    h("summary", null, "Earlier measurements"),
    field("Paste or drop them here", text, "A table (CSV), RIPE Atlas JSON, or the output of ping. Without them, the server looks into its own data."),
    state,
    h("p", { class: "buttons" },
      h("button", { type: "button", onclick: () => file.click() }, "Open a file"), file, clear));
  let known = null; // {measurements, …} from the server
  let typed = false;
  let linked = ""; // the context in the link

  function set(made, words) {
    known = made;
    typed = false;
    clear.hidden = !made;
    if (!made) text.value = "";
    state.classList.toggle("error", false);
    state.textContent = words ?? (made ? summary(made) : "");
    if (made) box.open = true;
  }

  function summary(made) {
    const left = made.left_out ? ` ${counted(made.left_out, "row")} left out: ${made.reasons.join("; ")}.` : "";
    return `${counted(made.measurements.length, "measurement")} read (${made.format}).${left}`;
  }

  /** Let the server read the text in the box. */
  async function read() {
    if (!typed) return;
    if (!text.value.trim()) return set(null);
    const made = await post("/v1/context", { text: text.value });
    const sources = Object.keys(made.sources ?? {});
    if (!source.value.trim() && sources.length) source.value = sources[0];
    set(made);
    announce(state.textContent);
  }

  function failed(error) {
    known = null;
    state.classList.add("error");
    state.textContent = error.message;
  }

  const readNow = () => read().catch(failed);

  text.addEventListener("input", () => { typed = true; });
  text.addEventListener("change", readNow);
  text.addEventListener("paste", () => setTimeout(() => { typed = true; readNow(); }));
  const take = async (given) => {
    if (!given) return;
    box.open = true;
    try {
      text.value = await given.text();
    } catch (error) {
      // The file was moved or changed after it was chosen.
      return failed(new Error(`The file cannot be read: ${error.message}`));
    }
    typed = true;
    await readNow();
  };
  file.addEventListener("change", () => take(file.files[0]));
  for (const kind of ["dragover", "dragleave", "drop"]) box.addEventListener(kind, (event) => {
    event.preventDefault();
    box.classList.toggle("over", kind === "dragover");
    if (kind !== "drop") return;
    if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
    else take(new Blob([event.dataTransfer.getData("text")]));
  });

  return {
    element: box,
    /** Return the measurements of this source, as a request needs them; undefined: use the server's data. */
    async value() {
      await read();
      if (!known) return undefined;
      const own = known.measurements.filter((one) => !one.src_addr || one.src_addr === source.value.trim());
      const others = known.measurements.length - own.length;
      if (others) state.textContent = `${summary(known)} ${counted(others, "measurement")} of other sources not used.`;
      return own.map(({ dst_addr, rtt, event_time }) => event_time ? { dst_addr, rtt, event_time } : { dst_addr, rtt });
    },
    /** Return the context as a part of a link; "long" if it has too many measurements for one. */
    link(measurements) {
      const line = (one) => [one.dst_addr, one.rtt, one.event_time].filter((part) => part !== undefined).join(",");
      linked = !measurements ? "" : measurements.length > LINKED ? "long" : measurements.map(line).join("\n");
      return linked;
    },
    /** Fill the box from a link. */
    follow(given) {
      if (given === linked) return;
      linked = given;
      if (!given) return set(null);
      box.open = true;
      if (given === "long") return set(null, "The context of this link was too long for it: paste it again.");
      text.value = given;
      typed = true;
    },
  };
}

/** Mark the field that an error is about; return the sentence. */
export function complain(form, error) {
  for (const one of form.elements) one.removeAttribute("aria-invalid");
  const name = (error.field ?? "").split(/[.[]/)[0];
  const wrong = name ? form.elements.namedItem(name) : null;
  if (wrong) {
    wrong.setAttribute("aria-invalid", "true");
    wrong.closest("details")?.setAttribute("open", "");
    wrong.focus();
  }
  return h("p", { class: "error", role: "alert" }, error.message.charAt(0).toUpperCase() + error.message.slice(1));
}
