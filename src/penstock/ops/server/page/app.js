// The page: which view the address asks for, and what all views share.

import { enter, identity } from "./api.js";
import { h, patch } from "./dom.js";
import { millis } from "./format.js";
import { RunView } from "./views/run.js";
import { RunsView } from "./views/runs.js";

const main = document.getElementById("main");
let view = null;

function route() {
  const [place, search] = location.hash.replace(/^#\/?/, "").split("?");
  const [first, id, tab, part] = place.split("/").map(decode);
  const query = new URLSearchParams(search ?? "").get("query");
  return first === "runs" && id ? { id, tab: tab || "overview", part: part || null, query } : { id: null };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

async function show() {
  const code = /^#code=([\w-]+)$/.exec(location.hash)?.[1];
  if (code) return openWith(code);
  const wanted = route();
  if (view && view.id === wanted.id) {
    view.move(wanted);
    return;
  }
  const first = view === null;
  view?.close();
  patch(main);
  view = wanted.id === null ? new RunsView(main) : new RunView(main, wanted);
  if (!first) main.focus(); // otherwise a screen reader does not announce the new view
}

/** A code is good once, so the address does not keep it. A tab that is open already needs none. */
async function openWith(code) {
  history.replaceState(null, "", "#/");
  try {
    await enter(code);
  } catch (failure) {
    if (!identity().Authorization) return showLocked(failure);
  }
  return show();
}

/** Shown instead of any view where the server wants to know who asks. */
export function showLocked(failure) {
  view?.close();
  view = null;
  document.title = "Penstock";
  patch(
    main,
    h(
      "section",
      { class: "locked" },
      h("h1", null, "This page is closed to you"),
      h("p", { role: "alert" }, failure.happened),
      h("p", null, "It is opened by a link with a code that works once. ", h("code", null, "penstock ui"), " prints one; so does ", h("code", null, "penstock ui JOB"), " for a job that runs. It opens one tab."),
      h(
        "form",
        { class: "row", onsubmit: submitCode },
        h("label", { class: "field" }, h("span", { class: "field-name" }, "Code from the link"), h("input", { name: "code", required: true, autocomplete: "off", spellcheck: "false" })),
        h("button", { class: "button primary" }, "Open"),
      ),
    ),
  );
}

async function submitCode(event) {
  event.preventDefault();
  const code = new FormData(event.target).get("code").trim();
  try {
    await enter(code);
  } catch (failure) {
    return showLocked(failure);
  }
  return show();
}

function chooseTheme(event) {
  const chosen = event.target.value;
  if (chosen === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  try {
    localStorage.setItem("penstock-theme", chosen);
  } catch {
    // then it holds until the page is closed
  }
}

function tick() {
  if (document.hidden) return;
  for (const node of document.querySelectorAll("[data-since]")) {
    node.textContent = node.dataset.before + millis(Math.max(0, Date.now() - Number(node.dataset.since)));
  }
}

const theme = document.getElementById("theme");
theme.value = document.documentElement.dataset.theme ?? "auto";
theme.addEventListener("change", chooseTheme);
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", show);
addEventListener("locked", (event) => showLocked(event.detail));
setInterval(tick, 1000);
show();
