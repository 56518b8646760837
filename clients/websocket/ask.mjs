// Writes a completion as it comes: node clients/websocket/ask.mjs ws://127.0.0.1:8000/v1/stream "def fib("
// SPECGATE_KEY holds the key, if the server asks for one. Node 20 needs --experimental-websocket.
import { stream } from './stream.mjs';

const [url, prompt] = process.argv.slice(2);
try {
  for await (const event of stream(url, { prompt, max_tokens: 64 }, process.env.SPECGATE_KEY)) {
    process.stdout.write(event.choices[0].text);
  }
  process.stdout.write('\n');
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
