"""`ashlar serve` on a free port, for scripts that send it requests."""
import socket
import subprocess
import sys
import time
import urllib.request


class Service:
    """`ashlar serve` while it is used."""

    def __init__(self, ashlar, model, *flags):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = subprocess.Popen([ashlar.binary, "serve", "--model", str(model), "--port", str(self.port), "--dtype",
                                         "fp32", *flags], stdout=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        for _ in range(300):
            try:
                urllib.request.urlopen(self.url + "/health").read()
                return self
            except OSError:
                time.sleep(0.1)
        self.__exit__()
        sys.exit("ashlar serve does not answer")

    def __exit__(self, *_):
        self.process.terminate()
        self.code = self.process.wait(20)
