// Exceptions and restarts: what happened, what is safe, what to do; and how each recovery ended.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, plain, seconds } from "../format.js";
import { scopeNote, within } from "../scope.js";
import { badge, card, clamp, errorBox, table, time } from "../widgets.js";

const AT_ONCE = 50;
const ENDINGS = {
  none: "nothing was left to do",
  finished: "a decided epoch was finished",
  void: "a decision that did not count was passed over",
  repair: "lost writers were rewritten, with proof",
  verify: "a replay was held against what is visible",
};

export const exceptions = {
  name: "exceptions",
  title: "Exceptions",

  async load({ path }) {
    const [all, restarts] = await Promise.all([get(`${path}/exceptions`), get(`${path}/restarts`)]);
    return { exceptions: all.exceptions ?? [], restarts: restarts.restarts ?? [], recoveries: restarts.recoveries ?? [] };
  },

  draw(context, data) {
    const newest = (list) => within(list, context).toSorted((a, b) => b.time - a.time).slice(0, AT_ONCE);
    const whose = ["Query", (one) => one.query ?? "the whole job"];
    return [
      scopeNote(context),
      card("Exceptions", within(data.exceptions, context).length ? newest(data.exceptions).map(drawException) : h("p", { class: "empty" }, "None.")),
      card(
        "Restarts",
        table("Restarts, newest first", [["Time", (one) => time(one.time)], whose, ["Error", (one) => clamp(plain(one.error)), "long"], ["Verdict", (one) => badge(one.verdict ?? "not known", "plain")], ["Tried again after", (one) => seconds(one.seconds), "number"]], newest(data.restarts), { empty: "None." }),
      ),
      card(
        "Recoveries",
        table(
          "Recoveries, newest first",
          [
            ["Time", (one) => time(one.time)],
            whose,
            ["Generation", (one) => count(one.generation), "number"],
            ["Next epoch", (one) => count(one.epoch), "number"],
            ["How it ended", (one) => [badge(one.action, "plain"), " ", ENDINGS[one.action] ?? ""]],
            ["Took", (one) => seconds(one.seconds), "number"],
          ],
          newest(data.recoveries),
          { empty: "None." },
        ),
      ),
    ];
  },
};

function drawException(exception) {
  const box = errorBox(exception);
  box.removeAttribute("role"); // a list of what is past, not an alarm
  return h("article", { class: "exception", "data-key": `${exception.time} ${exception.error}` }, h("p", { class: "hint" }, time(exception.time), ` · ${exception.query ?? "the whole job"}`), box);
}
