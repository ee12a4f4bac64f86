// What keeps a run's page up to date: a stream of events that announces changes, and a reader that then
// fetches the data, at most once a second, and never while the page is hidden.

import { identity, own } from "./api.js";

const NEWEST = 50;
const LEAST_MS = 1000;
const WITHOUT_EVENTS_MS = 10_000;
const LONGEST_BACK_OFF_MS = 30_000;

/** Calls `read` when asked to: at most once a second, one call at a time, and while hidden not at all. */
export class Reader {
  constructor(read) {
    this._read = read;
    this._timer = null;
    this._reading = false;
    this._wanted = false;
    this._urgent = false;
    this._last = -Infinity;
    this._closed = false;
  }

  ask() {
    if (this._closed) return;
    this._wanted = true;
    if (this._timer !== null || this._reading || document.hidden) return;
    const wait = Math.max(0, LEAST_MS - (performance.now() - this._last));
    this._timer = setTimeout(() => this._run(), wait);
  }

  async now() {
    clearTimeout(this._timer);
    this._timer = null;
    this._urgent = true; // what is being read may be for a view that was left meanwhile
    if (!this._reading) await this._run();
  }

  close() {
    this._closed = true;
    clearTimeout(this._timer);
  }

  async _run() {
    this._timer = null;
    if (this._closed) return;
    this._wanted = this._urgent = false;
    this._reading = true;
    this._last = performance.now();
    try {
      await this._read();
    } finally {
      this._reading = false;
      if (this._urgent) this._run();
      else if (this._wanted) this.ask();
    }
  }
}

/** The events of a run, newest first in `newest`. `changed(what)` is called for each, and with null when time alone has
 * passed or the page is seen again; `state(text)` tells how the connection is. */
export class Stream {
  constructor(id, changed, state) {
    this._address = own(`/runs/${encodeURIComponent(id)}/events`);
    this._changed = changed;
    this._state = state;
    this._source = null;
    this._retry = null;
    this._failures = 0;
    this._open = false;
    this.newest = [];
    this._seen = () => (document.hidden ? this._disconnect() : this._again());
    this._beat = setInterval(() => !document.hidden && this._changed(null), WITHOUT_EVENTS_MS);
    document.addEventListener("visibilitychange", this._seen);
  }

  open() {
    this._open = true;
    if (!document.hidden && this._source === null) this._connect();
  }

  close() {
    this._open = false;
    this._disconnect();
    clearInterval(this._beat);
    document.removeEventListener("visibilitychange", this._seen);
  }

  /** This run sends no events now; if it has `ended`, it never will. */
  rest(ended) {
    this._open = false;
    this._disconnect();
    if (ended) clearInterval(this._beat);
    this._state("");
  }

  _again() {
    if (this._open && this._source === null) this._connect();
    this._changed(null);
  }

  _connect() {
    clearTimeout(this._retry);
    this._retry = null;
    const source = new AbortController();
    this._source = source;
    this._follow(source).then(
      () => this._source === source && this._failed(),
      () => this._source === source && this._failed(),
    );
  }

  /** An `EventSource` cannot say who asks. */
  async _follow(source) {
    const response = await fetch(this._address, { headers: { Accept: "text/event-stream", ...identity() }, credentials: "omit", cache: "no-store", signal: source.signal });
    if (response.status !== 200) return;
    this._failures = 0;
    this._state("Live");
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done || this._source !== source) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) this._take(fieldsOf(block));
    }
  }

  _take({ id, event, data }) {
    if (data === undefined) return; // a sign of life
    let body = {};
    try {
      body = JSON.parse(data);
    } catch {
      // an event that cannot be read still says that something happened
    }
    this.newest.unshift({ event, id, ...body });
    this.newest.length = Math.min(this.newest.length, NEWEST);
    this._changed(body);
  }

  _failed() {
    this._disconnect();
    if (!this._open) return;
    this._failures += 1;
    const longest = Math.min(LONGEST_BACK_OFF_MS, 1000 * 2 ** (this._failures - 1));
    const wait = longest * (0.5 + Math.random() / 2);
    this._state(`No connection; trying again in ${Math.max(1, Math.round(wait / 1000))} s`);
    this._retry = setTimeout(() => this._again(), wait);
  }

  _disconnect() {
    clearTimeout(this._retry);
    this._retry = null;
    this._source?.abort();
    this._source = null;
  }
}

function fieldsOf(block) {
  return Object.fromEntries(block.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
}
