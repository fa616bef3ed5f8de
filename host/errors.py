"""The two failures that P4SGD tells its user in one line."""

__all__ = ["P4sgdError", "UserError"]


class UserError(Exception):
    """Something the user can put right: input, an option, a file.

    The message is one line that names the file, line or option and says what to do. The command line prints it without
    a traceback and exits with status 2.
    """


class P4sgdError(Exception):
    """A failure that is not the user's: a device, a tool, the machine. The command line exits with status 1."""
