// What the console's pages are made of: questions to the server, texts, tables, buttons.

import { html } from "./chart.js";

export const site = { about: null }; // what the server says it has: GET /api/console

export async function ask(path, body) {
  const options = body === undefined ? {} : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(`/api/${path}`, options);
  const found = await answer.json().catch(() => ({ error: `${answer.status} ${answer.statusText}` }));
  if (!answer.ok) throw new Error(found.error || answer.statusText);
  return found;
}

// The parameters of the address as it is now.
export const present = () => new URLSearchParams(location.hash.split("?")[1] || "");

// The address with other parameters; empty ones are left out.
export function elsewhere(changes, query = present()) {
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) if (value) next.set(name, value); else next.delete(name);
  return `${location.hash.split("?")[0]}${[...next].length ? `?${next}` : ""}`;
}

// Puts parameters into the address without leaving the page.
export function remember(changes) {
  history.replaceState(null, "", elsewhere(changes));
  document.getElementById("console").dataset.page = location.hash;
}

export const hint = (text) => html("p", { className: "hint", textContent: text });
export const empty = (...parts) => html("p", { className: "empty" }, ...parts);
export const code = (text) => html("code", { textContent: text });
export const link = (text, ...path) => html("a", { textContent: text, href: `#/${path.map(encodeURIComponent).join("/")}` });
export const title = (text, ...beside) => html("div", { className: "bar" }, html("h2", { textContent: text }), html("span", { className: "tools" }, ...beside));
export const time = (text) => String(text).replace("T", " ").replace(/Z$/, "").replace(/(\.\d{3})\d+$/, "$1"); // the log's times are whole ms
export const failure = (text) => html("p", { className: "error", role: "alert", textContent: text });

export function button(text, act, className = "") {
  const made = html("button", { type: "button", textContent: text, className });
  made.onclick = act;
  return made;
}

// A table. Heads that begin with # are of numbers, and may be links that sort; cells are texts or nodes.
export function table(label, titles, rows) {
  const heads = titles.map((one) => (typeof one === "string" ? one : one.text));
  const numbers = heads.map((h) => h.startsWith("#"));
  const head = html("tr", {}, ...titles.map((one, i) => {
    const isText = typeof one === "string";
    const th = html("th", { className: numbers[i] ? "number" : "", scope: "col" }, isText ? one.replace("#", "") : one.link);
    if (!isText && one.now) th.setAttribute("aria-sort", one.now);
    return th;
  }));
  const body = rows.map((row) => (row instanceof Node ? row : html("tr", {}, ...row.map((cell, i) => {
    const text = cell === null || cell === undefined ? "–" : cell;
    return html("td", { className: numbers[i] ? "number" : heads[i] === "reason" ? "reason" : "", title: typeof text === "string" ? text : "" }, text);
  }))));
  const made = html("table", { className: "list" }, head, ...body);
  made.setAttribute("aria-label", label); // style.css knows some by it
  return html("div", { className: "scroll tall" }, made);
}

// JSON with a line for each field. Numbers that JavaScript would round are shown as they were sent.
export function indented(text) {
  if (!unsafe(text)) return JSON.stringify(JSON.parse(text), null, 2);
  if (!JSON.rawJSON) return text;
  return JSON.stringify(JSON.parse(text, (_, value, context) => (typeof value === "number" && context ? JSON.rawJSON(context.source) : value)), null, 2);
}

export const unsafe = (text) => /[0-9]{16,}|[0-9]\.[0-9]{15,}/.test(text);
