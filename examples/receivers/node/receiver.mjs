// A receiver of webhooks in Node.js, with nothing but its standard library.
//
//     WEBHOOK_SECRET=whsec_… PORT=8443 TLS_CERT=cert.pem TLS_KEY=key.pem node receiver.mjs

import { createHmac, timingSafeEqual } from "node:crypto";
import { readFileSync } from "node:fs";
import http from "node:http";
import https from "node:https";

const { WEBHOOK_SECRET: secret, PORT = "8443", TLS_CERT, TLS_KEY } = process.env;
const MAX_BODY = 256 * 1024; // bytes; an event has a few hundred
const MAX_WAITING = 1_000; // events that are accepted, but not processed yet
const MAX_REMEMBERED = 10_000; // ids of events

if (!secret) {
  console.error("set WEBHOOK_SECRET to the secret of the webhook");
  process.exit(1);
}

const waiting = [];
// Lost with the process. The durable way: insert the id into a table where it is unique, in the transaction that does the work.
const seen = new Set();

// Over the bytes as they came: parsed and written again they would be others. timingSafeEqual takes as long for a wrong
// signature as for a right one, so that nobody can find it byte by byte.
function isAuthentic(body, signature = "") {
  const expected = Buffer.from(createHmac("sha256", secret).update(body).digest("hex"));
  const actual = Buffer.from(signature);
  return actual.length === expected.length && timingSafeEqual(actual, expected);
}

// Puts an event into the queue, once; false if there is no room. Every event comes at least once, and sometimes again.
function accept(event) {
  if (seen.has(event.id)) return true;
  if (waiting.length >= MAX_WAITING) return false;
  seen.add(event.id);
  if (seen.size > MAX_REMEMBERED) seen.delete(seen.values().next().value); // a Set keeps the order: the oldest
  if (waiting.push(event) === 1) setImmediate(work);
  return true;
}

// Processes what was accepted, after the answer.
async function work() {
  while (waiting.length > 0) {
    const event = waiting[0];
    console.log(`received ${event.type} ${event.id} for ${event.data.instance?.name ?? "-"}`);
    waiting.shift();
  }
}

// The body, or undefined if it is too long: then the rest is not read.
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
  // The signature covers the body alone: with another id in the header an old event would pass for a new one.
  if (event.id !== request.headers["x-service-event-id"]) return 401;
  // Full: any answer but 2xx makes the sender come again later.
  return accept(event) ? 200 : 503;
}

async function listener(request, response) {
  const status = await handle(request).catch(() => 400);
  // What was not read is in the way of the next request on this connection.
  if (!request.complete) response.setHeader("Connection", "close");
  response.writeHead(status).end();
}

const options = { requestTimeout: 10_000, headersTimeout: 10_000 };
const server = TLS_CERT
  ? https.createServer({ ...options, cert: readFileSync(TLS_CERT), key: readFileSync(TLS_KEY) }, listener)
  : http.createServer(options, listener);
server.listen(Number(PORT), "127.0.0.1", () => {
  console.log(`listening on ${TLS_CERT ? "https" : "http"}://127.0.0.1:${server.address().port}/`);
});

// No new connections; requests that are under way are answered, and what was accepted is processed. Then nothing is left to
// wait for, and the process ends.
for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => server.close());
