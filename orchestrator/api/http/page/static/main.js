// The form, the turns of a talk, and what a visitor may do with them.

import { ApiError, attempt, get, key } from "./api.js";
import { Run, raceLine, tellDrafting } from "./run.js";
import { Strips } from "./strips.js";
import { SHORT, SOURCES } from "./words.js";

const $ = (id) => document.getElementById(id);
const EXAMPLE = 'def mean(values):\n    """Return the mean of values."""\n';
const PATHS = { text: "/v1/completions", chat: "/v1/chat/completions" };

const READINESS_EVERY_MS = 15_000;

let model = "";
let messages = [];
let running = null;
const strips = new Strips($("strips"));

const mode = () => document.querySelector("input[name=mode]:checked").value;

function showRounds(answer) {
  strips.draw(answer);
  tellDrafting($("why"), answer);
}

/** Return the fields that the settings name; what is left empty is the server's. */
function settings() {
  const said = [...document.querySelectorAll("#settings [name]")].filter((field) => field.value !== "");
  return Object.fromEntries(said.map(({ name, type, value }) => [name, type === "number" ? Number(value) : value]));
}

function bodyOf(prompt) {
  const extras = { return_sources: true, return_rounds: true, stream_options: { include_usage: true } };
  // One of our own: a number of JavaScript does not hold every seed that a server draws.
  const seed = Math.floor(Math.random() * 2 ** 32);
  const shared = { model, seed, ...settings(), ...extras };
  if (mode() === "text") return { ...shared, prompt, logprobs: 0 };
  return { ...shared, messages: [...messages, { role: "user", content: prompt }], logprobs: true };
}

/** Return the same question, seed included, to the target alone. */
function alone({ gate, gate_threshold, draft_threshold, ...body }) {
  return { ...body, gamma: 0 };
}

async function generate() {
  const prompt = $("prompt").value;
  if (running || !prompt) return;
  const talk = messages;
  const race = $("race").value;
  const body = bodyOf(prompt);
  const path = PATHS[mode()];
  const turn = newTurn(prompt);
  const run = new Run(turn.panels, "With drafts", showRounds);
  const rival = race ? new Run(turn.panels, "Target alone") : null;
  const isKept = await whileRunning(turn, async (signal) => {
    const first = run.go(path, body, signal);
    if (race !== "both") await first;
    await Promise.all([first, rival?.go(path, alone(body), signal)]);
    if (rival) turn.conclude(run, rival);
  });
  // After Clear it is another talk.
  if (isKept && talk === messages && path === PATHS.chat && run.answer.text) keepMessages(prompt, run.answer.text);
}

/**
 * Run `work`, with a way to stop it, and say above the turn's texts what broke it. Return whether it ended, or was
 * stopped: what broke is asked once more, and would then be in the talk twice.
 */
async function whileRunning(turn, work) {
  running = new AbortController();
  $("send").disabled = true;
  $("stop").disabled = false;
  try {
    await work(running.signal);
    state("ready");
    return true;
  } catch (error) {
    running.abort();
    turn.fail(error);
    return error.name === "AbortError";
  } finally {
    running = null;
    $("send").disabled = false;
    $("stop").disabled = true;
  }
}

function keepMessages(prompt, text) {
  messages.push({ role: "user", content: prompt }, { role: "assistant", content: text });
  // What was written meanwhile is the next question.
  if ($("prompt").value === prompt) $("prompt").value = "";
}

function newTurn(prompt) {
  const element = $("turn").content.cloneNode(true).firstElementChild;
  $("log").prepend(element);
  element.querySelector(".said").textContent = prompt;
  element.scrollIntoView({ block: "nearest" });
  const outcome = element.querySelector(".outcome");
  return {
    panels: element.querySelector(".panels"),
    conclude(run, rival) {
      outcome.textContent = `${raceLine(run.answer, rival.answer)} `;
      const again = outcome.appendChild(document.createElement("button"));
      again.type = "button";
      again.textContent = "Play both again, side by side";
      again.addEventListener("click", async () => {
        again.disabled = true;
        await Promise.all([run, rival].map(({ view, answer }) => view.replay(answer.tokens)));
        again.disabled = false;
      });
    },
    fail: (error) => told(outcome, error),
  };
}

function told(outcome, error) {
  outcome.classList.add("bad");
  if (error.status === 503) state("no verifier", true);
  if (error.name === "AbortError") {
    outcome.textContent = "Stopped.";
  } else if (!(error instanceof ApiError)) {
    outcome.textContent = `The page failed: ${error.message}`;
    throw error;
  } else if (error.status === 401 || error.status === 403) {
    outcome.textContent = error.message;
    askForKey(error.message);
  } else if (error.retryAfterS !== null) {
    countDown(outcome, error);
  } else {
    outcome.textContent = error.message;
  }
}

/** Say when it is worth another try, and then offer it. */
function countDown(outcome, error) {
  let leftS = Math.ceil(error.retryAfterS);
  outcome.textContent = error.message;
  const left = outcome.appendChild(document.createElement("span"));
  // Read aloud is the message, not each second.
  left.setAttribute("aria-hidden", "true");
  const show = () => {
    left.textContent = `Try again in ${leftS} s.`;
    if (leftS-- > 0) return;
    clearInterval(timer);
    const again = document.createElement("button");
    again.type = "button";
    again.textContent = "Try again";
    again.addEventListener("click", () => {
      if (running) return;
      again.remove();
      $("composer").requestSubmit();
    });
    left.replaceWith(again);
  };
  const timer = setInterval(show, 1000);
  show();
}

function askForKey(why) {
  if (why) $("key-why").textContent = `${why} The key is kept until this tab is closed.`;
  $("key").value = key.get();
  if (!$("key-dialog").open) $("key-dialog").showModal();
}

async function connect({ isRetry = false } = {}) {
  const isFirst = !model;
  try {
    const [one] = (await get("/v1/models")).data;
    model = one.id;
    $("model").textContent = `${one.id} · context ${one.max_model_len} tokens`;
    const { chat_template: template } = await get("/tokenizer_info").catch(() => ({}));
    const canChat = Boolean(template);
    document.querySelector("input[value=chat]").disabled = !canChat;
    if (isFirst) document.querySelector(`input[value=${canChat ? "chat" : "text"}]`).checked = true;
    if (!canChat && !$("prompt").value) $("prompt").value = EXAMPLE;
    await showReadiness();
  } catch (error) {
    const needsKey = error.status === 401 || error.status === 403;
    state(needsKey ? "needs a key" : "not reached", true);
    if (needsKey && !isRetry) askForKey(error.message);
  }
}

async function showReadiness() {
  try {
    await get("/readyz");
    state("ready");
  } catch (error) {
    state(error.status === 503 ? "no verifier" : "not reached", true);
  }
}

function state(text, isBad = false) {
  // What is written is read aloud, also where it says the same.
  if ($("state").textContent === text) return;
  $("state").textContent = text;
  $("state").classList.toggle("bad", isBad);
}

function useTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = `Theme: ${theme}`;
  attempt(() => localStorage.setItem("specgate-theme", theme));
}

function showLegend() {
  for (const [source, words] of Object.entries(SHORT)) {
    const item = $("legend").appendChild(document.createElement("li"));
    const sample = item.appendChild(document.createElement("span"));
    sample.className = `t ${source}`;
    sample.textContent = words;
    sample.title = SOURCES[source];
  }
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  generate();
});
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", () => {
  running?.abort();
  messages = [];
  $("log").replaceChildren();
});
document.addEventListener("keydown", (event) => {
  if ($("key-dialog").open) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("composer").requestSubmit();
  if (event.key === "Escape") running?.abort();
});
$("theme").addEventListener("click", () => {
  const order = ["auto", "dark", "light"];
  useTheme(order[(order.indexOf(document.documentElement.dataset.theme) + 1) % order.length]);
});
$("key-open").addEventListener("click", () => askForKey());
$("key-cancel").addEventListener("click", () => $("key-dialog").close());
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set($("key").value.trim());
  $("key-dialog").close();
  connect();
});

useTheme(attempt(() => localStorage.getItem("specgate-theme")) ?? "auto");
showLegend();
$("settings").addEventListener("invalid", () => ($("settings").open = true), true);
connect();
setInterval(() => document.hidden || (model ? showReadiness() : connect({ isRetry: true })), READINESS_EVERY_MS);
