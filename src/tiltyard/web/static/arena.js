// Makes the arena's pages lively: streaming, keys, copying. Every page works without it.
// It never builds HTML from an answer: the server renders and sanitises what was said so far, and what is shown at
// the end is the server's own page.

const battle = document.querySelector("[data-battle]");
const announcer = document.getElementById("announce");

const policy = window.trustedTypes?.createPolicy("tiltyard", { createHTML: (html) => html });
const fromServer = (html) => policy?.createHTML(html) ?? html;

const announce = (words) => {
  if (announcer) announcer.textContent = words;
};

// ---- errors beside the form ------------------------------------------------------------------------------

function showError(words) {
  const place = document.getElementById("form-error");
  if (!place) return announce(words);
  place.textContent = words;
  place.hidden = !words;
}

async function explain(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}

// ---- the answers as they come ----------------------------------------------------------------------------

const pane = (side) => [...document.querySelectorAll(`[data-stream="${side}"]`)].at(-1);

function watch() {
  const source = new EventSource(`/api/arena/battles/${battle.dataset.battle}/events?as=html`);
  source.addEventListener("turn", () => {
    for (const side of ["a", "b"]) pane(side)?.replaceChildren();
  });
  source.addEventListener("html", (event) => {
    const { side, html } = JSON.parse(event.data);
    const place = pane(side);
    if (place) place.innerHTML = fromServer(html);
  });
  source.addEventListener("done", (event) => {
    const { side, trouble } = JSON.parse(event.data);
    const place = [...document.querySelectorAll(`[data-trouble="${side}"]`)].at(-1);
    if (trouble && place) {
      place.textContent = trouble;
      place.hidden = false;
    }
  });
  source.addEventListener("settled", async (event) => {
    source.close();
    await refresh();
    announce(JSON.parse(event.data).can_vote ? "Both answers are complete. You can vote now." : "One side gave no answer.");
  });
  source.addEventListener("error", () => {
    showError(
      source.readyState === EventSource.CLOSED
        ? "The server no longer knows this stream. Reload the page."
        : "The connection was lost. Trying again; the answers are still being written on the server.",
    );
  });
  source.addEventListener("open", () => showError(""));
}

// Replace what the server renders anew, and leave alone what the voter is typing.
async function refresh() {
  let page;
  try {
    const response = await fetch(window.location.pathname, { headers: { accept: "text/html" } });
    if (!response.ok) return showError("The server no longer shows this battle. Reload the page.");
    page = new DOMParser().parseFromString(fromServer(await response.text()), "text/html");
  } catch {
    return showError("The connection was lost. Reload the page.");
  }
  for (const old of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(old.id);
    if (fresh) old.replaceWith(document.adoptNode(fresh));
  }
  document.title = page.title;
  battle.dataset.running = page.querySelector("[data-battle]")?.dataset.running ?? "false";
  document.getElementById("go-on").className = page.getElementById("go-on")?.className ?? "";
  count(); // its place is new
  addCodeCopies();
}

// ---- forms -------------------------------------------------------------------------------------------------

let sending = false; // stays true while the browser leaves for the next page: no vote or question goes out twice

function setSending(now) {
  sending = now;
  document.body.classList.toggle("sending", now);
}
window.addEventListener("pageshow", () => setSending(false)); // back by the browser's own button

async function send(form, button) {
  if (sending) return;
  const refused = form === field?.form ? tooLong() : "";
  if (refused) return showError(refused);
  const fields = new URLSearchParams(new FormData(form, button));
  setSending(true);
  showError("");
  try {
    const response = await fetch(form.action, { method: "POST", body: fields, headers: { accept: "application/json" } });
    if (response.ok && form.dataset.send !== "quietly") return window.location.assign(response.url);
    if (!response.ok) showError(await explain(response)); // otherwise the stream tells the rest
  } catch {
    showError("The server did not answer. Is tiltyard still running? Your text is still here; try again.");
  }
  setSending(false);
}

document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-send]")) return;
  event.preventDefault();
  send(event.target, event.submitter);
});

const field = document.getElementById("message");
field?.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    const button = field.form.querySelector("[type=submit]");
    if (!button.disabled) field.form.requestSubmit(button);
  } else if (event.key === "Escape") {
    field.blur(); // the keys of the vote work again
  }
});

// The field takes a text of any length: one that was cut by the browser would go out unseen.
const limit = Number(field?.dataset.limit);
const length = () => [...field.value.trim()].length; // as the server counts
const inWords = (number) => number.toLocaleString("en");

function tooLong() {
  if (length() <= limit) return "";
  return `The message has ${inWords(length())} characters; the arena takes ${inWords(limit)}. Shorten it.`;
}

function count() {
  const counter = document.querySelector("[data-counter]");
  if (!counter || !field) return;
  const left = limit - length();
  counter.hidden = left > limit / 5;
  counter.textContent = left < 0 ? `${inWords(-left)} too many` : `${inWords(left)} left`;
  counter.classList.toggle("over", left < 0);
  showError(tooLong());
}
field?.addEventListener("input", count);

document.addEventListener("click", (event) => {
  const example = event.target.closest("[data-example]");
  if (!example || !field) return;
  event.preventDefault(); // without scripts an example is asked at once; with them it can be edited first
  field.value = example.textContent.trim();
  field.focus();
  count();
});

// ---- keys ----------------------------------------------------------------------------------------------------

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (event.target.closest("textarea, input, select, [contenteditable]")) return;
  // a scrolled code block or table takes the arrows itself
  if (event.key.startsWith("Arrow") && event.target.closest("pre, .table-scroll")) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  for (const target of document.querySelectorAll("[data-key]")) {
    if (target.dataset.key.split(" ").includes(key) && !target.disabled) {
      event.preventDefault();
      target.click();
      return;
    }
  }
});

// ---- copying -------------------------------------------------------------------------------------------------

function addCodeCopies() {
  for (const block of document.querySelectorAll(".code-block:not(:has(.copy))")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy this code");
    block.append(button);
  }
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest(".copy");
  if (!button) return;
  const text = button.dataset.copy ?? button.closest(".code-block")?.querySelector("code")?.textContent ?? "";
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copying is blocked";
  }
  setTimeout(() => {
    button.textContent = "Copy";
  }, 1600);
});

// ---- start ---------------------------------------------------------------------------------------------------

addCodeCopies();
if (battle) {
  const turns = battle.querySelectorAll(".turn");
  if (battle.dataset.running === "true") {
    if (turns.length > 1) turns[turns.length - 1].scrollIntoView({ block: "start" });
    watch();
  }
} else {
  field?.focus();
}
document.getElementById("verdict")?.focus({ preventScroll: true });
