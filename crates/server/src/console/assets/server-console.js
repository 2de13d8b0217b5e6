// The console of a server: its serial line in xterm.js, or its screen in noVNC.
const form = document.getElementById("server-console-form");
const place = document.getElementById("server-console");
const state = document.getElementById("server-console-state");
const message = document.getElementById("server-console-message");
const connect = document.getElementById("server-console-connect");
const paste = document.getElementById("server-console-paste");
const full = document.getElementById("server-console-full");
const keys = document.getElementById("server-console-keys");
const type = form.dataset.type;

// xterm.js makes <style> elements; the policy of the page takes those with its nonce.
const nonce = document.getElementById("server-console-script").nonce;
const createElement = document.createElement.bind(document);
document.createElement = (name, options) => {
  const element = createElement(name, options);
  if (name === "style") element.nonce = nonce;
  return element;
};
const library = import(document.getElementById("server-console-library").href);

// How often, and after how many seconds, a connection that was lost is opened again without being asked.
const RETRIES = [1, 2, 4, 8, 15];
let retries = 0;
let timer = null;
let socket = null;

const tell = (word, tone, text) => {
  state.textContent = word;
  state.className = `badge ${tone}`;
  message.textContent = text ?? "";
};

// What shows the server, and takes keys for it.
const serial = async () => {
  const { Terminal } = await library;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => (dark.matches
    ? { background: "#0b0f14", foreground: "#e6eaee", cursor: "#83bff5", selectionBackground: "#2c4a66" }
    : { background: "#ffffff", foreground: "#16202b", cursor: "#0f5ea8", selectionBackground: "#bcd9f2", black: "#16202b", brightBlack: "#55616e",
        red: "#a81c24", green: "#116a3a", yellow: "#7a4b00", blue: "#0f5ea8", magenta: "#7b2a8a", cyan: "#0b6472", white: "#55616e",
        brightRed: "#a81c24", brightGreen: "#116a3a", brightYellow: "#7a4b00", brightBlue: "#0f5ea8", brightMagenta: "#7b2a8a",
        brightCyan: "#0b6472", brightWhite: "#16202b" });
  const COLUMNS = 80;
  // A character is some 0.6 times as wide as it is high.
  const size = () => Math.max(9, Math.min(document.fullscreenElement ? 26 : 15, Math.floor(place.clientWidth / COLUMNS / 0.61)));
  const terminal = new Terminal({
    // A serial line does not know how large a terminal is: guests take 80 by 24 for granted.
    cols: COLUMNS, rows: 24, scrollback: 5000, cursorBlink: false, fontSize: size(), theme: theme(),
    fontFamily: "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace",
  });
  terminal.open(place);
  // The keys of screen readers and of Tab belong to the guest; this is the way out.
  terminal.attachCustomKeyEventHandler((event) => !leaves(event));
  dark.addEventListener("change", () => { terminal.options.theme = theme(); });
  new ResizeObserver(() => { terminal.options.fontSize = size(); }).observe(place);
  const encoder = new TextEncoder();
  const send = (bytes) => { if (socket?.readyState === WebSocket.OPEN) socket.send(bytes); };
  terminal.onData((text) => send(encoder.encode(text)));
  terminal.onBinary((text) => send(Uint8Array.from(text, (c) => c.charCodeAt(0))));
  let before = false;
  return {
    attach(socket) {
      if (before) terminal.write("\r\n---- connected again ----\r\n");
      before = true;
      socket.addEventListener("message", (event) => terminal.write(new Uint8Array(event.data)));
      socket.addEventListener("open", () => terminal.focus());
    },
    detach() {},
    paste: (text) => { terminal.paste(text); terminal.focus(); },
  };
};

const screen = async () => {
  const { default: RFB } = await library;
  let rfb = null;
  place.addEventListener("keydown", (event) => { if (leaves(event)) event.stopImmediatePropagation(); }, true);
  return {
    attach(socket) {
      const made = new RFB(place, socket);
      rfb = made;
      made.scaleViewport = true;
      made.background = "transparent";
      made.addEventListener("connect", () => made.focus());
      made.addEventListener("disconnect", () => { if (rfb === made) rfb = null; });
    },
    detach() {
      rfb?.disconnect();
      rfb = null;
    },
    // As keys: few guests have an agent that takes the clipboard.
    paste(text) {
      for (const character of text.replaceAll("\r\n", "\n")) {
        const code = character.codePointAt(0);
        const key = { "\n": 0xff0d, "\t": 0xff09 }[character] ?? (code < 0x100 ? code : 0x01000000 | code);
        rfb?.sendKey(key);
      }
      rfb?.focus();
    },
    ctrlAltDel: () => rfb?.sendCtrlAltDel(),
  };
};

// Ctrl+], as in the command line, leaves the console for the buttons.
const leaves = (event) => {
  if (event.type !== "keydown" || !event.ctrlKey || event.code !== "BracketRight") return false;
  event.preventDefault();
  connect.focus();
  return true;
};

const shown = type === "serial" ? serial() : screen();

const open = async () => {
  clearTimeout(timer);
  const console = await shown;
  if (socket) {
    const last = socket;
    socket = null;
    console.detach();
    last.close();
  }
  tell("connecting", "busy");
  let answer;
  try {
    answer = await fetch(form.action, { method: "POST", body: new URLSearchParams({ type }), redirect: "manual" });
  } catch {
    return lost("The service cannot be reached.");
  }
  // The session has ended: the page sends to the sign-in.
  if (answer.type === "opaqueredirect") return location.reload();
  const body = await answer.json().catch(() => null);
  if (!answer.ok || !body) return tell("closed", "bad", body?.error.message ?? "The service does not answer as expected.");
  const opened = new WebSocket(body.data.url);
  opened.binaryType = "arraybuffer";
  socket = opened;
  console.attach(opened);
  opened.addEventListener("open", () => {
    retries = 0;
    tell("connected", "good");
  });
  opened.addEventListener("close", (event) => {
    if (socket !== opened) return;
    socket = null;
    console.detach();
    // 1001: the gateway restarts; 1006: the connection broke.
    if (event.code === 1001 || event.code === 1006) return lost("The connection was lost.");
    const reason = event.reason || "the connection was closed";
    tell("closed", "quiet", `${reason[0].toUpperCase()}${reason.slice(1)}.`);
  });
};

const lost = (text) => {
  const after = RETRIES[retries];
  if (after === undefined) return tell("closed", "bad", text);
  retries += 1;
  tell("connecting", "busy", text);
  timer = setTimeout(open, after * 1000);
};

form.addEventListener("submit", (event) => {
  event.preventDefault();
  retries = 0;
  open();
});
full.addEventListener("click", () => place.requestFullscreen?.());
if (!navigator.clipboard?.readText) paste.hidden = true;
paste.addEventListener("click", async () => {
  try {
    const text = await navigator.clipboard.readText();
    (await shown).paste(text);
  } catch {
    message.textContent = "The browser does not give the clipboard to this page; paste with its own keys instead.";
  }
});
keys?.addEventListener("click", async () => (await shown).ctrlAltDel());
addEventListener("pagehide", () => socket?.close());
open();
