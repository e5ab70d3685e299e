// The pipeline's graph, live: the drawing of `penstock explain --svg`, with what each part does now.

import { html, svg } from "./chart.js";
import { bytes, count, duration, instant, moment, number } from "./format.js";

const LINE = 16, PAD = 10; // as the server places text

let drawn = null; // the places, as the server gave them

// Draws the boxes and lines; figures come with `update`.
export function lay(box, places) {
  drawn = null;
  box.hidden = !places.boxes.length;
  if (box.hidden) return box.replaceChildren();
  const root = svg("svg", { viewBox: `0 0 ${places.width} ${places.height}`, width: places.width, height: places.height, role: "img", "aria-label": "the pipeline's graph" });
  const defs = svg("defs", {}, root);
  const marker = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, defs);
  svg("path", { d: "M0 0L8 4L0 8z" }, marker);
  for (const line of places.lines) svg("path", { d: line.path, class: line.exchanged ? "line exchange" : "line", "marker-end": "url(#arrow)" }, root);
  const ends = new Set(places.lines.map((line) => line.from));
  const boxes = places.boxes.map((one) => part(one, root, ends));
  drawn = { boxes };
  box.replaceChildren(root);
}

function part(one, root, ends) {
  const group = svg("g", { class: `part ${one.kind}` }, root);
  const title = svg("title", {}, group);
  svg("rect", { x: one.x, y: one.y, width: one.width, height: one.height, rx: 6 }, group);
  one.lines.forEach((text, i) => {
    const line = svg("text", { x: one.x + PAD, y: one.y + PAD / 2 + LINE * (i + .75), class: i || one.kind === "step" ? "" : "head" }, group);
    line.textContent = text;
  });
  const free = Math.round((one.height - PAD) / LINE) - one.lines.length;
  const figures = Array.from({ length: free }, (_, i) =>
    svg("text", { x: one.x + PAD, y: one.y + PAD / 2 + LINE * (one.lines.length + i + .75), class: "figure" }, group));
  const found = { ...one, group, title, figures };
  if (ends.has(one.nodes[one.nodes.length - 1])) {
    const x = one.x + one.width + 8, y = one.y + one.height / 2;
    found.rate = svg("text", { x, y: y - 6, class: "rate" }, root);
    found.frontier = svg("text", { x, y: y + 15, class: "frontier" }, root);
  }
  return found;
}

export function update(status) {
  if (!drawn) return;
  const nodes = status.nodes || {};
  for (const box of drawn.boxes) {
    const own = box.nodes.map((id) => nodes[id]).filter(Boolean);
    const last = own[own.length - 1];
    const isSlowest = box.nodes.includes(status.slowest);
    box.group.setAttribute("class", `part ${box.kind}${isSlowest ? " slowest" : ""}`);
    box.figures.forEach((line, i) => { line.textContent = last ? figures(box, own, status)[i] ?? "" : ""; });
    box.title.textContent = last ? hint(box, own, status, isSlowest) : "";
    if (!box.rate) continue;
    box.rate.textContent = last && last.rows_out_per_s !== null ? `${number(round(last.rows_out_per_s))}/s` : "";
    box.frontier.textContent = last && last.frontier_us !== null ? short(moment(last.frontier_us / 1000, status.now_us / 1000)) : "";
  }
}

const short = (text) => (text.length > 8 ? text.slice(5, 16) : text); // of another day: without year and seconds
const sum = (own, what) => own.reduce((total, one) => total + (one[what] || 0), 0);
const round = (value) => (value >= 10 ? Math.round(value) : Math.round(value * 10) / 10);
const share = (busy) => `${(100 * busy).toFixed(busy < 0.0995 ? 1 : 0)}% of a core`;

function figures(box, own, status) {
  const one = own[own.length - 1], busy = share(sum(own, "busy"));
  const source = one.kind === "source" ? (status.sources || {})[one.name] : null;
  if (source) return [`lag ${number(source.lag)}`, busy];
  if (box.kind === "end") return [`${number(round(one.rows_in_per_s))}/s, ${busy}`];
  if (one.state_rows === null) return [busy];
  const late = one.late_rows ? `, ${number(one.late_rows)} late` : "";
  return [`${busy}${late}`, `${number(one.state_rows)} rows, ${bytes(one.state_bytes)}`, growth(one)];
}

function growth(one) {
  const by = one.growth_bytes_per_s || 0;
  const change = Math.abs(by) < 1 ? "steady" : `${by > 0 ? "+" : "−"}${bytes(Math.abs(by))}/s`;
  const oldest = age(one);
  return oldest === null ? change : `${change}, oldest ${duration(oldest)}`;
}

// How far the oldest of a state lies behind what it is promised.
function age(one) {
  return one.oldest_us === null || one.frontier_us === null ? null : Math.max(0, one.frontier_us - one.oldest_us) / 1000;
}

function hint(box, own, status, isSlowest) {
  const one = own[own.length - 1];
  const lines = [`${one.kind} ${one.name}`, `rows in ${count(own[0].rows_in)}, out ${count(one.rows_out)}, late ${count(one.late_rows)} since the start`];
  if (one.frontier_us !== null) lines.push(`frontier ${instant(one.frontier_us / 1000)} UTC`);
  if (one.oldest_us !== null) lines.push(`oldest in the state ${instant(one.oldest_us / 1000)} UTC`);
  if (isSlowest) lines.push("takes most of the time");
  return lines.join("\n");
}

// The same as a table, for operators and steps.
export function table(status) {
  const names = ["operator", "kind", "in/s", "out/s", "late", "of a core", "state rows", "state", "growth/s", "oldest", "frontier UTC"];
  const head = html("tr", {}, ...names.map((name, i) => html("th", { textContent: name, className: i > 1 && i < 10 ? "number" : "" })));
  const rows = Object.entries(status.nodes || {}).filter(([, one]) => !["source", "output", "closed"].includes(one.kind)).map(([id, one]) => {
    const keeps = one.state_rows !== null;
    const cells = [one.name, one.kind, number(round(one.rows_in_per_s)), one.rows_out_per_s === null ? "–" : number(round(one.rows_out_per_s)), count(one.late_rows),
      `${(100 * one.busy).toFixed(1)}%`, keeps ? count(one.state_rows) : "–", keeps ? bytes(one.state_bytes) : "–",
      keeps ? `${one.growth_bytes_per_s < 0 ? "−" : ""}${bytes(Math.abs(one.growth_bytes_per_s))}` : "–", duration(age(one)), one.frontier_us === null ? "–" : instant(one.frontier_us / 1000)];
    return html("tr", { className: id === status.slowest ? "slowest" : "" },
      ...cells.map((text, i) => html("td", { textContent: text, title: i < 2 ? text : "", className: i > 1 && i < 10 ? "number" : "" })));
  });
  return rows.length ? [head, ...rows] : [];
}
