#!/usr/bin/env python3
"""A webhook receiver in Python, using only the standard library.

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
MAX_WAITING = 1_000  # events that are accepted but not yet processed
MAX_REMEMBERED = 10_000  # event ids

waiting: queue.Queue = queue.Queue(MAX_WAITING)
# In memory only. To survive a restart, insert the id into a table with a unique index, in the transaction that does the work.
seen: OrderedDict[str, None] = OrderedDict()
seen_lock = threading.Lock()


def is_authentic(body: bytes, signature: str) -> bool:
    """Checks the raw bytes: JSON that is parsed and serialised again has different bytes. compare_digest compares in constant
    time, so a signature cannot be guessed byte by byte."""
    expected = hmac.new(SECRET, body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected.encode(), signature.encode("latin-1"))


def accept(event: dict) -> bool:
    """Queues an event unless it has been seen before; False if the queue is full. Every event arrives at least once,
    sometimes twice."""
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
    """Processes accepted events until it finds None in the queue."""
    while (event := waiting.get()) is not None:
        instance = event["data"].get("instance") or {}
        print(f"received {event['type']} {event['id']} for {instance.get('name', '-')}", flush=True)


class Receiver(BaseHTTPRequestHandler):
    timeout = 10  # seconds without a byte, so a slow client cannot hold a thread

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
        # The signature covers only the body: without this check, an old event with another id in the header would pass as new.
        if event["id"] != self.headers.get("X-Service-Event-ID"):
            return self.answer(401)
        # The queue is full. Any response other than 2xx makes the sender try again later.
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
    host = os.environ.get("HOST", "127.0.0.1")
    server = ThreadingHTTPServer((host, int(os.environ.get("PORT", "8443"))), Receiver)
    scheme = "http"
    if certificate := os.environ.get("TLS_CERT"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, os.environ["TLS_KEY"])
        # The handshake happens in the connection's own thread, not in the one that accepts connections.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        scheme = "https"
    server.daemon_threads = False  # server_close waits for requests in progress

    def stop(*_) -> None:
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    worker = threading.Thread(target=work)
    worker.start()
    print(f"listening on {scheme}://{host}:{server.server_port}/", flush=True)
    server.serve_forever()
    server.server_close()
    waiting.put(None)
    worker.join()


if __name__ == "__main__":
    main()
