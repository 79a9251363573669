"""Runs train.py again and again without importing it again, and kills it at chosen moments.

Reads lines {"args": [...], "root": folder, "kill_at": number or null, "delay": seconds} and answers each with
{"code": of the process, -9 if it was killed, "events": what it did to files below the root}.
"""

import json
import os
import signal
import sys
import threading
import traceback

import torch

from tauflow.cli.train import train

EVENTS = ("open", "os.rename", "os.remove", "os.mkdir")


def run(order: dict, answer: int) -> None:
    """Train in this process; kill it (SIGKILL) some time after the given number of events."""
    count = 0
    lock = threading.Lock()

    def watch(event: str, arguments: tuple) -> None:
        nonlocal count
        if event in EVENTS and str(arguments[0]).startswith(order["root"]):
            with lock:
                count += 1
                reached = count == order["kill_at"]
            if reached and order["delay"]:
                kill = threading.Timer(order["delay"], os.kill, (os.getpid(), signal.SIGKILL))
                kill.daemon = True
                kill.start()
            elif reached:
                os.kill(os.getpid(), signal.SIGKILL)

    with open(os.path.join(order["root"], "..", "log.txt"), "a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.addaudithook(watch)
    sys.argv = ["train.py", *order["args"]]
    try:
        train()
    except SystemExit as stop:
        os.write(answer, str(count).encode())
        print(stop.code, flush=True)
        os._exit(0 if stop.code == 0 else 1)
    except BaseException:
        traceback.print_exc()
        os._exit(2)


torch.set_num_threads(1)
for line in sys.stdin:
    order = json.loads(line)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        run(order, writer)
    os.close(writer)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    events = os.read(reader, 20).decode()
    os.close(reader)
    print(json.dumps({"code": code, "events": int(events or 0)}), flush=True)
