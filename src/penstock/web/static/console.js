// The console: topics with their records, groups, dead letters and versions. Where one is is in the address
// (#/topics/clicks?from=oldest), so that a link leads to it. Everything is asked of the log anew.

import { html } from "./chart.js";
import { bytes, count, duration, number, visible } from "./format.js";
import { arranged, finder, swap } from "./lists.js";
import { circuit, percent, stateOf, troubles } from "./states.js";

const REFRESH_MS = 5000; // between two looks at a list
const $ = (id) => document.getElementById(id);
const state = { about: null, turn: 0, timer: 0 };
const PAGES = { topics: [topics, topic], groups: [groups, group], connections: [connections], letters: [reasons, letters], versions: [versions] };

async function ask(path, body) {
  const options = body === undefined ? {} : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(`/api/${path}`, options);
  const found = await answer.json().catch(() => ({ error: `${answer.status} ${answer.statusText}` }));
  if (!answer.ok) throw new Error(found.error || answer.statusText);
  return found;
}

// What there is to show; null where the server has no console.
export async function about() {
  try {
    state.about = await ask("console");
  } catch {
    return null;
  }
  $("nav").hidden = false;
  for (const link of $("nav").querySelectorAll("a")) {
    const page = link.hash.slice(2);
    link.hidden = (page === "" && !state.about.pipeline) || (page === "versions" && !state.about.versions);
  }
  window.addEventListener("hashchange", route);
  route();
  return state.about;
}

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...rest] = path.split("/");
  const known = page in PAGES ? page : state.about.pipeline ? "" : "topics";
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
    parts = [html("div", { className: "card failed" }, html("p", { className: "error", role: "alert", textContent: error.message }), button("Try again", () => show(draw, repeats)))];
  }
  if (turn !== state.turn) return;
  const marked = document.getSelection();
  const isSelecting = repeats && marked && !marked.isCollapsed && box.contains(marked.anchorNode);
  if (!isSelecting) swap(box, parts.filter(Boolean));
  box.removeAttribute("aria-busy");
  clearTimeout(state.timer);
  if (repeats) state.timer = setTimeout(() => { if (!document.hidden) show(draw, true); else state.timer = setTimeout(route, REFRESH_MS); }, REFRESH_MS);
}

// ---- pieces

const hint = (text) => html("p", { className: "hint", textContent: text });
const empty = (...parts) => html("p", { className: "empty" }, ...parts);
const code = (text) => html("code", { textContent: text });
const link = (text, ...path) => html("a", { textContent: text, href: `#/${path.map(encodeURIComponent).join("/")}` });
const title = (text, ...beside) => html("div", { className: "bar" }, html("h2", { textContent: text }), html("span", { className: "tools" }, ...beside));
const time = (text) => String(text).replace("T", " ").replace(/Z$/, "").replace(/(\.\d{3})\d+$/, "$1"); // the log's times are whole ms

function button(text, act, className = "") {
  const made = html("button", { type: "button", textContent: text, className });
  made.onclick = act;
  return made;
}

// A table. Heads that begin with # are of numbers, and may be links that sort; cells are texts or nodes.
function table(label, titles, rows) {
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

// ---- topics

const present = () => new URLSearchParams(location.hash.split("?")[1] || "");

async function topics() {
  const found = (await ask("topics")).topics;
  const internal = (name) => /\.(dead-letters|ledger|files)$/.test(name);
  found.sort((a, b) => internal(a.name) - internal(b.name) || a.name.localeCompare(b.name));
  return list("Topics", found, [["topic", "name"], ["#partitions", "partitions"], ["#records", "records"], ["#size", "bytes"]],
    (t) => [link(t.name, "topics", t.name), count(t.partitions), count(t.records), bytes(t.bytes)], topics,
    `${state.about.log ?? ""}, ${found.length} topics`,
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

async function topic(name, query) {
  const [about, groups] = await Promise.all([ask(`topics/${encodeURIComponent(name)}`), ask("groups").then((one) => one.groups, () => null)]);
  const readers = (groups ?? []).filter((g) => g.topics.includes(name));
  const list = html("div", { className: "records" });
  const form = search(about, query, (chosen) => records(name, chosen, list));
  const parts = about.partitions.map((p) => [String(p.partition), count(p.first), count(p.next), count(p.records), bytes(p.bytes)]);
  const own = about.configs.filter((c) => c.is_own);
  const configs = (some) => table("Configs", ["config", "value", "from", "meaning"], some.map((c) => [c.name, c.value ?? "(secret)", c.is_own ? "topic" : "default", c.doc]));
  records(name, query, list);
  return [
    title(name, link("all topics", "topics")),
    form, list,
    title("Groups"),
    readers.length ? table("Groups", ["group", "type", "state", "#lag"], readers.map((g) => [link(g.name, "groups", g.name), g.kind, g.state, count(g.lag)]))
      : hint(groups === null ? "The groups can't be read now." : "No consumer or share group has read this topic. A pipeline keeps its offsets in its own versions."),
    readers.length ? hint("Lag: over all topics of the group.") : null,
    title("Partitions"),
    table("Partitions", ["partition", "#first offset", "#next offset", "#records", "#size"], parts),
    title("Configs"),
    own.length ? configs(own) : hint("All configs have their defaults."),
    html("details", {}, html("summary", { textContent: `all ${about.configs.length} configs` }), configs(about.configs)),
  ];
}

// The form above the records. What is chosen is put into the address.
function search(about, query, chosen) {
  const option = (value, text, wanted) => html("option", { value, textContent: text, selected: value === wanted });
  const from = query.get("from") || "newest";
  const timed = !["newest", "oldest", "offset"].includes(from);
  const where = html("select", { name: "from", ariaLabel: "where to begin" },
    option("newest", "newest first", from), option("oldest", "oldest first", from), option("offset", "from offset…", from),
    option("time", "from time…", timed ? "time" : from));
  const at = html("input", { name: "at", ariaLabel: "offset or time", placeholder: "2 hours ago", size: 20,
    value: timed ? from : query.get("offset") || "" });
  const part = html("select", { name: "partition", ariaLabel: "partition" }, option("", "all partitions", query.get("partition") || ""),
    ...about.partitions.map((p) => option(String(p.partition), `partition ${p.partition}`, query.get("partition") || "")));
  const text = html("input", { type: "search", name: "search", ariaLabel: "search in keys, values and headers", placeholder: "search", value: query.get("search") || "" });
  const place = () => {
    at.hidden = !["offset", "time"].includes(where.value);
    at.placeholder = where.value === "offset" ? "1200" : "2 hours ago, 2026-11-21T09:00:00Z";
  };
  where.onchange = place;
  place();
  const form = html("form", { className: "filter", role: "search" }, where, at, part, text, html("button", { type: "submit", textContent: "Show" }));
  form.onsubmit = (event) => {
    event.preventDefault();
    const next = new URLSearchParams();
    if (where.value === "time") next.set("from", at.value.trim());
    else if (where.value !== "newest") next.set("from", where.value);
    if (where.value === "offset") next.set("offset", at.value.trim());
    if (part.value) next.set("partition", part.value);
    if (text.value) next.set("search", text.value);
    history.replaceState(null, "", `${location.hash.split("?")[0]}${[...next].length ? `?${next}` : ""}`);
    $("console").dataset.page = location.hash;
    chosen(next);
  };
  form.partitions = about.partitions;
  return form;
}

async function records(name, query, list, positions = "", before = []) {
  const wanted = new URLSearchParams(query);
  if (query.get("from") === "offset") {
    wanted.set("from", "oldest");
    const offset = query.get("offset") || "0";
    const parts = query.get("partition") ? [query.get("partition")] : [...document.querySelectorAll("select[name=partition] option")].map((o) => o.value).filter(Boolean);
    wanted.set("positions", parts.map((p) => `${p}:${offset}`).join());
    wanted.delete("offset");
  }
  if (positions) wanted.set("positions", positions);
  list.setAttribute("aria-busy", "true");
  if (!before.length) list.replaceChildren(hint("loading…"));
  let page;
  try {
    page = await ask(`topics/${encodeURIComponent(name)}/records?${wanted}`);
  } catch (error) {
    list.replaceChildren(html("p", { className: "error", role: "alert", textContent: error.message }));
    return;
  } finally {
    list.removeAttribute("aria-busy");
  }
  for (const one of page.records) one.topic = name;
  const all = [...before, ...page.records];
  const next = Object.entries(page.next).map(([p, offset]) => `${p}:${offset}`).join();
  const rows = all.flatMap((one) => row(one));
  const said = query.get("search") ? `${count(all.length)} of ${count(page.scanned)} records searched` : `${count(all.length)} records`;
  list.replaceChildren(
    title("Records", hint(said), button("save as JSON lines", () => save(name, all))),
    ...page.damaged.map((text) => html("p", { className: "error", textContent: `The broker can't read ${text}; see penstock doctor.` })),
    all.length ? table("Records", ["time UTC", "#partition", "#offset", "key", "value"], rows)
      : empty(next ? "Nothing found so far." : query.get("search") ? "No record has this text." : "No records here. Send one: ", next || query.get("search") ? "" : code(`echo '{"user": "ann"}' | penstock produce ${name}`)),
    ...(next ? [button(query.get("search") ? "continue the search" : "show more", () => records(name, query, list, next, all))] : []));
}

// A record's line, and below it, when it is opened, all of it.
function row(one) {
  const open = button(time(one.at), () => {
    more.hidden = !more.hidden;
    open.setAttribute("aria-expanded", String(!more.hidden));
    if (!more.hidden && !more.firstChild) more.append(html("td", { colSpan: 5 }, whole(one)));
  }, "open");
  open.setAttribute("aria-expanded", "false");
  const cells = [open, String(one.partition), String(one.offset), brief(one.key), brief(one.value)];
  const more = html("tr", { hidden: true });
  return [html("tr", {}, ...cells.map((cell, i) => html("td", { className: i === 1 || i === 2 ? "number" : i > 2 && isNothing(i === 3 ? one.key : one.value) ? "null" : "" }, cell))), more];
}

// A field in one line. Nothing and an empty text are told apart, and no text turns the line around.
const brief = (field) => (field === null ? "null" : field.text === "" ? "(empty)" : visible(field.text.length > 160 ? `${field.text.slice(0, 160)}…` : field.text));
const isNothing = (field) => field === null || field.text === "";

function whole(one) {
  const headers = one.headers.map(([name, value]) => [name, brief(value)]);
  return html("div", { className: "whole" },
    one.key !== null && html("div", {}, html("h3", { textContent: "key" }), pre(one.key, one)),
    html("div", {}, html("h3", { textContent: one.value && one.value.form === "avro" ? "value (Avro)" : "value" }), one.value === null ? hint("null: a tombstone") : pre(one.value, one)),
    headers.length ? html("div", {}, html("h3", { textContent: "headers" }), table("Headers", ["name", "value"], headers)) : hint("no headers"));
}

function pre(field, record) {
  let text = field.text || "(empty)";
  try { if (field.form !== "hex" && !unsafe(text)) text = JSON.stringify(JSON.parse(text), null, 2); } catch { /* it is no JSON */ }
  const rest = record && record.topic ? `penstock consume ${record.topic} -p ${record.partition} --from ${record.offset} -n 1` : "penstock consume";
  const cut = field.bytes ? `\n… of ${bytes(field.bytes)} in all; the rest: ${rest}` : "";
  return html("pre", { textContent: visible(text, true) + cut, tabIndex: 0 });
}

// Numbers that JavaScript would round are shown as they were sent.
const unsafe = (text) => /[0-9]{16,}|[0-9]\.[0-9]{15,}/.test(text);

function save(name, all) {
  const lines = all.map((one) => JSON.stringify({ topic: name, partition: one.partition, offset: one.offset, timestamp: one.at,
    key: one.key && one.key.text, value: one.value && one.value.text, headers: Object.fromEntries(one.headers.map(([k, v]) => [k, v && v.text])) }));
  const url = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "application/x-ndjson" }));
  html("a", { href: url, download: `${name}.jsonl` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
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

async function group(name) {
  const found = await ask(`groups/${name.split("/").map(encodeURIComponent).join("/")}`);
  const rows = found.positions.map((p) => [link(p.topic, "topics", p.topic), String(p.partition), count(p.committed), count(p.end), count(p.lag), count(p.lost),
    p.time_left_ms === null || p.time_left_ms === undefined ? "–" : duration(p.time_left_ms)]);
  const members = found.members.map((m) => [m.client_id, m.host, m.id]);
  return [
    title(name, link("all groups", "groups")),
    hint(`${found.kind} group, ${found.state.toLowerCase()}, ${found.members_count ?? members.length} members`),
    rows.length ? table("Positions", ["topic", "partition", "#committed", "#end", "#lag", "#lost", "#time left"], rows) : empty("The group has committed no offsets."),
    hint("Time left: until retention deletes records that the group has not read."),
    members.length ? title("Members") : null,
    members.length ? table("Members", ["client", "host", "id"], members) : null,
  ];
}

// ---- captures, sinks and queues



async function connections() {
  const found = await ask("connections");
  const failed = (text) => (text ? [html("p", { className: "error", role: "alert", textContent: text })] : []);
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

const readOnly = () => (state.about.allow_changes ? null : hint("This page is read-only. To repair, replay or drop letters: penstock ui … --allow-changes, or penstock dlq."));

async function reasons() {
  const found = (await ask("letters")).groups;
  const rows = found.map((g) => {
    const query = new URLSearchParams({ reason: g.reason, origin: g.origin, state: g.state });
    const open = html("a", { textContent: g.reason, href: `#/letters/${encodeURIComponent(g.topic)}?${query}`, title: g.example });
    return [count(g.letters), html("span", { className: `mood ${g.state}`, textContent: g.state }), open, g.origin, g.topic, time(g.first), time(g.last)];
  });
  return [
    title("Dead letters", hint("records that could not be used, by reason")),
    rows.length ? table("Dead letters by reason", ["#letters", "state", "reason", "from", "in topic", "first UTC", "last UTC"], rows) : empty("There are no dead letters."),
    rows.length ? readOnly() : null,
  ];
}

async function letters(name, query) {
  const found = await ask(`letters/${encodeURIComponent(name)}?${query}`);
  const open = found.letters.some((one) => ["open", "repaired"].includes(one.state));
  const may = state.about.allow_changes && open;
  const boxes = new Map();
  const say = html("p", { className: "hint", role: "status" });
  const chosen = () => [...boxes].filter(([, box]) => box.checked).map(([id]) => id);
  const again = async (text) => { await show(() => letters(name, query), false); const status = $("console").querySelector("[role=status]"); if (status) status.textContent = text; };
  const act = async (action, body, done) => {
    try { await again(done(await ask(`letters/${encodeURIComponent(name)}/${action}`, body))); } catch (error) { say.textContent = error.message; say.className = "error"; }
  };
  const meant = () => { const ids = chosen(); return ids.length ? { letters: ids } : { reason: query.get("reason"), origin: query.get("origin") }; };
  const what = () => (chosen().length ? `${chosen().length} letters` : "all open letters with this reason");
  const late = () => { const some = found.letters.filter((one) => one.late_again && (!chosen().length || chosen().includes(one.id))).length; return some ? ` ${count(some)} of those shown will be late again: repair their time first.` : ""; };
  const tools = may ? html("div", { className: "bar tools" },
    button("Replay…", () => { if (confirm(`Replay ${what()} to the topics that they came from?${late()}`)) act("replay", meant(), (r) => `replayed ${count(r.replayed)} letters`); }),
    button("Drop…", () => { const because = prompt(`Drop ${what()}? They stay in the topic, marked as dropped. Reason:`, ""); if (because !== null) act("drop", { ...meant(), because }, (r) => `dropped ${count(r.dropped)} letters`); }),
    hint(query.get("reason") ? "Applies to all letters with this reason, unless you select some." : "Select the letters first.")) : null;
  const cards = found.letters.map((one) => {
    const box = html("input", { type: "checkbox", ariaLabel: `letter ${one.id}` });
    const canChange = may && ["open", "repaired"].includes(one.state);
    if (canChange) boxes.set(one.id, box);
    const value = html("div", {}, one.value === null ? hint("no value") : pre(one.value));
    const repair = canChange && one.value && one.value.form === "text" && !one.value.bytes ? button("Repair…", () => edit(one, value, (text) => act("repair", { values: { [one.id]: text } }, (r) => `repaired ${count(r.repaired)} letter`))) : null;
    return html("article", { className: "card" },
      html("div", { className: "bar" }, html("label", {}, ...(canChange ? [box] : []), ` ${one.id} `, html("span", { className: `mood ${one.state}`, textContent: one.state })), ...(repair ? [repair] : [])),
      html("p", { className: "reason", textContent: one.reason }),
      ...(one.late_again && one.state !== "replayed" && one.state !== "dropped" ? [html("p", { className: "mood repaired", textContent: "If it is replayed unchanged, it will be late again." })] : []),
      ...(one.because ? [hint(`because: ${one.because}`)] : []),
      hint(`from ${one.origin || "?"} offset ${one.origin_offset}, ${time(one.at)} UTC, key ${brief(one.key)}`), value);
  });
  const skip = Number(query.get("skip") || 0);
  const next = new URLSearchParams(query);
  next.set("skip", skip + found.letters.length);
  return [
    title(query.get("reason") || name, link("all reasons", "letters")),
    query.get("reason") ? hint(`in ${name}${query.get("origin") ? `, from ${query.get("origin")}` : ""}`) : null, readOnly(), tools, say,
    cards.length ? html("div", { className: "cards" }, ...cards) : empty("No letters are in this state any more."),
    found.more ? html("a", { textContent: "the next ones", href: `#/letters/${encodeURIComponent(name)}?${next}` }) : null,
  ];
}

function edit(one, place, done) {
  const box = html("textarea", { rows: 6, value: one.value.text, ariaLabel: `new value of letter ${one.id}`, spellcheck: false });
  const form = html("form", {}, box, html("div", { className: "bar" }, hint("The old value is kept until the letter is replayed."), html("button", { type: "submit", textContent: "Keep" })));
  form.onsubmit = (event) => { event.preventDefault(); done(box.value); };
  place.replaceChildren(form);
  box.focus();
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
