// The Vercel AI SDK: a tool that must be called, and the answer after its result.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, streamText, tool } from "ai";

const [url, name] = process.argv.slice(2);
const provider = createOpenAICompatible({ name: "tokenmill", baseURL: `${url}/v1` });
const schema = {
  type: "object",
  properties: { city: { type: "string", enum: ["Oslo", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};
const weather = tool({ description: "The weather of a city.", inputSchema: jsonSchema(schema) });
const options = {
  model: provider(name),
  prompt: "How is it in Oslo?",
  tools: { weather },
  toolChoice: "required",
  temperature: 0,
  maxOutputTokens: 200,
  maxRetries: 0,
};
const whole = await generateText(options);
const stream = streamText(options);
const kinds = new Set();
for await (const part of stream.fullStream) kinds.add(part.type);
const calls = (found) => found.map((call) => [call.toolName, call.input.city]);
console.log(JSON.stringify({
  whole: calls(whole.toolCalls), streamed: calls(await stream.toolCalls),
  reason: whole.finishReason, hasDeltas: kinds.has("tool-input-delta"),
}));
