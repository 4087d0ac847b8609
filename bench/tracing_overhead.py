"""What traces cost the gateway: the time to the first token without a collector, and with one that gets every span.

Two gateways before one kind of worker that computes nothing, in turns of one run: `python bench/tracing_overhead.py`. The collector is a
process of its own that takes what comes and reads none of it.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gateway_house import running_house
from gateway_overhead import Way, measure_all

SINK = """
import http.server
class Sink(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200); self.send_header("content-length", "0"); self.end_headers()
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sink)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@contextmanager
def sink() -> Iterator[str]:
    """A collector's address."""
    process = subprocess.Popen([sys.executable, "-c", SINK], stdout=subprocess.PIPE, text=True)
    if process.stdout is None or not (port := process.stdout.readline().strip()):
        raise RuntimeError("the collector did not start")
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate()


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    with sink() as url, running_house() as plain, running_house(OTEL_EXPORTER_OTLP_ENDPOINT=url) as traced:
        ways = [
            Way("no collector", plain.gateway_url, plain.key),
            Way("every request traced", traced.gateway_url, traced.key),
        ]
        asyncio.run(measure_all(ways, arguments.requests, arguments.rounds))
    print("| at once | | first token p50 | p99 | p50, as a ratio |\n| ---: | --- | ---: | ---: | ---: |")
    for concurrency in ways[0].seconds:
        for way in ways:
            p50, p99 = way.at(concurrency, 0.5), way.at(concurrency, 0.99)
            ratio = p50 / ways[0].at(concurrency, 0.5)
            print(f"| {concurrency} | {way.name} | {p50:.2f} ms | {p99:.2f} ms | {ratio:.2f} |")


if __name__ == "__main__":
    main()
