// Which queries a tab shows: the chosen one, or all, each in a section of its own with its name.

import { h } from "./dom.js";

/** Loads something for each query that is shown; `load` is given its uid, or null while the run is not known yet. */
export async function loadEach({ uids }, load) {
  return Promise.all(uids.map(async (uid) => ({ uid, ...(await load(uid)) })));
}

/** Draws what `loadEach` has loaded. Where the run has several queries and none is chosen, each has its heading. */
export function drawEach({ uids, query, several }, loaded, draw) {
  const of = (uid) => loaded.find((one) => one.uid === uid) ?? (uids.length === 1 ? loaded[0] : null);
  const parts = uids.map((uid) => [uid, of(uid)]).filter(([, data]) => data);
  return parts.map(([uid, data]) =>
    several && query === null ? h("section", { class: "query", "data-key": `query-${uid}` }, h("h2", null, uid), draw(uid, data)) : h("div", { "data-key": `query-${uid}` }, draw(uid, data)),
  );
}

/** A title that says whose numbers follow, where that is a question. */
export function titled(title, { several }, uid) {
  return several && uid ? `${title} of ${uid}` : title;
}

/** Those of the chosen query, and what is of the job as a whole. */
export function within(list, { query }) {
  return query === null ? list : list.filter((one) => (one.query ?? query) === query);
}

/** Says what a tab shows of a run with several queries. `whole`: why a choice changes nothing here. */
export function scopeNote({ query, several, choose }, whole = null) {
  if (!several) return null;
  const name = query === null ? null : h("strong", null, query);
  const all = query === null ? null : h("button", { type: "button", class: "button small", onclick: () => choose(null) }, "Show all queries");
  const text = whole ?? (query === null ? "All queries of this job, each under its name." : ["Only query ", name, " is shown here."]);
  return h("p", { class: "scope", "data-key": "scope", role: "status" }, h("span", null, text), whole === null ? all : null);
}
