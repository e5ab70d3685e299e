// Numbers, durations and instants as people read them.

const UNITS = [["G", 1e9], ["M", 1e6], ["k", 1e3]];

export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  for (const [unit, scale] of UNITS) {
    if (size >= scale * (unit === "k" ? 10 : 1)) return trim(value / scale) + " " + unit;
  }
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  return size !== 0 && size < 0.001 ? value.toExponential(1) : trim(value);
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

const two = (n) => String(n).padStart(2, "0");

// An axis label: the date only where the span needs one. `seconds` where windows are shorter than a minute.
export function clock(ms, span, seconds) {
  const t = new Date(ms);
  const day = `${two(t.getDate())} ${t.toLocaleString("en", { month: "short" })}`;
  if (span > 3 * 86400e3) return day;
  const time = `${two(t.getHours())}:${two(t.getMinutes())}` + (seconds ? `:${two(t.getSeconds())}` : "");
  return span > 86400e3 ? `${day} ${time}` : time;
}

export function instant(ms) {
  const t = new Date(ms);
  const sub = t.getMilliseconds() ? "." + String(t.getMilliseconds()).padStart(3, "0") : "";
  return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())} ` +
    `${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}${sub}`;
}
