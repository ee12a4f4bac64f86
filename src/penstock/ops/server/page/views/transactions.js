// What each sink has open, prepared, committed, lost or in doubt, and what may be done about it: the rules are those of
// `penstock transactions`, and the server holds to them whatever is asked here.

import { get, post } from "../api.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { bytes, count, plain, seconds, UNKNOWN } from "../format.js";
import { scopeNote, titled, within } from "../scope.js";
import { badge, button, field, meter, select, table } from "../widgets.js";

const ORDER = ["in doubt", "prepared", "open", "lost", "committed"];
const NOTHING_OPEN = "No sink has a transaction open, and none is in doubt.";
const ENDED = new Set(["lost", "committed"]);

export const transactions = {
  name: "transactions",
  title: "Transactions",

  async load({ path }) {
    const [all, inflight] = await Promise.all([get(`${path}/transactions`), get(`${path}/inflight`)]);
    return { transactions: all.transactions ?? [], unseen: all.unseen ?? [], sinks: inflight.sinks ?? [] };
  },

  draw(context, loaded) {
    const [all, unseen, sinks] = [loaded.transactions, loaded.unseen, loaded.sinks].map((list) => within(list, context));
    const chosen = (context.memory.chosen ??= new Set());
    const left = all.filter(({ state }) => !ENDED.has(state));
    const ids = new Set(left.map(({ id }) => id));
    for (const id of chosen) if (!ids.has(id)) chosen.delete(id);
    const sorted = all.toSorted((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || (b.age_seconds ?? 0) - (a.age_seconds ?? 0) || (b.epoch ?? 0) - (a.epoch ?? 0));
    const holding = all.filter((one) => one.holds_back);
    return [
      scopeNote(context),
      holding.length ? h("p", { class: "weakest", role: "status" }, `Readers with read_committed are held back by ${holding.length}: ${holding.slice(0, 3).map(({ id }) => id).join(", ")}${holding.length > 3 ? " …" : ""}`) : null,
      left.length ? drawActions(context, left.filter(({ id }) => chosen.has(id))) : h("p", { class: "hint" }, NOTHING_OPEN),
      drawTable(context, sorted, chosen),
      unseen.length ? h("p", { class: "hint" }, `Not seen: ${unseen.map(notSeen).join("; ")}.`) : null,
      sinks.length ? table("In-flight log: decided, and not yet taken by the sink", [["Sink", (one) => `${one.query} ${one.sink}`], ["Epochs", (one) => count(one.epochs), "number"], ["Size", (one) => bytes(one.bytes), "number"]], sinks) : null,
    ];
  },
};

function notSeen(one) {
  if (typeof one !== "object") return plain(one);
  return [one.query, one.sink].filter(Boolean).join(" → ") + (one.sink ? ": " : "") + plain(one.why);
}

function drawTable(context, rows, chosen) {
  const pick = (one) => {
    if (ENDED.has(one.state)) return h("code", null, one.id);
    const change = (event) => {
      if (event.target.checked) chosen.add(one.id);
      else chosen.delete(one.id);
      context.draw();
    };
    return h("label", { class: "pick" }, h("input", { type: "checkbox", checked: chosen.has(one.id), onchange: change }), h("code", null, one.id));
  };
  const columns = [
    ["Transaction", pick, "long"],
    ["Query and sink", (one) => `${one.query} → ${one.sink}`],
    ["Epoch", (one) => plain(one.epoch), "number"],
    ["State", (one) => badge(one.state)],
    ["Ledger", (one) => badge(one.decision)],
    ["Age beside timeout", (one) => age(one)],
    ["Readers", (one) => (one.holds_back ? badge("holds back", "bad") : "pass")],
  ];
  return table(context.query === null ? "Transactions of the sinks" : titled("Transactions", context, context.query), columns, rows, { key: (one) => `${one.query} ${one.sink} ${one.id} ${one.epoch} ${one.generation} ${one.partition}`, empty: "None has ended lately, either." });
}

function age({ age_seconds: old, timeout_seconds: timeout }) {
  if (old === null || old === undefined) return UNKNOWN;
  if (!timeout) return seconds(old);
  const label = `${seconds(old)} of ${seconds(timeout)}`;
  return [h("span", null, label), meter(old, timeout, label)];
}

function drawActions(context, chosen) {
  const only = (decision) => chosen.length > 0 && chosen.every((one) => one.decision === decision);
  // The server does not ask the sinks of an ended run. The command does, and takes the word only if nothing is proven.
  const unproven = chosen.length > 0 && chosen.every((one) => one.state === "in doubt" || (one.asked === false && one.decision === "decided"));
  const none = "Choose transactions in the table first.";
  const why = (text) => (chosen.length ? text : none);
  return h(
    "div",
    { class: "row" },
    button("Commit", () => end(context, "commit", chosen), { disabled: !only("decided"), why: why("Only what the ledger has decided can be committed.") }),
    button("Abort", () => end(context, "abort", chosen), { kind: "danger", disabled: !only("undecided"), why: why("Only what the ledger has not decided can be aborted.") }),
    button("Resolve", () => resolve(context, chosen), { kind: "danger", disabled: !unproven, why: why("Only what is in doubt needs a person’s word.") }),
    h("p", { class: "hint" }, `${chosen.length} chosen. What is decided can only be committed, what is undecided only aborted; while the job runs it does both by itself.`),
  );
}

function named(chosen) {
  return `${chosen.length} transaction${chosen.length === 1 ? "" : "s"}: ${chosen.map(({ id }) => id).join(", ")}`;
}

function end(context, verb, chosen) {
  const effects = {
    commit: ["Their whole epoch is carried out, with the proofs of a recovery; its rows become visible.", "A new generation is registered: a dead run that wakes up can decide nothing any more."],
    abort: ["Their rows are thrown away in the sink; the job’s next start reads and writes them again.", "Their writers are fenced. This cannot be undone."],
  }[verb];
  return ask({
    title: verb === "commit" ? "Commit these?" : "Abort these?",
    effects: [named(chosen), ...effects],
    yes: verb === "commit" ? "Commit" : "Abort",
    danger: verb === "abort",
    work: () => post(`${context.path}/transactions/${verb}`, { ids: chosen.map(({ id }) => id) }),
    done: () => `${verb === "commit" ? "Committed" : "Aborted"}: ${named(chosen)}`,
  }).then(context.read);
}

function resolve(context, chosen) {
  return ask({
    title: "Say what became of these?",
    effects: [
      named(chosen),
      "Their commit is tried once more. Your word is kept in the ledger, and counts only where nothing can be proven even then.",
      "“Committed” where they were not: their rows are lost. “Lost” where they were visible: their rows come twice.",
      "Compare the target with their rows before.",
    ],
    fields: [field("They were", select([["lost", "lost"], ["committed", "committed"]], "lost", null, { name: "as" }))],
    yes: "Keep this word",
    danger: true,
    work: (values) => post(`${context.path}/transactions/resolve`, { ids: chosen.map(({ id }) => id), as: values.as }),
    done: ({ result }) => (result?.length === 0 ? "Nothing was recorded: all of it is proven. Commit it, or start the job." : `Recorded: ${named(chosen)}`),
  }).then(context.read);
}
