"""Files that appear whole or not at all."""

import errno
import os
import stat

import pytest

from p4sgd.host.errors import UserError
from p4sgd.host.files import new_file


def test_it_replaces_an_older_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old and longer")
    with new_file(path) as file:
        file.write(b"new")
        assert path.read_text() == "old and longer"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_the_permissions_of_the_older_file_stay(tmp_path, mode):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(mode)
    with new_file(path) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == mode, "secret before anything is written"
        file.write(b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_a_link(tmp_path, there):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "file", tmp_path / "link"
    if there:
        target.write_text("old")
    link.symlink_to("folder/file")
    with new_file(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert [path.name for path in target.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, SystemExit])
def test_a_failure_leaves_the_older_file(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("old")

    def write():
        with new_file(path, 100) as file:
            file.write(b"new")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EOPNOTSUPP])
def test_room_is_claimed_first_where_the_file_system_can(tmp_path, monkeypatch, code):
    def refuse(fd, offset, size):
        raise OSError(code, "no")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    if code == errno.ENOSPC:
        with pytest.raises(UserError, match="the disk is full"), new_file(tmp_path / "file", 10):
            pytest.fail("must not get here")
        return
    with new_file(tmp_path / "file", 10) as file:
        file.write(b"x" * 10)
    assert (tmp_path / "file").stat().st_size == 10


def test_what_is_no_ordinary_file_is_left_alone(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(UserError, match="ordinary file"), new_file(path):
            pass
    assert pipe.is_fifo()
    assert [child.name for child in tmp_path.iterdir()] == ["pipe"]
