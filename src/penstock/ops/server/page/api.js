// Requests to the server that this page came from, and to no other.

export class Failure extends Error {
  constructor(status, { error, happened, safe, to_do: toDo }) {
    super(happened);
    this.status = status;
    this.error = error ?? "Error";
    this.happened = happened;
    this.safe = safe ?? null;
    this.toDo = toDo ?? null;
  }
}

const OWN = "penstock/v1";
const KEPT = "penstock-session";

let session = null;
try {
  session = sessionStorage.getItem(KEPT); // of this tab and this origin: no other port of the machine is told
} catch {
  // then it holds until the page is left
}

/** What says who asks. */
export function identity() {
  return session ? { Authorization: `Bearer ${session}` } : {};
}

/** Opens the page for this tab, with the code of a link. */
export async function enter(code) {
  ({ token: session } = await post("/sessions", { code }));
  try {
    sessionStorage.setItem(KEPT, session);
  } catch {
    // as above
  }
}

/** Asks for a path of Penstock's own, below /penstock/v1. */
export function get(path, params) {
  return send("GET", own(path), { params });
}

export function post(path, body) {
  return send("POST", own(path), { body });
}

/** Paths with Flink's names. */
export const flink = {
  get: (path, params) => send("GET", path.slice(1), { params }),
  post: (path, body) => send("POST", path.slice(1), { body }),
  patch: (path) => send("PATCH", path.slice(1), { body: {} }),
};

const SERIES_MS = 5000;

/** What charts show of a query. It is the whole history, so it is not read with every epoch, which moves a line by a
 * pixel at most; `memory` is the tab's. */
export async function series({ path, query, memory }) {
  const read = (memory.series ??= {})[query];
  if (!read || performance.now() - read.at > SERIES_MS) {
    memory.series[query] = { at: performance.now(), values: (await get(`${path}/series`, { query })).series };
  }
  return memory.series[query].values;
}

export function own(path) {
  return OWN + path;
}

/** Begins long work through one of Flink's paths, and waits until it is over. Sent twice, it is still done once. `tell`
 * is called with how far it is, where the server says: `what`, and `done` of `total` `unit`s. */
export async function carryOut(path, pollPath, body, tell) {
  const { "request-id": id } = await flink.post(path, { ...body, triggerId: newId() });
  for (let pause = 200; ; pause = Math.min(pause * 1.5, 2000)) {
    await new Promise((resolve) => setTimeout(resolve, pause));
    const answer = await send("GET", `${pollPath}/${id}`.slice(1), { heard: (headers) => hear(headers, tell) });
    if (answer.status.id === "COMPLETED") return answer.operation ?? {};
  }
}

function hear(headers, tell) {
  const progress = parse(headers.get("X-Penstock-Progress"));
  if (progress) tell?.(progress);
}

function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function send(method, path, { params, body, heard }) {
  const query = new URLSearchParams(Object.entries(params ?? {}).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  const target = query.size ? `${path}?${query}` : path;
  const options = { method, credentials: "omit", headers: { Accept: "application/json", ...identity() }, cache: "no-store" };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(target, options);
  } catch {
    throw new Failure(0, {
      error: "NoAnswer",
      happened: "The server does not answer.",
      safe: "What is shown was true when it was read last; the job itself needs no page.",
      to_do: "If the job has ended, `penstock ui` shows what it left. If it runs, this page tries again by itself.",
    });
  }
  if (!response.ok) throw await failure(response);
  heard?.(response.headers);
  return response.json();
}

async function failure(response) {
  const failure = parse(response.headers.get("X-Penstock-Error"));
  if (failure?.happened) return new Failure(response.status, failure);
  const answer = parse(await response.text().catch(() => ""));
  const happened = answer?.errors?.[0] ?? `The server answered ${response.status} ${response.statusText}.`;
  return new Failure(response.status, { happened: String(happened) });
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
