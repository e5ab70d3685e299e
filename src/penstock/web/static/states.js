// How sinks, captures and queues are: a dot with a name, and in a list what is wrong and what helps.

import { html } from "./chart.js";

const time = (text) => text.replace("T", " ").replace(/Z$/, "");

// A circuit breaker's state; one that is closed needs no attention.
export const circuit = (name) => html("span", { className: name === "closed" || !name ? "" : "warn-text", textContent: name || "–" });

// A part of a whole; 100% is all of it.
export const percent = (part) => (part === null || part === undefined ? "–" : `${Math.floor(part * 1000) / 10}%`);

// A state with its colour.
export function stateOf(s) {
  const level = s.level === "warn" ? "wait" : s.level;
  return html("span", {}, html("span", { className: `dot ${level}`, ariaHidden: "true" }), ` ${s.name}`);
}

// What isn't good: since when, why and what helps.
export function troubles(label, some) {
  const bad = some.filter((one) => one.state.reason);
  return bad.length ? [html("ul", { className: "troubles", ariaLabel: label }, ...bad.map((one) => html("li", { className: one.state.level },
    html("b", { textContent: `${one.name}: ${one.state.name}` }), one.state.since ? ` since ${time(one.state.since).replace(/\.\d+$/, "")} UTC. ` : ". ",
    `${/[.?!]$/.test(one.state.reason) ? one.state.reason : `${one.state.reason}.`} `, one.state.advice ? html("span", { className: "advice", textContent: one.state.advice }) : "")))] : [];
}
