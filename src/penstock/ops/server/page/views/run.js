// One run: its head, its tabs, and what keeps them up to date.

import { get } from "../api.js";
import { h, patch } from "../dom.js";
import { millis } from "../format.js";
import { Reader, Stream } from "../live.js";
import { badge, errorBox, field, icon, panel, select, showChosenTabs, since, tabs, time } from "../widgets.js";
import { audit } from "./audit.js";
import { checkpoints } from "./checkpoints.js";
import { configuration } from "./configuration.js";
import { exceptions } from "./exceptions.js";
import { log } from "./log.js";
import { overview } from "./overview.js";
import { recoverButton, savepoints } from "./savepoints.js";
import { state } from "./state.js";
import { transactions } from "./transactions.js";

const OVER = new Set(["FINISHED", "FAILED", "CANCELED", "SUSPENDED"]);
const TABS = [overview, checkpoints, transactions, state, audit, exceptions, savepoints, log, configuration];

/** What a tab is given: the run's `id`, its `detail` (the run and its queries), the chosen `query` (null: all), the `uids`
 * of those shown, whether there are `several`, the `part` of the tab that the address names, the newest `events`, `memory`
 * that is its own, and ways to `choose` a query, to `draw` again or to `read` again. Where it loads for the first time,
 * `detail` may not be known yet, and `uids` is the query of the address, or null for whichever there is. */
export class RunView {
  constructor(root, { id, tab, part, query }) {
    this.id = id;
    this._root = root;
    this._tab = tabNamed(tab);
    this._part = part;
    this._detail = null;
    this._data = null;
    this._failure = null;
    this._query = query ?? null;
    this._memories = new Map();
    this._closed = false;
    this._connection = document.getElementById("connection");
    this._reader = new Reader(() => this._read());
    this._stream = new Stream(id, () => this._reader.ask(), (text) => (this._connection.textContent = text));
    this._connection.textContent = "";
    document.title = "Run · Penstock";
    this._draw();
    this._reader.now();
  }

  move({ tab, part, query }) {
    const wanted = tabNamed(tab);
    if (wanted === this._tab && part === this._part && (query ?? null) === this._query) return;
    this._tab = wanted;
    this._part = part;
    this._query = query ?? null;
    this._data = null;
    this._draw();
    this._reader.now();
  }

  close() {
    this._closed = true;
    this._stream.close();
    this._reader.close();
    this._connection.textContent = "";
  }

  async _read() {
    const [tab, part] = [this._tab, this._part];
    try {
      // At once: what a tab loads needs nothing of the run but its queries, and most jobs have one.
      const asked = this._context();
      const loading = tab.load(asked);
      loading.catch(() => null); // told below, unless the run's own failure comes first
      const detail = await get(`/runs/${encodeURIComponent(this.id)}`);
      if (this._closed) return;
      this._detail = detail;
      if (!detail.queries?.some(({ uid }) => uid === this._query)) this._query = null;
      this._failure = null;
      this._follow(detail.run);
      if (this._others === undefined && hasEnded(detail.run)) this._others = await get("/runs").then(({ runs }) => runs, () => []);
      this._draw();
      const query = this._query;
      const { uids } = this._context();
      const fits = (asked.query === query && asked.uids.join() === uids.join()) || (asked.uids[0] === null && uids.length < 2);
      const data = await (fits || tab !== this._tab ? loading : tab.load(this._context()));
      if (this._closed || tab !== this._tab || part !== this._part || query !== this._query) return this._reader.ask();
      this._data = data;
    } catch (failure) {
      if (this._closed) return;
      if (failure.happened === undefined) throw failure;
      if (failure.status === 401) return void dispatchEvent(new CustomEvent("locked", { detail: failure }));
      this._failure = failure;
    }
    this._draw();
  }

  _follow(run) {
    if (run.live) this._stream.open();
    else this._stream.rest(hasEnded(run));
  }

  _context() {
    if (!this._memories.has(this._tab.name)) this._memories.set(this._tab.name, {});
    return {
      id: this.id,
      path: `/runs/${encodeURIComponent(this.id)}`,
      jobPath: `/jobs/${encodeURIComponent(this.id)}`,
      detail: this._detail,
      run: this._detail?.run,
      others: this._others ?? [],
      query: this._query,
      uids: this._query === null && this._detail ? (this._detail.queries ?? []).map(({ uid }) => uid) : [this._query],
      several: (this._detail?.queries ?? []).length > 1,
      part: this._part,
      events: this._stream.newest,
      memory: this._memories.get(this._tab.name),
      draw: () => this._draw(),
      read: () => this._reader.now(),
      open: (part) => this._go(this._tab.name, part),
      choose: (query) => this._go(this._tab.name, this._part, query),
    };
  }

  _go(tab, part = null, query = this._query) {
    const search = query === null ? "" : `?${new URLSearchParams({ query })}`;
    const address = `#/runs/${encodeURIComponent(this.id)}/${tab}${part ? `/${part}` : ""}${search}`;
    if (location.hash !== address) history.pushState(null, "", address);
    this.move({ tab, part, query });
  }

  _draw() {
    if (this._closed) return;
    const detail = this._detail;
    const failure = this._failure ? h("div", { "data-key": "failure" }, errorBox(this._failure)) : null;
    if (!detail) {
      patch(this._root, back(), failure ?? h("p", { class: "empty" }, "Reading …"));
      return;
    }
    document.title = `${detail.run.name} · Penstock`;
    const list = TABS.map(({ name, title }) => [name, title]);
    const content = this._data === null ? h("p", { class: "empty" }, failure ? "" : "Reading …") : this._tab.draw(this._context(), this._data);
    patch(
      this._root,
      back(),
      head(detail),
      failure,
      this._tab === savepoints ? null : recovery(this._context()),
      detail.run.error ? h("div", { "data-key": "run-error" }, errorBox(detail.run.error, `${detail.run.state}: ${detail.run.error.error}`)) : null,
      drawDamage(detail.damage),
      this._chooseQuery(),
      tabs("Parts of this run", "tab", list, this._tab.name, (name) => this._go(name)),
      h("h2", { class: "unseen" }, this._tab.title),
      panel("tab", this._tab.name, content),
    );
    const chooser = this._root.querySelector("[data-key=query] select");
    if (chooser) chooser.value = this._query ?? ""; // which a person or another part of the page has changed
    const place = `${this._tab.name} ${this._part} ${this._data === null}`; // a tab draws its own list with its data
    if (this._shown !== place) showChosenTabs();
    this._shown = place;
  }

  _chooseQuery() {
    const queries = this._detail.queries ?? [];
    if (queries.length < 2) return null;
    const options = [["", `All ${queries.length} queries`], ...queries.map(({ uid }) => [uid, uid])];
    const choose = (event) => this._go(this._tab.name, this._part, event.target.value || null);
    const chooser = select(options, this._query ?? "", choose);
    return h("div", { class: "row", "data-key": "query" }, field("Query", chooser));
  }
}

export function hasEnded(run) {
  return (run.end !== null && run.end !== undefined && run.end >= 0) || (!run.live && OVER.has(run.state));
}

function recovery(context) {
  const start = context.run.state === "FAILED" ? recoverButton(context) : null;
  return start && h("div", { class: "row", "data-key": "recovery" }, start);
}

function drawDamage(damage) {
  if (!damage?.length) return null;
  return h("p", { class: "weakest", "data-key": "damage" }, `Not all that this run left could be read: ${damage.join("; ")}`);
}

function tabNamed(name) {
  return TABS.find((tab) => tab.name === name) ?? overview;
}

function back() {
  return h("nav", { "aria-label": "Where you are", class: "crumbs", "data-key": "back" }, h("a", { href: "#/" }, "Runs"));
}

function head({ run, spark_ui: sparkUi }) {
  const lasted = hasEnded(run) ? ["lasted ", millis(run.duration)] : [since(run.start, "for ")];
  const spark = sparkUi && /^https?:\/\//.test(sparkUi) ? h("a", { href: sparkUi, target: "_blank", rel: "noopener noreferrer" }, "Spark’s own page", icon("external")) : null;
  return h(
    "div",
    { class: "head", "data-key": "head" },
    h("h1", null, run.name),
    h("p", { class: "facts-line" }, badge(run.state), h("span", null, lasted), h("span", null, "started ", time(run.start)), h("span", null, `${run.restarts ?? 0} restart${run.restarts === 1 ? "" : "s"}`), h("code", null, run.id), spark),
    hasEnded(run) ? h("p", { class: `ended ${run.state === "FINISHED" ? "calm" : ""}`, role: "status" }, `This run has ended (${run.state}). What follows is what it left.`) : null,
  );
}
