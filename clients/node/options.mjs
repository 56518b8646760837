// The command line: what to ask, and of whom.
import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { Metadata, credentials } from '@grpc/grpc-js';

export const USAGE = `usage: node generate.mjs [flags] "PROMPT"

  --server HOST:PORT       address of the gRPC API (127.0.0.1:8001)
  --max-tokens N           the most tokens to emit
  --min-tokens N           the fewest, before anything but the limit may end the text
  --temperature T          0 is greedy; the server's default is 1
  --top-k N, --top-p P     keep the likeliest tokens
  --seed N                 the same seed gives the same text
  --stop TEXT              end before this text; repeatable
  --n N                    so many choices, shown one after the other
  --json-schema FILE       the answer is JSON that this schema takes
  --regex PATTERN          the whole answer matches this pattern
  --gamma N                draft tokens a round, under the gate auto at the most; 0 is the target alone
  --chat                   PROMPT is what a user says; the target's chat template puts it in its words
  --token-ids              print token ids, each in the colour of its own source, and take the prompt as ids
  --timeout S              give up after so many seconds
  --tls                    encrypt, trusting the system's roots; implied by the flags below
  --tls-ca FILE            who signed the server's certificate
  --tls-certificate FILE, --tls-key FILE
                           show a certificate of our own
  --tls-server-name NAME   the name in the server's certificate, where it is not HOST

The variable SPECGATE_KEY holds the key, where the server asks for one.`;

const string = { type: 'string' };
const flags = {
  server: { ...string, default: '127.0.0.1:8001' },
  'max-tokens': string,
  'min-tokens': string,
  temperature: string,
  'top-k': string,
  'top-p': string,
  seed: string,
  stop: { ...string, multiple: true, default: [] },
  n: string,
  'json-schema': string,
  regex: string,
  gamma: string,
  chat: { type: 'boolean' },
  'token-ids': { type: 'boolean' },
  timeout: string,
  tls: { type: 'boolean' },
  'tls-ca': string,
  'tls-certificate': string,
  'tls-key': string,
  'tls-server-name': string,
  help: { type: 'boolean' },
};

/** Return { values, prompt } of a command line; throws an Error that says what is wrong. */
export function parse(args) {
  const { values, positionals } = parseArgs({ args, options: flags, allowPositionals: true });
  if (!values.help && positionals.length !== 1) throw new Error('give one PROMPT');
  return { values, prompt: positionals[0] };
}

/** Return the GenerateStreamRequest, as proto-loader takes it. What is not said is left out: the server's default. */
export function requestOf({ values, prompt }) {
  const sampling = {
    temperature: number(values, 'temperature'),
    top_k: whole(values, 'top-k'),
    top_p: number(values, 'top-p'),
  };
  const params = {
    sampling: said(sampling),
    max_tokens: whole(values, 'max-tokens'),
    min_tokens: whole(values, 'min-tokens'),
    seed: whole(values, 'seed', 64),
    n: whole(values, 'n'),
    gamma: whole(values, 'gamma'),
    stop: values.stop,
    grammar: grammarOf(values),
  };
  return { ...promptOf(values, prompt), params: said(params) };
}

function promptOf({ chat, 'token-ids': ids }, prompt) {
  if (chat && ids) throw new Error('give one of --chat and --token-ids');
  if (chat) return { chat: { messages: [{ role: 'user', content: prompt }] } };
  return ids ? { token_ids: { ids: idsOf(prompt) } } : { text: prompt };
}

/** Return the call's metadata: the key in SPECGATE_KEY, where there is one. */
export function metadataOf({ SPECGATE_KEY: key }) {
  const metadata = new Metadata();
  if (key) metadata.set('authorization', `Bearer ${key}`);
  return metadata;
}

/** Return the call's options: a deadline where a timeout is given. */
export function callOptionsOf({ values }) {
  const seconds = number(values, 'timeout');
  if (seconds === undefined) return {};
  if (!(seconds > 0 && seconds <= 1e6)) throw new Error(`--timeout: ${seconds} is outside (0, 1000000] seconds`);
  return { deadline: Date.now() + seconds * 1000 };
}

/** Return [credentials, channel options]. */
export function channelOf({ values }) {
  const files = ['tls-ca', 'tls-key', 'tls-certificate'].map((name) => values[name] && readFileSync(values[name]));
  const name = values['tls-server-name'];
  if (!values.tls && !name && !files.some(Boolean)) return [credentials.createInsecure(), {}];
  return [credentials.createSsl(...files.map((file) => file ?? null)), name ? { 'grpc.ssl_target_name_override': name } : {}];
}

function number(values, name) {
  if (values[name] === undefined) return undefined;
  const value = Number(values[name]);
  if (values[name].trim() === '' || Number.isNaN(value)) throw new Error(`--${name}: '${values[name]}' is no number`);
  return value;
}

/** Return a whole number's own text, which protobuf takes: 64 bits are more than a JavaScript number holds. */
function whole(values, name, bits = 32) {
  return values[name] === undefined ? undefined : wholeText(values[name], `--${name}`, bits);
}

function wholeText(text, name, bits) {
  // Else protobuf.js would cut it to its bits.
  const fits = /^\d+$/.test(text) && BigInt(text) >> BigInt(bits) === 0n;
  if (!fits) throw new Error(`${name}: '${text}' is no whole number of ${bits} bits`);
  return text;
}

function idsOf(prompt) {
  return prompt.split(/[\s,]+/).filter(Boolean).map((id) => wholeText(id, 'PROMPT', 32));
}

function grammarOf({ 'json-schema': file, regex }) {
  if (file !== undefined && regex !== undefined) throw new Error('give one of --json-schema and --regex');
  if (file !== undefined) return { json_schema: readFileSync(file, 'utf8') };
  return regex === undefined ? undefined : { regex };
}

function said(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}
