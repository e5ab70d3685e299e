// Line charts and sparklines, drawn as SVG by hand.

import { clock, instant, unit, visible } from "./format.js";

const NS = "http://www.w3.org/2000/svg";

export function svg(tag, attributes, parent) {
  const node = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (parent) parent.append(node);
  return node;
}

export function html(tag, properties, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

export const color = (index) => `var(--c${index % 12})`;

// Round steps (1, 2, 5 times a power of ten) that cut [low, high] into about `count` parts.
export function ticks(low, high, count) {
  const raw = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((m) => m * power >= raw) * power;
  const out = [];
  for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; i++) out.push(i * step);
  return out;
}

const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
  172800, 604800, 2592000, 7776000, 31536000].map((s) => s * 1000);

// Steps of a clock; none is shorter than `least`, the least that a label tells apart.
function timeTicks(low, high, count, least) {
  const raw = Math.max((high - low || 1) / count, least);
  const step = TIME_STEPS.find((s) => s >= raw) || raw;
  const out = [];
  for (let t = Math.ceil(low / step) * step; t <= high; t += step) out.push(t);
  return out;
}

// A gap is left where a window is missing between two points: `every` is the distance of the view's windows.
function paths(points, every) {
  const runs = [];
  let last = null;
  for (const point of points) {
    if (last === null || point.t - last > every * 1.5) runs.push([]);
    runs[runs.length - 1].push(point);
    last = point.t;
  }
  return runs;
}

const line = (run, x, y) => run.map((p, i) => `${i ? "L" : "M"}${x(p.t).toFixed(1)} ${y(p.v).toFixed(1)}`).join("");

// Draws `data` (an answer of /api/views/NAME/series) into `box`. Windows that end after `openAfter` are still
// open: they are drawn hollow and dashed, since more events may come.
export function draw(box, data, openAfter) {
  const starts = data.windows.map((w) => Date.parse(w[0]));
  const ends = data.windows.map((w) => (w[1] === null ? null : Date.parse(w[1])));
  const lines = data.series.map((s) => s.values
    .map((v, i) => ({ t: starts[i], v, open: ends[i] !== null && openAfter !== null && ends[i] > openAfter }))
    .filter((p) => p.v !== null));
  const width = Math.max(box.clientWidth, 200), height = box.clientHeight || 220;
  const values = lines.flat().map((p) => p.v);
  const low = Math.min(0, ...values);
  let high = Math.max(...values, 0);
  if (high === low) high = low + 1;
  const steps = ticks(low, high, 5);
  high = Math.max(high, steps[steps.length - 1]);
  const labels = steps.map(unit(data.measure));
  const left = 12 + 6.6 * Math.max(...labels.map((l) => l.length)), right = width - 8, top = 8, bottom = height - 22;
  const first = starts[0], last = starts[starts.length - 1], span = last - first;
  const every = data.every_ms;
  const inset = 6; // the first and the last point are whole, and clear of the axis
  const x = (t) => (span ? left + inset + ((t - first) / span) * (right - left - 2 * inset) : (left + right) / 2);
  const y = (v) => bottom - ((v - low) / (high - low)) * (bottom - top);

  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg("title", {}, root).textContent = `${data.measure} by window: ${data.series.map((s) => `${s.key || data.measure} ${unit(data.measure)(s.values.findLast((v) => v !== null) ?? null)}`).join(", ")}`;
  steps.forEach((v, i) => {
    svg("line", { class: "grid", x1: left, x2: right, y1: y(v), y2: y(v) }, root);
    svg("text", { class: "axis", x: left - 6, y: y(v) + 4, "text-anchor": "end" }, root).textContent = labels[i];
  });
  const seconds = every < 60e3 && span < 3600e3;
  const marks = span ? timeTicks(first, last, Math.max(2, Math.floor((right - left) / 90)), seconds ? 1e3 : 60e3) : [first];
  for (const t of marks) {
    const anchor = x(t) > right - 20 ? "end" : x(t) < left + 20 ? "start" : "middle";
    svg("text", { class: "axis", x: x(t), y: height - 5, "text-anchor": anchor }, root).textContent =
      clock(t, span, seconds);
  }
  lines.forEach((points, i) => {
    const stroke = { fill: "none", stroke: color(i), "stroke-width": 1.8, "stroke-linejoin": "round", "stroke-linecap": "round" };
    for (const run of paths(points, every)) {
      const shut = run.filter((p) => !p.open);
      const open = run.filter((p) => p.open);
      if (shut.length > 1) svg("path", { ...stroke, d: line(shut, x, y) }, root);
      if (open.length && shut.length) {
        svg("path", { ...stroke, "stroke-dasharray": "2 4", d: line([shut[shut.length - 1], ...open], x, y) }, root);
      } else if (open.length > 1) {
        svg("path", { ...stroke, "stroke-dasharray": "2 4", d: line(open, x, y) }, root);
      }
      for (const p of open.length ? open : run.length === 1 ? run : []) {
        svg("circle", { cx: x(p.t), cy: y(p.v), r: 2.8, fill: p.open ? "var(--card)" : color(i), stroke: color(i), "stroke-width": 1.5 }, root);
      }
    }
  });
  const cross = svg("line", { class: "cross", y1: top, y2: bottom, visibility: "hidden" }, root);
  box.replaceChildren(root);
  hover(box, { data, starts, ends, openAfter, x, cross, width });
}

function hover(box, chart) {
  const { data, starts, ends, openAfter, x, cross, width } = chart;
  const tip = html("div", { className: "tip", hidden: true });
  box.append(tip);
  let away = 0;
  const show = (event) => {
    clearTimeout(away);
    if (event.pointerType === "touch") away = setTimeout(hide, 3000);
    const at = (event.clientX - box.getBoundingClientRect().left) * (width / box.clientWidth);
    let best = 0;
    starts.forEach((t, i) => { if (Math.abs(x(t) - at) < Math.abs(x(starts[best]) - at)) best = i; });
    const open = ends[best] !== null && openAfter !== null && ends[best] > openAfter;
    const rows = data.series.map((s, i) => [s, i]).filter(([s]) => s.values[best] !== null)
      .sort((a, b) => b[0].values[best] - a[0].values[best]).slice(0, 12);
    tip.replaceChildren(html("b", { textContent: `${instant(starts[best])} UTC${open ? " (open)" : ""}` }),
      ...rows.map(([s, i]) => {
        const mark = html("span", { className: "mark" });
        mark.style.background = color(i);
        return html("div", {}, mark, html("span", { textContent: visible(s.key || data.measure) }),
          html("span", { textContent: unit(data.measure)(s.values[best]) }));
      }));
    tip.hidden = false;
    const px = x(starts[best]);
    cross.setAttribute("x1", px); cross.setAttribute("x2", px); cross.setAttribute("visibility", "visible");
    const rightSide = px > width / 2;
    tip.style.left = rightSide ? "" : `${(px / width) * box.clientWidth + 10}px`;
    tip.style.right = rightSide ? `${box.clientWidth - (px / width) * box.clientWidth + 10}px` : "";
    tip.style.top = "8px";
  };
  const hide = () => { tip.hidden = true; cross.setAttribute("visibility", "hidden"); };
  box.onpointermove = show;
  box.onpointerdown = show;
  box.onpointerleave = hide;
}

export function spark(values) {
  const root = svg("svg", { viewBox: "0 0 100 26", preserveAspectRatio: "none", "aria-hidden": "true" });
  const points = values.slice(-120).filter((v) => v !== null);
  if (points.length > 1) {
    const low = Math.min(...points), span = Math.max(...points) - low;
    const d = points.map((v, i) => {
      const py = span ? 24 - ((v - low) / span) * 22 : 24;
      return `${i ? "L" : "M"}${((i / (points.length - 1)) * 100).toFixed(2)} ${py.toFixed(2)}`;
    }).join("");
    svg("path", { d: `${d}L100 26L0 26Z`, fill: "var(--accent)", opacity: ".12" }, root);
    svg("path", { d, fill: "none", stroke: "var(--accent)", "stroke-width": 1.4, "vector-effect": "non-scaling-stroke" }, root);
  }
  return root;
}
