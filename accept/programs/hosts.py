"""Hosts to run programs on: network namespaces, and in each an ordinary user.

The scripts of accept/ run as root of a user namespace of their own (lib.sh). Here every host is a further network namespace, which that root
sets up; the programs run in a user namespace below it, as user 1000, without any capability.
"""

import json
import os
import pty
import signal
import subprocess
import termios
import threading
import time

ORDINARY = ["unshare", "-U", "--map-user=1000", "--map-group=1000", "--"]
OARLOCK = os.environ.get("OARLOCK", "oarlock")
# How long a process may take to go that was told to, in seconds.
GOING = 10
_started, _hosts = set(), set()


def _end_all(number, _frame):
    """Ended from outside, nothing that was started stays."""
    for host in list(_hosts):
        for pid in host.processes():
            host.end_one(pid)
    for child in list(_started):
        if child.poll() is None:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
    os._exit(128 + number)


for _number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(_number, _end_all)


class Heard:
    """What comes from a descriptor, line by line as it comes: whoever else keeps the other end open hides nothing that was said before."""

    def __init__(self, descriptor):
        self.lines, self._rest = [], b""
        self._reader = threading.Thread(target=self._read, args=(descriptor,), daemon=True)
        self._reader.start()

    def _read(self, descriptor):
        while True:
            try:
                some = os.read(descriptor, 65536)
            except OSError:  # EIO: nobody has the terminal open any more
                break
            if not some:
                break
            *whole, self._rest = (self._rest + some).split(b"\n")
            self.lines += [line.decode(errors="replace") for line in whole]
        os.close(descriptor)

    def end(self):
        """Waits some seconds for the end; a last line may have no newline."""
        self._reader.join(5)
        rest, self._rest = self._rest, b""
        if rest:
            self.lines.append(rest.decode(errors="replace"))


class Process:
    """A program whose standard output is a terminal, so that it speaks line by line as it does to a person."""

    def __init__(self, command, environment):
        self.command = command
        master, slave = pty.openpty()
        mode = termios.tcgetattr(slave)
        mode[1] &= ~termios.OPOST
        termios.tcsetattr(slave, termios.TCSANOW, mode)
        read, write = os.pipe()
        self._child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=slave, stderr=write, env=environment, start_new_session=True
        )
        _started.add(self._child)
        os.close(slave)
        os.close(write)
        self._output, self._error = Heard(master), Heard(read)

    @property
    def lines(self):
        return self._output.lines

    @property
    def pid(self):
        return self._child.pid

    def running(self):
        return self._child.poll() is None

    def wait(self, until):
        """Waits until that time of the monotonic clock; whether it has ended."""
        try:
            self._child.wait(max(0.0, until - time.monotonic()))
            return True
        except subprocess.TimeoutExpired:
            return False

    def signal(self, number):
        """To the process that was started, as `kill PID` does."""
        if self.running():
            self._child.send_signal(number)

    def end(self):
        """Ends what still runs of it, as far as it stayed in its process group. Afterwards `lines`, `error` and `status` are all there is,
        unless a process that left the group still speaks (`Host.end_programs`)."""
        if self.running():
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        _started.discard(self._child)
        self._output.end()
        self._error.end()

    @property
    def error(self):
        return [line for line in self._error.lines if line]

    @property
    def status(self):
        return self._child.returncode


class Host:
    """A network namespace. `environment` is that of every program on it."""

    def __init__(self, environment=None):
        self.environment = dict(os.environ if environment is None else environment)
        self._holder = subprocess.Popen(["unshare", "-n", "sleep", "900"], stdin=subprocess.DEVNULL, start_new_session=True)
        _started.add(self._holder)
        ours = os.readlink("/proc/self/ns/net")
        end = time.monotonic() + 10
        while self._namespace() in (None, ours):
            if time.monotonic() > end:
                raise SystemExit("no further network namespace")
            time.sleep(0.005)
        self._name = self._namespace()
        _hosts.add(self)
        self.root("ip", "link", "set", "lo", "up")

    def _namespace(self):
        try:
            return os.readlink(f"/proc/{self._holder.pid}/ns/net")
        except OSError:
            return None

    @property
    def pid(self):
        """The process that holds the namespace."""
        return self._holder.pid

    def _inside(self, command):
        return ["nsenter", "-t", str(self.pid), "-n", "--", *command]

    def root(self, *command):
        """Sets the host up."""
        subprocess.run(self._inside(command), check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def link_is_up(self, name):
        shown = subprocess.run(self._inside(["ip", "-j", "link", "show", name]), capture_output=True, check=True)
        return json.loads(shown.stdout)[0]["operstate"] == "UP"

    def start(self, command, environment=None):
        """Starts a program as an ordinary user."""
        return Process(self._inside([*ORDINARY, *command]), {**self.environment, **(environment or {})})

    def ps(self):
        """What the host service says of itself, or None where no service runs."""
        asked = subprocess.run(
            self._inside([*ORDINARY, OARLOCK, "ps", "--json"]), stdin=subprocess.DEVNULL, capture_output=True, env=self.environment
        )
        return json.loads(asked.stdout) if asked.returncode == 0 else None

    def devices(self):
        asked = subprocess.run(
            self._inside([*ORDINARY, OARLOCK, "devices", "--json"]), stdin=subprocess.DEVNULL, capture_output=True, env=self.environment
        )
        return json.loads(asked.stdout)["devices"] if asked.returncode == 0 else []

    def listens(self, space, port):
        """Whether a program listens: at a TCP socket (`tcp`), or with an identifier of a port space (`cm`)."""
        if space == "tcp":
            tables = (open(f"/proc/{self.pid}/net/{table}").read().split("\n")[1:] for table in ("tcp", "tcp6"))
            fields = (line.split() for table in tables for line in table if line)
            return any(f[1].endswith(f":{port:04X}") and f[3] == "0A" for f in fields)
        shown = self.ps()
        return shown is not None and any(i["state"] == "LISTEN" and i["local"].endswith(f":{port}") for i in shown["ids"])

    def kill_service(self, number=signal.SIGKILL):
        shown = self.ps()
        if shown is not None:
            try:
                os.kill(shown["host"]["pid"], number)
            except ProcessLookupError:
                pass

    def processes(self):
        """What runs on this host, the holder of the namespace apart."""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if self._is_here(pid) and int(pid) != self.pid:
                yield int(pid)

    def _is_here(self, pid):
        try:
            return os.readlink(f"/proc/{pid}/ns/net") == self._name
        except OSError:  # gone, or a zombie
            return False

    def programs(self):
        """The same without the host service. What is still there when a program has ended has been left behind by it."""
        shown = self.ps()
        return set(self.processes()) - ({shown["host"]["pid"]} if shown else set())

    def end_one(self, pid):
        """Ends one of `processes`, and none that has its number by now."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            if self._is_here(pid):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(descriptor)

    def _end(self, which):
        end = time.monotonic() + GOING
        while left := set(which()):
            for pid in left:
                self.end_one(pid)
            if time.monotonic() > end:
                raise RuntimeError(f"these processes cannot be ended: {described(left)}")
            time.sleep(0.01)

    def end_programs(self):
        """Ends all programs, those that left the session or the process group of the one that was started, too. The service stays."""
        self._end(self.programs)

    def close(self):
        """Ends the service, whatever else runs here, and the namespace with it. What is wrong: a service that does not end by itself when it
        is told to."""
        shown, wrong = self.ps(), []
        if shown is not None:
            service = shown["host"]["pid"]
            self.kill_service(signal.SIGTERM)
            end = time.monotonic() + GOING
            while self._is_here(service):
                if time.monotonic() > end:
                    wrong = [f"the service does not end by SIGTERM: {described([service])}"]
                    break
                time.sleep(0.01)
        self._end(self.processes)
        _hosts.discard(self)
        self._holder.kill()
        self._holder.wait()
        _started.discard(self._holder)
        return wrong


def described(pids):
    """Their numbers and commands, as far as they still run."""
    said = []
    for pid in pids:
        try:
            said.append(f"{pid} {open(f'/proc/{pid}/cmdline').read().replace(chr(0), ' ').strip()}")
        except OSError:
            pass
    return "; ".join(said)


def join(one, other):
    """A cable between two hosts, with IPv4 and IPv6 addresses that follow from their order."""
    one.root("ip", "link", "add", "oar0", "type", "veth", "peer", "name", "oar1", "netns", str(other.pid))
    for host, name, n in ((one, "oar0", 1), (other, "oar1", 2)):
        # No link-local address of its own accord: it comes late, and the table of addresses is to be known beforehand.
        host.root("ip", "link", "set", name, "addrgenmode", "none")
        host.root("ip", "addr", "add", f"10.91.0.{n}/24", "dev", name)
        host.root("ip", "addr", "add", f"fd00:91::{n}/64", "dev", name, "nodad")
        host.root("ip", "link", "set", name, "up")
    end = time.monotonic() + 10
    # The kernel tells that the link is there up to a second late; until then the port is down.
    while not all(host.link_is_up(name) for host, name in ((one, "oar0"), (other, "oar1"))):
        if time.monotonic() > end:
            raise SystemExit("the cable has no link")
        time.sleep(0.02)


def main():
    """Shows that nothing hides: a program that leaves its session and keeps the terminal and the pipe is heard, is seen as left behind, and ends
    with the host."""
    host = Host()
    parts = "echo said; echo complained >&2; sleep 600 & echo $! >&2"
    process = host.start(["setsid", "-f", "sh", "-c", parts])
    try:
        process.wait(time.monotonic() + GOING)
        end = time.monotonic() + GOING
        while len(process.error) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        assert process.lines == ["said"] and process.error[0] == "complained", (process.lines, process.error)
        left = host.programs()
        assert int(process.error[1]) in left, f"{process.error[1]} is not among {left}"
        host.end_programs()
        assert not host.programs(), "still there"
        process.end()
        host.start(["setsid", "-f", "sleep", "600"])
        while not host.programs() and time.monotonic() < end:
            time.sleep(0.01)
    finally:
        left = list(host.processes())
        host.close()
    assert left and not list(host.processes()), f"of {left} stays {described(left)}"


if __name__ == "__main__":
    main()
