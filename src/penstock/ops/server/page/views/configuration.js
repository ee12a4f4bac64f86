// Configuration: each value and where it came from.

import { get } from "../api.js";
import { h } from "../dom.js";
import { plain } from "../format.js";
import { badge, field, table } from "../widgets.js";

export const configuration = {
  name: "configuration",
  title: "Configuration",

  async load({ path }) {
    return (await get(`${path}/settings`)).settings ?? [];
  },

  draw(context, settings) {
    const { memory } = context;
    const text = (memory.text ?? "").trim().toLowerCase();
    const change = (event) => {
      memory.text = event.target.value;
      context.draw();
    };
    const rows = settings.filter(({ key, value, source }) => `${key} ${plain(value)} ${source}`.toLowerCase().includes(text));
    const columns = [
      ["Setting", ({ key }) => h("code", null, key), "long"],
      ["Value", ({ value }) => plain(value), "long"],
      ["From", ({ source }) => badge(source, source === "default" ? "plain" : "busy")],
    ];
    return [
      h("div", { class: "row" }, field("Find", h("input", { type: "search", value: memory.text ?? "", oninput: change }))),
      table("Settings of this run", columns, rows, { key: ({ key }) => key, empty: settings.length ? "No setting is like that." : "Not known of this run." }),
    ];
  },
};
