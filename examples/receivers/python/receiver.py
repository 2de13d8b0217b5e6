#!/usr/bin/env python3
"""A receiver of webhooks in Python, with nothing but the standard library.

    WEBHOOK_SECRET=whsec_… PORT=8443 TLS_CERT=cert.pem TLS_KEY=key.pem python3 receiver.py
"""

import hashlib
import hmac
import json
import os
import queue
import signal
import ssl
import sys
import threading
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = os.environ.get("WEBHOOK_SECRET", "").encode()
MAX_BODY = 256 * 1024  # bytes; an event has a few hundred
MAX_WAITING = 1_000  # events that are accepted, but not processed yet
MAX_REMEMBERED = 10_000  # ids of events

waiting: queue.Queue = queue.Queue(MAX_WAITING)
# Lost with the process. The durable way: insert the id into a table where it is unique, in the transaction that does the work.
seen: OrderedDict[str, None] = OrderedDict()
seen_lock = threading.Lock()


def is_authentic(body: bytes, signature: str) -> bool:
    """Over the bytes as they came: parsed and written again they would be others. compare_digest takes as long for a wrong
    signature as for a right one, so that nobody can find it byte by byte."""
    expected = hmac.new(SECRET, body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected.encode(), signature.encode("latin-1"))


def accept(event: dict) -> bool:
    """Puts an event into the queue, once; False if there is no room. Every event comes at least once, and sometimes again."""
    with seen_lock:
        if event["id"] in seen:
            return True
        try:
            waiting.put_nowait(event)
        except queue.Full:
            return False
        seen[event["id"]] = None
        if len(seen) > MAX_REMEMBERED:
            seen.popitem(last=False)
        return True


def work() -> None:
    """Processes what was accepted, until None comes."""
    while (event := waiting.get()) is not None:
        instance = event["data"].get("instance") or {}
        print(f"received {event['type']} {event['id']} for {instance.get('name', '-')}", flush=True)


class Receiver(BaseHTTPRequestHandler):
    timeout = 10  # seconds without a byte: who is that slow must not keep a thread

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            return self.answer(411)
        if int(length) > MAX_BODY:
            return self.answer(413)
        body = self.rfile.read(int(length))
        if not is_authentic(body, self.headers.get("X-Service-Signature", "")):
            return self.answer(401)
        event = json.loads(body)
        # The signature covers the body alone: with another id in the header an old event would pass for a new one.
        if event["id"] != self.headers.get("X-Service-Event-ID"):
            return self.answer(401)
        # Full: any answer but 2xx makes the sender come again later.
        self.answer(200 if accept(event) else 503)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_) -> None:
        pass


def main() -> None:
    if not SECRET:
        sys.exit("set WEBHOOK_SECRET to the secret of the webhook")
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8443"))), Receiver)
    scheme = "http"
    if certificate := os.environ.get("TLS_CERT"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, os.environ["TLS_KEY"])
        # Shakes hands in the thread of the connection, not in the one that accepts all of them.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        scheme = "https"
    server.daemon_threads = False  # the end waits for requests that are under way

    def stop(*_) -> None:
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    worker = threading.Thread(target=work)
    worker.start()
    print(f"listening on {scheme}://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()
    server.server_close()
    waiting.put(None)
    worker.join()


if __name__ == "__main__":
    main()
