// What the pipeline's page shows is in its address (#/?show=1+hour&view=per_minute), so that a link leads to it.

import { html } from "./chart.js";

let kept = new URLSearchParams();

// The parameters of the address; null on another page. An address without any is one that leads back: it gets the last ones.
export function readPlace() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  if (path !== "") return null;
  if (query === undefined && [...kept].length && location.hash !== "") put();
  else kept = new URLSearchParams(query || "");
  return new URLSearchParams(kept);
}

export function rememberPlace(name, value) {
  if (value) kept.set(name, value); else kept.delete(name);
  put();
}

function put() {
  history.replaceState(null, "", [...kept].length ? `#/?${kept}` : "#/");
}

// Links that save something as a file.
export const filesOf = (path, what) => [["CSV", "csv"], ["Parquet", "parquet"]].map(([text, form]) =>
  html("a", { textContent: text, href: `${path}${path.includes("?") ? "&" : "?"}format=${form}`, download: "", className: "file", title: `save ${what} as ${text}` }));
