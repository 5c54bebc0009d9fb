"""Compiles the descriptions of services (`*.proto`) whenever the package is built or installed."""

from pathlib import Path

from grpc_tools import protoc
from setuptools import setup
from setuptools.command.build_py import build_py

SOURCES = Path("node")


class ServiceBuild(build_py):
    """Writes `NAME_pb2.py`, its types and `NAME_pb2_grpc.py` beside each `NAME.proto`."""

    def run(self) -> None:
        for path in sorted(SOURCES.glob("*/rpc/*.proto")):
            outputs = [f"--{kind}_out={SOURCES}" for kind in ("python", "pyi", "grpc_python")]
            well_known = Path(protoc.__file__).parent / "_proto"
            arguments = ["protoc", f"-I{SOURCES}", f"-I{well_known}", *outputs, str(path)]
            if protoc.main(arguments):
                raise SystemExit(f"{path} cannot be compiled")
        super().run()


setup(cmdclass={"build_py": ServiceBuild})
