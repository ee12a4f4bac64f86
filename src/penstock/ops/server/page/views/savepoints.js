// Savepoints: take one, stop with one, go on from one, fork, dispose; and the other ways to end a job.

import { carryOut, flink, get, post } from "../api.js";
import { ask } from "../dialog.js";
import { h } from "../dom.js";
import { bytes, count, plain } from "../format.js";
import { scopeNote } from "../scope.js";
import { badge, button, field, select, table, time } from "../widgets.js";

const ENDED = "The run cannot be steered: it has ended, or its address does not answer.";
const NO_PROGRAM = "The registry does not know which program this run was started from; start it with penstock run.";
const OVER = new Set(["FAILED", "FINISHED", "CANCELED"]);
const KINDS = [["NATIVE", "native"], ["CANONICAL", "canonical"]];

export const savepoints = {
  name: "savepoints",
  title: "Savepoints",

  async load({ path }) {
    return (await get(`${path}/savepoints`)).savepoints ?? [];
  },

  draw(context, list) {
    const { run } = context;
    const steer = { disabled: !run.live, why: ENDED };
    const begin = { disabled: !run.program, why: NO_PROGRAM };
    const columns = [
      ["Path", (one) => h("code", null, one.path), "long"],
      ["Kind", (one) => plain(one.kind)],
      ["Time", (one) => time(one.time)],
      ["Size", (one) => bytes(one.bytes), "number"],
      ["Drained", (one) => (one.drained ? badge("drained", "busy") : "no")],
      ["Actions", (one) => h("span", { class: "row" }, button("Start from it", () => start(context, one.path, one), begin), button("Fork", () => fork(context, one.path), begin), button("Dispose", () => dispose(context, one.path), { kind: "danger" })), "actions"],
    ];
    return [
      scopeNote(context, "A savepoint holds every query of the job, and what ends the job ends all of them."),
      h(
        "div",
        { class: "row" },
        recoverButton(context),
        button("Take a savepoint", () => take(context), { ...steer, kind: run.live ? "primary" : "", iconName: "savepoint" }),
        button("Stop with a savepoint", () => stop(context), { ...steer, kind: "danger", iconName: "stop" }),
        button("Stop without", () => end(context, "stop"), { ...steer, kind: "danger" }),
        button("Cancel the job", () => end(context, "cancel"), { ...steer, kind: "danger" }),
        button("Start from a path", () => start(context, ""), begin),
        button("Fork from a path", () => fork(context, ""), { ...begin, iconName: "fork" }),
      ),
      run.live ? null : h("p", { class: "hint" }, ENDED),
      run.program ? h("p", { class: "hint" }, "Program: ", h("code", null, plain(run.program))) : h("p", { class: "hint" }, NO_PROGRAM),
      table("Savepoints", columns, list, { key: (one) => one.path, empty: "None was taken by this run." }),
    ];
  },
};

const folder = () => field("Folder", h("input", { name: "folder", autocomplete: "off", spellcheck: "false", placeholder: "the job’s own" }), "empty: the job’s own (execution.checkpointing.savepoint-dir)");
const kind = () => field("Kind", select(KINDS, "NATIVE", null, { name: "kind" }));

function take(context) {
  return ask({
    title: `Take a savepoint of ${context.run.name}?`,
    effects: ["Every query is held between two epochs while its files are copied, then goes on.", "Nothing is deleted; the savepoint is yours."],
    fields: [folder(), kind()],
    yes: "Take it",
    work: (values, tell) => carryOut(`${context.jobPath}/savepoints`, `${context.jobPath}/savepoints`, { ...target("target-directory", values.folder), "cancel-job": false, formatType: values.kind }, tell),
    done: (answer) => `The savepoint is at ${answer.location}`,
  }).then(context.read);
}

function stop(context) {
  return ask({
    title: `Stop ${context.run.name} with a savepoint?`,
    effects: ["Every query finishes its epoch, a savepoint is taken, and the job ENDS.", "It does not start again by itself; start it from the savepoint when it shall go on.", "Drain only a job that will not go on: it emits the final results of all windows first."],
    fields: [folder(), kind(), h("label", { class: "pick" }, h("input", { type: "checkbox", name: "drain" }), "Drain")],
    yes: "Stop the job",
    danger: true,
    work: (values, tell) => carryOut(`${context.jobPath}/stop`, `${context.jobPath}/savepoints`, { ...target("targetDirectory", values.folder), drain: values.drain === "on", formatType: values.kind }, tell),
    done: (answer) => `Stopped. The savepoint is at ${answer.location}`,
  }).then(context.read);
}

function end(context, mode) {
  const effects = {
    stop: ["Every query finishes its epoch, and the job ENDS. No savepoint is taken.", "Its own checkpoint stays, and a plain start goes on from there."],
    cancel: ["The job ENDS at once: an epoch that is not decided is aborted, one that is decided is carried out. No savepoint is taken.", "Its checkpoints stay or are deleted as its retention setting says."],
  }[mode];
  return ask({
    title: mode === "stop" ? `Stop ${context.run.name} without a savepoint?` : `Cancel ${context.run.name}?`,
    effects,
    yes: mode === "stop" ? "Stop the job" : "Cancel the job",
    danger: true,
    work: () => flink.patch(`${context.jobPath}?mode=${mode}`),
    done: () => "The job was asked to end.",
  }).then(context.read);
}

const place = (path) => field("Savepoint or checkpoint", h("input", { name: "from", value: path, required: true, autocomplete: "off", spellcheck: "false" }), "path of a savepoint or of a retained checkpoint");

/** The safe way on for a run that has ended: the same program, from the job's own checkpoint. */
export function recoverButton(context) {
  const { run, others } = context;
  if (run.live || !OVER.has(run.state)) return null;
  const running = others.find((other) => other.live && other.id !== run.id && other.name === run.name && (other.storage ?? null) === (run.storage ?? null));
  const why = running ? `Run ${running.id.slice(0, 8)} of this job is running.` : NO_PROGRAM;
  return button(run.state === "FAILED" ? "Recover: start again from its checkpoint" : "Start again from its checkpoint", () => recover(context), { kind: run.state === "FAILED" ? "primary" : "", disabled: !run.program || Boolean(running), why, iconName: "play", name: "recover" });
}

const exact = ({ queries }) => (queries ?? []).every(({ guarantee }) => guarantee === "exactly-once");

function recover(context) {
  const { run } = context;
  return ask({
    title: `Start ${run.name} again from its checkpoint?`,
    effects: [
      `A new run of ${plain(run.program)} is started on this machine, with the arguments and the -D settings of this one.`,
      exact(context.detail)
        ? "It finishes the epochs that are decided and goes on after them. No row is lost and none is written twice."
        : "It finishes the epochs that are decided and goes on after them. Each query keeps its guarantee; one below exactly-once may write rows again, or lose some.",
      "Nothing is deleted.",
    ],
    yes: "Start again",
    work: () => post("/runs", { program: run.program, run: run.id }),
    done: (answer) => `Started as run ${String(answer.id).slice(0, 8)}.`,
  }).then((answer) => {
    if (answer?.id) location.hash = `#/runs/${encodeURIComponent(answer.id)}/overview`;
    else context.read();
  });
}

/** What was written after a savepoint, by query: sentences. */
async function writtenSince(context, savepoint) {
  const sentences = [];
  for (const { uid } of context.detail.queries ?? []) {
    const from = savepoint.epochs?.[uid];
    if (!Number.isInteger(from)) continue;
    const { epochs, more } = await get(`${context.path}/epochs`, { query: uid, limit: 1000 });
    const later = epochs.filter(({ epoch, outcome }) => epoch > from && outcome === "complete");
    const rows = later.reduce((sum, epoch) => sum + (epoch.rows ?? 0), 0);
    const least = more && epochs.at(-1)?.epoch > from ? "at least " : "";
    sentences.push(later.length ? `Query ${uid}: ${least}${count(later.length)} epochs after epoch ${from}, ${count(rows)} rows that are visible now, are WRITTEN AGAIN.` : `Query ${uid} has completed no epoch after this savepoint.`);
  }
  return sentences.length ? sentences : ["Output that became visible after it is WRITTEN AGAIN; how much is not known here."];
}

async function start(context, path, savepoint = {}) {
  const { run } = context;
  const again = await writtenSince(context, savepoint).catch(() => ["Output that became visible after it is WRITTEN AGAIN."]);
  return ask({
    title: `Start ${run.name} from a savepoint?`,
    effects: [
      ...again,
      "To go on where the job ended, without writing anything again, start it from its checkpoint instead.",
      `A new run of ${plain(run.program)} is started on this machine, with the arguments and the -D settings of this one.`,
      "Claimed, the savepoint becomes the job’s, which deletes it in time.",
    ],
    fields: [place(path), field("Claim", select([["no_claim", "no: it stays mine"], ["claim", "yes: it becomes the job’s"]], "no_claim", null, { name: "claim" }))],
    yes: "Start",
    danger: true,
    work: (values) => post("/runs", { program: run.program, run: run.id, from: values.from, claim: values.claim === "claim", fork: null }),
    done: () => "Started. The list of runs shows it.",
  }).then(context.read);
}

function fork(context, path) {
  return ask({
    title: `Fork ${context.run.name}?`,
    effects: [`A second job is started from ${plain(context.run.program)}, beside the first, which is not touched.`, "The suffix is added to every topic, table and folder that it writes."],
    fields: [place(path), field("Name", h("input", { name: "fork", required: true, autocomplete: "off", value: `${context.run.name}-fork` })), field("Suffix", h("input", { name: "suffix", required: true, autocomplete: "off", value: "_fork" }))],
    yes: "Fork",
    work: (values) => post("/runs", { program: context.run.program, run: context.run.id, from: values.from, claim: false, fork: values.fork, suffix: values.suffix }),
    done: () => "The fork was started. The list of runs shows it.",
  }).then(context.read);
}

function dispose(context, path) {
  return ask({
    title: "Dispose of this savepoint?",
    effects: [`All files of ${path} are DELETED.`, "No job can be started from it any more. This cannot be undone."],
    yes: "Delete it",
    danger: true,
    work: () => carryOut("/savepoint-disposal", "/savepoint-disposal", { "savepoint-path": path }),
    done: () => `Deleted: ${path}`,
  }).then(context.read);
}

function target(name, path) {
  return path?.trim() ? { [name]: path.trim() } : {};
}
