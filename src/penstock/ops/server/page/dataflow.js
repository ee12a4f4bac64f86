// The dataflow of a query as a picture: sources, operators, sinks, each with its numbers and what it promises. A node opens
// to what else is known of it.

import { h, s } from "./dom.js";
import { bytes, count, percent, plain, rate, short } from "./format.js";
import { card, clockOrDay, facts, since, table, time } from "./widgets.js";

const WIDE = 196;
const HIGH = 84;
const GAP = 46;
const ROW_GAP = 18;
const EDGE = 6;
const LETTERS = 24;
const ORDER = ["none", "at-most-once", "at-least-once", "effectively-once", "exactly-once"];
const NAMES = {
  Project: "select",
  Filter: "filter",
  Aggregate: "aggregate",
  EventTimeWatermark: "watermark",
  UpdateEventTimeWatermarkColumn: "watermark",
  Deduplicate: "remove duplicates",
  DeduplicateWithinWatermark: "remove duplicates",
  Distinct: "distinct",
  Union: "union",
  Generate: "explode",
  Expand: "expand",
  Window: "window",
  Sort: "sort",
  GlobalLimit: "limit",
  LocalLimit: "limit",
  Repartition: "repartition",
  RepartitionByExpression: "repartition",
  FlatMapGroupsWithState: "function with state",
  FlatMapGroupsInPandasWithState: "Python function with state",
  TransformWithState: "function with state",
  TransformWithStateInPandas: "Python function with state",
  TransformWithStateInPySpark: "Python function with state",
  MapInPandas: "Python function",
  MapInArrow: "Python function",
  PythonMapInArrow: "Python function",
  ArrowEvalPython: "Python function",
  BatchEvalPython: "Python function",
  MapPartitions: "function",
  MapElements: "function",
  TypedFilter: "filter",
  SerializeFromObject: null,
  DeserializeToObject: null,
};

/** `recent`: its newest epochs; `read`: rows per second; `busy`: a share; `memory` keeps which node is open. */
export function dataflow(query, { weakest, live = true, recent = [], read = null, busy = null, memory = {}, redraw = () => null }) {
  const columns = columnsOf(query, weakest, { live, recent, read, busy });
  if (!columns.length) return h("p", { class: "empty" }, "The plan of this query is not known.");
  const down = window.innerWidth < 640;
  const deepest = Math.max(...columns.map((column) => column.length));
  const long = columns.length * ((down ? HIGH : WIDE) + GAP) - GAP;
  const across = deepest * ((down ? WIDE : HIGH) + ROW_GAP) - ROW_GAP;
  const [width, height] = down ? [across, long] : [long, across];
  const placed = columns.map((column, at) => place(column, at, across, down));
  const edges = placed.slice(1).flatMap((column, at) => placed[at].flatMap((from) => column.map((to) => edge(from, to, down))));
  const label = `Dataflow of ${query.uid}: ${columns.map((column) => column.map((node) => node.spoken).join(" and ")).join(", then ")}.`;
  const box = `${-EDGE} ${-EDGE - 12} ${width + 2 * EDGE} ${height + 2 * EDGE + 12}`;
  const toggle = (node) => {
    memory.open = memory.open === node.key ? null : node.key;
    redraw();
  };
  const open = placed.flat().find((node) => node.key === memory.open);
  return [
    h(
      "div",
      { class: "scroll flow", tabindex: "0", role: "region", "aria-label": `Dataflow of ${query.uid}` },
      s("svg", { viewBox: box, width: width + 2 * EDGE, height: height + 2 * EDGE + 12, role: "group", "aria-label": label }, arrow(), edges, placed.flat().map((node) => draw(node, node === open, toggle))),
    ),
    h("div", { "data-key": "node-detail", role: "status" }, open ? detailOf(open, query) : null),
  ];
}

/** Whether this link gives less than another one of the query. */
export function isWeaker(query, link) {
  const links = [...(query.sources ?? []).map((one) => ["source", one]), ...(query.sinks ?? []).map((one) => ["sink", one])];
  const here = link.kind === "source" || link.kind === "sink" ? links.some(([kind, one]) => kind === link.kind && one.uid === link.uid) : true;
  return here && links.some(([, one]) => ORDER.indexOf(one.guarantee) > ORDER.indexOf(link.guarantee));
}

function columnsOf(query, weakest, { live, recent, read, busy }) {
  const weaker = Boolean(weakest) && isWeaker(query, weakest);
  const link = (kind, item, numbers) => ({
    kind,
    key: `${kind} ${item.uid}`,
    name: item.uid,
    more: item.describe,
    guarantee: item.guarantee,
    numbers,
    item,
    weak: weaker && weakest.kind === kind && weakest.uid === item.uid,
    why: weaker && weakest.kind === kind && weakest.uid === item.uid ? weakest.why : null,
  });
  const sources = (query.sources ?? []).map((source) => link("source", source, sourceNumbers(source, (query.sources ?? []).length === 1 ? read : null)));
  const sinks = (query.sinks ?? []).map((sink) => ({ ...link("sink", sink, live ? sinkNumbers(sink, recent) : ""), recent }));
  const columns = [sources, ...steps(query.operators ?? [], { recent, busy }).map((step) => [step]), sinks];
  for (const node of columns.flat()) {
    node.spoken = `${node.kind} ${node.name}${node.numbers ? `, ${node.numbers}` : ""}${node.guarantee ? `, ${node.guarantee}` : ""}${node.weak ? ", the weakest link" : ""}`;
  }
  return columns.filter((column) => column.length);
}

function sourceNumbers({ partitions = [] }, read) {
  const lags = partitions.map(({ lag }) => lag).filter((lag) => lag !== null && lag !== undefined);
  const lag = lags.length ? `lag ${short(lags.reduce((sum, one) => sum + one, 0))}` : null;
  return [read === null ? null : rate(read), lag].filter(Boolean).join(" · ");
}

function sinkNumbers({ uid }, recent) {
  const shares = sharesOf(uid, recent);
  if (shares.length < 2) return "";
  const rows = shares.slice(0, -1).reduce((sum, { share }) => sum + (share.rows ?? 0), 0);
  const passed = (shares[0].epoch.ended - shares.at(-1).epoch.ended) / 1000;
  return passed > 0 ? `${rate(rows / passed)} · ${count(shares[0].share.writers)} writers` : "";
}

/** What a sink had of each of the newest epochs, newest first. */
function sharesOf(uid, recent) {
  return recent.flatMap((epoch) => (epoch.sinks ?? []).filter(({ sink }) => sink === uid).map((share) => ({ epoch, share })));
}

/** Each operator that keeps state by itself; those between two of them as one. */
function steps(operators, { recent, busy }) {
  const made = [];
  for (const operator of operators) {
    const last = made.at(-1);
    if (!operator.stateful && last && !last.stateful) last.spark.push(operator.name);
    else made.push({ kind: operator.stateful ? "stateful operator" : "operator", stateful: operator.stateful, spark: [operator.name], guarantee: null, weak: false });
  }
  const rows = recent.find((epoch) => epoch.state_rows !== null && epoch.state_rows !== undefined);
  const keeping = made.filter(({ stateful }) => stateful).length;
  return made.map((step, at) => ({
    ...step,
    key: `step ${at}`,
    name: readable(step.spark),
    more: step.stateful ? "keeps state" : `${step.spark.length} step${step.spark.length === 1 ? "" : "s"}`,
    numbers: [at === 0 && busy !== null ? `busy ${percent(busy)}` : null, step.stateful && keeping === 1 && rows ? `${short(rows.state_rows)} rows` : null].filter(Boolean).join(" · "),
    state: step.stateful && keeping === 1 ? rows : null,
  }));
}

/** Spark's operator names in plain words, without repetitions in a row. */
function readable(names) {
  const words = names.map((name) => {
    const [first, ...rest] = name.split(" ");
    if (first === "Join") return `${rest.join(" ").replace(/(?<=[a-z])([A-Z])/g, " $1").toLowerCase() || "inner"} join`;
    return first in NAMES ? NAMES[first] : /^[A-Z][a-z]+[A-Z]/.test(first) ? name.replace(/(?<=[a-z])([A-Z])/g, " $1").toLowerCase() : name;
  });
  const shown = words.filter((name, at) => name !== null && name !== words[at - 1]);
  return shown.join(", ") || "nothing";
}

function detailOf(node, query) {
  const common = [["Kind", node.kind], node.numbers ? ["Now", node.numbers] : null, node.guarantee ? ["Guarantee", node.guarantee] : null, node.why ? ["Why it gives less", node.why] : null];
  const title = `${node.kind} ${node.name}`;
  if (node.spark) {
    const state = node.state ? [["State rows", count(node.state.state_rows)], ["State", bytes(node.state.state_bytes)]] : [];
    return card(title, facts([...common, ["Steps, by Spark’s names", node.spark.join(" → ")], ...state]));
  }
  const described = [...common, ["What it is", node.more]];
  if (node.kind === "source") {
    const columns = [["Partition", ({ partition }) => plain(partition)], ["Position", ({ offset }) => plain(offset), "number"], ["End", ({ end }) => plain(end), "number"], ["Lag", ({ lag }) => count(lag), "number"]];
    const own = node.item.watermark ? [["Watermark of its rows", [time(node.item.watermark, clockOrDay), since(node.item.watermark, ", behind by ")]]] : [];
    return card(title, facts([...described, ...own]), table(`Partitions of ${node.name}`, columns, (node.item.partitions ?? []).slice(0, 50), { empty: "Its positions are not known now." }));
  }
  const columns = [["Epoch", ({ epoch }) => String(epoch.epoch)], ["Rows", ({ share }) => count(share.rows), "number"], ["Writers", ({ share }) => count(share.writers), "number"], ["Size", ({ share }) => bytes(share.bytes), "number"]];
  return card(title, facts(described), table(`Newest epochs of ${node.name}`, columns, sharesOf(node.name, node.recent ?? []), { empty: `See the checkpoints of ${query.uid}.` }));
}

function place(column, at, across, down) {
  const step = (down ? WIDE : HIGH) + ROW_GAP;
  const begin = (across - (column.length * step - ROW_GAP)) / 2;
  return column.map((node, row) => {
    const along = at * ((down ? HIGH : WIDE) + GAP);
    const side = begin + row * step;
    return { ...node, x: down ? side : along, y: down ? along : side };
  });
}

function edge(from, to, down) {
  const [x1, y1] = down ? [from.x + WIDE / 2, from.y + HIGH] : [from.x + WIDE, from.y + HIGH / 2];
  const [x2, y2] = down ? [to.x + WIDE / 2, to.y - 3] : [to.x - 3, to.y + HIGH / 2];
  const bend = down ? `C${x1} ${(y1 + y2) / 2} ${x2} ${(y1 + y2) / 2}` : `C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2}`;
  return s("path", { class: "edge", d: `M${x1} ${y1}${bend} ${x2} ${y2}`, "marker-end": "url(#arrow)" });
}

function arrow() {
  return s("defs", null, s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, s("path", { class: "arrow", d: "M0 0L8 4L0 8z" })));
}

function draw(node, open, toggle) {
  const kind = node.kind.replace("stateful operator", "operator");
  const [name, rest] = node.spark ? broken(node.name) : [node.name, ""];
  const lines = [
    s("text", { class: "node-kind", x: node.x + 12, y: node.y + 17 }, node.kind),
    s("text", { class: "node-name", x: node.x + 12, y: node.y + 36 }, cut(name)),
    s("text", { class: rest ? "node-name" : "node-more", x: node.x + 12, y: node.y + 54 }, cut(rest || (node.guarantee ?? node.more))),
    s("text", { class: "node-numbers", x: node.x + 12, y: node.y + 72 }, cut(node.numbers)),
  ];
  const mark = node.weak ? s("text", { class: "weak-mark", x: node.x + WIDE - 4, y: node.y - 5, "text-anchor": "end" }, "weakest link") : null;
  const full = [node.name, node.more, node.guarantee].filter(Boolean).join(" · ");
  const press = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    toggle(node);
  };
  const about = { role: "button", tabindex: "0", "aria-expanded": String(open), "aria-label": node.spoken, onclick: () => toggle(node), onkeydown: press, "data-key": node.key };
  return s("g", { class: `node node-${kind}${node.weak ? " weak" : ""}${open ? " open" : ""}`, ...about }, s("title", null, full), s("rect", { x: node.x, y: node.y, width: WIDE, height: HIGH, rx: 6 }), lines, mark);
}

/** In two lines, after a comma, where one is too short for it. */
function broken(text) {
  const at = text.length > LETTERS ? text.lastIndexOf(", ", LETTERS - 1) : -1;
  return at < 0 ? [text, ""] : [text.slice(0, at + 1), text.slice(at + 2)];
}

function cut(text) {
  const whole = String(text ?? "");
  return whole.length > LETTERS ? `${whole.slice(0, LETTERS - 1)}…` : whole;
}
