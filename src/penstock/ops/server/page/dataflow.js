// The dataflow of a query as a picture: sources, operators, sinks, each with what it promises, the weakest link marked.

import { h, s } from "./dom.js";

const WIDE = 184;
const HIGH = 66;
const GAP = 46;
const ROW_GAP = 18;
const EDGE = 6;
const LETTERS = 23;

export function dataflow(query, weakest) {
  const columns = columnsOf(query, weakest);
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
  return h(
    "div",
    { class: "scroll flow", tabindex: "0", role: "region", "aria-label": `Dataflow of ${query.uid}` },
    s("svg", { viewBox: box, width: width + 2 * EDGE, height: height + 2 * EDGE + 12, role: "img", "aria-label": label }, arrow(), edges, placed.flat().map(draw)),
  );
}

function columnsOf(query, weakest) {
  const link = (kind, item) => ({
    kind,
    name: item.uid,
    more: item.describe,
    guarantee: item.guarantee,
    weak: Boolean(weakest) && weakest.kind === kind && weakest.uid === item.uid,
  });
  const columns = [(query.sources ?? []).map((source) => link("source", source)), ...steps(query.operators ?? []).map((step) => [step]), (query.sinks ?? []).map((sink) => link("sink", sink))];
  for (const node of columns.flat()) {
    node.spoken = `${node.kind} ${node.name}${node.guarantee ? `, ${node.guarantee}` : ""}${node.weak ? ", the weakest link" : ""}`;
  }
  return columns.filter((column) => column.length);
}

/** Each operator that keeps state by itself; those between two of them as one. */
function steps(operators) {
  const made = [];
  for (const { name, stateful } of operators) {
    const last = made.at(-1);
    if (!stateful && last && !last.stateful) {
      last.name += ` → ${name}`;
      last.more = `${last.name.split(" → ").length} steps`;
    } else {
      made.push({ kind: stateful ? "stateful operator" : "operator", name, more: stateful ? "keeps state" : "", guarantee: null, weak: false, stateful });
    }
  }
  return made;
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

function draw(node) {
  const kind = node.kind.replace("stateful operator", "operator");
  const lines = [
    s("text", { class: "node-kind", x: node.x + 12, y: node.y + 17 }, node.kind),
    s("text", { class: "node-name", x: node.x + 12, y: node.y + 36 }, cut(node.name)),
    s("text", { class: "node-more", x: node.x + 12, y: node.y + 54 }, cut(node.guarantee ?? node.more)),
  ];
  const mark = node.weak ? s("text", { class: "weak-mark", x: node.x + WIDE - 4, y: node.y - 5, "text-anchor": "end" }, "weakest link") : null;
  const full = [node.name, node.more, node.guarantee].filter(Boolean).join(" · ");
  return s("g", { class: `node node-${kind}${node.weak ? " weak" : ""}${node.guarantee === "exactly-once" ? " calm" : ""}` }, s("title", null, full), s("rect", { x: node.x, y: node.y, width: WIDE, height: HIGH, rx: 6 }), lines, mark);
}

function cut(text) {
  const whole = String(text ?? "");
  return whole.length > LETTERS ? `${whole.slice(0, LETTERS - 1)}…` : whole;
}
