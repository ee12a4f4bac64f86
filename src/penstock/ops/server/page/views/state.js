// State: what each operator keeps, and how it grew.

import { get, series } from "../api.js";
import { chart } from "../chart.js";
import { h } from "../dom.js";
import { bytes, count, plain } from "../format.js";
import { drawEach, loadEach, scopeNote, titled, within } from "../scope.js";
import { table } from "../widgets.js";

export const state = {
  name: "state",
  title: "State",

  async load(context) {
    const [now, each] = await Promise.all([get(`${context.path}/state`), loadEach(context, async (query) => ({ values: await series({ ...context, query }) }))]);
    return { operators: now.operators ?? [], each };
  },

  draw(context, { operators: all, each }) {
    const operators = within(all, context);
    const columns = [
      ["Operator", (one) => `${one.query} ${one.operator}`],
      ["Rows", (one) => count(one.rows), "number"],
      ["State", (one) => bytes(one.state_bytes), "number"],
      ["Memory", (one) => bytes(one.memory_bytes), "number"],
      ["Backend", (one) => plain(one.backend)],
      ["Partitions", (one) => count(one.partitions), "number"],
    ];
    const keeping = new Set(operators.map(({ query }) => query));
    const grew = (uid, { values }) => h("div", { class: "charts" }, chart(titled("State over time", context, uid), values.time, [["state", values.state_bytes]], bytes));
    const empty = context.query === null ? "No operator of this run keeps state." : `No operator of query ${context.query} keeps state.`;
    return [
      scopeNote(context),
      table("Operators with state", columns, operators, { empty }),
      drawEach({ ...context, uids: context.uids.filter((uid) => uid === null || keeping.has(uid)) }, each, grew),
    ];
  },
};
