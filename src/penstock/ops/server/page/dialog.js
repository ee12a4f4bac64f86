// Every action that changes something asks first, in a dialog that says exactly what will happen.

import { h, patch } from "./dom.js";
import { bytes, count } from "./format.js";
import { errorBox, notify } from "./widgets.js";

/** Asks, and on "yes" does `work(values, tell)` with the dialog still open, so that what it came to is seen where it was asked
 * for. `effects` are sentences; `fields` are made by `field(…)` around controls with a name. Resolves to what `work`
 * returned, or null where the person thought better of it. */
export function ask({ title, effects, fields = [], yes, danger = false, done, work }) {
  return new Promise((resolve) => {
    const problem = h("div");
    const cancel = h("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Cancel");
    const go = h("button", { type: "submit", class: `button ${danger ? "danger" : "primary"}` }, yes);
    let answer = null;
    const submit = async (event) => {
      event.preventDefault();
      const values = Object.fromEntries(new FormData(form));
      go.disabled = true;
      const say = (text) => patch(problem, h("p", { role: "status", class: "waiting" }, text));
      const tell = ({ what, done: far, total, unit }) => {
        const write = unit === "bytes" ? bytes : (value) => `${count(value)} ${unit}`;
        say(`${what}: ${write(far)} of ${total ? write(total) : "?"} …`);
      };
      say("Asked; waiting until it is done …");
      try {
        answer = (await work(values, tell)) ?? {};
        dialog.close();
        if (done) notify(done(answer));
      } catch (failure) {
        patch(problem, errorBox(failure));
        go.disabled = false;
      }
    };
    const form = h(
      "form",
      { onsubmit: submit },
      h("h2", { id: "dialog-title" }, title),
      h("ul", { class: "effects", id: "dialog-effects" }, effects.map((effect) => h("li", null, effect))),
      fields,
      problem,
      h("div", { class: "buttons" }, cancel, go),
    );
    const dialog = h("dialog", { "aria-labelledby": "dialog-title", "aria-describedby": "dialog-effects" }, form);
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(answer);
    });
    document.body.append(dialog);
    dialog.showModal();
    if (danger) cancel.focus();
  });
}
