// One request over a WebSocket, in browsers and in Node 22: what they both have of WebSockets is all that it uses.

/**
 * Yield the events of a request's answer. Leaving the loop early frees what the server holds for it.
 *
 * url: such as ws://127.0.0.1:8000/v1/stream
 * body: that of /v1/completions or /v1/chat/completions
 * key: an API key, if the server asks for one
 */
export async function* stream(url, body, key) {
  // A page cannot set headers of a WebSocket, so the key is among the subprotocols. The server chooses the first one.
  const socket = new WebSocket(url, key ? ['specgate', `bearer.${key}`] : ['specgate']);
  const arrived = [];
  let wake = () => {};
  const take = (message) => (arrived.push(message), wake());
  socket.onopen = () => socket.send(JSON.stringify(body));
  socket.onmessage = ({ data }) => take(data);
  socket.onerror = socket.onclose = ({ code = 1006, reason = '' }) =>
    take(JSON.stringify({ error: { message: `closed: ${code} ${reason}` } }));
  try {
    for (;;) {
      while (!arrived.length) await new Promise((resolve) => (wake = resolve));
      const data = arrived.shift();
      if (data === '[DONE]') return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      if ('cancelled' in event) throw new Error('the server ended the request before its answer was complete');
      yield event;
    }
  } finally {
    socket.close();
  }
}
