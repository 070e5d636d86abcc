"""Real clients of PyTorch for bench_store: argument: how many. Says "ready" once, then "done SECONDS" for each "HOST PORT"."""
import datetime
import sys
import threading
import time

from torch.distributed import TCPStore


def client(number, of, host, port, failed):
    try:
        store = TCPStore(host, port, world_size=of, is_master=False, timeout=datetime.timedelta(seconds=30))
        store.set(f"pytorch/{number}", str(number))
        if store.get(f"pytorch/{(number + 1) % of}") != str((number + 1) % of).encode():
            failed.append("a neighbour's value is another one")
    except Exception as reason:
        failed.append(str(reason))


def main():
    of = int(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        host, port = line.split()
        failed, began = [], time.monotonic()
        threads = [threading.Thread(target=client, args=(i, of, host, int(port), failed)) for i in range(of)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f"failed {failed[0]}" if failed else f"done {time.monotonic() - began:.3f}", flush=True)


if __name__ == "__main__":
    main()
