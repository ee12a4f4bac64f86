// Configuration: each value and where it came from.

import { get } from "../api.js";
import { h } from "../dom.js";
import { plain } from "../format.js";
import { scopeNote } from "../scope.js";
import { badge, card, facts, field, table } from "../widgets.js";

export const configuration = {
  name: "configuration",
  title: "Configuration",

  load({ path }) {
    return get(`${path}/settings`);
  },

  draw(context, { settings = [], spark = [], arguments: given = [], directory, config }) {
    const { memory } = context;
    const text = (memory.text ?? "").trim().toLowerCase();
    const change = (event) => {
      memory.text = event.target.value;
      context.draw();
    };
    const like = (...parts) => parts.join(" ").toLowerCase().includes(text);
    const columns = [
      ["Setting", ({ key }) => h("code", null, key), "long"],
      ["Value", ({ value }) => plain(value), "long"],
      ["From", ({ source }) => badge(source, source === "default" ? "plain" : "busy")],
    ];
    const empty = settings.length ? "No setting is like that." : "Not known of this run.";
    const { program } = context.run;
    return [
      scopeNote(context, "These settings apply to every query of the job."),
      card(
        "Program",
        facts([
          ["File", program ? h("code", null, program) : null],
          ["Arguments", given.length ? h("code", null, given.join(" ")) : "none"],
          directory ? ["Started in", h("code", null, directory)] : null,
          config ? ["Configuration file", h("code", null, config)] : null,
        ]),
      ),
      h("div", { class: "row" }, field("Find", h("input", { type: "search", value: memory.text ?? "", oninput: change }))),
      table("Settings of this run", columns, settings.filter(({ key, value, source }) => like(key, plain(value), source)), { key: ({ key }) => key, empty }),
      spark.length ? table("Spark’s settings of this run", columns.slice(0, 2), spark.filter(({ key, value }) => like(key, plain(value))), { key: ({ key }) => key, empty }) : null,
    ];
  },
};
