// The Vercel AI SDK: a loop of steps with two tools, whose first call is free or demanded.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const [url, name, prompt] = process.argv.slice(2);
const provider = createOpenAICompatible({ name: "tokenmill", baseURL: `${url}/v1` });
const calls = [];
const schema = {
  type: "object",
  properties: { city: { type: "string", enum: ["Oslo", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};
const made = (called, description, result) => tool({
  description,
  inputSchema: jsonSchema(schema),
  execute: async () => (calls.push(called), result),
});
const tools = {
  temperature: made("temperature", "The temperature of a city.", 3),
  clock: made("clock", "The time in a city.", "12:30"),
};
const found = {};
for (const first of ["auto", "required"]) {
  const options = {
    model: provider(name),
    prompt,
    tools,
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? first : "auto" }),
    stopWhen: stepCountIs(3),
    temperature: 0,
    maxOutputTokens: 40,
    maxRetries: 0,
  };
  await generateText(options);
  found[first] = calls.splice(0);
  const errors = [];
  const stream = streamText({ ...options, onError: ({ error }) => errors.push(String(error)) });
  for await (const part of stream.fullStream) if (part.type === "error") errors.push(part.error);
  found[`${first} streamed`] = errors.length ? errors : calls.splice(0);
}
console.log(JSON.stringify(found));
