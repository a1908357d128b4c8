"""Runs the tests that come with Debian's python3-pyverbs: pyverbs_tests.py DEVICE [MODULE...].

Of the modules that ask for nothing of one manufacturer all are run, but `test_shared_pd`, which hands the descriptor of a device on to another
process: a device of this kind has none. What a test reads below /sys of a device's interface it is told, since there is no such folder.
"""

import glob
import gzip
import importlib
import os
import sys
import tempfile
import unittest

PACKED = "/usr/share/doc/rdma-core/tests"
OF_OTHERS = ("test_mlx5", "test_efa", "test_cuda", "test_irdma", "test_shared_pd")


def unpack(folder):
    """The tests are a package of their own that finds its modules in both ways."""
    os.mkdir(f"{folder}/tests")
    for path in glob.glob(f"{PACKED}/*.py*"):
        read = gzip.open if path.endswith(".gz") else open
        with read(path, "rb") as source, open(f"{folder}/tests/{os.path.basename(path).removesuffix('.gz')}", "wb") as copy:
            copy.write(source.read())
    sys.path[:0] = [folder, f"{folder}/tests"]


def main():
    device, *chosen = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        unpack(folder)
        sys.argv[1:] = ["--dev", device]
        importlib.import_module("args_parser").parser.parse_args()
        base = importlib.import_module("tests.base")

        def addresses(test, name, port, index):
            try:
                ip, mac = test.get_ip_mac_address(name.removeprefix("soft_"))
            except (KeyError, IndexError):
                ip, mac = None, None
            test.args.append([name, port, index, ip, mac])

        base.RDMATestCase._get_ip_mac = addresses
        names = sorted(os.path.basename(path).removesuffix(".py") for path in glob.glob(f"{folder}/tests/test_*.py"))
        names = chosen or [name for name in names if not name.startswith(OF_OTHERS)]
        load = unittest.defaultTestLoader.loadTestsFromModule
        suite = unittest.TestSuite(load(importlib.import_module(f"tests.{name}")) for name in names)
        result = unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
