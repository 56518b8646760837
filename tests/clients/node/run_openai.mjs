// openai-node: completions, chats, structured output, responses, tools, refusals, a stream that is left.
import assert from 'node:assert/strict';
import OpenAI from 'openai';

import { checkCity, CITIES, CITY_ARGUMENTS, CITY_SCHEMA, KEY, main, MAX_TOKENS, MESSAGES, OBJECT_TOKENS, PROMPT, WIDE } from './cases.mjs';

const GREEDY = { max_tokens: MAX_TOKENS, temperature: 0 };
const ONE_CALL = { max_tokens: OBJECT_TOKENS, parallel_tool_calls: false };
const USAGE = { stream: true, stream_options: { include_usage: true } };
const FORMAT = { type: 'json_schema', json_schema: { name: 'city', schema: CITY_SCHEMA, strict: true } };
const TOOL = { type: 'function', function: { name: 'weather', parameters: CITY_ARGUMENTS } };

const connected = ({ url }) => new OpenAI({ baseURL: url, apiKey: KEY, maxRetries: 0, timeout: 120_000 });
const complete = (door, others) =>
  connected(door).completions.create({ model: door.model, prompt: PROMPT, ...GREEDY, ...others });
const chat = (door, others) =>
  connected(door).chat.completions.create({ model: door.model, messages: MESSAGES, ...GREEDY, ...others });

async function collected(stream, read) {
  let text = '';
  let usage = null;
  for await (const chunk of await stream) {
    for (const choice of chunk.choices) text += read(choice) ?? '';
    usage = chunk.usage ?? usage;
  }
  return { text, usage };
}

async function refusal(request, kind) {
  try {
    await request;
  } catch (error) {
    assert.ok(error instanceof kind, String(error));
    return error;
  }
  throw new Error('the door took it');
}

await main({
  async completion(door) {
    const answer = await complete(door);
    assert.ok(answer.usage.completion_tokens > 0);
    return answer.choices[0].text;
  },
  async completion_stream(door) {
    const { text, usage } = await collected(complete(door, USAGE), (choice) => choice.text);
    assert.ok(usage.completion_tokens > 0);
    return text;
  },
  async wide_completion_stream(door) {
    return (await collected(complete(door, { stream: true, max_tokens: 64, ...WIDE }), (choice) => choice.text)).text;
  },
  async list_of_prompts(door) {
    return (await complete(door, { prompt: [PROMPT, 'import '] })).choices.map((choice) => choice.text);
  },
  async several_choices(door) {
    const texts = (await complete(door, { n: 2, seed: 1, temperature: 1 })).choices.map((choice) => choice.text);
    assert.equal(new Set(texts).size, 2);
    return texts;
  },
  async logprobs(door) {
    const told = (await complete(door, { logprobs: 2 })).choices[0].logprobs;
    assert.equal(told.tokens.length, told.token_logprobs.length);
    return told.token_logprobs;
  },
  async echo(door) {
    const [choice] = (await complete(door, { echo: true, logprobs: 0 })).choices;
    assert.ok(choice.text.startsWith(PROMPT));
    assert.equal(choice.logprobs.token_logprobs[0], null);
    return choice.text;
  },
  async bad_request(door) {
    const error = await refusal(complete(door, { temperature: -1 }), OpenAI.BadRequestError);
    return [error.type, error.param];
  },
  async unknown_model(door) {
    const error = await refusal(complete({ ...door, model: 'another' }), OpenAI.NotFoundError);
    return [error.type, error.code];
  },
  async cancelled_stream(door) {
    const stream = await complete(door, { stream: true, max_tokens: 400, ignore_eos: true });
    let read = 0;
    for await (const _ of stream) if (++read === 2) break;
    assert.ok((await complete(door)).choices[0].text.length > 0);
    return read;
  },
  async chat_whole(door) {
    return (await chat(door)).choices[0].message.content;
  },
  async chat_stream(door) {
    const { text, usage } = await collected(chat(door, USAGE), (choice) => choice.delta.content);
    assert.ok(usage.completion_tokens > 0);
    return text;
  },
  async wide_chat_stream(door) {
    const stream = chat(door, { stream: true, max_tokens: 48, ...WIDE });
    return (await collected(stream, (choice) => choice.delta.content)).text;
  },
  async parsed(door) {
    const settings = { model: door.model, messages: MESSAGES, temperature: 0, max_tokens: OBJECT_TOKENS, response_format: FORMAT };
    const answer = await connected(door).chat.completions.parse(settings);
    return checkCity(answer.choices[0].message.parsed ?? JSON.parse(answer.choices[0].message.content));
  },
  async response(door) {
    const settings = { model: door.model, input: MESSAGES, temperature: 0, max_output_tokens: MAX_TOKENS };
    return (await connected(door).responses.create(settings)).output_text;
  },
  async response_stream(door) {
    const settings = { model: door.model, input: MESSAGES, temperature: 0, max_output_tokens: MAX_TOKENS, stream: true };
    let text = '';
    for await (const event of await connected(door).responses.create(settings))
      if (event.type === 'response.output_text.delta') text += event.delta;
    return text;
  },
  async tools(door) {
    for (const tool_choice of ['required', { type: 'function', function: { name: 'weather' } }]) {
      const [call] = (await chat(door, { tools: [TOOL], tool_choice, ...ONE_CALL })).choices[0].message.tool_calls;
      assert.equal(call.function.name, 'weather');
      assert.ok(CITIES.includes(JSON.parse(call.function.arguments).city));
    }
    const open = await chat(door, { tools: [TOOL], tool_choice: 'auto' });
    assert.ok(open.choices[0].finish_reason);
    return 'weather';
  },
  async tools_stream(door) {
    const stream = await chat(door, { tools: [TOOL], tool_choice: 'required', ...ONE_CALL, stream: true });
    let told = '';
    for await (const chunk of stream)
      for (const choice of chunk.choices)
        for (const call of choice.delta.tool_calls ?? []) told += call.function.arguments ?? '';
    return JSON.parse(told);
  },
});
