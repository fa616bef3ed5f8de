"""Giving root's rights up for good."""

import os
import pwd

from p4sgd.host.errors import P4sgdError, UserError

__all__ = ["drop_privileges", "find_user"]


def find_user(name: str) -> pwd.struct_passwd:
    """The user to become.

    Raises
    ------
    UserError
        If there is none of this name, it is root, or we are not root and so cannot become anybody.
    """
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise UserError(f"--user: this machine knows no user {name!r}") from None
    if user.pw_uid == 0:
        raise UserError(f"--user: {name} is root: name a user who is not")
    if os.geteuid() != 0:
        raise UserError(f"--user: only root can become {name}: run as root, or leave it out")
    return user


def drop_privileges(user: pwd.struct_passwd) -> None:
    """Become a user, with no groups but its own. Sockets that are open stay open.

    Groups go first, and the user last: without root's rights nothing else could be given up.

    Raises
    ------
    P4sgdError
        If that fails, or if root's rights could be had back.
    """
    try:
        os.setgroups([])
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    except OSError as error:
        raise P4sgdError(f"cannot become {user.pw_name}: {error.strerror}") from error
    is_left = os.getresuid() != (user.pw_uid,) * 3 or os.getresgid() != (user.pw_gid,) * 3 or os.getgroups()
    if is_left or _can_be_root():
        raise P4sgdError(f"root's rights could be had back after becoming {user.pw_name}")


def _can_be_root() -> bool:
    try:
        os.setuid(0)
    except PermissionError:
        return False
    return True
