"""The heartbeat of leases, in a thread, so that a long compilation does not look like death."""

import contextlib
import threading
from collections.abc import Iterator, Sequence

from attnjax.sweep.lease import Lease
from attnjax.sweep.stop import Stop


@contextlib.contextmanager
def beating(leases: Sequence[Lease], interval: float, stop: Stop) -> Iterator[None]:
    """Renew leases until the end of the block. Where one was lost, ask for a stop."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(interval):
            for lease in leases:
                try:
                    renewed = lease.renew()
                except OSError:  # a full disk is for the training function to meet
                    continue
                if not renewed:
                    stop.set(f"the lease of {lease.path.parent.name} was taken over")
                    return

    thread = threading.Thread(target=beat, name="lease-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
