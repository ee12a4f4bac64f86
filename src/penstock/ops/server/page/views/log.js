// The end of a detached run's log, and what the driver's threads do now.

import { get } from "../api.js";
import { h } from "../dom.js";
import { scopeNote } from "../scope.js";
import { button, card, field } from "../widgets.js";

export const log = {
  name: "log",
  title: "Log",

  load({ path }) {
    return get(`${path}/log`);
  },

  draw(context, { path, text }) {
    const { memory } = context;
    const find = (event) => {
      memory.text = event.target.value;
      context.draw();
    };
    const wanted = (memory.text ?? "").toLowerCase();
    const lines = (text ?? "").split("\n").filter((line) => line.toLowerCase().includes(wanted));
    const shown = text === null ? h("p", { class: "empty" }, "This run has no log of its own. One that is started with `penstock run -d` has.") : h("pre", { class: "log", tabindex: "0", role: "region", "aria-label": "End of the log" }, lines.join("\n") || "No line is like that.");
    return [
      scopeNote(context, "The log is of every query of the job."),
      text === null ? null : h("div", { class: "row" }, field("Find", h("input", { type: "search", value: memory.text ?? "", oninput: find }))),
      path && text !== null ? h("p", { class: "hint" }, "The last 64 kB of ", h("code", null, path)) : null,
      shown,
      drawThreads(context),
    ];
  },
};

function drawThreads(context) {
  const { memory, run } = context;
  const look = async () => {
    try {
      memory.threads = await get(`${context.path}/threads`);
    } catch (failure) {
      memory.threads = { failure };
    }
    context.draw();
  };
  const list = (title, threads) => [
    h("h4", null, `${title}: ${threads.length} threads`),
    threads.map(({ name, stack }, at) => h("details", { class: "thread", "data-key": `${title} ${name} ${at}` }, h("summary", null, name), h("pre", { class: "log", tabindex: "0" }, stack || "no stack"))),
  ];
  const found = memory.threads;
  return card(
    "Threads of the driver",
    h("div", { class: "row" }, button("Thread dump", look, { disabled: !run.live, why: "The run has ended." })),
    found?.failure ? h("p", { class: "empty", role: "alert" }, found.failure.happened) : null,
    found && !found.failure ? [list("Python", found.python), list("JVM", found.jvm)] : null,
  );
}
