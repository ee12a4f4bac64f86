// Small parts that several views are made of.

import { h, s } from "./dom.js";
import { clock, day, millis, moment, UNKNOWN } from "./format.js";

const GOOD = new Set(["RUNNING", "FINISHED", "complete", "committed", "exactly-once", "decided"]);
const BAD = new Set(["FAILED", "FAILING", "failed", "lost", "in doubt"]);
const BUSY = new Set(["RESTARTING", "CANCELLING", "CREATED", "SUSPENDED", "open", "prepared", "at-least-once", "at-most-once", "effectively-once", "undecided"]);

export function icon(name) {
  return h("span", { class: `icon icon-${name}`, "aria-hidden": "true" });
}

export function badge(text, tone) {
  const value = text ?? UNKNOWN;
  const kind = tone ?? (GOOD.has(value) ? "good" : BAD.has(value) ? "bad" : BUSY.has(value) ? "busy" : "plain");
  return h("span", { class: `badge ${kind}` }, value);
}

export function time(ms, how = moment) {
  if (ms === null || ms === undefined || ms < 0) return UNKNOWN;
  return h("time", { datetime: new Date(ms).toISOString(), title: moment(ms) }, how(ms));
}

/** How long ago something began; app.js lets it count on by itself, without a request. */
export function since(ms, before = "") {
  return h("span", { "data-since": ms, "data-before": before }, before + millis(Math.max(0, Date.now() - ms)));
}

/** columns: [title, cell(row), class?]. Rows with `key(row)` keep their node. */
export function table(caption, columns, rows, { key, after, empty } = {}) {
  if (!rows.length) return h("p", { class: "empty" }, empty ?? "Nothing yet.");
  const body = rows.flatMap((row) => {
    const cells = columns.map(([, cell, kind], at) => h(at === 0 ? "th" : "td", { class: kind, scope: at === 0 ? "row" : null }, cell(row)));
    const line = h("tr", { "data-key": key ? key(row) : null }, cells);
    const more = after?.(row);
    return more ? [line, more] : [line];
  });
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      null,
      h("caption", null, caption),
      h("thead", null, h("tr", null, columns.map(([title, , kind]) => h("th", { scope: "col", class: kind }, title)))),
      h("tbody", null, body),
    ),
  );
}

export function facts(pairs, label) {
  const shown = pairs.filter(Boolean);
  return h("dl", { class: "facts", "aria-label": label }, shown.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value ?? UNKNOWN))));
}

/** A long text in two lines, the whole of it once it is opened. */
export function clamp(text, most = 70) {
  const whole = String(text ?? "");
  if (whole.length <= most && !whole.includes("\n")) return whole;
  return h("details", { class: "clamp" }, h("summary", null, whole));
}

export function card(title, ...content) {
  return h("section", { class: "card" }, h("h3", null, title), content);
}

export function errorBox(failure, title = null) {
  const sentences = [
    ["What happened", failure.happened ?? failure.message],
    ["What is safe", failure.safe],
    ["What to do", failure.toDo ?? failure.to_do],
  ];
  return h(
    "div",
    { class: "error", role: "alert" },
    h("p", { class: "error-title" }, icon("warning"), title ?? failure.error ?? "Error"),
    h("dl", null, sentences.filter(([, text]) => text).map(([name, text]) => h("div", null, h("dt", null, name), h("dd", null, text)))),
  );
}

/** Brings the chosen tab of each list into view, sideways only. */
export function showChosenTabs() {
  for (const chosen of document.querySelectorAll("[role=tab][aria-selected=true]")) {
    const list = chosen.parentElement;
    const [from, to] = [chosen.offsetLeft - list.offsetLeft, chosen.offsetLeft - list.offsetLeft + chosen.offsetWidth];
    if (from < list.scrollLeft || to > list.scrollLeft + list.clientWidth) list.scrollLeft = from - 16;
  }
}

/** A real tablist: arrows, Home and End move, and moving opens. `tabs` are [name, title]. */
export function tabs(label, id, list, current, open) {
  const move = (event) => {
    const names = list.map(([name]) => name);
    const at = names.indexOf(current);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: names.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const name = names[(to + names.length) % names.length];
    open(name);
    document.getElementById(`${id}-${name}`)?.focus();
  };
  return h(
    "div",
    { class: `tabs ${id}`, role: "tablist", "aria-label": label, onkeydown: move },
    list.map(([name, title]) =>
      h(
        "button",
        {
          type: "button",
          role: "tab",
          id: `${id}-${name}`,
          "data-key": name,
          "aria-selected": String(name === current),
          "aria-controls": `${id}-panel`,
          tabindex: name === current ? "0" : "-1",
          onclick: () => open(name),
        },
        title,
      ),
    ),
  );
}

export function panel(id, current, ...content) {
  return h("div", { class: "panel", role: "tabpanel", id: `${id}-panel`, "aria-labelledby": `${id}-${current}`, tabindex: "0", "data-key": `${id}-${current}` }, content);
}

export const PHASES = [
  ["read", "read_ms", "Read"],
  ["prepare", "prepare_ms", "Prepare"],
  ["decide", "decide_ms", "Decide"],
  ["commit", "commit_ms", "Commit"],
];

/** One epoch's phases as a bar, as wide as the epoch is long beside the longest of those shown. */
export function phaseBar(epoch, longest) {
  const parts = PHASES.map(([name, field, title]) => [name, title, epoch.phases?.[field]]);
  const label = parts.map(([, title, ms]) => `${title} ${millis(ms)}`).join(", ");
  const total = Math.max(longest ?? epoch.total_ms ?? 0, 0.001);
  let x = 0;
  const bars = parts.map(([name, title, ms]) => {
    const width = Math.min(((ms ?? 0) / total) * 200, 200 - x);
    const bar = s("rect", { class: `phase-${name}`, x, y: 0, width: Math.max(0, width), height: 12 }, s("title", null, `${title}: ${millis(ms)}`));
    x += Math.max(0, width);
    return bar;
  });
  return s("svg", { class: "phases", viewBox: "0 0 200 12", preserveAspectRatio: "none", role: "img", "aria-label": label }, bars);
}

export function phaseLegend() {
  return h("ul", { class: "legend" }, PHASES.map(([name, , title]) => h("li", null, s("svg", { viewBox: "0 0 10 10", class: "swatch", "aria-hidden": "true" }, s("rect", { class: `phase-${name}`, width: 10, height: 10 })), title)));
}

export function meter(value, most, label) {
  const share = most > 0 ? Math.min(1, Math.max(0, value / most)) : 0;
  const kind = share > 0.8 ? "bad" : share > 0.5 ? "busy" : "good";
  return s(
    "svg",
    { class: "meter", viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": label },
    s("rect", { class: "meter-all", width: 100, height: 8 }),
    s("rect", { class: `meter-${kind}`, width: share * 100, height: 8 }),
  );
}

export function button(text, onclick, { kind = "", disabled = false, why = null, name = null, iconName = null } = {}) {
  return h(
    "button",
    { type: "button", class: `button ${kind}`, onclick, disabled, title: disabled ? why : null, "data-key": name },
    iconName ? icon(iconName) : null,
    text,
  );
}

export function field(label, control, hint = null) {
  return h("label", { class: "field" }, h("span", { class: "field-name" }, label), control, hint ? h("span", { class: "hint" }, hint) : null);
}

export function select(options, current, onchange, props = {}) {
  return h("select", { ...props, onchange }, options.map(([value, text]) => h("option", { value, selected: value === current }, text)));
}

/** Tells what was done, in a corner, for a while. */
export function notify(text) {
  const notice = h("p", { class: "notice" }, text);
  document.getElementById("notices").append(notice);
  setTimeout(() => notice.remove(), 10_000);
}

export function clockOrDay(ms) {
  return Date.now() - ms < 43_200_000 ? clock(ms) : `${day(ms)} ${clock(ms)}`;
}
