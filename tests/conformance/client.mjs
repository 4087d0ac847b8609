// The npm package `openai`, unmodified: node client.mjs BASE_URL prints what it got as JSON.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "any" });
const messages = [{ role: "user", content: "Name the capital of France." }];
const asked = { model: "chat", messages, temperature: 0, max_tokens: 24 };

const whole = await client.chat.completions.create(asked);
let streamed = "";
let usage = null;
for await (const chunk of await client.chat.completions.create({
  ...asked,
  stream: true,
  stream_options: { include_usage: true },
})) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
const tool = await client.chat.completions.create({
  ...asked,
  max_tokens: 100,
  tool_choice: "required",
  tools: [
    {
      type: "function",
      function: {
        name: "get_weather",
        parameters: {
          type: "object",
          properties: { city: { type: "string", maxLength: 20 } },
          required: ["city"],
          additionalProperties: false,
        },
      },
    },
  ],
});
const response = await client.responses.create({
  model: "chat",
  input: messages[0].content,
  temperature: 0,
  max_output_tokens: 24,
});
const events = [];
for await (const event of await client.responses.create({
  model: "chat",
  input: "Say hi.",
  max_output_tokens: 4,
  stream: true,
})) {
  events.push(event.type);
}
let refused = null;
try {
  await client.chat.completions.create({ ...asked, temperature: 3 });
} catch (error) {
  refused = { status: error.status, param: error.param, name: error.constructor.name };
}
console.log(
  JSON.stringify({
    whole: whole.choices[0].message.content,
    streamed,
    usage,
    tool: tool.choices[0].message.tool_calls[0].function.name,
    response: response.output_text,
    events,
    refused,
  }),
);
