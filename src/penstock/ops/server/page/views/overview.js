// Overview: the dataflow, what it gives, how fast, how far behind, the epoch under way, and where epochs spend their time.

import { get, series } from "../api.js";
import { chart } from "../chart.js";
import { dataflow, isWeaker } from "../dataflow.js";
import { h } from "../dom.js";
import { bytes, count, millis, percent, plain, rate, seconds, short, UNKNOWN, words } from "../format.js";
import { drawEach, loadEach, scopeNote, titled, within as ofScope } from "../scope.js";
import { badge, button, card, clockOrDay, field, meter, PHASES, phaseBar, phaseLegend, select, since, table, time } from "../widgets.js";

const PARTITIONS = 50;
const EVENTS = 8;
const RATE_MS = 10_000;
const LEAST_SECONDS = 2;
const RECENT = 10; // epochs
const BEHIND_SECONDS = 60; // of reading: a lag that takes longer to catch up with fills its bar

export const overview = {
  name: "overview",
  title: "Overview",

  load(context) {
    return loadEach(context, async (query) => {
      const [values, page] = await Promise.all([series({ ...context, query }), get(`${context.path}/epochs`, { query, limit: RECENT })]);
      return { values, recent: page.epochs ?? [] };
    });
  },

  draw(context, loaded) {
    const queries = context.detail.queries ?? [];
    if (!queries.length) return [h("p", { class: "empty" }, "No query has started in this run yet."), drawEvents(context)];
    return [
      scopeNote(context),
      weakest(context),
      drawEach(context, loaded, (uid, data) => drawQuery(context, queries.find((query) => query.uid === uid) ?? queries[0], data)),
      drawEvents(context),
    ];
  },
};

/** Where all links give the same, none of them is the weakest. */
function weakest({ detail }) {
  const link = detail.weakest;
  if (!link || !(detail.queries ?? []).some((query) => isWeaker(query, link))) return null;
  return h("p", { class: "weakest", "data-key": "weakest" }, "Weakest link: ", h("strong", null, `${link.kind} ${link.uid}`), " gives ", badge(link.guarantee), link.why ? `, because ${link.why}` : "");
}

function drawQuery(context, query, { values, recent }) {
  const lag = totalLag(query);
  const read = rowsRead(context.memory, query);
  const work = context.run.live ? workOf(recent) : null;
  return [
    dataflow(query, { weakest: context.detail.weakest, live: context.run.live, recent, read, busy: work?.busy ?? null, memory: (context.memory[`nodes ${query.uid}`] ??= {}), redraw: context.draw }),
    h(
      "div",
      { class: "tiles", role: "group", "aria-label": titled("Numbers", context, query.uid) },
      tile("Guarantee", badge(query.guarantee)),
      tile("Rows in", read === null ? UNKNOWN : rate(read)),
      tile("Rows out", rate(query.rows_per_second), `${short(query.rows_total)} in all`),
      drawWatermark(query, context.run.live),
      tile("Lag", lag === null ? UNKNOWN : `${short(lag)} rows`, catchUp(lag, read)),
      tile("Busy", percent(work?.busy), work ? `of the newest ${count(recent.length)} epochs’ time` : null),
      tile("Generation", count(query.generation)),
    ),
    drawEpoch(query, context.run),
    drawWaits(context, query, recent),
    drawPartitions(context, query, read),
    drawCharts(context, query, values),
  ];
}

function tile(name, value, more = null) {
  return h("div", { class: "tile" }, h("div", { class: "tile-name" }, name), h("div", { class: "tile-value" }, value), more ? h("div", { class: "hint" }, more) : null);
}

/** The query's, and of several sources each one's own: it shows which of them holds the query's back. */
function drawWatermark({ watermark: at, sources = [] }, live) {
  const each = sources.length > 1 ? sources.filter((source) => source.watermark) : [];
  const behind = each.length ? each.map((source) => h("div", null, since(source.watermark, `${source.uid} behind by `))) : at ? since(at, "behind by ") : null;
  return tile("Watermark", at === null || at === undefined ? (live ? "none" : UNKNOWN) : time(at, clockOrDay), behind);
}

function catchUp(lag, read) {
  return lag && read ? `${seconds(lag / read)} at this rate` : null;
}

/** How much of the time between the first of these epochs and the end of the last they took. */
function workOf(recent) {
  const done = recent.filter(({ outcome }) => outcome === "complete");
  if (done.length < 2) return null;
  const span = Math.max(...done.map(({ ended }) => ended)) - Math.min(...done.map(({ opened }) => opened));
  const took = done.reduce((sum, { total_ms: ms }) => sum + (ms ?? 0), 0);
  return span > 0 ? { busy: Math.min(1, took / span) } : null;
}

function drawEpoch(query, run) {
  const now = PHASES.findIndex(([name]) => name === query.phase);
  const steps = PHASES.map(([name, , title], at) =>
    h("li", { class: `step phase-of-${name} ${at === now ? "now" : at < now ? "over" : ""}`, "aria-current": at === now ? "step" : null }, title),
  );
  const doing = now < 0 ? (run.live ? "waits for the next epoch" : "nothing is under way") : `${PHASES[now][2].toLowerCase()}s`;
  const long = query.phase_since && now >= 0 && run.live ? since(query.phase_since, " for ") : null;
  return h("div", { class: "epoch" }, h("h3", null, `Epoch ${plain(query.epoch)}`), h("ol", { class: "steps" }, steps), h("p", { class: "hint" }, doing, long));
}

const WAITS = { read_ms: "source", prepare_ms: "tasks", decide_ms: "decision", commit_ms: "sink" };

/** Backpressure, as epochs have it: which of its parts an epoch waits for. */
function drawWaits(context, query, recent) {
  const done = recent.filter(({ outcome }) => outcome === "complete");
  if (!done.length) return null;
  const mean = (field) => done.reduce((sum, { phases }) => sum + (phases?.[field] ?? 0), 0) / done.length;
  const phases = Object.fromEntries(PHASES.map(([, field]) => [field, mean(field)]));
  const total = Math.max(0.001, Object.values(phases).reduce((sum, ms) => sum + ms, 0));
  const [longest] = Object.entries(phases).toSorted(([, a], [, b]) => b - a)[0];
  const shares = PHASES.map(([, field]) => `${WAITS[field]} ${millis(phases[field])} (${percent(phases[field] / total)})`).join(" · ");
  return card(
    titled("Where an epoch waits", context, query.uid),
    h("p", { class: "waits" }, "Longest for the ", h("strong", null, WAITS[longest]), h("span", { class: "hint" }, `, mean of the newest ${count(done.length)}: ${shares}`)),
    phaseBar({ phases, total_ms: total }, total),
    phaseLegend(),
  );
}

/** Rows read per second, from the recent progress of positions in sources that count rows; null without such a source, or
 * until the page has watched for long enough. */
function rowsRead(memory, query) {
  const counted = (query.sources ?? []).flatMap((source) => source.partitions ?? []).map(({ offset }) => offset).filter(Number.isInteger);
  if (!counted.length) return null;
  const [at, now] = [counted.reduce((sum, offset) => sum + offset, 0), performance.now()];
  const samples = ((memory.positions ??= {})[query.uid] ??= []);
  if (samples.length && (at < samples.at(-1).at || counted.length !== samples.at(-1).partitions)) samples.length = 0;
  samples.push({ at, now, partitions: counted.length });
  while (samples.length > 2 && now - samples[1].now > RATE_MS) samples.shift();
  const passed = (now - samples[0].now) / 1000;
  return passed < LEAST_SECONDS ? null : (at - samples[0].at) / passed;
}

function totalLag(query) {
  const lags = (query.sources ?? []).flatMap((source) => source.partitions ?? []).map((partition) => partition.lag);
  const known = lags.filter((lag) => lag !== null && lag !== undefined);
  return known.length ? known.reduce((sum, lag) => sum + lag, 0) : null;
}

function drawPartitions(context, query, read) {
  const rows = (query.sources ?? []).flatMap((source) => (source.partitions ?? []).map((partition) => ({ source: source.uid, ...partition })));
  if (!rows.length) return null;
  const sorted = rows.toSorted((a, b) => (b.lag ?? -1) - (a.lag ?? -1));
  const each = (read || query.rows_per_second) / rows.length; // rows per second of one partition
  const all = context.memory.allPartitions;
  const behind = ({ lag }) => (lag === null || lag === undefined || !each ? null : lag / each);
  const columns = [
    ["Partition", (row) => `${row.source} ${row.partition}`],
    ["Position", (row) => plain(row.offset), "number"],
    ["End", (row) => plain(row.end), "number"],
    ["Lag", (row) => count(row.lag), "number"],
    ["Behind by", (row) => (behind(row) === null ? UNKNOWN : [h("span", null, seconds(behind(row))), meter(behind(row), BEHIND_SECONDS, `${seconds(behind(row))} of reading; the bar is full at ${seconds(BEHIND_SECONDS)}`)]), "wide"],
  ];
  const more = sorted.length - PARTITIONS;
  return [
    table(`Source partitions of ${query.uid}, furthest behind first`, columns, all ? sorted : sorted.slice(0, PARTITIONS), { key: (row) => `${row.source} ${row.partition}` }),
    more > 0 && !all
      ? button(`Show ${more} more`, () => {
          context.memory.allPartitions = true;
          context.draw();
        })
      : null,
  ];
}

/** name: title, lines, unit, whether it is shown from the start */
const METRICS = {
  duration: ["Duration of epochs", (values) => [["whole", values.total_ms], ["commit", values.commit_ms]], millis, true],
  visible: ["From the decision to visible", (values) => [["commit", values.commit_ms]], millis, true],
  rows: ["Rows of epochs", (values) => [["rows", values.rows]], short, true],
  size: ["Size", (values) => [["state", values.state_bytes], ["in-flight log", values.inflight_bytes]], bytes, true],
  rate: ["Rows per second", (values) => [["rows", values.rows.map((rows, at) => (at ? (1000 * rows) / Math.max(1, values.time[at] - values.time[at - 1]) : null))]], rate, false],
  between: ["Time between epochs", (values) => [["time", values.time.map((ms, at) => (at ? ms - values.time[at - 1] : null))]], millis, false],
  share: ["Share of the commit", (values) => [["commit", values.commit_ms.map((ms, at) => (values.total_ms[at] && ms !== null ? ms / values.total_ms[at] : null))]], percent, false],
};
const SPANS = [["", "The whole run"], ["3600000", "The last hour"], ["900000", "The last 15 minutes"], ["300000", "The last 5 minutes"]];

function drawCharts(context, query, values) {
  if (!values) return null;
  const memory = (context.memory[`charts ${query.uid}`] ??= { shown: new Set(Object.keys(METRICS).filter((name) => METRICS[name][3])) });
  const zoom = (from, to) => {
    memory.zoom = from === null ? null : [from, to];
    context.draw();
  };
  const [from, to] = memory.zoom ?? [memory.span ? (values.time.at(-1) ?? 0) - memory.span : -Infinity, Infinity];
  const within = (list) => list.filter((_, at) => values.time[at] >= from && values.time[at] <= to);
  const times = within(values.time);
  const of = times.length === values.time.length ? (query.complete ?? 0) + (query.failed ?? 0) : 0;
  const draw = ([title, lines, unit]) => chart(titled(title, context, query.uid), times, lines(values).map(([name, list]) => [name, within(list)]), unit, { of, zoom });
  return [
    drawPicker(context, query, memory, zoom),
    h("section", { class: "charts", "aria-label": titled("Charts", context, query.uid), "data-key": "charts" }, Object.keys(METRICS).filter((name) => memory.shown.has(name)).map((name) => draw(METRICS[name]))),
  ];
}

function drawPicker(context, query, memory, zoom) {
  const pick = (name) => (event) => {
    if (event.target.checked) memory.shown.add(name);
    else memory.shown.delete(name);
    context.draw();
  };
  const span = (event) => {
    memory.span = Number(event.target.value) || null;
    zoom(null);
  };
  return h(
    "details",
    { class: "picker", "data-key": "picker" },
    h("summary", null, titled("Choose charts", context, query.uid), memory.zoom ? " (a range is shown)" : ""),
    h("div", { class: "row" }, Object.entries(METRICS).map(([name, [title]]) => h("label", { class: "pick" }, h("input", { type: "checkbox", checked: memory.shown.has(name), onchange: pick(name) }), title))),
    h("div", { class: "row" }, field("Time", select(SPANS, String(memory.span ?? ""), span), "or draw a range in a chart"), memory.zoom ? button("Show the whole run", () => zoom(null)) : null),
  );
}

function drawEvents(context) {
  const events = ofScope(context.events, context);
  if (!events.length) return null;
  const rest = ({ event, id, time: at, query, ...more }) => Object.entries(more).filter(([, value]) => value !== null && typeof value !== "object").slice(0, 5).map(([name, value]) => `${words(name)} ${value}`).join(", ");
  return h(
    "div",
    { "data-key": "events" },
    card(
      context.query === null ? "Newest events" : titled("Newest events", context, context.query),
      h("ol", { class: "events" }, events.slice(0, EVENTS).map((event) => h("li", null, time(event.time * 1000, clockOrDay), " ", h("strong", null, words(event.event)), event.query ? ` ${event.query}` : "", h("span", { class: "hint" }, ` ${rest(event)}`)))),
    ),
  );
}
