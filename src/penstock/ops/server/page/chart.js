// Lines over time, as SVG. Colours come from the style sheet; each line also has a dash of its own.

import { h, s } from "./dom.js";
import { clock, day, moment } from "./format.js";

let WIDTH = 520; // narrower on a phone, where its letters would shrink with it
const HEIGHT = 190;
const LEFT = 62;
const RIGHT = 10;
const TOP = 10;
const BOTTOM = 26;

/** `lines` are [name, values]; `unit` writes a value; `of`: how many epochs there were, of which a point may be one of many;
 * `zoom`: called with two times that a person has drawn a range between. */
export function chart(title, times, lines, unit, { of = 0, zoom = null } = {}) {
  const known = lines.map(([name, values]) => [name, values ?? []]).filter(([, values]) => values.some((value) => value !== null && value !== undefined));
  if (!times?.length || !known.length) {
    return h("figure", { class: "chart", "data-key": title }, h("figcaption", null, title), h("p", { class: "empty" }, "No values yet."));
  }
  WIDTH = window.innerWidth < 640 ? Math.max(240, window.innerWidth - 60) : 520;
  const first = times[0];
  const last = times.at(-1);
  const most = nice(Math.max(...known.map(([, values]) => values.reduce((top, value) => Math.max(top, value ?? 0), 0))));
  const x = (ms) => LEFT + (last === first ? 0.5 : (ms - first) / (last - first)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + (1 - value / most) * (HEIGHT - TOP - BOTTOM);
  const names = known.map(([name, values], at) => `${name}: newest ${unit(values.findLast((value) => value !== null && value !== undefined))}${at < known.length - 1 ? "; " : ""}`).join("");
  const drawing = s(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      role: "img",
      "aria-label": `${title}, ${moment(first)} to ${moment(last)}. ${names}`,
      onpointermove: (event) => point(event, times, known, unit, x),
      onpointerleave: (event) => leave(event.currentTarget),
      onpointerdown: (event) => (event.currentTarget.dataset.from = timeAt(event, first, last)),
      onpointerup: (event) => drawn(event, first, last, zoom),
    },
    grid(most, first, last, unit, y),
    known.map(([name, values], at) => s("path", { class: `line line-${at}`, d: path(times, values, x, y), "data-key": name })),
    s("line", { class: "cursor", x1: 0, x2: 0, y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" }),
  );
  const stretch = Math.round(of / times.length);
  const thinned = stretch > 1 ? h("p", { class: "hint" }, `Each point is the slowest of about ${stretch} epochs.`) : null;
  const legend = known.length > 1 ? h("ul", { class: "legend" }, known.map(([name], at) => h("li", null, swatch(at), name))) : null;
  return h("figure", { class: "chart", "data-key": title }, h("figcaption", null, title), thinned, legend, drawing, h("p", { class: "reading", "data-own": true, "aria-hidden": "true" }, "\u00a0"));
}

function swatch(at) {
  return s("svg", { viewBox: "0 0 20 6", class: "swatch wide", "aria-hidden": "true" }, s("path", { class: `line line-${at}`, d: "M0 3H20" }));
}

function grid(most, first, last, unit, y) {
  const shown = [0, 0.5, 1].filter((share) => share !== 0.5 || new Set([0, 0.5, 1].map((each) => unit(most * each))).size === 3);
  const rules = shown.map((share) => {
    const at = y(most * share);
    return [s("line", { class: "rule", x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at }), s("text", { class: "tick", x: LEFT - 6, y: at + 4, "text-anchor": "end" }, unit(most * share))];
  });
  const write = last - first > 86_400_000 ? day : clock;
  const ends = last === first ? [[first, "middle", (LEFT + WIDTH - RIGHT) / 2]] : [[first, "start", LEFT], [(first + last) / 2, "middle", (LEFT + WIDTH - RIGHT) / 2], [last, "end", WIDTH - RIGHT]];
  return [rules, ends.map(([ms, anchor, at]) => s("text", { class: "tick", x: at, y: HEIGHT - 8, "text-anchor": anchor }, write(ms)))];
}

function path(times, values, x, y) {
  let drawn = "";
  let pen = "M";
  values.forEach((value, at) => {
    if (value === null || value === undefined) {
      pen = "M";
      return;
    }
    drawn += `${pen}${x(times[at]).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  });
  return times.length === 1 ? `${drawn}h0.1` : drawn;
}

function point(event, times, lines, unit, x) {
  const drawing = event.currentTarget;
  const box = drawing.getBoundingClientRect();
  const wanted = ((event.clientX - box.left) / box.width) * WIDTH;
  let nearest = 0;
  times.forEach((ms, at) => {
    if (Math.abs(x(ms) - wanted) < Math.abs(x(times[nearest]) - wanted)) nearest = at;
  });
  const cursor = drawing.querySelector(".cursor");
  cursor.setAttribute("x1", x(times[nearest]));
  cursor.setAttribute("x2", x(times[nearest]));
  cursor.setAttribute("visibility", "visible");
  const values = lines.map(([name, series]) => `${name} ${unit(series[nearest])}`).join(" · ");
  drawing.parentNode.querySelector(".reading").textContent = `${moment(times[nearest])} · ${values}`;
}

function timeAt(event, first, last) {
  const box = event.currentTarget.getBoundingClientRect();
  const share = (((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT);
  return first + Math.min(1, Math.max(0, share)) * (last - first);
}

function drawn(event, first, last, zoom) {
  const [from, to] = [Number(event.currentTarget.dataset.from), timeAt(event, first, last)].toSorted((a, b) => a - b);
  delete event.currentTarget.dataset.from;
  if (zoom && to - from > (last - first) / 50) zoom(from, to); // less was a click
}

function leave(drawing) {
  drawing.querySelector(".cursor").setAttribute("visibility", "hidden");
  drawing.parentNode.querySelector(".reading").textContent = "\u00a0";
}

function nice(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}
