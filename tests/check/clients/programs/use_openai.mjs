// OpenAI's client for JavaScript: chat and responses, whole and streamed.
import OpenAI from "openai";

const [url, model, prompt] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, maxRetries: 0 });
const ask = { model, messages: [{ role: "user", content: prompt }], max_tokens: 16, temperature: 0 };
const whole = await client.chat.completions.create(ask);
let streamed = "";
for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) {
  streamed += chunk.choices[0].delta.content ?? "";
}
const input = { model, input: prompt, max_output_tokens: 16, temperature: 0 };
const response = await client.responses.create(input);
let responseStreamed = "";
const events = [];
for await (const event of await client.responses.create({ ...input, stream: true })) {
  events.push(event.type);
  if (event.type === "response.output_text.delta") responseStreamed += event.delta;
}
let refused = null;
try {
  await client.chat.completions.create({ ...ask, model: "other" });
} catch (error) {
  refused = [error instanceof OpenAI.NotFoundError, error.code];
}
console.log(JSON.stringify({
  whole: whole.choices[0].message.content, streamed,
  responses: response.output_text, responseStreamed, last: events.at(-1), refused,
}));
