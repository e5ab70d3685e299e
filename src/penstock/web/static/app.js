// The page: status by Server-Sent Events, views by JSON. It survives a restart of the server: EventSource reconnects,
// and everything is asked for anew.

import { color, draw, html, spark } from "./chart.js";
import { about } from "./console.js";
import * as graph from "./graph.js";
import { filesOf, readPlace, rememberPlace } from "./place.js";
import { circuit, percent, stateOf, troubles } from "./states.js";
import { count, duration, elapsed, exact, instant, moment, number, visible } from "./format.js";

const REFRESH_MS = 1000; // views are asked for at most this often
const SILENCE_MS = 7000; // no event for so long (the server sends one every 2 s): it is gone
const HISTORY = 600;
const BOUNDS = ["from", "to"]; // of the time that charts show, in UTC
const POINT_MS = 1000; // between two points of a sparkline
const $ = (id) => document.getElementById(id);

const state = { status: null, history: [], views: new Map(), online: false, heard: 0, due: 0, busy: false };

async function get(path, signal) {
  const answer = await fetch(path, { signal });
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

setInterval(() => {
  if (state.online && Date.now() - state.heard > SILENCE_MS) offline();
  header(); // what it says of "since" goes on
}, 1000);

function take(status) {
  const before = state.status;
  state.status = status;
  const last = state.history[state.history.length - 1];
  if (!last || status.now_us / 1000 - last[0] >= POINT_MS) {
    state.history.push([status.now_us / 1000, status.batch_ms, status.rows_per_s, status.lag, status.watermark_delay_ms, status.late_rows, status.unusable_rows]);
    state.history.splice(0, Math.max(0, state.history.length - HISTORY));
  }
  if (!before || before.version !== status.version) schedule();
  header(); tiles(); topics(); sinks(); split(); nodes();
}

// The graph's places are asked for when there is another graph: other nodes.
function nodes() {
  const ids = Object.keys(state.status.nodes || {}).join();
  if (ids && ids !== state.drawn) {
    state.drawn = ids;
    get("/api/graph").then((places) => {
      graph.lay($("graph"), places);
      graph.update(state.status);
    }).catch(() => { state.drawn = null; });
  }
  $("graph-section").hidden = !ids && !state.drawn;
  graph.update(state.status);
  $("operators").replaceChildren(...graph.table(state.status));
}

// ---- what is always there

// The pipeline's state as its process judges it; where nobody answers, that is the state.
function health() {
  const { status, online, heard } = state;
  if (online && status) return status.state;
  if (!status) return { name: "connecting", level: "wait", since_us: null, reason: "", advice: "" };
  return {
    name: "no answer", level: "bad", since_us: status.now_us,
    reason: "The process that serves this page doesn't answer: it has ended, hangs, or is suspended. The figures are those of that time.",
    advice: "Check the terminal or the service log in which it was started. This page continues when it answers.",
    now_us: status.now_us + (Date.now() - heard) * 1000,
  };
}

function header() {
  if (state.alone) return;
  const s = state.status;
  const { name, level, since_us, reason, advice, now_us } = health();
  const now = (now_us ?? (s ? s.now_us + (Date.now() - state.heard) * 1000 : 0)) / 1000;
  $("dot").className = level;
  if ($("state").textContent !== name) $("state").textContent = name; // screen readers tell of changes
  const restarts = s && s.spark_restarts ? ` · Spark started again ${s.spark_restarts} times` : "";
  $("version").textContent = (s && s.version !== null ? `· version ${s.version}` : "") + restarts;
  const since = since_us === null ? "" : `since ${moment(since_us / 1000, now)} UTC (${elapsed(now - since_us / 1000)})`;
  $("state").parentNode.title = [since, reason].filter(Boolean).join(". ");
  const told = name !== "live" && name !== "connecting";
  $("health").hidden = !told;
  $("health").className = `health ${level}`;
  if (told) $("health").replaceChildren(html("b", { textContent: name }), ` ${since}. ${reason} `, html("span", { textContent: advice }));
  if (s) { $("app").textContent = s.app; document.title = `${name === "live" ? "" : `${name} · `}${s.app} · Penstock`; }
}

const TILES = [
  ["events per second", (s) => number(s.rows_per_s), 2],
  ["lag (waiting records)", (s) => number(s.lag), 3],
  ["watermark delay", (s) => duration(s.watermark_delay_ms), 4],
  ["time of the last batch", (s) => duration(s.batch_ms), 1],
  ["late events, total", (s) => count(s.late_rows), 5, (s) => (s.late_rows ? "warn" : ""), "late"],
  ["unusable records, total", (s) => count(s.unusable_rows), 6, (s) => (s.unusable_rows ? "bad" : ""), "unusable"],
];

// Counts of records that became dead letters lead to these.
function tiles() {
  $("tiles").replaceChildren(...TILES.map(([name, text, column, mood, letters]) => html("div", { className: "tile" },
    html("div", { className: "name", textContent: name }),
    html("div", { className: `value ${mood ? mood(state.status) : ""}` }, letters ? lettersOf(text(state.status), state.status[`${letters}_rows`]) : text(state.status)),
    spark(state.history.map((p) => p[column])))));
}

function lettersOf(text, some) {
  return some && !$("nav").hidden ? html("a", { textContent: text, href: "#/letters", title: "dead letters by reason" }) : text;
}

// Who holds a watermark back, and since when it has come no further.
function holder({ held_by: who, held_since_us: since }) {
  if (!who) return "–";
  return since ? `${who} since ${instant(since / 1000)}` : who;
}

function topics() {
  const sources = Object.entries(state.status.sources || {});
  const names = ["topic", "events/s", "events", "lag", "late", "unusable", "lost", "watermark UTC", "delay", "held by"];
  const head = html("tr", {}, ...names.map((n) => html("th", { textContent: n, className: ["topic", "watermark UTC", "held by"].includes(n) ? "" : "number" })));
  const rows = sources.map(([name, s]) => html("tr", {},
    html("td", {}, $("nav").hidden ? name : html("a", { textContent: name, href: `#/topics/${encodeURIComponent(name)}` })),
    ...[number(s.rows_per_s), count(s.rows), count(s.lag), lettersOf(count(s.late_rows), s.late_rows), lettersOf(count(s.unusable_rows), s.unusable_rows), count(s.lost_rows)]
      .map((t) => html("td", { className: "number" }, t)),
    html("td", { textContent: s.watermark_us === null ? "–" : instant(s.watermark_us / 1000) }),
    html("td", { textContent: duration(s.watermark_delay_ms), className: "number" }),
    html("td", { textContent: holder(s) })));
  if (!rows.length) rows.push(html("tr", {}, html("td", { textContent: "nothing read yet", colSpan: names.length, className: "null" })));
  $("topics").replaceChildren(head, ...rows);
  const { version, dead_letter_topic } = state.status;
  $("counted").textContent = version === null ? "" : `Totals as of version ${version}. ` +
    `Late and unusable records are in the topic ${dead_letter_topic} with their reasons (penstock dlq list). Lost records were removed by retention before they were read.`;
}

// The program's sinks. Those of other processes are under Connections.
function sinks() {
  const some = Object.entries(state.status.sinks || {});
  $("sinks-section").hidden = !some.length;
  if (!some.length) return;
  const names = ["sink", "state", "circuit", "target", "#lag", "#behind", "#in the target", "#upserts", "#deletes", "#dead letters", "#retries", "last error"];
  const cell = (content, className = "") => html("td", { className }, content);
  const rows = some.map(([name, s]) => html("tr", {},
    cell($("nav").hidden ? name : html("a", { textContent: name, href: `#/groups/${encodeURIComponent(`penstock.sink.${name}`)}` })),
    cell(stateOf(s.state)), cell(circuit(s.breaker)), cell(s.target),
    ...[count(s.lag), duration(s.behind_ms), percent(s.progress), count(s.upserts), count(s.deletes)].map((t) => cell(t, "number")),
    cell(s.dead && !$("nav").hidden ? html("a", { textContent: count(s.dead), href: `#/letters/${encodeURIComponent(s.letters_topic)}` }) : count(s.dead), "number"),
    cell(count(s.retries), "number"), html("td", { className: "error-text", title: s.last_error, textContent: s.last_error || "–" })));
  $("sinks").replaceChildren(html("tr", {}, ...names.map((n) => html("th", { textContent: n.replace("#", ""), className: n.startsWith("#") ? "number" : "", scope: "col" }))), ...rows);
  $("sinks-trouble").replaceChildren(...troubles("states of sinks", some.map(([name, s]) => ({ name, state: s.state }))));
}

function split() {
  const parts = Object.entries(state.status.split_ms || {}).filter(([, ms]) => ms > 0);
  const total = parts.reduce((sum, [, ms]) => sum + ms, 0);
  if (!total) { $("split").replaceChildren(html("p", { className: "hint", textContent: "Shown on the running pipeline's own page, after its first batch." })); return; }
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
  legend.append(html("li", {}, html("span", { textContent: `total ${duration(total)}` })));
  $("split").replaceChildren(stack, legend);
}

// ---- views

function schedule() {
  const wait = Math.max(0, state.due - Date.now());
  clearTimeout(state.timer);
  state.timer = setTimeout(refresh, wait);
}

async function refresh() {
  state.missed = state.busy;
  if (state.busy || !state.online || document.hidden || $("pipeline").hidden) return; // no views are on the other pages
  const version = state.status && state.status.version;
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
    if (state.missed || (state.status && state.status.version !== version)) schedule(); // something has changed meanwhile
  }
}

document.addEventListener("visibilitychange", () => schedule());
window.addEventListener("resize", () => { for (const card of state.views.values()) card.paint(); });
$("windows").addEventListener("change", () => {
  rememberPlace("show", $("windows").value === "240" ? "" : $("windows").value);
  if ($("windows").value !== "between") for (const bound of BOUNDS) { $(bound).value = ""; rememberPlace(bound, ""); }
  reload();
});
for (const bound of BOUNDS) $(bound).addEventListener("change", () => { rememberPlace(bound, $(bound).value); reload(); });

// Which windows the charts show, as the server is asked for them.
function stretch() {
  const shown = $("windows").value;
  if (/^\d+$/.test(shown)) return { windows: shown };
  if (shown !== "between") return { windows: 2000, range: shown };
  const bounds = BOUNDS.map((bound) => [bound, $(bound).value]).filter(([, value]) => value);
  return { windows: 2000, ...Object.fromEntries(bounds.map(([bound, value]) => [bound, `${value}Z`])) };
}

function reload() {
  $("between").hidden = $("windows").value !== "between";
  state.due = 0;
  schedule();
}

// What the address says of this page: the stretch that charts show, one view alone, the query.
function arrive() {
  const place = readPlace();
  if (place === null) return;
  const wanted = place.get("show") || "240";
  if ([...$("windows").options].some((o) => o.value === wanted)) $("windows").value = wanted;
  for (const bound of BOUNDS) $(bound).value = place.get(bound) || "";
  if (place.get("sql")) $("sql").value = place.get("sql");
  for (const [name, card] of state.views) card.arrive(place, name);
  $("all-views").hidden = !place.get("view");
  $("views").classList.toggle("one", Boolean(place.get("view")));
  reload();
}
window.addEventListener("hashchange", arrive);
$("all-views").addEventListener("click", (event) => { event.preventDefault(); rememberPlace("view", ""); arrive(); });
$("sql").addEventListener("change", () => rememberPlace("sql", $("sql").value));

function notice(text) {
  $("notice").hidden = !text;
  $("notice").textContent = text;
}

function arrange(views) {
  $("empty").hidden = views.length > 0;
  if (!views.length) {
    const topic = Object.keys((state.status && state.status.sources) || {})[0];
    $("empty").replaceChildren("No views yet. They appear when the first records have been read. ",
      ...(topic ? [`Send some that fit the stream ${topic}: `, html("code", { textContent: `penstock produce ${topic} < records.jsonl` })] : []));
  }
  for (const [name, card] of state.views) {
    if (!views.some((v) => v.name === name)) { card.root.remove(); state.views.delete(name); }
  }
  for (const view of views) {
    if (!state.views.has(view.name)) {
      const card = new Card(view);
      state.views.set(view.name, card);
      $("views").append(card.root);
      card.arrive(readPlace() || new URLSearchParams(), view.name);
    }
    state.views.get(view.name).view = view;
  }
  const box = $("sql");
  if (!box.value && box !== document.activeElement && views.length) box.value = firstQuery(views[0]); // not while somebody writes there
}

function firstQuery(view) {
  const order = view.columns.some((c) => c.name === "window_start") ? " ORDER BY window_start DESC" : "";
  return `SELECT * FROM "${view.name.replaceAll('"', '""')}"${order} LIMIT 20`;
}

// What is NULL or missing in rows, because it failed.
const warned = (warnings) => warnings.map((text) => html("p", { className: "warning", textContent: text }));

class Card {
  constructor(view) {
    this.view = view;
    this.mode = "chart";
    this.data = null;
    this.turn = 0; // counts updates: an answer to an earlier one may come after that to the last
    this.about = html("span", { className: "about" });
    this.measure = html("select", { ariaLabel: "measure" });
    this.wanted = ""; // the measure that the address names: its option may not be there yet
    this.measure.onchange = () => { this.wanted = this.measure.value; rememberPlace(`${view.name}.measure`, this.measure.value); this.update(); };
    this.button = html("button", { type: "button", textContent: "table" });
    this.button.setAttribute("aria-pressed", "false");
    this.button.onclick = () => {
      this.mode = this.mode === "chart" ? "table" : "chart";
      this.button.setAttribute("aria-pressed", String(this.mode === "table"));
      rememberPlace(`${view.name}.as`, this.mode === "table" ? "table" : "");
      this.update();
    };
    const name = html("a", { textContent: view.name, href: `#/?${new URLSearchParams({ view: view.name })}`, title: "this view alone" });
    this.warnings = html("div", {});
    this.body = html("div", {});
    this.root = html("article", { className: "card" },
      html("div", { className: "bar" }, html("h3", {}, name), html("div", { className: "tools" }, this.measure, this.button, ...filesOf(`/api/views/${encodeURIComponent(view.name)}/export`, view.name))),
      this.about, this.warnings, this.body);
  }

  // Takes what the address says of this card.
  arrive(place, name) {
    this.mode = place.get(`${name}.as`) === "table" ? "table" : "chart";
    this.button.setAttribute("aria-pressed", String(this.mode === "table"));
    this.wanted = place.get(`${name}.measure`) || "";
    if (this.measure.options.length) this.measure.value = this.view.measures.includes(this.wanted) ? this.wanted : this.view.measures[0];
    this.root.hidden = Boolean(place.get("view")) && place.get("view") !== name;
  }

  async update() {
    if (this.root.hidden) return;
    const { view } = this;
    this.warnings.replaceChildren(...warned(view.warnings));
    const turn = ++this.turn;
    const chartable = view.measures.length > 0 && view.columns.some((c) => c.name === "window_start");
    this.measure.hidden = this.mode === "table" || !chartable;
    this.button.hidden = !chartable;
    if (this.measure.options.length !== view.measures.length) {
      this.measure.replaceChildren(...view.measures.map((m) => html("option", { textContent: m, value: m, selected: m === this.wanted })));
    }
    this.by = view.keys.length ? ` by ${view.keys.join(", ")}` : "";
    const path = `/api/views/${encodeURIComponent(view.name)}`;
    if (this.mode === "chart" && chartable) {
      const query = new URLSearchParams({ ...stretch(), top: 8, measure: this.measure.value });
      const data = await get(`${path}/series?${query}`);
      if (turn !== this.turn) return;
      this.data = data;
      this.paint();
    } else {
      const page = await get(`${path}?limit=100`);
      if (turn !== this.turn) return;
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
      this.body.replaceChildren(html("p", { className: "empty", textContent: this.view.rows ? "No windows in this time." : "No windows yet." }));
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
      return html("li", { title: visible(s.key || data.measure) }, mark, html("span", { textContent: visible(s.key || data.measure) }));
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
  const head = html("tr", {}, ...page.columns.map((c) => html("th", { className: c.kind === "number" ? "number" : "" },
    c.name, ...(c.zone ? [html("span", { className: "zone", textContent: ` ${c.zone}` })] : []))));
  const rows = page.rows.map((row) => html("tr", {}, ...row.map((value, i) => {
    const text = exact(value, kinds[i]);
    return html("td", { className: value === null ? "null" : kinds[i] === "number" ? "number" : "", textContent: text, title: text });
  })));
  return html("table", {}, head, ...rows);
}

// ---- questions

let asking = null; // the query that runs: the button cancels it

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (asking) return asking.abort();
  rememberPlace("sql", $("sql").value);
  asking = new AbortController();
  const begun = Date.now();
  const say = () => hint(`running… ${Math.floor((Date.now() - begun) / 1000)} s`);
  const clock = setInterval(say, 1000);
  say();
  $("run").textContent = "Cancel";
  try {
    const page = await get(`/api/query?${new URLSearchParams({ sql: $("sql").value })}`, asking.signal);
    const shown = page.rows.length;
    const rows = page.rows_total === null ? `more than ${count(shown)} rows, the first ${count(shown)} shown`
      : `${count(page.rows_total)} rows${page.rows_total > shown ? `, the first ${count(shown)} shown` : ""}`;
    const files = page.rows_total !== null && page.rows_total <= shown ? filesOf(`/api/query?${new URLSearchParams({ sql: $("sql").value })}`, "the answer, asked again") : [];
    $("answer").replaceChildren(...warned(page.warnings), grid(page), html("p", { className: "hint bar" }, html("span", { textContent: rows }), html("span", { className: "tools" }, ...files)));
  } catch (error) {
    if (error.name === "AbortError") hint("cancelled");
    else $("answer").replaceChildren(html("p", { className: "error", textContent: error.message }));
  } finally {
    clearInterval(clock);
    asking = null;
    $("run").textContent = "Run";
  }
});

function hint(text) {
  $("answer").replaceChildren(html("p", { className: "hint", textContent: text }));
}

$("sql").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !asking) $("ask").requestSubmit();
});

// A log without a pipeline has no state of its own: its pages say what it holds, or why it doesn't answer.
function alone(found) {
  state.alone = true;
  $("app").textContent = found.log || "log";
  document.title = `${found.log || "log"} · Penstock`;
  $("dot").className = found.log ? "good" : "bad";
  $("state").textContent = found.log ? "broker" : "no broker";
}

arrive();
about().then((found) => (found && !found.pipeline ? alone(found) : listen()));
