// A group's lag over time, a line for each topic. The server looks at groups while it runs, and keeps a week.

import { color, draw, html } from "./chart.js";
import { count, visible } from "./format.js";
import { ask, failure, hint, remember, time } from "./pieces.js";

const REFRESH_MS = 10000; // the server looks as often
const RANGES = ["15 minutes", "1 hour", "6 hours", "1 day", "7 days"];
const USUAL = "1 hour";

export class LagChart {
  constructor(group, query) {
    this.group = group;
    this.turn = 0;
    const wanted = RANGES.includes(query.get("range")) ? query.get("range") : USUAL;
    this.range = html("select", { ariaLabel: "time that the chart shows" }, ...RANGES.map((one) => html("option", { value: one, textContent: `the last ${one.replace(/^1 /, "")}`, selected: one === wanted })));
    this.range.onchange = () => { remember({ range: this.range.value === USUAL ? "" : this.range.value }); this.follow(); };
    this.about = hint("");
    this.chart = html("div", { className: "chart" });
    this.legend = html("ul", { className: "legend" });
    this.box = html("div", { className: "card" }, hint("loading…"));
    this.data = null;
    new ResizeObserver(() => this.paint()).observe(this.box);
    this.follow();
  }

  // Draws the chart again and again, while it is on the page.
  async follow() {
    const turn = ++this.turn;
    let wasShown = false;
    while (turn === this.turn && (this.box.isConnected || !wasShown)) {
      wasShown ||= this.box.isConnected;
      if (!document.hidden) await this.load(turn);
      await new Promise((resolve) => setTimeout(resolve, REFRESH_MS));
    }
  }

  async load(turn) {
    try {
      const data = await ask(`lag?${new URLSearchParams({ group: this.group, range: this.range.value })}`);
      if (turn === this.turn) this.take(data);
    } catch (error) {
      if (turn === this.turn) this.box.replaceChildren(failure(error.message));
    }
  }

  take(data) {
    this.data = data;
    const every = data.every_ms < 60e3 ? `${data.every_ms / 1e3} seconds` : data.every_ms < 120e3 ? "minute" : `${data.every_ms / 60e3} minutes`;
    const rest = data.keys_total - data.series.length;
    this.about.textContent = `records that wait, by topic: the most in each ${every}${rest > 0 ? `; the largest ${data.series.length} of ${count(data.keys_total)} topics` : ""}`;
    if (!data.series.length) {
      this.data = null;
      this.box.replaceChildren(hint(data.since ? "Nothing is known of this time: the group has committed nothing, or its log was away."
        : "No lag has been seen yet. The server of this page looks every 10 seconds, and keeps a week."));
      return;
    }
    this.box.replaceChildren(this.chart, this.legend, hint(`Followed since ${time(data.since)} UTC. The history is kept while this page's server runs.`));
    this.legend.replaceChildren(...data.series.map((s, i) => {
      const mark = html("span", { className: "mark" });
      mark.style.background = color(i);
      return html("li", {}, mark, html("span", { textContent: visible(s.key) }));
    }));
    this.paint();
  }

  paint() {
    if (this.data && this.chart.isConnected && !this.chart.querySelector(".tip:not([hidden])")) draw(this.chart, { ...this.data, every_ms: 2 * this.data.every_ms }, null); // one look that came late is no gap
  }
}
