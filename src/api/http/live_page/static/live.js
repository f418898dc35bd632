// The live page: asks the server once a second while it is visible, and draws what it says.

import { drawBars, drawBlocks, drawHistogram, readRuns, seconds } from "./charts.js";
import { startPlayground } from "./playground.js";
import { buckets, getJSON, getMetrics, total, useKey } from "./server.js";

const POLL_MS = 1000, METRICS_EVERY = 3, MAX_STEPS = 400, MAX_ROWS = 200, MAX_PREEMPTIONS = 5;
const byId = (id) => document.getElementById(id);
const problem = byId("problem"), keyForm = byId("key-form");
let steps = new Map(), lastStep = -1, tick = 0, metrics = new Map(), running = false, isRedacted = false, model = "";

async function refresh() {
  const activity = await getJSON(`live/activity?after=${lastStep}`);
  problem.textContent = "";
  keyForm.hidden = true;
  isRedacted = activity.is_redacted;
  model = activity.model;
  byId("model").textContent = `${activity.model} · version ${activity.version}`;
  noteSteps(activity.engines);
  if (tick++ % METRICS_EVERY === 0) await showMetrics();
  showFigures(activity.load);
  showSteps();
  showBlocks(activity.engines);
  showRequests(activity.engines.flatMap((engine) => engine.requests));
}

function noteSteps(engines) {
  for (const { engine, steps: found, last_step: last } of engines) {
    let known = steps.get(engine) ?? [];
    if (known.length && last < known.at(-1).step_id) known = []; // another engine was started
    const newest = known.at(-1)?.step_id ?? -1;
    steps.set(engine, [...known, ...found.filter((step) => step.step_id > newest)].slice(-MAX_STEPS));
  }
  const ends = engines.map(({ engine }) => steps.get(engine).at(-1)?.step_id ?? -1);
  lastStep = ends.length ? Math.min(...ends) : -1; // each engine numbers its own steps
}

function allSteps() {
  return [...steps.values()].flat();
}

function showFigures(load) {
  const queries = total(metrics, "prefix_cache_queries_total");
  const hits = total(metrics, "prefix_cache_hits_total");
  const figures = {
    Running: load.num_running,
    Waiting: load.num_waiting,
    "KV cache": `${(100 * load.kv_cache_usage).toFixed(1)} %`,
    "Prefix hits": queries ? `${((100 * hits) / queries).toFixed(1)} %` : "–",
    Preemptions: total(metrics, "num_preemptions_total"),
    Prompt: `${total(metrics, "prompt_tokens_total").toLocaleString("en")} tokens`,
    Generated: `${total(metrics, "generation_tokens_total").toLocaleString("en")} tokens`,
  };
  byId("figures").replaceChildren(...Object.entries(figures).map(([name, value]) => {
    const box = document.createElement("div"), term = document.createElement("dt"), text = document.createElement("dd");
    term.textContent = name;
    text.textContent = value;
    box.append(term, text);
    return box;
  }));
}

function showSteps() {
  const found = allSteps();
  const tokens = found.map((step) => [
    ["prompt", step.num_prompt_tokens], ["decode", step.num_decode_tokens],
    ["accepted", step.num_accepted_tokens], ["rejected", step.num_draft_tokens - step.num_accepted_tokens],
  ]);
  const marks = found.flatMap((step, index) => (step.preempted.length ? [index] : []));
  drawBars(byId("tokens"), tokens, (value) => `${value} tokens`, marks);
  const times = found.map((step) => [
    ["plan", step.plan_seconds], ["device", step.device_seconds], ["commit", step.commit_seconds],
  ]);
  drawBars(byId("times"), times, seconds);
  const last = found.at(-1);
  byId("last-step").textContent = last
    ? `Step ${last.step_id}: ${last.num_prompt_tokens} prompt tokens and ${last.num_decode_tokens} decoded, for ${last.num_requests} requests, in ${seconds(last.plan_seconds + last.device_seconds + last.commit_seconds)}.`
    : "";
  const lines = found.flatMap((step) => step.preempted.map((id) => `step ${step.step_id}: ${id} lost its blocks`));
  byId("preemptions").replaceChildren(...lines.slice(-MAX_PREEMPTIONS).map((line) => {
    const item = document.createElement("li");
    item.textContent = line;
    return item;
  }));
}

function showBlocks(engines) {
  const runs = engines.flatMap((engine) => readRuns(engine.blocks));
  const perCell = drawBlocks(byId("blocks"), runs);
  const count = (state) => runs.reduce((sum, [name, number]) => sum + (name === state ? number : 0), 0);
  const host = engines.reduce((sum, engine) => sum + engine.host_blocks_total, 0);
  const used = engines.reduce((sum, engine) => sum + engine.host_blocks_used, 0);
  byId("block-counts").textContent =
    `${count("f")} free, ${count("c")} cached, ${count("h")} held, ${count("s")} shared` +
    (host ? `; host memory: ${used} of ${host} used` : "") +
    (perCell > 1 ? `. A cell is ${perCell} blocks.` : ".");
}

function showRequests(requests) {
  const focused = document.activeElement?.dataset?.request;
  byId("requests").replaceChildren(...requests.slice(0, MAX_ROWS).map((request) => {
    const row = document.createElement("tr"), button = document.createElement("button");
    button.textContent = request.request_id;
    button.dataset.request = request.request_id;
    button.title = "Why does it take so long?";
    button.addEventListener("click", () => showWhy(request.request_id));
    const cells = [
      button, request.status, `${request.age.toFixed(1)} s`, request.num_prompt_tokens,
      request.num_generated_tokens, request.num_blocks, request.priority, request.waits_for ?? "",
    ];
    for (const content of cells) row.insertCell().append(content);
    return row;
  }));
  if (focused) byId("requests").querySelector(`[data-request="${CSS.escape(focused)}"]`)?.focus();
  byId("no-requests").hidden = requests.length > 0;
  if (requests.length > MAX_ROWS) {
    byId("requests").insertRow().insertCell().textContent = `and ${requests.length - MAX_ROWS} more`;
  }
}

async function showWhy(id) {
  const box = byId("why");
  box.hidden = false;
  if (isRedacted) {
    box.textContent = "Explanations need the admin key: start the server with --admin-key, and give the key above.";
    keyForm.hidden = false;
    return;
  }
  try {
    const { requests } = await getJSON(`debug/requests/${encodeURIComponent(id)}`);
    box.textContent = requests.map((one) => [
      `${one.engine_id}: ${one.seconds.toFixed(2)} s, prompt ${one.num_prompt_tokens} (${one.num_cached_tokens} cached), ${one.num_generated_tokens} generated`,
      ...one.causes.filter((cause) => cause.seconds >= 0.0005).map((cause) => `${cause.seconds.toFixed(3).padStart(9)} s  ${cause.cause}`),
      ...one.preemptions.map((p) => `preempted in step ${p.step_id} (${p.mode})${p.by ? `, by ${p.by}` : ""}: ${p.num_tokens} tokens`),
    ].join("\n")).join("\n\n");
  } catch (error) {
    box.textContent = error.message;
  }
  box.focus();
}

async function showMetrics() {
  metrics = await getMetrics();
  for (const [id, name, title] of [
    ["ttft", "time_to_first_token_seconds", "Time to first token"],
    ["itl", "inter_token_latency_seconds", "Time between two tokens"],
  ]) {
    const found = buckets(metrics, name), count = total(metrics, `${name}_count`);
    drawHistogram(byId(id), found);
    const mean = count ? `, ${seconds(total(metrics, `${name}_sum`) / count)} on average` : "";
    byId(`${id}-text`).textContent = `${title}: ${count.toLocaleString("en")} values${mean}`;
  }
  const { hooks } = await getJSON("plugins");
  const used = hooks.filter((hook) => hook.calls).sort((a, b) => b.seconds - a.seconds).slice(0, 30);
  byId("hooks").replaceChildren(...used.map((hook) => {
    const row = document.createElement("tr");
    const micros = ((1e6 * hook.seconds) / hook.calls).toFixed(1);
    for (const text of [hook.plugin, hook.hook, hook.calls, micros, hook.failures]) row.insertCell().append(text);
    return row;
  }));
}

async function poll() {
  if (running || document.hidden) return;
  running = true;
  try {
    await refresh();
  } catch (error) {
    problem.textContent = error.status ? error.message : "The server does not answer.";
    keyForm.hidden = ![401, 403].includes(error.status);
    lastStep = -1;
  } finally {
    running = false;
  }
}

keyForm.addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value);
  tick = 0;
  poll();
});
document.addEventListener("visibilitychange", poll);
startPlayground(() => model);
poll();
setInterval(poll, POLL_MS);
