// The AI SDK with @ai-sdk/openai-compatible: texts, objects and tools, whole and streamed.
import assert from 'node:assert/strict';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateObject, generateText, jsonSchema, streamObject, streamText, tool } from 'ai';

import { checkCity, CITIES, CITY_ARGUMENTS, CITY_SCHEMA, KEY, main, MAX_TOKENS, OBJECT_TOKENS, PROMPT, QUESTION, WIDE } from './cases.mjs';

const SHORT = { temperature: 0, maxRetries: 0, maxOutputTokens: MAX_TOKENS };
const LONGER = { ...SHORT, maxOutputTokens: OBJECT_TOKENS };
const WEATHER = { weather: tool({ description: 'Tells the weather of a city.', inputSchema: jsonSchema(CITY_ARGUMENTS) }) };

const provider = ({ url }) =>
  createOpenAICompatible({
    name: 'specgate',
    baseURL: url,
    apiKey: KEY,
    includeUsage: true,
    supportsStructuredOutputs: true,
  });
const asked = (door) => ({ model: provider(door)(door.model), prompt: QUESTION });

// streamText tells of errors on the side; here they end the case.
async function streamed(settings) {
  let failed = null;
  const result = streamText({ ...settings, onError: ({ error }) => (failed = error) });
  let text = '';
  for await (const piece of result.textStream) text += piece;
  if (failed) throw failed;
  assert.ok((await result.usage).outputTokens > 0);
  return text;
}

await main({
  async completion(door) {
    return (await generateText({ model: provider(door).completionModel(door.model), prompt: PROMPT, ...SHORT })).text;
  },
  async completion_stream(door) {
    return streamed({ model: provider(door).completionModel(door.model), prompt: PROMPT, ...SHORT });
  },
  async generate_text(door) {
    return (await generateText({ ...asked(door), ...SHORT })).text;
  },
  async stream_text(door) {
    return streamed({ ...asked(door), ...SHORT });
  },
  async wide_stream_text(door) {
    return streamed({ ...asked(door), ...LONGER, providerOptions: { specgate: WIDE } });
  },
  async generate_object(door) {
    const { object } = await generateObject({ ...asked(door), ...LONGER, schema: jsonSchema(CITY_SCHEMA) });
    return checkCity(object);
  },
  async stream_object(door) {
    const result = streamObject({ ...asked(door), ...LONGER, schema: jsonSchema(CITY_SCHEMA) });
    let parts = 0;
    for await (const _ of result.partialObjectStream) parts += 1;
    assert.ok(parts > 0);
    return checkCity(await result.object);
  },
  async tools(door) {
    const { toolCalls } = await generateText({ ...asked(door), ...LONGER, tools: WEATHER, toolChoice: 'required' });
    assert.equal(toolCalls[0].toolName, 'weather');
    assert.ok(CITIES.includes(toolCalls[0].input.city));
    return toolCalls[0].input;
  },
  async tools_stream(door) {
    const result = streamText({ ...asked(door), ...LONGER, tools: WEATHER, toolChoice: 'required' });
    await result.consumeStream();
    const [call] = await result.toolCalls;
    assert.ok(CITIES.includes(call.input.city));
    return call.input;
  },
});
