// Requests to the server: token, retries while it is busy, and errors as sentences.

import { announce } from "/page/dom.js";

const TOKEN = "ping-llm token";
const PATIENCE = 5; // number of retries while the server is busy

/** A refusal of the server: a sentence and the invalid field. */
export class Refusal extends Error {
  constructor(status, message, field) {
    super(message);
    this.status = status;
    this.field = field ?? "";
  }
}

let asking = null;

/** Ask the user for the token, once for all requests that need it. */
function token(why) {
  asking ??= new Promise((resolve) => {
    const dialog = document.getElementById("token");
    const reason = document.getElementById("token-why");
    const value = document.getElementById("token-value");
    reason.hidden = !why;
    reason.textContent = why;
    value.value = "";
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener("close", () => {
      sessionStorage.setItem(TOKEN, value.value.trim());
      asking = null;
      resolve();
    }, { once: true });
    if (!dialog.open) dialog.showModal();
  });
  return asking;
}

const pause = (seconds, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, 1000 * seconds);
  signal?.addEventListener("abort", () => { clearTimeout(timer); reject(signal.reason); }, { once: true });
});

async function request(path, options, signal) {
  for (let times = 0; ; ) {
    const used = sessionStorage.getItem(TOKEN);
    const headers = { ...options.headers };
    if (used) headers.Authorization = `Bearer ${used}`;
    let response;
    try {
      response = await fetch(path, { ...options, headers, signal, credentials: "omit" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refusal(0, "The server does not answer. Is it running, and can this machine reach it?");
    }
    if (response.ok) return response.json();
    const body = await response.json().catch(() => ({}));
    if (response.status === 401) {
      // Another request may have asked for the token in the meantime.
      if (used === sessionStorage.getItem(TOKEN)) await token(used ? "The server does not know this token." : "");
      continue;
    }
    if (response.status === 503 && times++ < PATIENCE) {
      const wait = Math.min(Number(response.headers.get("Retry-After")) || 1, 10);
      announce(`The server is busy. Asking again in ${wait} s.`);
      await pause(wait * (0.75 + Math.random() / 2), signal);
      continue;
    }
    throw new Refusal(response.status, body.error ?? `The server answered with status ${response.status}.`, body.field);
  }
}

export function get(path, parameters = {}, signal) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(given).toString();
  return request(query ? `${path}?${query}` : path, {}, signal);
}

export function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return request(path, { method: "POST", headers, body: JSON.stringify(body) }, signal);
}

let known = null;

/** Return the server's description of its model, requested once. */
export function model() {
  known ??= get("/v1/model").catch((error) => { known = null; throw error; });
  return known;
}

/** Return known ends that start with a text; `known` is null if the server has no data. */
export function ends(parameters, signal) {
  return get("/v1/ends", parameters, signal);
}
