// The console: topics with their records, groups, dead letters and versions. Where one is is in the address
// (#/topics/clicks?from=oldest), so that a link leads to it. Everything is asked of the log anew.

import { html } from "./chart.js";
import { bytes, count, duration, number } from "./format.js";
import { LagChart } from "./lag.js";
import { letters, reasons } from "./letters.js";
import { arranged, finder, swap } from "./lists.js";
import { ask, button, code, empty, failure, hint, link, present, site, table, time, title } from "./pieces.js";
import { topic } from "./records.js";
import { circuit, percent, stateOf, troubles } from "./states.js";

const REFRESH_MS = 5000; // between two looks at a list
const $ = (id) => document.getElementById(id);
const state = { turn: 0, timer: 0 };
const PAGES = { topics: [topics, topic], groups: [groups, group], connections: [connections], letters: [reasons, lettersPage], versions: [versions] };

// What there is to show; null where the server has no console.
export async function about() {
  try {
    site.about = await ask("console");
  } catch {
    return null;
  }
  $("nav").hidden = false;
  for (const link of $("nav").querySelectorAll("a")) {
    const page = link.hash.slice(2);
    link.hidden = (page === "" && !site.about.pipeline) || (page === "versions" && !site.about.versions);
  }
  window.addEventListener("hashchange", route);
  route();
  return site.about;
}

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = path.split("/");
  const known = page in PAGES ? page : site.about.pipeline ? "" : "topics";
  for (const link of $("nav").querySelectorAll("a")) {
    if (link.hash.slice(2) === known) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  const bar = $("nav"), here = bar.querySelector("[aria-current]"); // on a telephone, not all fit
  bar.scrollLeft = here ? here.offsetLeft - (bar.clientWidth - here.offsetWidth) / 2 : 0;
  $("pipeline").hidden = known !== "";
  $("console").hidden = known === "";
  clearTimeout(state.timer);
  if (known === "") { window.dispatchEvent(new Event("resize")); return; }
  const name = rest.map(decodeURIComponent).join("/");
  show(name && PAGES[known][1] ? () => PAGES[known][1](name, new URLSearchParams(query)) : PAGES[known][0], !name || !PAGES[known][1]);
}

// Draws a page; `repeats` draws it again and again, unless somebody is selecting text in it. A list that is only
// sorted or searched stays until it is drawn anew.
async function show(draw, repeats) {
  const turn = ++state.turn;
  const box = $("console");
  const path = (hash) => (repeats ? hash.split("?")[0] : hash);
  if (!box.dataset.page || path(box.dataset.page) !== path(location.hash)) box.replaceChildren(hint("loading…"));
  box.dataset.page = location.hash;
  box.setAttribute("aria-busy", "true");
  let parts;
  try {
    parts = await draw();
  } catch (error) {
    parts = [html("div", { className: "card failed" }, failure(error.message), button("Try again", () => show(draw, repeats)))];
  }
  if (turn !== state.turn) return;
  const marked = document.getSelection();
  const isSelecting = repeats && marked && !marked.isCollapsed && box.contains(marked.anchorNode);
  if (!repeats) box.replaceChildren(...parts.filter(Boolean)); // its parts know of each other
  else if (!isSelecting) swap(box, parts.filter(Boolean));
  box.removeAttribute("aria-busy");
  clearTimeout(state.timer);
  if (repeats) state.timer = setTimeout(() => { if (!document.hidden) show(draw, true); else state.timer = setTimeout(route, REFRESH_MS); }, REFRESH_MS);
}

// ---- topics

async function topics() {
  const found = (await ask("topics")).topics;
  const internal = (name) => /\.(dead-letters|ledger|files)$/.test(name);
  found.sort((a, b) => internal(a.name) - internal(b.name) || a.name.localeCompare(b.name));
  return list("Topics", found, [["topic", "name"], ["#partitions", "partitions"], ["#records", "records"], ["#size", "bytes"]],
    (t) => [link(t.name, "topics", t.name), count(t.partitions), count(t.records), bytes(t.bytes)], topics,
    `${site.about.log ?? ""}, ${found.length} topics`,
    empty("There are no topics. Send a first event: ", code('echo \'{"user": "ann"}\' | penstock produce clicks --create')));
}

// A list with a box that finds, and columns that sort.
function list(label, items, columns, row, draw, said, nothing) {
  if (!items.length) return [title(label, hint(said)), nothing];
  const { shown, heads } = arranged(items, columns, present());
  const find = finder(`find ${label.toLowerCase()}`, () => show(draw, true));
  return [
    title(label, find, hint(shown.length < items.length ? `${count(shown.length)} of ${said}` : said)),
    shown.length ? table(label, heads, shown.map(row)) : empty(`None of the ${count(items.length)} has this text in its name.`),
  ];
}

// ---- groups

async function groups() {
  const found = (await ask("groups")).groups;
  const shown = list("Groups", found, [["group", "name"], ["type", "kind"], ["state", "state"], ["topics", ""], ["#lag", "lag"], ["#lost", "lost"]],
    (g) => [link(g.name, "groups", g.name), g.kind, g.state, g.topics.join(", "), count(g.lag), count(g.lost)], groups,
    `${count(found.length)} consumer and share groups`,
    empty("There are no groups. Start a first consumer: ", code("penstock consume clicks --group audit")));
  return [...shown, found.length ? hint("Lag: records that the group has not read yet; for a share group, records that are not settled. Lost: retention removed them before they were read.") : null];
}

async function group(name, query) {
  const found = await ask(`groups/${name.split("/").map(encodeURIComponent).join("/")}`);
  const rows = found.positions.map((p) => [link(p.topic, "topics", p.topic), String(p.partition), count(p.committed), count(p.end), count(p.lag), count(p.lost),
    p.time_left_ms === null || p.time_left_ms === undefined ? "–" : duration(p.time_left_ms)]);
  const members = found.members.map((m) => [m.client_id, m.host, m.id]);
  const lag = new LagChart(name, query);
  return [
    title(name, link("all groups", "groups")),
    hint(`${found.kind} group, ${found.state.toLowerCase()}, ${found.members_count ?? members.length} members`),
    title("Lag", lag.about, lag.range),
    lag.box,
    title("Positions", hint("when this page was opened")),
    rows.length ? table("Positions", ["topic", "partition", "#committed", "#end", "#lag", "#lost", "#time left"], rows) : empty("The group has committed no offsets."),
    hint("Time left: until retention deletes records that the group has not read."),
    members.length ? title("Members") : null,
    members.length ? table("Members", ["client", "host", "id"], members) : null,
  ];
}

// ---- captures, sinks and queues

async function connections() {
  const found = await ask("connections");
  const failed = (text) => (text ? [failure(text)] : []);
  const inward = found.captures.map((c) => [c.name, stateOf(c.state), c.database, html("span", {}, ...c.tables.flatMap((t, i) => [i ? ", " : "", link(t.name, "topics", t.topic)])),
    count(c.tables.reduce((sum, t) => sum + (t.rows || 0), 0)), c.newest ? time(c.newest) : "–"]);
  const outward = found.sinks.map((s) => [link(s.name, "groups", s.group), stateOf(s.state), html("span", {}, ...s.topics.flatMap((t, i) => [i ? ", " : "", link(t, "topics", t)])), circuit(s.breaker), s.target,
    count(s.lag), duration(s.behind_ms), percent(s.progress), count(s.upserts), count(s.deletes), s.dead ? link(count(s.dead), "letters", s.letters_topic) : count(s.dead), s.last_error || "–"]);
  const jobs = found.queues.map((q) => [link(q.name, "topics", q.name), stateOf(q.state), link(q.workers, "groups", q.workers), count(q.members), count(q.waiting),
    q.dead ? link(count(q.dead), "topics", `dlq.${q.name}`) : count(q.dead)]);
  return [
    title("Captures", hint("from databases into topics")), ...failed(found.captures_error), ...troubles("states of captures", found.captures),
    inward.length ? table("Captures", ["capture", "state", "database", "tables", "#snapshot rows", "newest commit UTC"], inward)
      : empty("There are no captures. Start one: ", code("penstock capture postgresql://localhost/shop --tables 'public.*' --to shop")),
    title("Sinks", hint("from topics into databases and files")), ...failed(found.sinks_error), ...troubles("states of sinks", found.sinks),
    outward.length ? table("Sinks", ["sink", "state", "topic", "circuit", "target", "#lag", "#behind", "#in the target", "#upserts", "#deletes", "#dead letters", "last error"], outward)
      : empty("There are no sinks. Start one: ", code("penstock sink users users.sqlite --table users --schema 'id BIGINT, name STRING' --key id")),
    outward.length ? hint("Upserts, deletes and dead letters: since the sink was started. NAME.rebuild is writing a new table for NAME, which replaces the live one at 100%.") : null,
    title("Queues", hint("each job goes to one worker")), ...failed(found.queues_error), ...troubles("states of queues", found.queues),
    jobs.length ? table("Queues", ["queue", "state", "workers", "#connected", "#waiting", "#dead"], jobs)
      : empty("There are no queues with workers. Put a job: ", code("penstock queue put mails '{\"to\": \"ann\"}'")),
  ];
}

// ---- dead letters

function lettersPage(name, query) {
  return letters(name, query, () => show(() => lettersPage(name, query), false));
}

// ---- versions

async function versions() {
  const found = await ask("versions");
  const rows = found.versions.map((v) => [count(v.version), time(v.at), v.views.join(", ")]);
  const pins = found.savepoints.map((s) => [s.name, count(s.version), time(s.created), bytes(s.bytes), s.views.join(", ")]);
  return [
    title("Savepoints", hint("versions kept until you drop them")),
    pins.length ? table("Savepoints", ["name", "#version", "created UTC", "#state", "views"], pins) : empty("There are no savepoints. Make one: ", code("penstock savepoint create NAME before-upgrade")),
    title("Versions", hint(`the last ${number(rows.length)} committed versions`)),
    rows.length ? table("Versions", ["#version", "committed UTC", "views"], rows) : empty("Nothing has been committed yet."),
  ];
}
