"""The systems under comparison: three members each, durable quorum writes, settings read back.

Every system listens on loopback only and keeps its data in a temporary folder. PostgreSQL does not
run as root, so its processes run as the `postgres` user of Debian's package when we are root.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from qsync_testing.ports import free_port

HERE = Path(__file__).resolve().parent


def wait(what: str, is_done: Callable[[], Any], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if is_done():
                return
        except (OSError, subprocess.CalledProcessError, ValueError):
            time.sleep(0.1)
        time.sleep(0.1)
    raise TimeoutError(what)


def can_connect(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), 1):
        return True


class System:
    """One peer: started once, loaded in turn with the others."""

    name = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True)

    def run(self, *command: str, user: str = "", **more: Any) -> subprocess.Popen[bytes]:
        log = (self.folder / "log").open("ab")
        prefix = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        process = subprocess.Popen(
            [*prefix, *command], stdout=log, stderr=log, stdin=subprocess.DEVNULL, **more
        )
        self.processes.append(process)
        return process

    def start(self) -> None:
        raise NotImplementedError

    def target(self) -> dict[str, Any]:
        raise NotImplementedError

    def durability(self) -> str:
        raise NotImplementedError

    def version(self) -> str:
        raise NotImplementedError

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


class Qsync(System):
    name = "qsync"

    def start(self) -> None:
        from qsync_testing.processes import PASSWORD, USER, ProcessCluster

        self.user, self.password = USER, PASSWORD
        self.cluster = ProcessCluster(self.folder / "nodes", 3)
        self.cluster.start()
        script = (
            "import asyncio,asynctnt,sys\n"
            "async def main():\n"
            " c=asynctnt.Connection(host='127.0.0.1',port=int(sys.argv[1]),"
            "username=sys.argv[2],password=sys.argv[3])\n"
            " await c.connect()\n"
            " await c.insert(280,[512,1,'kv','memtx',0,{'is_sync':True},[]])\n"
            " await c.insert(288,[512,0,'pk','tree',{'unique':True},[[0,'unsigned']]])\n"
            "asyncio.run(main())\n"
        )
        port = str(self.cluster.leader().port)
        subprocess.run([sys.executable, "-c", script, port, USER, PASSWORD], check=True)

    def target(self) -> dict[str, Any]:
        port = self.cluster.leader().port
        return {"port": port, "user": self.user, "password": self.password, "space": 512}

    def durability(self) -> str:
        status = self.cluster.leader().status()
        return f"wal_mode {status['wal_mode']}, quorum {status['quorum']} of 3"

    def version(self) -> str:
        return str(self.cluster.leader().status()["version"])

    def stop(self) -> None:
        self.cluster.close()


class Redis(System):
    name = "redis"

    def start(self) -> None:
        self.ports = [free_port() for _ in range(3)]
        for number, port in enumerate(self.ports):
            folder = self.folder / str(port)
            folder.mkdir()
            command = ["redis-server", "--port", str(port), "--dir", str(folder), "--bind",
                       "127.0.0.1", "--appendonly", "yes", "--appendfsync", "always",
                       "--save", ""]  # fmt: skip
            if number:
                command += ["--replicaof", "127.0.0.1", str(self.ports[0])]
            self.run(*command)
        wait("redis", lambda: "connected_slaves:2" in self._cli("info", "replication"))
        wait("redis sync", lambda: self._cli("info", "replication").count("state=online") == 2)

    def _cli(self, *arguments: str) -> str:
        command = ["redis-cli", "-p", str(self.ports[0]), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def target(self) -> dict[str, Any]:
        return {"port": self.ports[0]}

    def durability(self) -> str:
        fsync = self._cli("config", "get", "appendfsync").split()[-1]
        return f"appendfsync {fsync}, WAIT 1 (the replica has received it, not flushed it: weaker)"

    def version(self) -> str:
        return self._cli("info", "server").split("redis_version:")[1].split()[0]


class PostgreSQL(System):
    name = "postgresql"

    def start(self) -> None:
        self.user = "postgres" if os.geteuid() == 0 else ""
        self.bin = sorted(Path("/usr/lib/postgresql").iterdir())[-1] / "bin"
        if self.user:
            for parent in [self.folder, *self.folder.parents]:
                if parent == Path("/tmp"):
                    break
                parent.chmod(0o755)
            shutil.chown(self.folder, self.user, self.user)
        self.ports = [free_port() for _ in range(3)]
        first = self.folder / "0"
        self._do("initdb", "-D", str(first), "-A", "trust", "-U", "postgres")
        with (first / "postgresql.conf").open("a") as config:
            config.write(
                "max_connections = 400\nlisten_addresses = '127.0.0.1'\n"
                f"unix_socket_directories = '{self.folder}'\n"
                "synchronous_standby_names = 'ANY 1 (s1, s2)'\nsynchronous_commit = on\n"
                "shared_buffers = 256MB\nmax_wal_size = 8GB\n"
            )
        with (first / "pg_hba.conf").open("a") as config:
            config.write("host replication all 127.0.0.1/32 trust\n")
        self._postgres(0)
        wait("postgresql", lambda: self.query("SELECT 1"))
        for number in (1, 2):
            folder = self.folder / str(number)
            self._do("pg_basebackup", "-h", "127.0.0.1", "-p", str(self.ports[0]), "-U", "postgres",
                     "-D", str(folder), "-R", "-C", "-S", f"slot{number}",
                     "-d", f"application_name=s{number}")  # fmt: skip
            self._postgres(number)
        wait("standbys", lambda: self.query("SELECT count(*) FROM pg_stat_replication") == "2")
        self.query("CREATE TABLE kv (id bigint PRIMARY KEY, v text)")

    def _do(self, program: str, *arguments: str) -> None:
        prefix = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"]
        command = [*(prefix if self.user else []), str(self.bin / program), *arguments]
        subprocess.run(command, check=True, capture_output=True)

    def _postgres(self, number: int) -> None:
        self.run(str(self.bin / "postgres"), "-D", str(self.folder / str(number)), "-p",
                 str(self.ports[number]), user=self.user)  # fmt: skip

    def query(self, sql: str) -> str:
        command = [
            "psql",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.ports[0]),
            "-U",
            "postgres",
            "-Atc",
            sql,
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def target(self) -> dict[str, Any]:
        return {"port": self.ports[0]}

    def durability(self) -> str:
        names = ("fsync", "synchronous_commit", "synchronous_standby_names")
        return ", ".join(f"{name} {self.query(f'SHOW {name}')}" for name in names)

    def version(self) -> str:
        return self.query("SHOW server_version")


class Etcd(System):
    name = "etcd"

    def start(self) -> None:
        self.ports = [(free_port(), free_port()) for _ in range(3)]
        cluster = ",".join(f"n{i}=http://127.0.0.1:{p[1]}" for i, p in enumerate(self.ports))
        for number, (client, peer) in enumerate(self.ports):
            self.run("etcd", "--name", f"n{number}", "--data-dir", str(self.folder / f"n{number}"),
                     "--listen-client-urls", f"http://127.0.0.1:{client}",
                     "--advertise-client-urls", f"http://127.0.0.1:{client}",
                     "--listen-peer-urls", f"http://127.0.0.1:{peer}",
                     "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
                     "--initial-cluster", cluster, "--logger", "zap")  # fmt: skip
        wait("etcd", lambda: len(self._status()) == 3)

    def _status(self) -> list[dict[str, Any]]:
        endpoints = ",".join(f"http://127.0.0.1:{client}" for client, _ in self.ports)
        done = subprocess.run(
            ["etcdctl", "--endpoints", endpoints, "endpoint", "status", "-w", "json"],
            capture_output=True, check=True, env={**os.environ, "ETCDCTL_API": "3"},
        )  # fmt: skip
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    def target(self) -> dict[str, Any]:
        for endpoint in self._status():
            status = endpoint["Status"]
            if status["leader"] == status["header"]["member_id"]:
                return {"port": int(endpoint["Endpoint"].rpartition(":")[2])}
        raise RuntimeError("etcd has no leader")

    def durability(self) -> str:
        arguments = self.processes[0].args
        assert isinstance(arguments, list)
        command = " ".join(str(argument) for argument in arguments)
        assert "unsafe-no-fsync" not in command
        return "fsync on every member before it acknowledges (no --unsafe-no-fsync), quorum 2 of 3"

    def version(self) -> str:
        return str(self._status()[0]["Status"]["version"])


class Tarantool(System):
    name = "tarantool"

    def start(self) -> None:
        self.ports = [free_port() for _ in range(2)]
        for number, port in enumerate(self.ports):
            folder = self.folder / str(number)
            folder.mkdir()
            script = folder / "start.lua"
            replication = (
                f"replication = {{'127.0.0.1:{self.ports[0]}'}}, read_only = true,"
                if number
                else ""
            )
            script.write_text(
                f"box.cfg{{listen = '127.0.0.1:{port}', work_dir = '{folder}', wal_mode = 'fsync', "
                f"{replication} replication_synchro_quorum = 2, memtx_memory = 1024^3}}\n"
                + ("" if number else self._schema())
            )
            self.run("tarantool", str(script))
            wait("tarantool", partial(can_connect, port))
            time.sleep(1.5)

    @staticmethod
    def _schema() -> str:
        return (
            "box.schema.user.grant('guest', 'read,write,execute,create', 'universe')\n"
            "box.schema.user.create('bench', {password = 'bench'})\n"
            "box.schema.user.grant('bench', 'read,write,execute', 'universe')\n"
            "box.schema.user.grant('guest', 'replication')\n"
            "local s = box.schema.space.create('kv', {id = 512, is_sync = true})\n"
            "s:create_index('pk', {parts = {1, 'unsigned'}})\n"
        )

    def target(self) -> dict[str, Any]:
        return {"port": self.ports[0], "user": "bench", "password": "bench", "space": 512}

    def _eval(self, expression: str) -> str:
        script = (
            "import tarantool,sys\n"
            f"print(tarantool.Connection('127.0.0.1', {self.ports[0]}, user='bench', "
            "password='bench').eval(sys.argv[1]).data[0])"
        )
        command = [sys.executable, "-c", script, expression]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def durability(self) -> str:
        mode = self._eval("return box.cfg.wal_mode")
        quorum = self._eval("return box.cfg.replication_synchro_quorum")
        return f"wal_mode {mode}, quorum {quorum} of 2 (two followers break 2.6.0's queue)"

    def version(self) -> str:
        return self._eval("return box.info.version")


ALL: list[type[System]] = [Qsync, Redis, PostgreSQL, Etcd, Tarantool]
