// All runs that the server knows: those that run first, then what is past, newest first.

import { get } from "../api.js";
import { h, patch } from "../dom.js";
import { millis } from "../format.js";
import { Reader } from "../live.js";
import { hasEnded as ended } from "./run.js";
import { badge, clamp, errorBox, field, select, since, table, time } from "../widgets.js";

const EVERY_MS = 5000;
const AT_ONCE = 100;

export class RunsView {
  constructor(root) {
    this.id = null;
    this._root = root;
    this._runs = null;
    this._failure = null;
    this._text = "";
    this._which = "all";
    this._shown = AT_ONCE;
    this._reader = new Reader(() => this._read());
    this._beat = setInterval(() => !document.hidden && this._reader.ask(), EVERY_MS);
    this._seen = () => !document.hidden && this._reader.ask();
    document.addEventListener("visibilitychange", this._seen);
    document.title = "Runs · Penstock";
    document.getElementById("connection").textContent = "";
    this._reader.now();
  }

  move() {}

  close() {
    this._reader.close();
    clearInterval(this._beat);
    document.removeEventListener("visibilitychange", this._seen);
    this._closed = true;
  }

  async _read() {
    try {
      this._runs = (await get("/runs")).runs.toSorted((a, b) => Number(ended(a)) - Number(ended(b)) || b.start - a.start);
      this._failure = null;
    } catch (failure) {
      if (failure.status === 401) dispatchEvent(new CustomEvent("locked", { detail: failure }));
      this._failure = failure;
    }
    if (!this._closed) this._render();
  }

  _render() {
    const runs = (this._runs ?? []).filter((run) => this._wanted(run));
    const running = (this._runs ?? []).filter((run) => !ended(run)).length;
    patch(
      this._root,
      h("h1", null, "Runs"),
      this._failure ? errorBox(this._failure) : null,
      this._runs && h("p", { class: "lead" }, `${running} running, ${this._runs.length - running} past`),
      this._runs && this._filters(),
      this._runs ? this._table(runs) : this._failure ? null : h("p", { class: "empty" }, "Reading …"),
      runs.length > this._shown ? h("button", { type: "button", class: "button", onclick: () => this._more() }, `Show ${Math.min(AT_ONCE, runs.length - this._shown)} more`) : null,
    );
  }

  _filters() {
    const update = (change) => (event) => {
      change(event.target.value);
      this._render();
    };
    return h(
      "div",
      { class: "row" },
      field("Name or id", h("input", { type: "search", value: this._text, oninput: update((text) => (this._text = text)) })),
      field("Show", select([["all", "All"], ["running", "Running"], ["past", "Past"], ["failed", "Failed"]], this._which, update((which) => (this._which = which)))),
    );
  }

  _wanted(run) {
    const text = this._text.trim().toLowerCase();
    if (text && !`${run.name} ${run.id}`.toLowerCase().includes(text)) return false;
    return { all: true, running: !ended(run), past: ended(run), failed: run.state === "FAILED" }[this._which];
  }

  _table(runs) {
    const columns = [
      ["Name", (run) => h("a", { href: `#/runs/${encodeURIComponent(run.id)}/overview` }, run.name)],
      ["State", (run) => badge(run.state)],
      ["Started", (run) => time(run.start)],
      ["Duration", (run) => (ended(run) ? millis(run.duration) : since(run.start)), "number"],
      ["Restarts", (run) => String(run.restarts ?? 0), "number"],
      ["Last savepoint", (run) => (run.savepoint ? h("code", null, run.savepoint) : "–"), "long"],
      ["Error", (run) => (run.error ? clamp(run.error.happened, 40) : "–"), "long"],
      ["Id", (run) => h("code", { title: run.id }, run.id.slice(0, 8)), "short"],
    ];
    const empty = this._runs.length ? "No run is like that." : "No job has run on this machine yet. Start one with `penstock run job.py`.";
    return table("Runs", columns, runs.slice(0, this._shown), { key: (run) => run.id, empty });
  }

  _more() {
    this._shown += AT_ONCE;
    this._render();
  }
}

