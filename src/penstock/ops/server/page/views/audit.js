// Audit: what is visible in the sinks beside what the ledger decided, by the newest report of `penstock audit`.

import { get, post } from "../api.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { count, plain, UNKNOWN } from "../format.js";
import { scopeNote, within } from "../scope.js";
import { badge, button, clamp, facts, field, select, table, time } from "../widgets.js";

const UNPROVABLE = new Set(["no longer provable", "not provable"]);
const VERDICTS = ["accounted for", "not accounted for", null, "not provable"]; // by the status of the command

export const audit = {
  name: "audit",
  title: "Audit",

  load({ path }) {
    return get(`${path}/audit`);
  },

  draw(context, { audit: report }) {
    return [scopeNote(context), drawCommand(context), report ? drawReport(context, report) : h("p", { class: "empty" }, "No audit of this run has been made yet.")];
  },
};

function drawCommand(context) {
  const { run } = context;
  const why = run.program ? null : "The registry does not know the run’s program, and only it knows the sinks.";
  return h(
    "div",
    { class: "row" },
    button("Run the audit", () => start(context), { kind: "primary", disabled: why !== null, why }),
    h("p", { class: "hint" }, "In a terminal: ", h("code", null, `penstock audit ${run.name}`), ". It compares what is visible in the sinks with what the ledger decided, and changes nothing."),
  );
}

function start(context) {
  return ask({
    title: `Audit ${context.run.name}?`,
    effects: [
      "The job’s program is loaded in a process of its own, and not run. It reads all that the sinks show of the decided epochs.",
      "The job is not touched; where it runs, it shares machine and sinks with the audit.",
      "An audit that takes longer than five minutes is ended; run a long one in a terminal.",
    ],
    yes: "Audit",
    work: () => post(`${context.path}/audit`, {}),
    done: ({ audit: report }) => report.verdict,
  }).then(context.read);
}

function drawReport(context, report) {
  const [sinks, epochs, findings] = [report.sinks, report.epochs, report.findings].map((list) => within(list ?? [], context));
  const found = findings.toSorted((a, b) => UNPROVABLE.has(a.kind) - UNPROVABLE.has(b.kind) || (b.epoch ?? 0) - (a.epoch ?? 0));
  const word = VERDICTS[report.status] ?? plain(report.status);
  return [
    facts(
      [
        ["Verdict of the job", badge(word, tone(report.status))],
        ["Made at", time(report.at * 1000)],
        ["Rows not accounted for", count(report.unaccounted_rows)],
      ],
      "Newest audit",
    ),
    table("Sinks", sinkColumns(findings), sinks, { key: place, empty: "No query of this job has decided an epoch." }),
    found.length ? table("Findings", FINDINGS, found, { key: (one) => `${place(one)} ${one.kind} ${one.epoch} ${one.writer} ${one.why}` }) : null,
    drawEpochs(context, epochs, findings),
  ];
}

function tone(status) {
  return { 0: "good", 1: "bad" }[status] ?? "busy";
}

function place(one) {
  return `${one.query} → ${one.sink}`;
}

/** The status of some findings, as the command's. */
function statusOf(findings) {
  if (findings.some(({ kind }) => !UNPROVABLE.has(kind))) return 1;
  return findings.length ? 3 : 0;
}

function verdict(findings) {
  const status = statusOf(findings);
  return badge(VERDICTS[status], tone(status));
}

function sinkColumns(findings) {
  const mine = (sink) => findings.filter((one) => place(one) === place(sink));
  return [
    ["Query and sink", place],
    ["Result", (sink) => verdict(mine(sink))],
    ["Kind", ({ kind }) => kind],
    ["Epochs", (sink) => (sink.first_epoch === null ? UNKNOWN : `${count(sink.first_epoch)} – ${count(sink.last_epoch)}`), "short"],
    ["Rows decided", ({ rows }) => count(rows), "number"],
    ["Epochs under way", ({ not_yet: waiting }) => count(waiting), "number"],
  ];
}

const FINDINGS = [
  ["Finding", ({ kind }) => badge(kind, UNPROVABLE.has(kind) ? "busy" : "bad")],
  ["Query and sink", place],
  ["Epoch", ({ epoch }) => plain(epoch), "number"],
  ["Writer", ({ writer }) => plain(writer), "number"],
  ["Rows", ({ rows }) => count(rows), "number"],
  ["Why", ({ why }) => clamp(why, 120), "long"],
];

function drawEpochs(context, epochs, findings) {
  const { memory } = context;
  const of = (row) => findings.filter((one) => place(one) === place(row) && one.epoch === row.epoch);
  const choose = (event) => {
    memory.shown = event.target.value;
    context.draw();
  };
  const chosen = memory.shown === "found" ? epochs.filter((row) => of(row).length) : epochs;
  const columns = [
    ["Epoch", ({ epoch }) => count(epoch), "number"],
    ["Result", (row) => (row.visible === null && !of(row).length ? badge("see the sink", "plain") : verdict(of(row)))],
    ["Decided", ({ decided }) => count(decided), "number"],
    ["Visible", ({ visible }) => (visible === null ? "not told apart" : count(visible)), "number"],
    ["Unaccounted", ({ unaccounted }) => count(unaccounted), "number"],
    ["Query and sink", place],
  ];
  return [
    h("div", { class: "row" }, field("Show", select([["", "All epochs"], ["found", "Those with findings"]], memory.shown ?? "", choose))),
    table("Epochs, newest first", columns, chosen.toSorted((a, b) => b.epoch - a.epoch), { key: (row) => `${place(row)} ${row.epoch}`, empty: epochs.length ? "None of these has a finding." : "No complete epoch was compared." }),
  ];
}
