// Dead letters: by reason, and those of one reason, which may be repaired, replayed and dropped.

import { html } from "./chart.js";
import { confirmed } from "./dialog.js";
import { count } from "./format.js";
import { ask, button, empty, hint, link, site, table, time, title } from "./pieces.js";
import { brief, pre } from "./records.js";

const OPEN = ["open", "repaired"]; // states in which something can be done
const some = (n) => `${count(n)} ${n === 1 ? "letter" : "letters"}`;

const readOnly = () => (site.about.allow_changes ? null : hint("This page is read-only. To repair, replay or drop letters: penstock ui … --allow-changes, or penstock dlq."));

export async function reasons() {
  const found = (await ask("letters")).groups;
  const rows = found.map((g) => {
    const query = new URLSearchParams({ reason: g.reason, origin: g.origin, state: g.state });
    const open = html("a", { textContent: g.reason, href: `#/letters/${encodeURIComponent(g.topic)}?${query}`, title: g.example });
    return [count(g.letters), html("span", { className: `mood ${g.state}`, textContent: g.state }), open, g.origin, g.topic, time(g.first), time(g.last)];
  });
  return [
    title("Dead letters", hint("records that could not be used, by reason")),
    rows.length ? table("Dead letters by reason", ["#letters", "state", "reason", "from", "in topic", "first UTC", "last UTC"], rows)
      : empty("There are no dead letters. A pipeline puts a record here, with the reason, when it is late or doesn't fit its stream's schema."),
    rows.length ? readOnly() : null,
  ];
}

// The letters of a topic that the address means. `redraw` draws this page anew.
export async function letters(name, query, redraw) {
  const found = await ask(`letters/${encodeURIComponent(name)}?${query}`);
  const may = site.about.allow_changes && found.letters.some((one) => OPEN.includes(one.state));
  const work = may ? workbench(name, query, found.letters, found.unknown, redraw) : null;
  const skip = Number(query.get("skip") || 0);
  const next = new URLSearchParams(query);
  next.set("skip", skip + found.letters.length);
  return [
    title(query.get("reason") || name, link("all reasons", "letters")),
    query.get("reason") ? hint(`in ${name}${query.get("origin") ? `, from ${query.get("origin")}` : ""}`) : null, readOnly(), work && work.tools,
    html("p", { className: "hint", role: "status", tabIndex: -1 }),
    found.letters.length ? html("div", { className: "cards" }, ...found.letters.map((one) => card(one, work))) : empty("No letters are in this state any more."),
    found.more ? html("a", { textContent: "the next ones", href: `#/letters/${encodeURIComponent(name)}?${next}` }) : null,
  ];
}

function card(one, work) {
  const value = html("div", {}, one.value === null ? hint("no value") : pre(one.value));
  const canChange = work && OPEN.includes(one.state);
  const canRepair = canChange && one.value && one.value.form === "text" && !one.value.bytes;
  const isLate = one.late_again && OPEN.includes(one.state);
  const isBehind = one.behind && OPEN.includes(one.state);
  return html("article", { className: "card" },
    html("div", { className: "bar" },
      html("label", {}, ...(canChange ? [work.box(one)] : []), ` ${one.id} `, html("span", { className: `mood ${one.state}`, textContent: one.state })),
      ...(canRepair ? [button("Repair…", () => edit(one, value, (text) => work.repair(one, text)))] : [])),
    html("p", { className: "reason", textContent: one.reason }),
    ...(isLate ? [html("p", { className: "mood repaired", textContent: "If it is replayed unchanged, it will be late again." })] : []),
    ...(isBehind ? [html("p", { className: "mood repaired", textContent: "Its event time is before the watermark of its topic. If it is replayed unchanged, it will be a late letter where its windows are closed." })] : []),
    ...(one.because ? [hint(`because: ${one.because}`)] : []),
    hint(one.was_record
      ? `from ${one.origin || "?"} offset ${one.origin_offset}, ${time(one.at)} UTC, key ${brief(one.key)}`
      : `a row of ${one.origin}, no record, refused by ${one.node || "?"}, ${time(one.at)} UTC, key ${brief(one.key)}`), value);
}

// What can be done with letters: the boxes that select some, and the buttons.
function workbench(name, query, shown, unknown, redraw) {
  const boxes = new Map();
  const chosen = () => [...boxes].filter(([, box]) => box.checked).map(([id]) => id);
  const isAll = () => !chosen().length && query.get("reason");
  const change = (action, body) => ask(`letters/${encodeURIComponent(name)}/${action}`, body);
  const meant = () => (isAll() ? { reason: query.get("reason"), origin: query.get("origin") } : { letters: chosen() });
  const tell = async (text) => { // the focus goes to what has been done: the letters' buttons may be gone
    await redraw();
    const status = document.querySelector("#console [role=status]");
    if (status) { status.textContent = text; status.focus(); }
  };
  const fail = (error) => { const status = document.querySelector("#console [role=status]"); status.textContent = error.message; status.className = "error"; };

  // How many letters a change is about now, by the log: more may have come since the page was drawn.
  const size = async () => {
    if (!isAll()) return chosen().length;
    const groups = (await ask("letters")).groups.filter((g) => g.topic === name && OPEN.includes(g.state)
      && g.reason === query.get("reason") && (!query.get("origin") || g.origin === query.get("origin")));
    return groups.reduce((sum, g) => sum + g.letters, 0);
  };
  const ours = () => shown.filter((one) => OPEN.includes(one.state) && (isAll() || chosen().includes(one.id)));
  const origins = () => [...new Set(ours().map((one) => one.origin.replace(/\/\d+$/, "")).filter(Boolean))].sort().join(", ") || "the topic that they came from";
  const which = (n) => (isAll() ? `All ${some(n)} with the reason “${query.get("reason")}”` : n === 1 ? `Letter ${chosen()[0]}` : `The ${some(n)} that you selected`);
  const late = () => {
    const here = ours().length < boxes.size || isAll() ? " of those on this page" : "";
    const said = (n, text) => (n ? [`${n === 1 ? "1 letter" : some(n)}${here} ${text}. Repair the time in ${n === 1 ? "its value" : "their values"} first.`] : []);
    const rows = ours().filter((one) => !one.was_record).length;
    const again = ours().filter((one) => one.late_again).length;
    const behind = ours().filter((one) => one.behind).length;
    return [...(rows ? [`${rows === 1 ? "1 letter was" : `${some(rows)} were`} no record: no topic has it, and it is not sent.`] : []),
      ...said(again, "will be late again"),
      ...said(behind, `${behind === 1 ? "has an event time" : "have event times"} before the watermark of the topic, and will be late where the windows are closed`),
      ...unknown];
  };
  const open = async (make) => {
    try {
      const done = await confirmed(make(await size()));
      if (done !== undefined) await tell(done);
    } catch (error) { fail(error); }
  };

  const replay = button("Replay…", () => open((n) => ({
    name: `Replay ${some(n)}?`, label: `Replay ${some(n)}`, warns: late(),
    says: [`${which(n)} ${n === 1 ? "is" : "are"} sent to ${origins()} again, each once.`, `${n === 1 ? "It stays" : "They stay"} in ${name}, marked as replayed.`],
    act: async () => `replayed ${some((await change("replay", meant())).replayed)}`,
  })));
  const drop = button("Drop…", () => open((n) => ({
    name: `Drop ${some(n)}?`, label: `Drop ${some(n)}`, field: { name: "Reason (may be empty)", hint: "counted by hand" },
    says: [`${which(n)} ${n === 1 ? "is" : "are"} closed. Nothing is sent.`, `${n === 1 ? "It stays" : "They stay"} in ${name}, marked as dropped.`],
    warns: [`This can't be undone: a dropped letter can't be replayed.`],
    act: async (because) => `dropped ${some((await change("drop", { ...meant(), because })).dropped)}`,
  })));
  const about = hint("");
  const tally = () => {
    const n = chosen().length;
    about.textContent = n ? `${some(n)} selected.` : isAll() ? "Applies to all letters with this reason, unless you select some." : "Select letters first.";
    replay.disabled = drop.disabled = !n && !isAll();
  };
  tally();
  return {
    tools: html("div", { className: "bar tools work" }, replay, drop, about),
    box(one) {
      const box = html("input", { type: "checkbox", ariaLabel: `letter ${one.id}` });
      box.onchange = tally;
      boxes.set(one.id, box);
      return box;
    },
    async repair(one, text) {
      try { await tell(`repaired ${some((await change("repair", { values: { [one.id]: text } })).repaired)}`); } catch (error) { fail(error); }
    },
  };
}

function edit(one, place, done) {
  const box = html("textarea", { rows: 6, value: one.value.text, ariaLabel: `new value of letter ${one.id}`, spellcheck: false });
  const form = html("form", {}, box, html("div", { className: "bar" }, hint("The old value is kept until the letter is replayed."), html("button", { type: "submit", textContent: "Keep" })));
  form.onsubmit = (event) => { event.preventDefault(); done(box.value); };
  place.replaceChildren(form);
  box.focus();
}
