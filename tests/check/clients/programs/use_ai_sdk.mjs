// The Vercel AI SDK with its provider for compatible servers: whole and streamed.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const [url, name, prompt] = process.argv.slice(2);
const provider = createOpenAICompatible({ name: "tokenmill", baseURL: `${url}/v1`, includeUsage: true });
const model = provider(name);
const options = { model, prompt, temperature: 0, maxOutputTokens: 16, maxRetries: 0 };
const whole = await generateText(options);
const stream = streamText(options);
let streamed = "";
for await (const text of stream.textStream) streamed += text;
console.log(JSON.stringify({
  whole: whole.text, streamed,
  usage: [whole.usage.outputTokens, (await stream.usage).outputTokens],
}));
