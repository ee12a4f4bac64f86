// State: what each operator keeps, how it grew, and a look at one key.

import { get, post, series } from "../api.js";
import { chart } from "../chart.js";
import { h } from "../dom.js";
import { bytes, count, plain } from "../format.js";
import { drawEach, loadEach, scopeNote, titled, within } from "../scope.js";
import { card, errorBox, field, icon, select, table } from "../widgets.js";

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
      operators.length ? drawLookup(context, operators) : null,
    ];
  },
};

function drawLookup(context, operators) {
  const { memory } = context;
  const queries = [...new Set(operators.map(({ query }) => query))];
  const search = async (event) => {
    event.preventDefault();
    const wanted = Object.fromEntries(new FormData(event.currentTarget));
    memory.found = { waiting: true };
    context.draw();
    try {
      memory.found = await post(`${context.path}/state/lookup`, wanted);
    } catch (failure) {
      memory.found = { failure };
    }
    context.draw();
  };
  return card(
    "Look up a key",
    h(
      "form",
      { class: "row", onsubmit: search },
      field("Query", select(queries.map((uid) => [uid, uid]), queries[0], null, { name: "query" })),
      field("Operator", select(operators.map((one) => [place(one), one.operator]), place(operators[0]), null, { name: "operator" })),
      field("Key", h("input", { name: "key", required: true, autocomplete: "off", spellcheck: "false", placeholder: '{"account": "acc-0042"}' }), "JSON, by column"),
      field("Savepoint", h("input", { name: "path", autocomplete: "off", spellcheck: "false", placeholder: "newest checkpoint" }), "its path; empty: the newest checkpoint"),
      h("button", { class: "button primary" }, icon("search"), "Look up"),
    ),
    drawFound(memory.found),
  );
}

/** Operators are looked up by their place in the query. */
function place({ index, operator }) {
  return String(index ?? operator);
}

function drawFound(found) {
  if (!found) return null;
  if (found.waiting) return h("p", { class: "empty", role: "status" }, "Looking …");
  if (found.failure) return errorBox(found.failure);
  const rows = Array.isArray(found.rows) ? found.rows : [found.rows ?? {}];
  const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  return table("Rows of that key", names.map((name) => [name, (row) => plain(row[name])]), rows, { empty: "There is no row of that key." });
}
