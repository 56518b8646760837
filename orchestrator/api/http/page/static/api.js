// The HTTP door as a page sees it: JSON in, JSON or server-sent events out.

const KEY = "specgate-key";
const kept = { key: "" };

/** The visitor's key: for this tab, or for this page where the browser keeps nothing. */
export const key = {
  get: () => kept.key || attempt(() => sessionStorage.getItem(KEY)) || "",
  set(value) {
    kept.key = value;
    attempt(() => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)));
  },
};

/** Return what `use` of the browser's storage returns, and null where there is none. */
export function attempt(use) {
  try {
    return use();
  } catch {
    return null;
  }
}

/** What the server refused, or what broke a stream. `status` is 0 where no answer came. */
export class ApiError extends Error {
  constructor(message, { status = 0, retryAfterS = null } = {}) {
    super(message);
    this.status = status;
    this.retryAfterS = retryAfterS;
  }
}

/** Return the JSON at `path`. Throws ApiError. */
export async function get(path) {
  return (await ask(path, {})).json();
}

/** Yield the events of an answer: parsed data, or null where the server says that it has nothing to say yet. */
export async function* stream(path, body, signal) {
  const response = await ask(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true }),
    signal,
  });
  for await (const block of blocks(response.body)) {
    const data = block.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
    if (!data.length) {
      yield null;
      continue;
    }
    if (data[0] === "[DONE]") return;
    const event = JSON.parse(data.join("\n"));
    if (event.error) throw new ApiError(event.error.message);
    yield event;
  }
  throw new ApiError("The connection ended before the answer did.");
}

async function* blocks(body) {
  const decoder = new TextDecoder();
  const reader = body.getReader();
  let held = "";
  try {
    for (;;) {
      const { done, value } = await broken(reader.read());
      if (done) return;
      held += decoder.decode(value, { stream: true });
      const parts = held.split(/\r?\n\r?\n/);
      held = parts.pop();
      yield* parts;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

async function ask(path, options) {
  const shown = key.get();
  const headers = { ...options.headers, ...(shown && { authorization: `Bearer ${shown}` }) };
  const response = await broken(fetch(path, { ...options, headers }));
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  const message = told.error?.message ?? `the server answered ${response.status}`;
  const after = response.headers.get("retry-after");
  throw new ApiError(message, { status: response.status, retryAfterS: after === null ? null : Number(after) });
}

async function broken(promise) {
  try {
    return await promise;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached, or the connection broke.");
  }
}
