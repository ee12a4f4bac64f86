// Overview: the dataflow, what it gives, how fast, how far behind, and the epoch under way.

import { series } from "../api.js";
import { chart } from "../chart.js";
import { dataflow } from "../dataflow.js";
import { h } from "../dom.js";
import { bytes, count, millis, plain, rate, short, UNKNOWN, words } from "../format.js";
import { badge, button, card, clockOrDay, meter, PHASES, since, table, time } from "../widgets.js";

const PARTITIONS = 50;
const EVENTS = 8;
const RATE_MS = 10_000;
const LEAST_SECONDS = 2;

export const overview = {
  name: "overview",
  title: "Overview",

  load: series,

  draw(context, values) {
    const { detail } = context;
    const queries = detail.queries ?? [];
    return [
      weakest(detail.weakest),
      queries.length ? queries.map((query) => drawQuery(context, query)) : h("p", { class: "empty" }, "No query has started in this run yet."),
      drawCharts(values),
      drawEvents(context.events),
    ];
  },
};

function weakest(link) {
  if (!link) return null;
  return h("p", { class: link.guarantee === "exactly-once" ? "hint" : "weakest", "data-key": "weakest" }, "Weakest link: ", h("strong", null, `${link.kind} ${link.uid}`), " gives ", badge(link.guarantee), link.why ? `, because ${link.why}` : "");
}

function drawQuery(context, query) {
  const lag = totalLag(query);
  const read = rowsRead(context.memory, query);
  return h(
    "section",
    { class: "query", "data-key": `query-${query.uid}` },
    h("h2", null, query.uid),
    dataflow(query, context.detail.weakest),
    h(
      "div",
      { class: "tiles" },
      tile("Guarantee", badge(query.guarantee)),
      tile("Rows in", read === null ? UNKNOWN : rate(read)),
      tile("Rows out", rate(query.rows_per_second), `${short(query.rows_total)} in all`),
      tile("Watermark", query.watermark === null || query.watermark === undefined ? "none" : time(query.watermark, clockOrDay), query.watermark ? since(query.watermark, "behind by ") : null),
      tile("Lag", lag === null ? UNKNOWN : `${short(lag)} rows`),
      tile("Generation", count(query.generation)),
    ),
    drawEpoch(query, context.run),
    drawPartitions(context, query),
  );
}

function tile(name, value, more = null) {
  return h("div", { class: "tile" }, h("div", { class: "tile-name" }, name), h("div", { class: "tile-value" }, value), more ? h("div", { class: "hint" }, more) : null);
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

/** Rows read per second, by how far the positions of sources that count rows have moved lately; null where none does, or
 * nobody has looked for long enough. */
function rowsRead(memory, query) {
  const counted = (query.sources ?? []).flatMap((source) => source.partitions ?? []).map(({ offset }) => offset).filter(Number.isInteger);
  if (!counted.length) return null;
  const [at, now] = [counted.reduce((sum, offset) => sum + offset, 0), performance.now()];
  const samples = ((memory.positions ??= {})[query.uid] ??= []);
  if (samples.length && (at < samples.at(-1).at || counted.length !== samples.at(-1).partitions)) samples.length = 0;
  samples.push({ at, now, partitions: counted.length });
  while (samples.length > 2 && now - samples[1].now > RATE_MS) samples.shift();
  const seconds = (now - samples[0].now) / 1000;
  return seconds < LEAST_SECONDS ? null : (at - samples[0].at) / seconds;
}

function totalLag(query) {
  const lags = (query.sources ?? []).flatMap((source) => source.partitions ?? []).map((partition) => partition.lag);
  const known = lags.filter((lag) => lag !== null && lag !== undefined);
  return known.length ? known.reduce((sum, lag) => sum + lag, 0) : null;
}

function drawPartitions(context, query) {
  const rows = (query.sources ?? []).flatMap((source) => (source.partitions ?? []).map((partition) => ({ source: source.uid, ...partition })));
  if (!rows.length) return null;
  const sorted = rows.toSorted((a, b) => (b.lag ?? -1) - (a.lag ?? -1));
  const most = Math.max(1, ...rows.map((row) => row.lag ?? 0));
  const all = context.memory.allPartitions;
  const columns = [
    ["Partition", (row) => `${row.source} ${row.partition}`],
    ["Position", (row) => plain(row.offset), "number"],
    ["End", (row) => plain(row.end), "number"],
    ["Lag", (row) => count(row.lag), "number"],
    ["", (row) => (row.lag === null || row.lag === undefined ? null : meter(row.lag, most, `${count(row.lag)} of at most ${count(most)}`)), "wide"],
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

function drawCharts(values) {
  if (!values) return null;
  return h(
    "section",
    { class: "charts", "aria-label": "Charts", "data-key": "charts" },
    chart("Duration of epochs", values.time, [["whole", values.total_ms], ["commit", values.commit_ms]], millis),
    chart("From the decision to visible", values.time, [["commit", values.commit_ms]], millis),
    chart("Rows of epochs", values.time, [["rows", values.rows]], short),
    chart("Size", values.time, [["state", values.state_bytes], ["in-flight log", values.inflight_bytes]], bytes),
  );
}

function drawEvents(events) {
  if (!events.length) return null;
  const rest = ({ event, id, time: at, query, ...more }) => Object.entries(more).filter(([, value]) => value !== null && typeof value !== "object").slice(0, 5).map(([name, value]) => `${words(name)} ${value}`).join(", ");
  return h(
    "div",
    { "data-key": "events" },
    card(
      "Newest events",
      h("ol", { class: "events" }, events.slice(0, EVENTS).map((event) => h("li", null, time(event.time * 1000, clockOrDay), " ", h("strong", null, words(event.event)), event.query ? ` ${event.query}` : "", h("span", { class: "hint" }, ` ${rest(event)}`)))),
    ),
  );
}

