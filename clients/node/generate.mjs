// Streams one generation: node generate.mjs --server 127.0.0.1:8001 --max-tokens 64 --temperature 0 "def fib("
// Leaves with 0, 1 for a failure, 2 for a wrong command line, 130 after Ctrl-C.
import { fileURLToPath } from 'node:url';
import { loadPackageDefinition, status } from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import { Display } from './display.mjs';
import { describe } from './errors.mjs';
import { callOptionsOf, channelOf, metadataOf, parse, requestOf, USAGE } from './options.mjs';

const PROTOS = fileURLToPath(new URL('../../protos', import.meta.url));

/** Return a client of GenerationService, made from the protos as they are: no generated code. */
function connect(server, [credentials, options]) {
  const definition = loadSync('specgate/v1/generation_service.proto', {
    includeDirs: [PROTOS],
    keepCase: true,
    longs: String,
    enums: String,
    defaults: true,
  });
  const { GenerationService } = loadPackageDefinition(definition).specgate.v1;
  return new GenerationService(server, credentials, options);
}

/** Show the deltas of a call as they come; return the exit code. */
async function show(call, display) {
  try {
    for await (const delta of call) display.show(delta);
    return 0;
  } catch (error) {
    display.showRest();
    const interrupted = error.code === status.CANCELLED;
    console.error(`\n${interrupted ? 'cancelled' : describe(error)}`);
    return interrupted ? 130 : 1;
  }
}

async function main(args) {
  let asked, client, call;
  try {
    asked = parse(args);
    if (asked.values.help) return console.log(USAGE) ?? 0;
    client = connect(asked.values.server, channelOf(asked));
    call = client.GenerateStream(requestOf(asked), metadataOf(process.env), callOptionsOf(asked));
  } catch (error) {
    console.error(`generate: ${error.message}\n\n${USAGE}`);
    return 2;
  }
  // The server frees both sessions as soon as it hears of it.
  process.once('SIGINT', () => call.cancel());
  // Whoever read our output has left.
  process.stdout.on('error', () => call.cancel());
  const { 'token-ids': ids, n } = asked.values;
  const code = await show(call, new Display(process.stdout, { ids, several: n > 1 }));
  client.close();
  return code;
}

process.exitCode = await main(process.argv.slice(2));
