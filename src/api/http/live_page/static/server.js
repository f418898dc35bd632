// Asks the server. Addresses are relative to the page, so that any prefix of a proxy works.

let key = "";

export function useKey(given) {
  key = given; // stays in this page: it is neither stored nor part of an address
}

export function send(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  return fetch(path, { ...options, headers });
}

export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function getJSON(path) {
  const answer = await send(path);
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new ServerError(answer.status, body.error?.message ?? `HTTP ${answer.status}`);
  return body;
}

// The samples of Prometheus's text: a map from a name without its prefix to [labels, value] pairs.
export async function getMetrics() {
  const answer = await send("metrics");
  if (!answer.ok) return new Map();
  const found = new Map();
  for (const line of (await answer.text()).split("\n")) {
    const parts = /^(?:[a-z_]+:)?([a-z_]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!parts) continue;
    const labels = Object.fromEntries([...(parts[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, n, v]) => [n, v]));
    if (!found.has(parts[1])) found.set(parts[1], []);
    found.get(parts[1]).push([labels, Number(parts[3])]);
  }
  return found;
}

export function total(metrics, name) {
  return (metrics.get(name) ?? []).reduce((sum, [, value]) => sum + value, 0);
}

// The buckets of a histogram that are not empty at the ends, as [upper limit, number of values].
export function buckets(metrics, name) {
  const sums = new Map();
  for (const [{ le }, value] of metrics.get(`${name}_bucket`) ?? []) {
    const limit = le === "+Inf" ? Infinity : Number(le);
    sums.set(limit, (sums.get(limit) ?? 0) + value);
  }
  let before = 0;
  const found = [...sums].sort(([a], [b]) => a - b).map(([limit, count]) => {
    const own = count - before;
    before = count;
    return [limit, own];
  });
  while (found.length && !found[0][1]) found.shift();
  while (found.length && !found.at(-1)[1]) found.pop();
  return found;
}
