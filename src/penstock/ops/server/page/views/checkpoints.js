// Checkpoints, in the parts and with the words that Flink's users know: Overview, History, Summary, Configuration.

import { carryOut, flink, get, series } from "../api.js";
import { chart } from "../chart.js";
import { ask } from "../dialog.js";
import { h, patch, s } from "../dom.js";
import { bytes, count, millis, plain, UNKNOWN, words } from "../format.js";
import { drawEach, loadEach, scopeNote, titled } from "../scope.js";
import { badge, button, card, clamp, errorBox, facts, field, panel, phaseBar, phaseLegend, select, table, tabs, time } from "../widgets.js";

const PAGE = 50;
const PARTS = [["overview", "Overview"], ["history", "History"], ["summary", "Summary"], ["configuration", "Configuration"]];

export const checkpoints = {
  name: "checkpoints",
  title: "Checkpoints",

  async load(context) {
    const { path, jobPath } = context;
    const part = partOf(context);
    if (part === "configuration") return { part, config: await flink.get(`${jobPath}/checkpoints/config`) };
    const each = await loadEach(context, async (query) => {
      if (part === "history") return get(`${path}/epochs`, { query, before: paging(context, query).before?.at(-1), limit: PAGE });
      const [all, values] = await Promise.all([flink.get(`${jobPath}/checkpoints`, { query }), part === "summary" ? null : series({ ...context, query })]);
      return { all, series: values };
    });
    return { part, each };
  },

  draw(context, data) {
    const part = partOf(context);
    const drawers = { overview: drawOverview, history: drawHistory, summary: drawSummary };
    const ready = data.part === part;
    const note = scopeNote(context, part === "configuration" ? "These settings apply to every query of the job." : null);
    let content = ready ? null : h("p", { class: "empty" }, "Reading …");
    if (ready && part === "configuration") content = drawConfiguration(context, data);
    else if (ready) content = [part === "overview" ? now(context) : null, part === "history" ? chooseOutcome(context) : null, drawEach(context, data.each, (uid, each) => drawers[part](context, each, uid))];
    return [tabs("Parts of the checkpoints", "part", PARTS, part, (name) => context.open(name)), panel("part", part, [note, content])];
  },
};

/** Which page of a query's history is open, and which epoch. */
function paging({ memory }, query) {
  return ((memory.paging ??= {})[query] ??= {});
}

function partOf({ part }) {
  return PARTS.some(([name]) => name === part) ? part : "overview";
}

function now(context) {
  return h("div", { class: "row" }, button("Checkpoint now", () => trigger(context), { disabled: !context.run.live, why: "The run cannot be steered: it has ended, or its address does not answer." }));
}

function drawOverview(context, { all, series: values }, uid) {
  const { counts = {}, latest = {} } = all;
  const lines = values && [
    [titled("End to End Duration", context, uid), [["whole", values.total_ms], ["commit", values.commit_ms]], millis],
    [titled("State Size", context, uid), [["state", values.state_bytes]], bytes],
  ];
  return [
    facts(
      [
        ["Triggered", count(counts.total)],
        ["In Progress", count(counts.in_progress)],
        ["Completed", count(counts.completed)],
        ["Failed", count(counts.failed)],
        ["Restored", count(counts.restored)],
      ],
      titled("Checkpoint counts", context, uid),
    ),
    h(
      "div",
      { class: "cards" },
      latestCard(titled("Latest Completed Checkpoint", context, uid), latest.completed),
      latestCard(titled("Latest Failed Checkpoint", context, uid), latest.failed),
      latestCard(context.several ? "Latest Savepoint, of all queries" : "Latest Savepoint", latest.savepoint),
      latestCard(context.several ? "Latest Restore, of all queries" : "Latest Restore", latest.restored),
    ),
    lines ? h("div", { class: "charts" }, lines.map(([title, each, unit]) => chart(title, values.time, each, unit))) : null,
  ];
}

function latestCard(title, checkpoint) {
  if (!checkpoint) return card(title, h("p", { class: "empty" }, "None"));
  const when = checkpoint.latest_ack_timestamp ?? checkpoint.failure_timestamp ?? checkpoint.restore_timestamp ?? checkpoint.trigger_timestamp;
  const path = checkpoint.external_path;
  return card(
    title,
    facts([
      ["ID", plain(checkpoint.id)],
      ["Time", time(when)],
      checkpoint.end_to_end_duration === undefined ? null : ["End to End Duration", millis(checkpoint.end_to_end_duration)],
      checkpoint.state_size === undefined ? null : ["State Size", bytes(checkpoint.state_size)],
      path ? ["Path", h("code", null, path)] : null,
      checkpoint.failure_message ? ["Cause", clamp(checkpoint.failure_message)] : null,
    ]),
  );
}

function trigger(context) {
  return ask({
    title: `Checkpoint of ${context.run.name}?`,
    effects: ["Waits for the next complete checkpoint, or answers with the newest where there is nothing to read.", "The job goes on; nothing is deleted."],
    yes: "Checkpoint",
    work: () => carryOut(`${context.jobPath}/checkpoints`, `${context.jobPath}/checkpoints`, {}),
    done: (answer) => `Checkpoint ${answer.checkpointId} is complete.`,
  }).then(context.read);
}

function chooseOutcome(context) {
  const { memory } = context;
  const change = (event) => {
    memory.outcome = event.target.value;
    context.draw();
  };
  return h("div", { class: "row" }, field("Show", select([["", "All"], ["failed", "Failed only"]], memory.outcome ?? "", change), "of the fifty below"));
}

function drawHistory(context, { epochs: page, more }, uid) {
  const memory = paging(context, uid);
  const epochs = context.memory.outcome === "failed" ? page.filter(({ outcome }) => outcome !== "complete") : page;
  const longest = Math.max(...epochs.map((epoch) => epoch.total_ms ?? 0), 0);
  const columns = [
    ["ID", (epoch) => opener(context, epoch)],
    ["Status", (epoch) => badge(epoch.outcome)],
    ["Kind", (epoch) => plain(epoch.mode)],
    ["Trigger Time", (epoch) => time(epoch.opened)],
    ["End to End Duration", (epoch) => millis(epoch.total_ms), "number"],
    ["Phases", (epoch) => phaseBar(epoch, longest), "wide"],
    ["Rows", (epoch) => count(epoch.rows), "number"],
    ["Size", (epoch) => bytes(epoch.bytes), "number"],
    ["State", (epoch) => bytes(epoch.state_bytes), "number"],
    ["In flight", (epoch) => bytes(epoch.inflight_bytes), "number"],
  ];
  const key = (epoch) => `${epoch.query}:${epoch.epoch}:${epoch.opened}`;
  const after = (epoch) => (memory.opened === key(epoch) ? openedRow(context, memory, epoch, columns.length, key(epoch)) : null);
  return [
    phaseLegend(),
    table(titled("History", context, uid) + ", newest first", columns, epochs, { key, after, empty: page.length ? "None of these has failed." : "No checkpoint is complete yet." }),
    h("div", { class: "row" }, button("Newer", () => turn(context, memory, null), { disabled: !memory.before?.length, why: "These are the newest." }), button("Older", () => turn(context, memory, page.at(-1)?.epoch), { disabled: !more, why: "There are no older ones." })),
  ];

  function opener(_, epoch) {
    const open = memory.opened === key(epoch);
    const toggle = () => {
      memory.opened = open ? null : key(epoch);
      context.draw();
    };
    return h("button", { type: "button", class: "opener", "aria-expanded": String(open), onclick: toggle }, String(epoch.epoch));
  }
}

async function turn(context, memory, before) {
  if (before === null) memory.before?.pop();
  else (memory.before ??= []).push(before);
  memory.opened = null;
  await context.read();
}

function openedRow(context, memory, epoch, columns, key) {
  const place = h("div", { "data-own": true, "data-key": `alignment-${key}` }, h("p", { class: "empty" }, "Reading the alignment …"));
  const row = h(
    "tr",
    { "data-key": `open-${key}`, class: "opened" },
    h(
      "td",
      { colspan: columns },
      h(
        "div",
        { class: "cards" },
        card("Phases", facts(Object.entries(epoch.phases ?? {}).map(([name, ms]) => [words(name.replace(/_ms$/, "")), millis(ms)]))),
        card(
          "Checkpoint",
          facts([
            ["Generation", count(epoch.generation)],
            ["End", time(epoch.ended)],
            ["Slowest partition", plain(epoch.slowest)],
            ["Skew", epoch.skew === null || epoch.skew === undefined ? UNKNOWN : `${epoch.skew} × the median`],
            ["State rows", count(epoch.state_rows)],
            epoch.why ? ["Why it failed", epoch.why] : null,
          ]),
        ),
        card("Sinks", table(`Sinks of epoch ${epoch.epoch}`, [["Sink", (sink) => sink.sink], ["Rows", (sink) => count(sink.rows), "number"], ["Writers", (sink) => count(sink.writers), "number"], ["Size", (sink) => bytes(sink.bytes), "number"]], epoch.sinks ?? [])),
      ),
      card("Alignment", place),
    ),
  );
  if (memory.alignmentOf !== key) {
    memory.alignmentOf = key;
    memory.alignment = get(`${context.path}/alignment`, { query: epoch.query, epoch: epoch.epoch }).catch((failure) => failure);
  }
  memory.alignment.then((answer) => patch(document.querySelector(`[data-key="${CSS.escape(`alignment-${key}`)}"]`) ?? place, drawAlignment(answer)));
  return row;
}

function drawAlignment(answer) {
  if (answer instanceof Error) return errorBox(answer);
  const alignment = answer && "alignment" in answer ? answer.alignment : answer;
  const partitions = alignment?.partitions ?? [];
  if (!partitions.length) return h("p", { class: "empty" }, alignment?.unknown ?? "It was not measured for this epoch.");
  const longest = Math.max(...partitions.map((partition) => partition.reached_ms), 0.001);
  const columns = [
    ["Partition", (partition) => (partition.source ? `${partition.source} ${partition.partition}` : partition.partition)],
    ["Rows", (partition) => count(partition.rows), "number"],
    ["Began", (partition) => millis(partition.started_ms), "number"],
    ["Reached the barrier", (partition) => millis(partition.reached_ms), "number"],
    ["Waited", (partition) => millis(partition.waited_ms), "number"],
    ["Share", (partition) => alignmentBar(partition, longest), "wide"],
  ];
  return [
    table("Per partition, slowest first", columns, partitions),
    alignment.more ? h("p", { class: "hint" }, `${alignment.more} more are not listed.`) : null,
    alignment.unknown ? h("p", { class: "hint" }, alignment.unknown) : null,
  ];
}

function alignmentBar({ started_ms: started, reached_ms: reached }, longest) {
  const x = (ms) => (ms / longest) * 200;
  return s(
    "svg",
    { class: "phases", viewBox: "0 0 200 12", preserveAspectRatio: "none", role: "img", "aria-label": `read from ${millis(started)} to ${millis(reached)}, then waited` },
    s("rect", { class: "phase-read", x: x(started), width: Math.max(1, x(reached) - x(started)), height: 12 }),
    s("rect", { class: "phase-wait", x: x(reached), width: Math.max(0, 200 - x(reached)), height: 12 }),
  );
}

const MEASURES = [
  ["end_to_end_duration", "End to End Duration", millis],
  ["checkpointed_size", "Written to sinks and in-flight log", bytes],
  ["state_size", "State", bytes],
  ["processed_data", "Written to sinks", bytes],
  ["persisted_data", "Persisted in-flight data", bytes],
];
const STATISTICS = [["min", "Minimum"], ["avg", "Average"], ["max", "Maximum"], ["p50", "p50"], ["p90", "p90"], ["p95", "p95"], ["p99", "p99"], ["p999", "p99.9"]];

function drawSummary(context, { all }, uid) {
  const measured = MEASURES.filter(([name]) => all.summary?.[name]);
  const columns = [["Statistic", ([, title]) => title], ...measured.map(([name, title, unit]) => [title, ([statistic]) => unit(known(all.summary[name][statistic])), "number"])];
  return measured.length ? table(titled("Summary of the complete checkpoints", context, uid), columns, STATISTICS) : h("p", { class: "empty" }, "No checkpoint is complete yet.");
}

function known(value) {
  return value === "NaN" ? null : value;
}

const NAMES = {
  mode: "Checkpointing Mode",
  checkpoint_storage: "Checkpoint Storage",
  state_backend: "State Backend",
  interval: "Interval",
  timeout: "Timeout",
  min_pause: "Minimum Pause Between Checkpoints",
  max_concurrent: "Maximum Concurrent Checkpoints",
  unaligned_checkpoints: "Unaligned Checkpoints",
  aligned_checkpoint_timeout: "Aligned checkpoint timeout",
  tolerable_failed_checkpoints: "Tolerable Failed Checkpoints",
  checkpoints_after_tasks_finish: "Checkpoints With Finished Tasks",
  externalization: "Persist Checkpoints Externally",
};
const DURATIONS = new Set(["interval", "timeout", "min_pause", "aligned_checkpoint_timeout"]);

function drawConfiguration(context, { config }) {
  const rows = Object.entries(config).toSorted(([a], [b]) => order(a) - order(b));
  const write = ([name, value]) => {
    if (name === "externalization" && value) return value.enabled ? `Enabled (${value.delete_on_cancellation ? "delete" : "retain"} on cancellation)` : "Disabled";
    if (typeof value === "boolean") return value ? "Enabled" : "Disabled";
    return DURATIONS.has(name) && typeof value === "number" ? millis(value) : plain(value);
  };
  return table("Configuration of the checkpoints", [["Option", ([name]) => NAMES[name] ?? words(name)], ["Value", write, "long"]], rows);
}

function order(name) {
  const at = Object.keys(NAMES).indexOf(name);
  return at < 0 ? 100 : at;
}
