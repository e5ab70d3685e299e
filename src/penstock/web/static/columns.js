// Records as a table with a column for each chosen field of their values. Which columns there are and how they are
// sorted is in the address (columns=user,address.city&sort=-user), so that a link leads to it.

import { html } from "./chart.js";
import { count, visible } from "./format.js";
import { button, elsewhere, hint, present, remember, time, unsafe } from "./pieces.js";

const COLUMNS_MAX = 20; // a wider table isn't read, and its address is too long
const FIELDS_MAX = 200; // offered; a map with a key for each user has more
const DEPTH_MAX = 6;
const CELL_CHARS_MAX = 160; // shown; a copy has all

// A number with the digits that were sent.
class Exact {
  constructor(value, text) { this.value = value; this.text = text; }
  toJSON() { return JSON.rawJSON ? JSON.rawJSON(this.text) : this.value; }
}

// The fields of a value by their path, such as address.city: each {value, text}. Lists are one field.
function fieldsOf(record) {
  if (!record.fields) record.fields = record.value && record.value.form !== "hex" && !record.value.bytes ? parsed(record.value.text) : new Map();
  return record.fields;
}

function parsed(text) {
  const found = new Map();
  let isExact = !unsafe(text);
  // A number that JavaScript would round keeps its digits, where the browser gives a number's source.
  const keep = (_, value, context) => {
    if (typeof value !== "number" || !context || context.source === undefined) return value;
    isExact = true;
    return new Exact(value, context.source);
  };
  const put = (path, value, depth) => {
    if (value instanceof Exact) found.set(path, value);
    else if (value && typeof value === "object" && !Array.isArray(value) && depth < DEPTH_MAX && Object.keys(value).length) for (const [name, inner] of Object.entries(value)) put(path ? `${path}.${name}` : name, inner, depth + 1);
    else if (path) found.set(path, { value, text: typeof value === "string" ? value : JSON.stringify(value) });
  };
  try { put("", JSON.parse(text, keep), 0); } catch { return new Map(); }
  return isExact ? found : new Map();
}

// The columns that every record has besides its fields.
const PLACE = [
  ["time UTC", "time", (one) => one.ms], ["#partition", "partition", (one) => one.partition],
  ["#offset", "offset", (one) => one.offset], ["key", "key", (one) => (one.key ? one.key.text : null)],
];

export class Columns {
  // `changed` draws the records anew.
  constructor(changed) {
    this.changed = changed;
    this.said = html("span", { className: "hint", role: "status" });
    this.isOpen = false;
  }

  get chosen() {
    return (present().get("columns") || "").split(",").filter(Boolean).map(unquoted).slice(0, COLUMNS_MAX);
  }

  get isOn() { return this.chosen.length > 0; }

  choose(paths) {
    const sort = (present().get("sort") || "").replace(/^-/, "");
    const stays = paths.includes(sort.replace(/^field:/, "")) || PLACE.some(([, name]) => name === sort);
    remember({ columns: paths.slice(0, COLUMNS_MAX).map(quoted).join(), ...(stays && paths.length ? {} : { sort: "" }) });
    this.changed();
  }

  // What chooses the columns: a box for each field of the values shown.
  chooser(records) {
    const counts = new Map(this.chosen.map((path) => [path, 0]));
    for (const one of records) for (const path of fieldsOf(one).keys()) if (counts.has(path) || counts.size < FIELDS_MAX) counts.set(path, (counts.get(path) || 0) + 1);
    if (!counts.size) return hint("The values are no JSON objects, so they have no fields to show as columns.");
    const { chosen } = this;
    const boxes = [...counts].map(([path, n]) => {
      const box = html("input", { type: "checkbox", checked: chosen.includes(path), disabled: !chosen.includes(path) && chosen.length >= COLUMNS_MAX });
      box.onchange = () => { this.choose(box.checked ? [...this.chosen, path] : this.chosen.filter((one) => one !== path)); this.focus(path); };
      box.dataset.path = path;
      return html("label", { title: `in ${count(n)} of ${count(records.length)} records` }, box, ` ${visible(path)}`);
    });
    this.panel = html("details", { className: "fields", open: this.isOpen },
      html("summary", { textContent: chosen.length ? `columns: ${count(chosen.length)} of ${count(counts.size)} fields` : "show fields as columns" }),
      html("div", { className: "boxes", role: "group", ariaLabel: "fields of the values" }, ...boxes),
      html("div", { className: "tools" },
        button(counts.size > COLUMNS_MAX ? `the first ${COLUMNS_MAX}` : "all fields", () => this.choose([...counts.keys()].slice(0, COLUMNS_MAX))),
        button("whole values", () => this.choose([]))));
    this.panel.ontoggle = () => { this.isOpen = this.panel.open; };
    return this.panel;
  }

  focus(path) {
    const box = [...this.panel.querySelectorAll("input")].find((one) => one.dataset.path === path);
    if (box) box.focus();
  }

  // The records as a table. `opener` gives a record's button and the line that has all of it.
  table(records, opener, canSort) {
    const columns = [...PLACE, ...this.chosen.map((path) => [path, `field:${path}`, (one) => fieldsOf(one).get(path)?.value])];
    const shown = canSort ? sorted(records, columns) : records;
    const isNumber = (column, i) => column[0].startsWith("#") || (i >= PLACE.length && records.every((one) => ["number", "undefined"].includes(typeof column[2](one))));
    this.numbers = columns.map(isNumber);
    const heads = columns.map((column, i) => head(column, this.numbers[i], canSort ? this.changed : null));
    const list = html("table", { className: "list columns" }, html("tr", {}, ...heads), ...shown.flatMap((one) => this.row(one, opener(one))));
    list.setAttribute("aria-label", "Records by field");
    list.setAttribute("role", "grid"); // cells are reached by arrow keys
    this.reach(list);
    const about = hint(`${canSort ? "Click a head to sort the records shown. " : "Pause to sort. "}Arrow keys move between cells; Enter copies one.`);
    return html("div", { className: "by-field" }, html("div", { className: "scroll tall" }, list), html("div", { className: "bar" }, about, this.said));
  }

  row(one, { open, more }) {
    const place = [open, String(one.partition), String(one.offset), one.key === null ? null : one.key.text];
    const fields = this.chosen.map((path) => fieldsOf(one).get(path));
    const cells = [...place.map((text, i) => cell(text, this.numbers[i])), ...fields.map((field, i) => cell(field === undefined ? undefined : field.value === null ? null : field.text, this.numbers[PLACE.length + i]))];
    cells[0].dataset.copy = time(one.at);
    if (one.value && one.value.bytes) cells.slice(PLACE.length).forEach((td) => { td.textContent = "…"; td.title = "The value is too long to be read here."; });
    return [html("tr", { className: "record" }, ...cells), more];
  }

  // Arrow keys move between cells, Enter and Ctrl+C copy one; a button does so for the mouse.
  reach(list) {
    const copy = button("copy", (event) => { event.stopPropagation(); this.copy(copy.parentNode); }, "copy");
    copy.tabIndex = -1;
    const cellOf = (event) => event.target.closest("tr.record > td");
    const first = list.querySelector("tr.record > td");
    if (first) first.tabIndex = 0;
    list.onpointerover = (event) => { const td = cellOf(event); if (td && td.cellIndex && copy.parentNode !== td) td.append(copy); }; // the time is a button itself
    list.onpointerleave = () => copy.remove();
    list.addEventListener("focusin", (event) => {
      const td = cellOf(event);
      if (!td) return;
      for (const other of list.querySelectorAll("td[tabindex='0']")) other.tabIndex = -1;
      td.tabIndex = 0;
    });
    list.onkeydown = (event) => {
      const td = cellOf(event);
      if (!td) return;
      const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (steps) {
        event.preventDefault();
        const rows = [...list.querySelectorAll("tr.record")];
        const to = rows[rows.indexOf(td.parentNode) + steps[0]]?.cells[td.cellIndex + steps[1]];
        if (to) { to.tabIndex = -1; to.focus(); }
      } else if (event.target === td && (event.key === "Enter" || (event.key === "c" && (event.ctrlKey || event.metaKey) && document.getSelection().isCollapsed))) {
        event.preventDefault();
        this.copy(td);
      }
    };
  }

  async copy(td) {
    const text = td.dataset.copy ?? "";
    try {
      await written(text);
      this.said.textContent = text === "" ? "copied an empty text" : `copied ${visible(text.length > 40 ? `${text.slice(0, 40)}…` : text)}`;
    } catch {
      this.said.textContent = "The browser doesn't let this page copy. Select the text instead.";
    }
  }
}

// Beyond this machine without TLS a browser has no clipboard: then as one copied before.
async function written(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const before = document.activeElement;
  const box = html("textarea", { value: text, className: "aside" });
  document.body.append(box);
  box.select();
  const isDone = document.execCommand("copy");
  box.remove();
  if (before) before.focus();
  if (!isDone) throw new Error("not copied");
}

// A cell. Its text is cut where it is long; what is copied is all of it.
function cell(content, isNumber) {
  const isText = typeof content === "string";
  const td = html("td", { className: [isNumber ? "number" : "", content === null || content === undefined ? "null" : ""].join(" ").trim() },
    isText ? (content === "" ? "(empty)" : visible(content.length > CELL_CHARS_MAX ? `${content.slice(0, CELL_CHARS_MAX)}…` : content)) : content ?? (content === null ? "null" : "–"));
  td.dataset.copy = isText ? content : content === null ? "null" : "";
  if (isText) td.title = visible(content.slice(0, 1000));
  return td;
}

function head([text, name], isNumber, changed) {
  const label = visible(text.replace(/^#/, ""));
  const th = html("th", { className: isNumber ? "number" : "", scope: "col" });
  if (!changed) { th.textContent = label; return th; }
  const now = present().get("sort") || "";
  const next = now === name ? `-${name}` : now === `-${name}` ? "" : name; // rising, falling, as it came
  const state = now === name ? "ascending" : now === `-${name}` ? "descending" : "";
  const link = html("a", { textContent: label, href: elsewhere({ sort: next }), className: `sort ${state}` });
  link.onclick = (event) => {
    event.preventDefault();
    remember({ sort: next });
    changed();
    const again = [...document.querySelectorAll("table.columns th a")].find((one) => one.textContent === label);
    if (again) again.focus();
  };
  if (state) th.setAttribute("aria-sort", state);
  th.append(link);
  return th;
}

// Numbers by size before texts by alphabet; what is missing comes last, whichever way it is sorted.
function sorted(records, columns) {
  const sort = present().get("sort") || "";
  const column = columns.find(([, name]) => name === sort.replace(/^-/, ""));
  if (!column) return records;
  const sign = sort.startsWith("-") ? -1 : 1;
  const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : typeof a === "number" ? -1 : typeof b === "number" ? 1 : textOf(a).localeCompare(textOf(b)));
  return records.map((one) => [column[2](one), one]).sort(([a], [b]) => {
    const [noA, noB] = [a === null || a === undefined, b === null || b === undefined];
    return noA || noB ? noA - noB : sign * order(a, b);
  }).map(([, one]) => one);
}

const textOf = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const quoted = (path) => path.replaceAll("\\", "\\\\").replaceAll(",", "\\;");
const unquoted = (path) => path.replace(/\\(.)/g, (_, sign) => (sign === ";" ? "," : sign));
