// Numbers, durations and instants as people read them. Instants are UTC, as they are in SQL: wherever one is shown
// it says so.

const UNITS = [["G", 1e9], ["M", 1e6], ["k", 1e3]];

// A number for a chart or a tile, where a glance must do. Tables show `exact` values.
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  for (const [unit, scale] of UNITS) {
    if (size >= scale * (unit === "k" ? 10 : 1)) return trim(value / scale) + " " + unit;
  }
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  return size !== 0 && size < 0.001 ? value.toExponential(1) : trim(value);
}

// A count in full: 25,000.
export const count = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en-US"));

// A size: 56 KB.
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [unit, scale] of [["GB", 1e9], ["MB", 1e6], ["KB", 1e3]]) {
    if (Math.abs(value) >= scale) return `${trim(value / scale)} ${unit}`;
  }
  return `${Math.round(value)} B`;
}

// A value of a table with all its digits. The server sends as text what a JavaScript number would round.
export function exact(value, kind) {
  if (value === null) return "NULL";
  return kind === "time" ? String(value).replace("T", " ").replace(/Z$/, "") : visible(String(value));
}

// A text in which nothing is hidden: line ends and tabs as arrows, control characters and those that turn or hide the
// text after them by number (⟨U+202E⟩). `lines` keeps line ends and tabs.
export function visible(text, lines = false) {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (sign) => {
    if (sign === "\n" || sign === "\t") return lines ? sign : sign === "\n" ? "↵" : "⇥";
    return `⟨U+${sign.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

function trim(value) {
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : Math.abs(value) >= 0.1 ? 2 : 3;
  return String(Number(value.toFixed(digits)));
}

const STEPS = [["y", 31557600e3], ["d", 86400e3], ["h", 3600e3], ["min", 60e3], ["s", 1e3], ["ms", 1]];

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const size = Math.abs(ms);
  for (const [unit, scale] of STEPS) {
    if (size >= scale) return trim(ms / scale) + " " + unit;
  }
  return trim(ms) + " ms";
}

// How long something has lasted, in its two largest units: 1 min 40 s.
export function elapsed(ms) {
  let rest = Math.max(0, Math.floor(ms / 1000));
  const parts = [];
  for (const [unit, scale] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const whole = Math.floor(rest / scale);
    rest -= whole * scale;
    if (whole) parts.push(`${whole} ${unit}`);
  }
  return parts.slice(0, 2).join(" ") || "0 s";
}

// The unit that a measure's name ends in, as the function that shows its values: latency_ms, size_bytes, cpu_percent.
export function unit(name) {
  const end = /(?:^|_)(us|ms|s|seconds|minutes|bytes|percent|pct)$/.exec(name || "");
  const scale = end && { us: 1e-3, ms: 1, s: 1e3, seconds: 1e3, minutes: 60e3 }[end[1]];
  if (!end) return number;
  if (scale) return (value) => (value === null ? "–" : value === 0 ? "0" : duration(value * scale));
  return end[1] === "bytes" ? bytes : (value) => (value === null ? "–" : `${number(value)}%`);
}

const two = (n) => String(n).padStart(2, "0");

// An axis label: the date only where the span needs one. `seconds` where windows are shorter than a minute.
export function clock(ms, span, seconds) {
  const t = new Date(ms);
  const day = `${two(t.getUTCDate())} ${t.toLocaleString("en", { month: "short", timeZone: "UTC" })}`;
  if (span > 3 * 86400e3) return day;
  const time = `${two(t.getUTCHours())}:${two(t.getUTCMinutes())}` + (seconds ? `:${two(t.getUTCSeconds())}` : "");
  return span > 86400e3 ? `${day} ${time}` : time;
}

// An instant in UTC: 2026-11-22 07:08:00, with milliseconds where there are some.
export function instant(ms) {
  if (!(Math.abs(ms) <= 8.64e15)) return "–"; // beyond what a Date can say
  return new Date(ms).toISOString().replace("T", " ").replace("Z", "").replace(/\.000$/, "");
}

// The time of day of an instant of today, in UTC; the date as well where it is another day.
export function moment(ms, now) {
  const text = instant(ms).slice(0, 19);
  return text.slice(0, 10) === instant(now).slice(0, 10) ? text.slice(11) : text;
}
