// A webhook receiver in Node.js, using only its standard library.
//
//     WEBHOOK_SECRET=whsec_… PORT=8443 TLS_CERT=cert.pem TLS_KEY=key.pem node receiver.mjs

import { createHmac, timingSafeEqual } from "node:crypto";
import { readFileSync } from "node:fs";
import http from "node:http";
import https from "node:https";

const { WEBHOOK_SECRET: secret, HOST = "127.0.0.1", PORT = "8443", TLS_CERT, TLS_KEY } = process.env;
const MAX_BODY = 256 * 1024; // bytes; an event has a few hundred
const MAX_WAITING = 1_000; // events that are accepted but not yet processed
const MAX_REMEMBERED = 10_000; // event ids

if (!secret) {
  console.error("set WEBHOOK_SECRET to the secret of the webhook");
  process.exit(1);
}

const waiting = [];
// In memory only. To survive a restart, insert the id into a table with a unique index, in the transaction that does the work.
const seen = new Set();

// Checks the raw bytes: JSON that is parsed and serialised again has different bytes. timingSafeEqual compares in constant time,
// so a signature cannot be guessed byte by byte.
function isAuthentic(body, signature = "") {
  const expected = Buffer.from(createHmac("sha256", secret).update(body).digest("hex"));
  const actual = Buffer.from(signature);
  return actual.length === expected.length && timingSafeEqual(actual, expected);
}

// Queues an event unless it has been seen before; false if the queue is full. Every event arrives at least once, sometimes twice.
function accept(event) {
  if (seen.has(event.id)) return true;
  if (waiting.length >= MAX_WAITING) return false;
  seen.add(event.id);
  if (seen.size > MAX_REMEMBERED) seen.delete(seen.values().next().value); // a Set keeps insertion order, so this is the oldest
  if (waiting.push(event) === 1) setImmediate(work);
  return true;
}

// Processes accepted events, after the response has been sent.
async function work() {
  while (waiting.length > 0) {
    const event = waiting[0];
    console.log(`received ${event.type} ${event.id} for ${event.data.instance?.name ?? "-"}`);
    waiting.shift();
  }
}

// Reads the body; undefined if it is too long, in which case the rest is not read.
function read(request) {
  return new Promise((resolve, reject) => {
    if (Number(request.headers["content-length"] ?? 0) > MAX_BODY) return resolve(undefined);
    const parts = [];
    let length = 0;
    request.on("data", (part) => {
      length += part.length;
      if (length > MAX_BODY) {
        request.pause();
        resolve(undefined);
      } else {
        parts.push(part);
      }
    });
    request.on("end", () => resolve(Buffer.concat(parts)));
    request.on("error", reject);
  });
}

async function handle(request) {
  if (request.method !== "POST") return 405;
  const body = await read(request);
  if (body === undefined) return 413;
  if (!isAuthentic(body, request.headers["x-service-signature"])) return 401;
  const event = JSON.parse(body);
  // The signature covers only the body: without this check, an old event with another id in the header would pass as new.
  if (event.id !== request.headers["x-service-event-id"]) return 401;
  // The queue is full. Any response other than 2xx makes the sender try again later.
  return accept(event) ? 200 : 503;
}

async function listener(request, response) {
  const status = await handle(request).catch(() => 400);
  // Unread bytes would be taken for the next request on this connection.
  if (!request.complete) response.setHeader("Connection", "close");
  response.writeHead(status).end();
}

const options = { requestTimeout: 10_000, headersTimeout: 10_000 };
const server = TLS_CERT
  ? https.createServer({ ...options, cert: readFileSync(TLS_CERT), key: readFileSync(TLS_KEY) }, listener)
  : http.createServer(options, listener);
server.listen(Number(PORT), HOST, () => {
  console.log(`listening on ${TLS_CERT ? "https" : "http"}://${HOST}:${server.address().port}/`);
});

// Accept no more connections, answer the requests in progress, and process what was accepted; then the process exits.
for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => server.close());
