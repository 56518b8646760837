// What the programs here share: cases by name, run one after the other, each told in a line of JSON (see programs/cases.py).
import assert from 'node:assert/strict';

export const PROMPT = 'def main():\n';
export const QUESTION = 'What is the capital of France?';
export const MESSAGES = [{ role: 'user', content: QUESTION }];
export const MAX_TOKENS = 16;
// Room for an object, where a tiny model puts as many blanks into it as it may.
export const OBJECT_TOKENS = 256;
export const KEY = 'none';
// Its only answer has characters of two, three and four bytes.
export const WIDE = { structured_outputs: { choice: ['naïve café, 日本語 🙂, done'] } };
export const CITIES = ['Paris', 'Rome'];
export const CITY_SCHEMA = {
  type: 'object',
  properties: { name: { type: 'string', enum: CITIES }, large: { type: 'boolean' } },
  required: ['name', 'large'],
  additionalProperties: false,
};
export const CITY_ARGUMENTS = {
  type: 'object',
  properties: { city: { type: 'string', enum: CITIES } },
  required: ['city'],
  additionalProperties: false,
};

export function checkCity(city) {
  assert.ok(CITIES.includes(city.name));
  assert.equal(typeof city.large, 'boolean');
  return city;
}

// MODEL URL CASE ... URL CASE ...
export async function main(cases) {
  const [model, ...rest] = process.argv.slice(2);
  let url = '';
  for (const argument of rest) {
    if (argument.startsWith('http:')) url = argument;
    else console.log(JSON.stringify({ case: argument, url, ...(await outcome(cases[argument], { url, model })) }));
  }
}

async function outcome(run, door) {
  try {
    return { value: await run(door) };
  } catch (error) {
    console.error(error);
    return { error: String(error) };
  }
}
