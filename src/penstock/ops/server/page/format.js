// How numbers, sizes and times are written. What is not known is a dash.

export const UNKNOWN = "–";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const small = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const missing = (value) => value === null || value === undefined || Number.isNaN(value);

export function count(value) {
  return missing(value) ? UNKNOWN : whole.format(value);
}

export function rate(value) {
  if (missing(value)) return UNKNOWN;
  return `${Math.abs(value) < 10 ? small.format(value) : whole.format(value)}/s`;
}

export function short(value) {
  if (missing(value)) return UNKNOWN;
  for (const [size, unit] of [[1e9, " G"], [1e6, " M"], [1e4, " k"]]) {
    const divisor = size === 1e4 ? 1e3 : size;
    if (Math.abs(value) >= size) return `${small.format(value / divisor)}${unit}`;
  }
  return small.format(value);
}

/** In thousands, as the command line has it. */
export function bytes(value) {
  if (missing(value)) return UNKNOWN;
  let unit = 0;
  let rest = value;
  while (Math.abs(rest) >= 1000 && unit < 4) {
    rest /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? whole.format(rest) : small.format(rest)} ${["B", "kB", "MB", "GB", "TB"][unit]}`;
}

export function percent(share) {
  return missing(share) ? UNKNOWN : `${whole.format(share * 100)} %`;
}

export function millis(value) {
  if (missing(value)) return UNKNOWN;
  if (value < 1) return `${small.format(value)} ms`;
  if (value < 1000) return `${whole.format(value)} ms`;
  if (value < 60_000) return `${small.format(value / 1000)} s`;
  return seconds(value / 1000);
}

export function seconds(value) {
  if (missing(value)) return UNKNOWN;
  if (value < 60) return `${value < 10 ? small.format(value) : whole.format(value)} s`;
  const minutes = Math.floor(value / 60);
  if (minutes < 60) return `${minutes} min ${whole.format(Math.floor(value % 60))} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

const two = (value) => String(value).padStart(2, "0");

export function clock(ms) {
  if (missing(ms) || ms < 0) return UNKNOWN;
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function day(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

export function moment(ms) {
  return missing(ms) || ms < 0 ? UNKNOWN : `${day(ms)} ${clock(ms)}`;
}

/** Any value of a row, as text. */
export function plain(value) {
  if (missing(value)) return UNKNOWN;
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

export function words(name) {
  return String(name).replaceAll("_", " ").replaceAll("-", " ");
}
