// Lists that are long: found by a part of their name, sorted by a column, and drawn anew in their place.

import { html } from "./chart.js";
import { elsewhere, present } from "./pieces.js";

// A box that keeps the rows whose name has a text. It is in the address, so that a link leads to it.
export function finder(label, redraw) {
  const box = html("input", { type: "search", className: "find", ariaLabel: label, placeholder: label });
  box.value = present().get("find") || "";
  box.oninput = () => { history.replaceState(null, "", elsewhere({ find: box.value })); redraw(); };
  return box;
}

// The items to show, in their order, and the heads of their columns: links that sort, the largest first where
// there are numbers. `columns` has for each head the item's property; without one, it doesn't sort.
export function arranged(items, columns, query) {
  const text = (query.get("find") || "").toLowerCase();
  const sort = query.get("sort") || "";
  const by = sort.replace("-", ""), falls = sort.startsWith("-");
  const shown = items.filter((one) => one.name.toLowerCase().includes(text));
  if (columns.some(([, property]) => property && property === by)) {
    const least = (value) => (value === null || value === undefined ? -Infinity : value);
    shown.sort((a, b) => (falls ? -1 : 1) * (typeof a[by] === "string" ? a[by].localeCompare(b[by]) : least(a[by]) - least(b[by])));
  }
  const heads = columns.map(([head, property]) => {
    if (!property) return head;
    const now = by === property ? (falls ? "descending" : "ascending") : "";
    const first = head.startsWith("#") ? `-${property}` : property, other = first === property ? `-${property}` : property;
    const link = html("a", { textContent: head.replace("#", ""), href: elsewhere({ sort: sort === first ? other : first }, query), className: `sort ${now}` });
    return { text: head, link, now };
  });
  return { shown, heads };
}

// Puts parts into a box. What is as it was stays as it is; what is new keeps its place: how far it was scrolled,
// and what had the focus.
export function swap(box, parts) {
  const old = [...box.childNodes];
  if (old.length !== parts.length) return box.replaceChildren(...parts);
  parts.forEach((part, i) => { if (!old[i].isEqualNode(part)) replace(old[i], part); });
}

function replace(old, part) {
  const focus = old.nodeType === Node.ELEMENT_NODE && old.contains(document.activeElement) ? document.activeElement : null;
  const places = scrolled(old).map((one) => [one.scrollTop, one.scrollLeft]);
  old.replaceWith(part);
  scrolled(part).forEach((one, i) => { if (places[i]) [one.scrollTop, one.scrollLeft] = places[i]; });
  if (!focus) return;
  const same = [...part.querySelectorAll(focus.tagName)].find((one) => one.textContent === focus.textContent && one.getAttribute("href") === focus.getAttribute("href"));
  if (same) same.focus({ preventScroll: true });
}

const scrolled = (part) => (part.nodeType !== Node.ELEMENT_NODE ? [] : [part, ...part.querySelectorAll("*")].filter((one) => one.classList.contains("scroll")));
