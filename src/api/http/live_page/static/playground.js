// A chat of one turn, streamed, that can be stopped.

import { send } from "./server.js";

const byId = (id) => document.getElementById(id);

export function startPlayground(modelName) {
  let stopper = null;
  byId("play").addEventListener("submit", async (event) => {
    event.preventDefault();
    stopper = new AbortController();
    byId("send").disabled = true;
    byId("stop").disabled = false;
    try {
      await answer(stopper.signal, modelName());
    } catch (error) {
      byId("answer-facts").textContent = error.name === "AbortError" ? "stopped" : error.message;
    } finally {
      byId("send").disabled = false;
      byId("stop").disabled = true;
    }
  });
  byId("stop").addEventListener("click", () => stopper?.abort());
}

async function answer(signal, model) {
  const box = byId("answer"), facts = byId("answer-facts");
  box.replaceChildren();
  facts.textContent = "";
  const begun = performance.now();
  const reply = await send("v1/chat/completions", {
    method: "POST",
    signal,
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({
      model,
      messages: [{ role: "user", content: byId("message").value }],
      temperature: Number(byId("temperature").value),
      top_p: Number(byId("top-p").value),
      max_tokens: Number(byId("max-tokens").value),
      logprobs: byId("logprobs").checked,
      ...(byId("logprobs").checked ? { top_logprobs: 3 } : {}),
      stream: true,
      stream_options: { include_usage: true },
    }),
  });
  if (!reply.ok) throw new Error((await reply.json()).error?.message ?? `HTTP ${reply.status}`);
  let first = null, usage = null;
  for await (const event of events(reply.body)) {
    if (event.error) throw new Error(event.error.message);
    usage = event.usage ?? usage;
    for (const choice of event.choices ?? []) {
      const text = choice.delta?.content ?? choice.delta?.reasoning ?? "";
      if (!text) continue;
      first ??= performance.now() - begun;
      if (choice.logprobs?.content?.length) choice.logprobs.content.forEach((token) => box.append(tokenOf(token)));
      else box.append(text);
    }
  }
  const total = performance.now() - begun;
  if (usage && first !== null) {
    const rate = (1000 * (usage.completion_tokens - 1)) / Math.max(total - first, 1);
    facts.textContent = `${usage.prompt_tokens} tokens in, ${usage.completion_tokens} out, first token after ${Math.round(first)} ms, ${rate.toFixed(1)} tokens/s`;
  }
}

// A token with its probability and the alternatives as a hint; the paler, the less likely.
function tokenOf({ token, logprob, top_logprobs: others }) {
  const part = document.createElement("span"), percent = (value) => `${(100 * Math.exp(value)).toFixed(1)} %`;
  part.textContent = token;
  part.style.opacity = 0.45 + 0.55 * Math.exp(logprob);
  part.title = [`${JSON.stringify(token)} ${percent(logprob)}`, ...(others ?? []).map((o) => `${JSON.stringify(o.token)} ${percent(o.logprob)}`)].join("\n");
  return part;
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}
