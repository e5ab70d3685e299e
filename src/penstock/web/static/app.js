// The page: status by Server-Sent Events, views by JSON. It survives a restart of the server: EventSource reconnects,
// and everything is asked for anew.

import { color, draw, html, spark } from "./chart.js";
import { duration, instant, number } from "./format.js";

const REFRESH_MS = 1000; // views are asked for at most this often
const SILENCE_MS = 7000; // no event for so long (the server sends one every 2 s): it is gone
const HISTORY = 600;
const $ = (id) => document.getElementById(id);

const state = { status: null, history: [], views: new Map(), online: false, heard: 0, shown: null, due: 0, busy: false };

async function get(path) {
  const answer = await fetch(path);
  const body = await answer.json().catch(() => ({ error: `${answer.status} ${answer.statusText}` }));
  if (!answer.ok) throw new Error(body.error || answer.statusText);
  return body;
}

// ---- connection

function listen() {
  const events = new EventSource("/api/events");
  events.addEventListener("status", (event) => {
    const status = JSON.parse(event.data);
    state.heard = Date.now();
    if (!state.online || (state.status && state.status.started_us !== status.started_us)) return again(status);
    take(status);
  });
  events.addEventListener("bye", () => offline());
  events.onerror = () => {
    offline();
    if (events.readyState === EventSource.CLOSED) { events.close(); setTimeout(listen, 2000); }
  };
}

async function again(status) {
  state.online = true;
  try {
    const full = await get("/api/status");
    state.history = full.history || [];
  } catch { /* the sparklines start empty */ }
  take(status);
  refresh();
}

function offline() {
  state.online = false;
  header();
}

setInterval(() => { if (state.online && Date.now() - state.heard > SILENCE_MS) offline(); }, 1000);

function take(status) {
  const before = state.status;
  state.status = status;
  if (!before || before.batches !== status.batches || before.version !== status.version) {
    if (status.batch_ms !== null && status.batch_ms !== undefined) {
      state.history.push([status.now_us / 1000, status.batch_ms, status.rows_per_s, status.lag, status.watermark_delay_ms, status.late_rows, status.dead_rows]);
      state.history.splice(0, Math.max(0, state.history.length - HISTORY));
    }
    schedule();
  }
  header(); tiles(); topics(); split();
}

// ---- what is always there

function header() {
  const s = state.status;
  const [dot, text] = !state.online ? [s ? "down" : "wait", s ? "the server is gone; reconnecting…" : "connecting…"]
    : !s.running ? ["down", "stopped"] : s.version === null || s.phase !== "running" ? ["wait", s.phase] : ["live", `live · version ${s.version}`];
  $("dot").className = dot;
  $("state").textContent = text;
  if (s) { $("app").textContent = s.app; document.title = `${s.app} · Penstock`; }
}

const TILES = [
  ["events per second", (s) => number(s.rows_per_s), 2],
  ["consumer lag", (s) => number(s.lag), 3],
  ["watermark delay", (s) => duration(s.watermark_delay_ms), 4],
  ["batch time", (s) => duration(s.batch_ms), 1],
  ["late events", (s) => number(s.late_rows), 5, (s) => (s.late_rows ? "warn" : "")],
  ["dead letters", (s) => number(s.dead_rows), 6, (s) => (s.dead_rows ? "bad" : "")],
];

function tiles() {
  $("tiles").replaceChildren(...TILES.map(([name, text, column, mood]) => html("div", { className: "tile" },
    html("div", { className: "name", textContent: name }),
    html("div", { className: `value ${mood ? mood(state.status) : ""}`, textContent: text(state.status) }),
    spark(state.history.map((p) => p[column])))));
}

function topics() {
  const sources = Object.entries(state.status.sources || {});
  const names = ["topic", "events/s", "events", "lag", "watermark", "delay"];
  const head = html("tr", {}, ...names.map((n, i) => html("th", { textContent: n, className: i && i !== 4 ? "number" : "" })));
  const rows = sources.map(([name, s]) => html("tr", {},
    html("td", { textContent: name }),
    ...[number(s.rows_per_s), number(s.rows), number(s.lag)].map((t) => html("td", { textContent: t, className: "number" })),
    html("td", { textContent: s.watermark_us === null ? "–" : instant(s.watermark_us / 1000) }),
    html("td", { textContent: duration(s.watermark_delay_ms), className: "number" })));
  if (!rows.length) rows.push(html("tr", {}, html("td", { textContent: "nothing read yet", colSpan: names.length, className: "null" })));
  $("topics").replaceChildren(head, ...rows);
}

function split() {
  const parts = Object.entries(state.status.split_ms || {}).filter(([, ms]) => ms > 0);
  const total = parts.reduce((sum, [, ms]) => sum + ms, 0);
  if (!total) { $("split").replaceChildren(html("p", { className: "hint", textContent: "no batch yet" })); return; }
  const stack = html("div", { className: "stack" });
  const legend = html("ul", { className: "legend" });
  parts.forEach(([name, ms], i) => {
    const part = html("div", { title: `${name} ${duration(ms)}` });
    part.style.cssText = `flex:${ms} 0 0;background:${color(i)}`;
    stack.append(part);
    const mark = html("span", { className: "mark" });
    mark.style.background = color(i);
    legend.append(html("li", {}, mark, html("span", { textContent: `${name} ${duration(ms)}` })));
  });
  $("split").replaceChildren(stack, legend);
}

// ---- views

function schedule() {
  const wait = Math.max(0, state.due - Date.now());
  clearTimeout(state.timer);
  state.timer = setTimeout(refresh, wait);
}

async function refresh() {
  if (state.busy || !state.online || document.hidden) return;
  state.busy = true;
  state.due = Date.now() + REFRESH_MS;
  try {
    const { views } = await get("/api/views");
    arrange(views);
    for (const card of state.views.values()) await card.update();
    notice("");
  } catch (error) {
    notice(error instanceof TypeError ? "" : `The views can't be read: ${error.message}`);
  } finally {
    state.busy = false;
  }
}

document.addEventListener("visibilitychange", () => schedule());
window.addEventListener("resize", () => { for (const card of state.views.values()) card.paint(); });
$("windows").addEventListener("change", () => { state.due = 0; schedule(); });

function notice(text) {
  $("notice").hidden = !text;
  $("notice").textContent = text;
}

function arrange(views) {
  $("empty").hidden = views.length > 0;
  $("empty").textContent = "No views are committed yet. The first figures come with the first batch.";
  for (const [name, card] of state.views) {
    if (!views.some((v) => v.name === name)) { card.root.remove(); state.views.delete(name); }
  }
  for (const view of views) {
    if (!state.views.has(view.name)) {
      const card = new Card(view);
      state.views.set(view.name, card);
      $("views").append(card.root);
    }
    state.views.get(view.name).view = view;
  }
  if (!$("sql").value && views.length) $("sql").value = `SELECT * FROM "${views[0].name}" ORDER BY window_start DESC LIMIT 20`;
}

class Card {
  constructor(view) {
    this.view = view;
    this.mode = "chart";
    this.data = null;
    this.about = html("span", { className: "about" });
    this.measure = html("select", { ariaLabel: "measure" });
    this.measure.onchange = () => this.update();
    this.button = html("button", { type: "button", textContent: "table" });
    this.button.setAttribute("aria-pressed", "false");
    this.button.onclick = () => {
      this.mode = this.mode === "chart" ? "table" : "chart";
      this.button.setAttribute("aria-pressed", String(this.mode === "table"));
      this.update();
    };
    this.body = html("div", {});
    this.root = html("article", { className: "card" },
      html("div", { className: "bar" }, html("h3", { textContent: view.name }), html("div", { className: "tools" }, this.measure, this.button)),
      this.about, this.body);
  }

  async update() {
    const { view } = this;
    const chartable = view.measures.length > 0 && view.columns.some((c) => c.name === "window_start");
    this.measure.hidden = this.mode === "table" || !chartable;
    this.button.hidden = !chartable;
    if (this.measure.options.length !== view.measures.length) {
      this.measure.replaceChildren(...view.measures.map((m) => html("option", { textContent: m, value: m })));
    }
    this.by = view.keys.length ? ` by ${view.keys.join(", ")}` : "";
    const path = `/api/views/${encodeURIComponent(view.name)}`;
    if (this.mode === "chart" && chartable) {
      const query = new URLSearchParams({ windows: $("windows").value, top: 8, measure: this.measure.value });
      this.data = await get(`${path}/series?${query}`);
      this.paint();
    } else {
      const page = await get(`${path}?limit=100`);
      this.data = null;
      this.about.textContent = `${number(page.rows_total)} rows${this.by}` + (page.rows_total > page.rows.length ? `, the newest ${page.rows.length} shown` : "");
      this.body.replaceChildren(html("div", { className: "scroll" }, grid(page)));
    }
  }

  paint() {
    const { data } = this;
    if (!data) return;
    const rest = data.keys_total - data.series.length;
    this.about.textContent = `${number(this.view.rows)} rows${this.by}` + (rest > 0 ? `, the largest ${data.series.length} of ${number(data.keys_total)} shown` : "");
    if (!data.series.length) {
      this.body.replaceChildren(html("p", { className: "empty", textContent: "No windows yet." }));
      return;
    }
    if (!this.box || !this.box.isConnected) {
      this.box = html("div", { className: "chart" });
      this.legend = html("ul", { className: "legend" });
      this.body.replaceChildren(this.box, this.legend);
    }
    if (!this.box.querySelector(".tip:not([hidden])")) draw(this.box, data, openAfter());
    this.legend.replaceChildren(...data.series.map((s, i) => {
      const mark = html("span", { className: "mark" });
      mark.style.background = color(i);
      return html("li", { title: s.key || data.measure }, mark, html("span", { textContent: s.key || data.measure }));
    }));
  }
}

// Windows that end after the slowest watermark are open.
function openAfter() {
  const marks = Object.values((state.status && state.status.sources) || {}).map((s) => s.watermark_us).filter((m) => m !== null);
  return marks.length ? Math.min(...marks) / 1000 : null;
}

function grid(page) {
  const kinds = page.columns.map((c) => c.kind);
  const head = html("tr", {}, ...page.columns.map((c) => html("th", { textContent: c.name, className: c.kind === "number" ? "number" : "" })));
  const rows = page.rows.map((row) => html("tr", {}, ...row.map((value, i) => {
    if (value === null) return html("td", { className: "null", textContent: "NULL" });
    const text = kinds[i] === "number" ? number(value) : kinds[i] === "time" && String(value).includes("T") ? instant(Date.parse(value)) : typeof value === "object" ? JSON.stringify(value) : String(value);
    return html("td", { className: kinds[i] === "number" ? "number" : "", textContent: text, title: String(value) });
  })));
  return html("table", {}, head, ...rows);
}

// ---- questions

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const page = await get(`/api/query?${new URLSearchParams({ sql: $("sql").value })}`);
    const more = page.rows_total > page.rows.length ? `, the first ${page.rows.length} shown` : "";
    $("answer").replaceChildren(grid(page), html("p", { className: "hint", textContent: `${page.rows_total} rows${more}` }));
  } catch (error) {
    $("answer").replaceChildren(html("p", { className: "error", textContent: error.message }));
  }
});
$("sql").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask").requestSubmit();
});

listen();
