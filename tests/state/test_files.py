"""The contract of StateFiles, for every implementation."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from penstock.engine.store import Store, open_files
from penstock.errors import FencedError, SetupError, UserError
from penstock.state import ArrowStateFiles, LocalStateFiles, MemoryStateFiles
from penstock.state.s3 import S3StateFiles

BUCKET = "state"


class Contract:
    """What `penstock.state.files` promises; an implementation adds the fixture `files`."""

    atomic_create = True

    def test_what_was_written_is_read(self, files):
        """Chunks of any bytes-like kind become one file, which read, map and size agree on."""
        files.write("a/b/c", [b"one", bytearray(b"two"), memoryview(b"3"), pa.py_buffer(b"!")])
        assert files.read("a/b/c") == bytes(files.map("a/b/c")) == b"onetwo3!"
        assert files.size("a/b/c") == 8
        assert files.exists("a/b/c")
        files.write("empty", [])
        assert files.read("empty") == bytes(files.map("empty")) == b""

    def test_a_write_replaces_and_an_old_map_stays_readable(self, files):
        """Replacing or deleting a file does not touch what was mapped before."""
        files.write("x", [b"old"])
        old = files.map("x")
        files.write("x", [b"newer"])
        assert files.read("x") == b"newer"
        files.delete("x")
        assert bytes(old) == b"old"

    def test_missing_files_are_reported(self, files):
        """read, map and size of a missing file raise; exists and delete don't."""
        for call in (files.read, files.map, files.size):
            with pytest.raises(FileNotFoundError):
                call("no/such")
        assert not files.exists("no/such")
        files.delete("no/such")
        assert files.list("no") == []

    def test_create_is_put_if_absent(self, files):
        """The second create of a path is refused and changes nothing."""
        assert files.create("epoch/1", b"me")
        assert not files.create("epoch/1", b"you")
        assert files.read("epoch/1") == b"me"
        files.delete("epoch/1")
        assert files.create("epoch/1", b"you")

    def test_one_of_many_creators_wins(self, files):
        """Of threads that create the same path at once, exactly one is told that it did."""
        if not self.atomic_create:
            pytest.skip("this file system has no put-if-absent")
        won = []
        threads = [
            threading.Thread(target=lambda i=i: files.create("e", b"%d" % i) and won.append(i))
            for i in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [b"%d" % i for i in won] == [files.read("e")]

    def test_list_gives_a_directory_in_order(self, files):
        """Only paths under the prefix as a directory are listed, sorted, and no temporaries."""
        for path in ("d/2", "d/1", "d/sub/3", "dd/4", "5"):
            files.write(path, [b"."])
        assert files.list("d") == ["d/1", "d/2", "d/sub/3"]
        assert files.list("") == ["5", "d/1", "d/2", "d/sub/3", "dd/4"]
        assert files.list("d", temporary=True) == files.list("d")

    def test_paths_stay_inside(self, files):
        """Absolute paths and `..` are the caller's mistake."""
        for path in ("/etc/passwd", "a/../../b", ""):
            with pytest.raises(UserError, match="relative path"):
                files.read(path)

    def test_a_failed_write_leaves_nothing(self, files):
        """If the chunks can't be had, the file is as it was."""

        def chunks():
            yield b"half"
            raise RuntimeError("no more")

        files.write("x", [b"whole"])
        with pytest.raises(RuntimeError):
            files.write("x", chunks())
        assert files.read("x") == b"whole"
        assert files.list("", temporary=True) == ["x"]


class TestMemoryFiles(Contract):
    @pytest.fixture
    def files(self):
        return MemoryStateFiles()


class TestLocalFiles(Contract):
    @pytest.fixture(params=[True, False], ids=["fsync", "no-fsync"])
    def files(self, tmp_path, request):
        return LocalStateFiles(tmp_path / "state", fsync=request.param)

    @pytest.mark.quick_cases(1)
    def test_maps_hold_no_descriptor(self, files):
        """Thousands of mapped files don't use up the process's descriptors."""
        import resource

        files.write("x", [b"data"])
        maps = [files.map("x") for _ in range(resource.getrlimit(resource.RLIMIT_NOFILE)[0] + 10)]
        assert bytes(maps[-1]) == b"data"


class TestArrowFiles(Contract):
    atomic_create = False

    @pytest.fixture
    def files(self, tmp_path):
        return ArrowStateFiles(pafs.LocalFileSystem(), str(tmp_path / "state"), atomic_move=True)


@pytest.fixture(scope="module")
def store():
    """A server of S3's protocol: gives URIs in its bucket, each with nothing below it."""
    moto = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "any")
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        address = f"{host}:{port}"
        client = boto3.client("s3", endpoint_url=f"http://{address}", region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)
        names = iter(range(1_000))
        yield (
            lambda: (
                f"s3://{BUCKET}/{next(names)}?endpoint_override={address}&scheme=http&region=us-east-1"
            )
        )
        server.stop()


class TestS3Files(Contract):
    atomic_create = False  # the server looks first itself, in several threads

    @pytest.fixture
    def files(self, store):
        return open_files(store())

    @pytest.mark.slow
    def test_the_store_decides_who_is_first(self, store, monkeypatch):
        """Whoever was told that nothing was there is refused where something is by now."""
        uri = store()
        one, two = open_files(uri), open_files(uri)
        monkeypatch.setattr(one, "exists", lambda _: False)
        assert two.create("epochs/1", b"two")
        assert not one.create("epochs/1", b"one")
        assert one.read("epochs/1") == b"two"

    @pytest.mark.slow
    def test_of_two_drivers_the_older_one_stops(self, store):
        """Each gets an epoch of its own, though both saw the same last one."""
        uri = store()
        one, two = Store(open_files(uri)), Store(open_files(uri))
        for store_ in (one, two):
            seen, newest = iter([True]), store_.newest_epoch
            store_.newest_epoch = lambda seen=seen, newest=newest: (
                0 if next(seen, None) else newest()
            )
        assert (one.claim("one"), two.claim("two")) == (1, 2)
        two.check_owner(2)
        with pytest.raises(FencedError, match="epoch 2, taken by two"):
            one.check_owner(1)

    def test_a_store_that_ignores_conditions_is_refused(self, store, monkeypatch):
        """Before anything is owned there."""
        files = open_files(store())
        client = SimpleNamespace(put_object=lambda **_: None)
        monkeypatch.setattr(files, "_s3", lambda: client)
        with pytest.raises(SetupError, match="refuses to create an object twice"):
            Store(files).claim("me")

    def test_what_boto3_is_needed_for(self, store, monkeypatch):
        """Reading needs none."""
        files = S3StateFiles(store())
        monkeypatch.setitem(__import__("sys").modules, "boto3", None)
        assert not files.exists("x")
        with pytest.raises(SetupError, match=r"penstock\[s3\]"):
            files.create("x", b"")


class TestAFolderThatMachinesMount(TestLocalFiles):
    @pytest.fixture
    def files(self, tmp_path):
        return open_files((tmp_path / "a folder").as_uri())
