// A topic: its records as a list or as columns, from an end, an offset or a time, or as they arrive.

import { html } from "./chart.js";
import { Columns } from "./columns.js";
import { bytes, count, visible } from "./format.js";
import { ask, button, code, empty, failure, hint, indented, link, present, remember, table, time, title } from "./pieces.js";

const LIVE_MS = 1000; // between two looks at a topic's end
const LIVE_RECORDS = 50; // of one look: what a person can follow, and a browser draw, however many arrive
const LIVE_KEPT = 500; // lines of the list; older ones leave it
const AGAIN_MS = 5000; // after a look that failed

// The page of a topic.
export async function topic(name, query) {
  const [about, groups] = await Promise.all([ask(`topics/${encodeURIComponent(name)}`), ask("groups").then((one) => one.groups, () => null)]);
  const readers = (groups ?? []).filter((g) => g.topics.includes(name));
  const view = new RecordsView(name, about.partitions.map((p) => p.partition));
  const form = search(about, query, (chosen) => view.load(chosen));
  const parts = about.partitions.map((p) => [String(p.partition), count(p.first), count(p.next), count(p.records), bytes(p.bytes)]);
  const own = about.configs.filter((c) => c.is_own);
  const configs = (some) => table("Configs", ["config", "value", "from", "meaning"], some.map((c) => [c.name, c.value ?? "(secret)", c.is_own ? "topic" : "default", c.doc]));
  view.load(query);
  return [
    title(name, link("all topics", "topics")),
    form, view.box,
    title("Groups"),
    readers.length ? table("Groups", ["group", "type", "state", "#lag"], readers.map((g) => [link(g.name, "groups", g.name), g.kind, g.state, count(g.lag)]))
      : hint(groups === null ? "The groups can't be read now." : "No consumer or share group has read this topic. A pipeline keeps its offsets in its own versions."),
    readers.length ? hint("Lag: records over all topics of the group.") : null,
    title("Partitions", hint("when this page was opened")),
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
  const timed = !["newest", "oldest", "offset", "live"].includes(from);
  const where = html("select", { name: "from", ariaLabel: "where to begin" },
    option("newest", "newest first", from), option("live", "live, as they arrive", from), option("oldest", "oldest first", from), option("offset", "from offset…", from),
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
    const isTime = where.value === "time";
    remember({ from: isTime ? at.value.trim() : where.value === "newest" ? "" : where.value, offset: where.value === "offset" ? at.value.trim() : "",
      partition: part.value, search: text.value });
    chosen(present());
  };
  return form;
}

// The list of records below the form.
class RecordsView {
  constructor(name, partitions) {
    this.name = name;
    this.partitions = partitions;
    this.box = html("div", { className: "records" });
    this.turn = 0; // counts what was asked for: an answer to an earlier question comes too late
    this.columns = new Columns(() => this.draw());
  }

  load(query) {
    this.turn++;
    this.query = new URLSearchParams(query);
    this.all = [];
    this.page = null;
    this.live = query.get("from") === "live" ? { isPaused: false, skipped: 0, rate: null } : null;
    if (this.live) this.follow(this.turn); else this.more("");
  }

  get wanted() {
    const wanted = new URLSearchParams();
    for (const name of ["from", "partition", "search"]) if (this.query.get(name)) wanted.set(name, this.query.get(name));
    if (this.query.get("from") !== "offset") return wanted;
    const offset = this.query.get("offset") || "0";
    const parts = this.query.get("partition") ? [this.query.get("partition")] : this.partitions;
    wanted.set("from", "oldest");
    wanted.set("positions", parts.map((p) => `${p}:${offset}`).join());
    return wanted;
  }

  // Asks for a page, and adds it to what is there.
  async more(positions) {
    const turn = this.turn, { wanted } = this;
    if (positions) wanted.set("positions", positions);
    this.box.setAttribute("aria-busy", "true");
    if (!this.all.length) this.box.replaceChildren(hint("loading…"));
    try {
      const page = await ask(`topics/${encodeURIComponent(this.name)}/records?${wanted}`);
      if (turn !== this.turn) return;
      this.page = page;
      this.take(page.records, (fresh) => [...this.all, ...fresh]);
      this.draw();
    } catch (error) {
      if (turn === this.turn) this.box.replaceChildren(failure(error.message));
    } finally {
      if (turn === this.turn) this.box.removeAttribute("aria-busy");
    }
  }

  take(records, joined) {
    for (const one of records) one.topic = this.name;
    this.all = joined(records);
  }

  draw() {
    const { all, page, live } = this;
    const isSearch = Boolean(this.query.get("search"));
    const next = page && !live ? positionsOf(page.next) : "";
    const said = live ? "" : isSearch ? `${count(all.length)} of ${count(page.scanned)} records searched` : `${count(all.length)} records`;
    const parts = [title("Records", ...(live ? this.switches() : [hint(said)]), button("save as JSON lines", () => save(this.name, this.all)))];
    if (all.length) parts.push(this.columns.chooser(all));
    parts.push(...(page ? page.damaged : []).map((text) => html("p", { className: "error", textContent: `The broker can't read ${text}; see penstock doctor.` })));
    if (all.length) parts.push(this.columns.isOn ? this.columns.table(all, (one) => opener(one, this), !live || live.isPaused) : table("Records", ["time UTC", "#partition", "#offset", "key", "value"], all.flatMap((one) => row(one, this))));
    else if (live) parts.push(empty(isSearch ? "No record with this text has arrived yet." : "No records yet. They appear here when they arrive. Send one: ", isSearch ? "" : sending(this.name)));
    else parts.push(empty(next ? "Nothing found so far." : isSearch ? "No record has this text." : "No records here. Send one: ", next || isSearch ? "" : sending(this.name)));
    if (next) parts.push(button(isSearch ? "continue the search" : "show more", () => this.more(next)));
    this.box.replaceChildren(...parts);
    if (live) this.tell();
  }

  // ---- as they arrive

  switches() {
    const { live } = this;
    live.said = hint("");
    live.button = button("Pause", () => { live.isPaused = !live.isPaused; if (this.columns.isOn) this.draw(); else this.tell(); live.button.focus(); });
    return [live.said, live.button];
  }

  tell() {
    const { live } = this;
    live.button.textContent = live.isPaused ? "Continue" : "Pause";
    const rate = live.rate === null ? "" : `${count(live.rate)} records/s arrive`;
    const left = live.skipped ? `${count(live.skipped)} not shown: they came faster than ${LIVE_RECORDS} a second` : "";
    live.said.textContent = [live.isPaused ? "paused" : "live", live.isPaused ? "" : rate, left, live.error || ""].filter(Boolean).join(" · ");
    live.said.className = live.error ? "error" : "hint";
  }

  pause() {
    if (!this.live || this.live.isPaused) return;
    this.live.isPaused = true;
    this.tell();
  }

  // Looks at the topic's end again and again, while the list is on the page.
  async follow(turn) {
    const { live } = this;
    let positions = "", seen = 0, wasShown = false;
    this.box.replaceChildren(hint("loading…"));
    while (turn === this.turn && (this.box.isConnected || !wasShown)) {
      wasShown ||= this.box.isConnected;
      let wait = LIVE_MS;
      if (!positions || (!live.isPaused && !document.hidden)) {
        try {
          const { wanted } = this;
          wanted.delete("from");
          wanted.set("limit", LIVE_RECORDS);
          if (positions) wanted.set("positions", positions);
          const page = await ask(`topics/${encodeURIComponent(this.name)}/tail?${wanted}`);
          if (turn !== this.turn) return;
          const now = performance.now();
          if (positions) live.rate = Math.round(page.arrived / ((now - seen) / 1000));
          [positions, seen, live.error] = [positionsOf(page.next), now, ""];
          this.arrive(page);
        } catch (error) {
          if (turn !== this.turn) return;
          live.error = error.message;
          wait = AGAIN_MS;
          if (this.page) this.tell(); else this.box.replaceChildren(failure(`${error.message} The page tries again.`));
        }
      }
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }

  arrive(page) {
    const isFirst = !this.page, wasEmpty = !this.all.length;
    this.page = page;
    this.live.skipped += page.skipped;
    this.take(page.records, (fresh) => [...fresh, ...this.all].slice(0, LIVE_KEPT));
    const list = this.box.querySelector("table.list");
    if (isFirst || wasEmpty || !list || page.damaged.length) return this.draw();
    // Lines that are there stay as they are: opened, selected, in their place.
    const head = list.querySelector("tr");
    if (page.records.length) head.after(...page.records.flatMap((one) => (this.columns.isOn ? this.columns.row(one, opener(one, this)) : row(one, this))));
    const lines = [...list.querySelectorAll("tr.record")];
    for (const old of lines.slice(LIVE_KEPT)) { old.nextElementSibling.remove(); old.remove(); }
    this.tell();
  }
}

const positionsOf = (next) => Object.entries(next).map(([p, offset]) => `${p}:${offset}`).join();
const sending = (name) => code(`echo '{"user": "ann"}' | penstock produce ${name}`);

// The button of a record's line, and the line below it that has all of the record when it is opened.
function opener(one, view) {
  const open = button(time(one.at), () => {
    more.hidden = !more.hidden;
    open.setAttribute("aria-expanded", String(!more.hidden));
    if (!more.hidden && !more.firstChild) more.append(html("td", { colSpan: open.closest("tr").cells.length }, whole(one)));
    if (!more.hidden) view.pause(); // what is being read doesn't move away
  }, "open");
  open.setAttribute("aria-expanded", "false");
  const more = html("tr", { hidden: true });
  return { open, more };
}

function row(one, view) {
  const { open, more } = opener(one, view);
  const cells = [open, String(one.partition), String(one.offset), brief(one.key), brief(one.value)];
  return [html("tr", { className: "record" }, ...cells.map((cell, i) => html("td", { className: i === 1 || i === 2 ? "number" : i > 2 && isNothing(i === 3 ? one.key : one.value) ? "null" : "" }, cell))), more];
}

// A field in one line. Nothing and an empty text are told apart, and no text turns the line around.
export const brief = (field) => (field === null ? "null" : field.text === "" ? "(empty)" : visible(field.text.length > 160 ? `${field.text.slice(0, 160)}…` : field.text));
const isNothing = (field) => field === null || field.text === "";

function whole(one) {
  const headers = one.headers.map(([name, value]) => [name, brief(value)]);
  return html("div", { className: "whole" },
    ...(one.key === null ? [] : [html("div", {}, html("h3", { textContent: "key" }), pre(one.key, one))]),
    html("div", {}, html("h3", { textContent: one.value && one.value.form === "avro" ? "value (Avro)" : "value" }), one.value === null ? hint("null: a tombstone") : pre(one.value, one)),
    headers.length ? html("div", {}, html("h3", { textContent: "headers" }), table("Headers", ["name", "value"], headers)) : hint("no headers"));
}

// A field with its lines, indented where it is JSON.
export function pre(field, record) {
  let text = field.text || "(empty)";
  try { if (field.form !== "hex") text = indented(text); } catch { /* it is no JSON */ }
  const rest = record && record.topic ? `penstock consume ${record.topic} -p ${record.partition} --from ${record.offset} -n 1` : "penstock consume";
  const cut = field.bytes ? `\n… of ${bytes(field.bytes)} in all; the rest: ${rest}` : "";
  return html("pre", { textContent: visible(text, true) + cut, tabIndex: 0 });
}

function save(name, all) {
  const lines = all.map((one) => JSON.stringify({ topic: name, partition: one.partition, offset: one.offset, timestamp: one.at,
    key: one.key && one.key.text, value: one.value && one.value.text, headers: Object.fromEntries(one.headers.map(([k, v]) => [k, v && v.text])) }));
  const url = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "application/x-ndjson" }));
  html("a", { href: url, download: `${name}.jsonl` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
